"""The replay against its plain twin, and the laws it keeps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy import engine_run
from ladder_opt.occupancy.plain import simulate_plain
from ladder_opt.occupancy.replay import Replay, simulate, step_seconds_by_size
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.shares import BEYOND_KV_POOL
from ladder_opt.trace.read import read_trace
from ladder_opt.trace.table import BEYOND_MAX_MODEL_LEN, HashIds, Trace

COST = CostModel.model_validate(
    {
        "schema": "ladder_opt/cost/1",
        "name": "test",
        "kernel": "chunked",
        "step_seconds": {"base": 0.01, "per_seq": 0.001, "per_iteration": 0.002, "per_gather": 0.0005},
        "compile_seconds": {"base": 1.0},
        "replay_seconds": {"per_sequence_gather": 0.0007, "per_prefill_token": 0.0001},
    }
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, Engine, int | None]:
    block_size = draw(st.sampled_from([64, 128]))
    max_model_len = draw(st.integers(2, 12 * block_size))
    max_num_seqs = draw(st.integers(1, 8))
    blocks = -(-max_model_len // block_size)
    engine = Engine(
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_batched_tokens=draw(st.sampled_from([3, 8, 65, 129, 512])),
        num_kv_blocks=draw(st.one_of(st.none(), st.integers(blocks + 1, 2 * blocks + 1))),
    )
    requests = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.3, 5.0]), min_size=requests, max_size=requests))
    prompt = draw(st.lists(st.integers(1, max_model_len - 1), min_size=requests, max_size=requests))
    output = [draw(st.integers(1, max_model_len - tokens)) for tokens in prompt]
    arrivals = np.cumsum(gaps) - gaps[0]
    concurrency = draw(st.one_of(st.none(), st.integers(1, 10)))
    return Trace(arrivals, np.array(prompt), np.array(output)), engine, concurrency


@st.composite
def settings_of_scheduling(draw: st.DrawFn) -> Scheduling:
    return (
        Scheduling(
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 2])),
            sliding_window=draw(st.one_of(st.none(), st.integers(1, 1000))),
            n=draw(st.integers(1, 3)),
        )
        if draw(st.booleans())
        else Scheduling(
            policy=draw(st.sampled_from(["fcfs", "priority"])), n=draw(st.integers(1, 2)), prefix_caching=True
        )
    )


@st.composite
def hash_ids_of(draw: st.DrawFn, trace: Trace) -> HashIds:
    """Few ids, so that prompts begin alike and part again."""
    block_tokens = draw(st.sampled_from([16, 100, 128, 512]))
    counts = -(-trace.prompt_tokens // block_tokens)
    ids = draw(st.lists(st.integers(0, 2), min_size=int(counts.max()), max_size=int(counts.max())))
    parts = draw(st.lists(st.integers(0, len(ids)), min_size=len(trace), max_size=len(trace)))
    rows = [
        [*ids[: min(part, count)], *([10 + row] * max(0, count - part))]
        for row, (part, count) in enumerate(zip(parts, counts.tolist(), strict=True))
    ]
    return HashIds.of(rows, block_tokens)


@st.composite
def cached_tokens_of(draw: st.DrawFn, trace: Trace) -> NDArray[np.int64]:
    """Parts of the prompts, all of them, more than there is, and less than nothing."""
    shares = draw(
        st.lists(
            st.one_of(st.floats(0, 1), st.sampled_from([0, 1, 3, -1])),
            min_size=len(trace),
            max_size=len(trace),
        )
    )
    tokens = zip(trace.prompt_tokens.tolist(), shares, strict=True)
    return np.array([int(prompt * share) for prompt, share in tokens])


def plain_step_seconds(engine: Engine, ladders: Ladders) -> Callable[[int, int, int, int], float]:
    """Seconds of a step of decodes, the longest one's blocks, all of their blocks and prefill tokens."""
    table = step_seconds_by_size(engine, COST, ladders)

    def step_seconds(decodes: int, longest: int, own: int, prefill: int) -> float:
        if decodes >= engine.min_batched_seqs:
            return float(table[decodes, longest] + 0.0001 * prefill)
        return 0.01 + 0.0001 * prefill + 0.0007 * own

    return step_seconds


@given(cases(), st.booleans(), st.one_of(st.none(), settings_of_scheduling()), st.data())
def test_equals_plain_twin(
    case: tuple[Trace, Engine, int | None], sparse: bool, scheduling: Scheduling | None, data: st.DataObject
) -> None:
    trace, engine, concurrency = case
    if scheduling is not None and scheduling.prefix_caching:
        trace = (
            replace(trace, hash_ids=data.draw(hash_ids_of(trace)))
            if data.draw(st.booleans())
            else replace(trace, cached_tokens=data.draw(cached_tokens_of(trace)))
        )
    if scheduling is not None:
        priority = st.lists(st.integers(-2, 2), min_size=len(trace), max_size=len(trace))
        trace = replace(trace, priority=np.array(data.draw(priority)))
        if engine.num_kv_blocks is not None:  # admission under a window asks for up to a block more
            engine = replace(engine, num_kv_blocks=engine.num_kv_blocks + 1)
    top = (engine.max_num_seqs,) if engine.batches_decodes else ()
    ladders = Ladders(top, (engine.max_num_blocks,)) if sparse else None
    replay = simulate(
        trace,
        engine,
        COST,
        ladders=ladders,
        concurrency=concurrency,
        scheduling=scheduling,
        per_sequence=True,
        total_blocks=True,
    )
    step_seconds = plain_step_seconds(engine, ladders or default_ladders(engine))
    plain = simulate_plain(trace, engine, step_seconds, concurrency=concurrency, scheduling=scheduling)
    steps = replay.steps
    cells = list(zip(steps.num_seqs.tolist(), steps.num_blocks.tolist(), strict=True))
    assert dict(zip(cells, steps.steps.tolist(), strict=True)) == dict(plain.steps)
    assert dict(zip(cells, steps.real_gathers().tolist(), strict=True)) == dict(plain.gathers_real)
    assert calls_of(replay) == dict(plain.sequences)
    assert totals_of(replay) == dict(plain.totals)
    assert replay.prefill_only_steps == plain.prefill_only_steps
    assert replay.preemptions == plain.preemptions
    assert replay.prefill_tokens == plain.prefill_tokens
    assert replay.busy_seconds == pytest.approx(plain.busy_seconds, rel=1e-12)
    assert replay.idle_seconds == pytest.approx(plain.idle_seconds, rel=1e-9, abs=1e-9)
    assert replay.end_seconds == pytest.approx(plain.end_seconds, rel=1e-12)


def assert_same(one: Replay, other: Replay) -> None:
    """Equal to the last bit, clock and all."""
    for field in dataclasses.fields(Replay):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "totals" and mine is not None:
            assert totals_of(one) == totals_of(other)
        elif field.name in ("steps", "sequences") and mine is not None:
            assert all((mine.to_frame() == theirs.to_frame()).all()), field.name
        else:
            assert mine == theirs, field.name


@given(cases(), st.booleans(), st.sampled_from([1, 3, 50, 2_000_000]))
def test_event_loop_equals_step_loop(
    case: tuple[Trace, Engine, int | None], per_sequence: bool, steps_at_once: int
) -> None:
    trace, engine, concurrency = case

    def replay(*, stepwise: bool) -> Replay:
        return simulate(
            trace,
            engine,
            COST,
            concurrency=concurrency,
            per_sequence=per_sequence,
            total_blocks=not per_sequence,
            stepwise=stepwise,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_run, "STEPS_BETWEEN_PROGRESS", steps_at_once)
        events = replay(stepwise=False)
    assert_same(events, replay(stepwise=True))


@given(cases(), st.booleans(), st.data())
def test_recorded_hits_on_an_ample_pool_need_no_blocks_to_be_followed(
    case: tuple[Trace, Engine, int | None], per_sequence: bool, data: st.DataObject
) -> None:
    """Event loop, step loop, and the step loop with every block of the pool: one replay."""
    trace = replace(case[0], cached_tokens=data.draw(cached_tokens_of(case[0])))
    engine, caching = replace(case[1], num_kv_blocks=None), Scheduling(prefix_caching=True)
    assert not caching.follows_blocks(engine, has_hash_ids=False)

    def replay(*, stepwise: bool) -> Replay:
        return simulate(
            trace,
            engine,
            COST,
            concurrency=case[2],
            scheduling=caching,
            per_sequence=per_sequence,
            stepwise=stepwise,
        )

    events = replay(stepwise=False)
    assert_same(events, replay(stepwise=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduling, "follows_blocks", lambda *_, **__: True)
        assert_same(events, replay(stepwise=False))
    assert events.cached_tokens + events.prefill_tokens == int(trace.prompt_tokens.sum())


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "engine", "replicas"),
    [
        ("AzureLLMInferenceTrace_conv.csv.gz", Engine(), 1),
        ("AzureLLMInferenceTrace_conv.csv.gz", Engine(), 150),  # engines that idle now and then
        ("AzureLLMInferenceTrace_conv.csv.gz", Engine(num_kv_blocks=200), 1),  # preempts
        ("mooncake_conversation_trace.jsonl.gz", Engine(max_num_seqs=64, max_model_len=131072), 8),
    ],
)
def test_event_loop_equals_step_loop_on_real_traces(
    shared_dir: Path, name: str, engine: Engine, replicas: int
) -> None:
    trace = read_trace(shared_dir / "traces" / name)
    cost = read_cost_model()
    events = simulate(trace, engine, cost, replicas=replicas, per_sequence=True)
    assert_same(events, simulate(trace, engine, cost, replicas=replicas, per_sequence=True, stepwise=True))
    assert bool(events.preemptions) == (engine.num_kv_blocks is not None)


def calls_of(replay: Replay) -> dict[tuple[int, int], float]:
    table = replay.sequences
    assert table is not None
    cells = zip(table.num_blocks.tolist(), table.query_len.tolist(), strict=True)
    return dict(zip(cells, table.calls.tolist(), strict=True))


def totals_of(replay: Replay) -> dict[tuple[int, int], float]:
    table = replay.totals
    assert table is not None
    cells = zip(table.num_seqs.tolist(), table.total_blocks.tolist(), strict=True)
    return dict(zip(cells, table.steps.tolist(), strict=True))


@given(cases())
def test_every_token_is_accounted_for(case: tuple[Trace, Engine, int | None]) -> None:
    trace, engine, concurrency = case
    replay = simulate(trace, engine, COST, concurrency=concurrency)
    # The first output token comes out of the prefill, each later one out of a decode or of a recompute.
    decodes_without_preemption = int((trace.output_tokens - 1).sum())
    if not replay.preemptions:
        assert replay.decode_tokens == decodes_without_preemption
        assert replay.prefill_tokens == int(trace.prompt_tokens.sum())
    else:
        assert replay.decode_tokens <= decodes_without_preemption
        assert replay.prefill_tokens >= int(trace.prompt_tokens.sum())
    assert replay.engine_steps == replay.prefill_only_steps + replay.steps.total_steps
    assert (replay.steps.real_gathers() <= replay.steps.ragged_floor()).all()
    if concurrency is None:
        assert replay.busy_seconds + replay.idle_seconds == pytest.approx(
            replay.end_seconds, rel=1e-9, abs=1e-9
        )


def test_sets_aside_what_no_engine_could_finish() -> None:
    engine = Engine(max_model_len=1024, num_kv_blocks=5)
    trace = Trace(np.zeros(3), np.array([100, 600, 1000]), np.array([5, 100, 25]))
    replay = simulate(trace, engine, COST)
    assert replay.requests == 1
    assert dict(replay.set_aside) == {BEYOND_MAX_MODEL_LEN: 1, BEYOND_KV_POOL: 1}


def test_a_request_that_exactly_fills_the_pool_finishes() -> None:
    engine = Engine(max_model_len=1024, num_kv_blocks=5)
    trace = Trace(np.zeros(1), np.array([500]), np.array([13]))  # 512 tokens ever computed: 4 blocks
    assert simulate(trace, engine, COST).requests == 1


def test_replicas_share_the_arrivals_round_robin() -> None:
    arrivals = np.arange(40, dtype=np.float64) * 0.05
    trace = Trace(arrivals, np.full(40, 300), np.full(40, 60))
    both = simulate(trace, Engine(), COST, replicas=2)
    even = simulate(trace.take(np.arange(0, 40, 2)), Engine(), COST)
    odd_rows = trace.take(np.arange(1, 40, 2))
    odd = simulate(odd_rows, Engine(), COST)
    assert both.requests == 40
    assert both.steps.total_steps == even.steps.total_steps + odd.steps.total_steps
    assert both.span_seconds == trace.span_seconds


def test_rate_scale_fills_the_batch() -> None:
    arrivals = np.arange(60, dtype=np.float64) * 0.5
    trace = Trace(arrivals, np.full(60, 100), np.full(60, 60))
    slow = simulate(trace, Engine(), COST)
    fast = simulate(trace, Engine(), COST, rate_scale=50.0)
    assert fast.steps.num_seqs.max() > slow.steps.num_seqs.max()
    assert fast.span_seconds == pytest.approx(slow.span_seconds / 50)


def test_refusals_say_what_was_expected() -> None:
    lengths = Trace(None, np.array([10]), np.array([10]))
    with pytest.raises(UsageError, match="concurrency: found none, expected a number"):
        simulate(lengths, Engine(), COST)
    assert simulate(lengths, Engine(), COST, concurrency=3).requests == 1
    with pytest.raises(UsageError, match=r"--rate-scale: found nan, expected a number from 1e-09 to 1e\+09"):
        simulate(lengths, Engine(), COST, concurrency=1, rate_scale=float("nan"))
    with pytest.raises(InputError, match=r"found no request to replay \(1 beyond_max_model_len\)"):
        simulate(lengths, Engine(max_model_len=15), COST, concurrency=1)


def test_weights_count_a_traces_steps_more_often() -> None:
    first = Trace(np.arange(30, dtype=np.float64) * 0.2, np.full(30, 300), np.full(30, 40))
    second = Trace(np.arange(20, dtype=np.float64) * 0.1, np.full(20, 900), np.full(20, 90))
    alone = [simulate(trace, Engine(), COST) for trace in (first, second)]
    mixed = simulate([first, second], Engine(), COST, weights=[5, 0.5])
    total = 5 * alone[0].steps.total_steps + 0.5 * alone[1].steps.total_steps
    assert mixed.steps.total_steps == pytest.approx(total)
    assert mixed.server_seconds == pytest.approx(5 * first.span_seconds + 0.5 * second.span_seconds)
    assert mixed.busy_seconds == pytest.approx(5 * alone[0].busy_seconds + 0.5 * alone[1].busy_seconds)
    assert mixed.requests == 50
    with pytest.raises(UsageError, match="--weights: found 1, expected 2, one for each trace"):
        simulate([first, second], Engine(), COST, weights=[1])
    with pytest.raises(UsageError, match=r"--weights: found -1\.0, expected numbers from 1e-09 to 1e\+09"):
        simulate(first, Engine(), COST, weights=[-1])


def test_per_sequence_calls_by_hand() -> None:
    # 1025 prompt tokens in chunks: 512, 512 and a tail of one token, which is no decode; then two decodes.
    trace = Trace(np.zeros(1), np.array([1025]), np.array([3]))
    replay = simulate(trace, Engine(), COST, per_sequence=True)
    assert calls_of(replay) == {(4, 512): 1, (8, 512): 1, (9, 1): 3}
    assert replay.to_dict()["per_sequence_calls"] == 5
    batched = simulate(trace, Engine(min_batched_seqs=1), COST, per_sequence=True)
    assert calls_of(batched) == {(4, 512): 1, (8, 512): 1, (9, 1): 1}


def test_per_sequence_calls_are_counted_where_asked_for() -> None:
    trace = Trace(np.zeros(1), np.array([1025]), np.array([3]))
    replay = simulate(trace, Engine(), COST)
    assert replay.sequences is None
    assert "per_sequence_calls" not in replay.to_dict()


def test_per_sequence_calls_add_up_over_replicas_and_weights() -> None:
    arrivals = np.arange(40, dtype=np.float64) * 0.05
    trace = Trace(arrivals, np.full(40, 700), np.full(40, 60))
    both = simulate(trace, Engine(), COST, replicas=2, weights=[2.5], per_sequence=True)
    halves = [
        simulate(trace.take(np.arange(first, 40, 2)), Engine(), COST, per_sequence=True) for first in (0, 1)
    ]
    total = Counter(calls_of(halves[0])) + Counter(calls_of(halves[1]))
    assert calls_of(both) == {cell: 2.5 * calls for cell, calls in total.items()}


def test_a_per_sequence_table_of_no_sane_size_is_refused() -> None:
    engine = Engine(block_size=64, max_num_seqs=8, max_model_len=1 << 20, max_num_batched_tokens=1 << 20)
    trace = Trace(np.zeros(1), np.array([10]), np.array([3]))
    with pytest.raises(UsageError) as error:
        simulate(trace, engine, COST, per_sequence=True)
    assert str(error.value) == (
        "per-sequence table: found 16385 x 1048577 cells (blocks of max_model_len, tokens of "
        "max_num_batched_tokens), expected at most 40000000 in all"
    )
    assert simulate(trace, engine, COST).requests == 1
