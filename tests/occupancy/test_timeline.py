"""Samples and request times of a replay: against the plain twin, and without touching the replay itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.calibration.server_steps import server_cost
from ladder_opt.engine import Engine, ServerEngine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import default_ladders
from ladder_opt.occupancy import engine_run
from ladder_opt.occupancy.plain import PlainReplay, simulate_plain
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.request_times import FINISH, TOTALS
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import HashIds, Trace
from tests.occupancy.test_replay import COST, assert_same, cases, plain_step_seconds

INTERVALS = st.sampled_from([0.003, 0.05, 0.7, 20.0])


def plain_replay(trace: Trace, engine: Engine, concurrency: int | None) -> PlainReplay:
    step_seconds = plain_step_seconds(engine, default_ladders(engine))
    return simulate_plain(trace, engine, step_seconds, concurrency=concurrency)


@given(cases(), INTERVALS, st.booleans(), st.sampled_from([1, 7, 2_000_000]))
def test_watching_changes_nothing(
    case: tuple[Trace, Engine, int | None], interval: float, stepwise: bool, steps_at_once: int
) -> None:
    trace, engine, concurrency = case
    unwatched = simulate(trace, engine, COST, concurrency=concurrency)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_run, "STEPS_BETWEEN_PROGRESS", steps_at_once)
        watched = simulate(
            trace,
            engine,
            COST,
            concurrency=concurrency,
            timeline_seconds=interval,
            request_times=True,
            stepwise=stepwise,
        )
    assert_same(replace(watched, timeline=None, request_times=None), unwatched)


@given(cases(), st.booleans())
def test_request_times_equal_the_plain_twins(case: tuple[Trace, Engine, int | None], stepwise: bool) -> None:
    trace, engine, concurrency = case
    replay = simulate(trace, engine, COST, concurrency=concurrency, request_times=True, stepwise=stepwise)
    times = replay.request_times
    assert times is not None
    plain = plain_replay(trace, engine, concurrency).times
    assert times.row.tolist() == list(range(len(trace)))
    for name in ("scheduled", "first_token", "finish"):
        expected = [one[name] for one in plain]
        np.testing.assert_allclose(getattr(times, f"{name}_seconds"), expected, rtol=1e-9, atol=1e-12)
    if concurrency is None:
        assert times.arrival_seconds.tolist() == trace.arrival_seconds.tolist()  # type: ignore[union-attr]
    assert (times.arrival_seconds <= times.scheduled_seconds + 1e-9).all()
    last = times.totals[FINISH].max(axis=0)
    assert last[TOTALS.index("steps")] == replay.engine_steps
    assert last[TOTALS.index("decode_tokens")] == replay.decode_tokens
    assert last[TOTALS.index("prefill_tokens")] == replay.prefill_tokens
    assert last[TOTALS.index("decode_blocks")] == replay.steps.real_gathers().sum()
    assert last[TOTALS.index("busy_seconds")] == pytest.approx(replay.busy_seconds)
    frame = times.to_frame()
    assert (frame["time_to_first_token_seconds"] > -1e-9).all()
    one_token = trace.output_tokens == 1
    assert frame["time_per_output_token_seconds"].isna().tolist() == one_token.tolist()


@given(cases(), INTERVALS, st.booleans())
def test_timeline_equals_the_plain_twins_steps(
    case: tuple[Trace, Engine, int | None], interval: float, stepwise: bool
) -> None:
    trace, engine, concurrency = case
    replay = simulate(
        trace, engine, COST, concurrency=concurrency, timeline_seconds=interval, stepwise=stepwise
    )
    timeline = replay.timeline
    assert timeline is not None
    plain = plain_replay(trace, engine, concurrency)
    assert timeline.steps.sum() == len(plain.step_ends) == replay.engine_steps
    assert timeline.decode_tokens.sum() == sum(step.decodes for step in plain.step_ends)
    assert timeline.prefill_tokens.sum() == plain.prefill_tokens
    assert timeline.preemptions.sum() == plain.preemptions
    assert timeline.decode_steps.sum() == replay.engine_steps - replay.prefill_only_steps
    assert len(timeline) * interval >= plain.end_seconds * (1 - 1e-9)
    ends = np.array([step.seconds for step in plain.step_ends])
    busy_from = np.concatenate([[-np.inf], ends[:-1]])  # a step's samples, but for the engine's idle time
    arrivals = trace.arrival_seconds
    for index, at in enumerate(timeline.seconds.tolist()):
        step = int(np.searchsorted(ends, at))
        if step == len(ends) or min(abs(ends - at)) < 1e-9:
            continue  # after the end, or the clocks' last digits decide
        sample = (timeline.running[index], timeline.blocks_in_use[index])
        if sample == (0, 0) and (step == 0 or plain.step_ends[step - 1].running == 0):
            assert busy_from[step] < at  # idle, until the next arrival
            continue
        expected = plain.step_ends[step]
        assert sample == (expected.running, expected.blocks)
        if concurrency is None and arrivals is not None:
            started = sum(times["scheduled"] <= busy_from[step] for times in plain.times)
            came = int((arrivals <= expected.seconds + 1e-9).sum())
            assert timeline.waiting[index] <= came - expected.running
            assert timeline.waiting[index] + timeline.running[index] <= came
            assert started <= came


def test_an_idle_engine_shows_nothing() -> None:
    trace = Trace(np.array([0.0, 10.0]), np.array([100, 100]), np.array([20, 20]))
    timeline = simulate(trace, Engine(), COST, timeline_seconds=1.0).timeline
    assert timeline is not None
    step = 0.01 + 0.0007
    # 20 steps: the prefill of 0.02 s, then 19 decodes; nothing is left at 1 s.
    assert 0.02 + 19 * step < 1
    # The sample at 10 s shows the end of the step that begins then.
    assert timeline.steps.tolist() == [20, *[0] * 8, 1, 19]
    assert timeline.running.tolist() == [*[0] * 9, 1, 0]
    assert np.isnan(timeline.decode_batch_size[1:10]).all()
    assert timeline.decode_batch_size[0] == 1.0
    assert list(timeline.to_frame().columns[:3]) == ["seconds", "running", "waiting"]


def test_replicas_add_up_and_keep_the_traces_rows() -> None:
    arrivals = np.arange(40, dtype=np.float64) * 0.05
    trace = Trace(arrivals, np.full(40, 300), np.full(40, 60))
    both = simulate(trace, Engine(), COST, replicas=2, timeline_seconds=0.5, request_times=True)
    parts = [
        simulate(
            trace.take(np.arange(first, 40, 2)), Engine(), COST, timeline_seconds=0.5, request_times=True
        )
        for first in (0, 1)
    ]
    assert both.timeline is not None
    assert both.request_times is not None
    assert both.request_times.row.tolist() == list(range(40))
    for first, part in enumerate(parts):
        assert part.timeline is not None
        assert part.request_times is not None
        # A part's trace starts its clock at its own first arrival, as the whole one does.
        assert (
            both.request_times.finish_seconds[first::2].tolist() == part.request_times.finish_seconds.tolist()
        )
    assert both.timeline.steps.sum() == sum(part.engine_steps for part in parts)
    assert both.timeline.running.max() == 40


def test_what_was_set_aside_has_no_row() -> None:
    trace = Trace(np.zeros(3), np.array([100, 600, 1000]), np.array([5, 100, 25]))
    times = simulate(trace, Engine(max_model_len=1024), COST, request_times=True).request_times
    assert times is not None
    assert times.row.tolist() == [0, 1]


def test_refusals() -> None:
    trace = Trace(np.zeros(1), np.array([100]), np.array([5]))
    with pytest.raises(UsageError, match="timeline_seconds: found 0, expected a number above 0"):
        simulate(trace, Engine(), COST, timeline_seconds=0)
    with pytest.raises(UsageError, match="request_times: found 2 traces, expected one"):
        simulate([trace, trace], Engine(), COST, request_times=True)
    with pytest.raises(UsageError, match="more than 10000000 samples, expected a longer interval"):
        simulate(trace, Engine(), COST, timeline_seconds=1e-12)


def test_a_server_without_rungs_pays_for_each_sequence() -> None:
    engine = ServerEngine(block_size=16, max_num_seqs=4, max_model_len=256)
    assert engine.min_batched_seqs == 5
    assert not engine.batches_decodes
    cost = server_cost("x", base=0.5, per_seq=0.25, per_block=0.125, per_prefill_token=0.0625)
    trace = Trace(np.zeros(2), np.array([16, 17]), np.array([2, 2]))
    replay = simulate(trace, engine, cost)
    # One step of 33 prefill tokens; one with two decodes, of 2 blocks each.
    assert replay.busy_seconds == 0.5 + 33 * 0.0625 + 0.5 + 2 * 0.25 + 4 * 0.125
    with pytest.raises(UsageError, match="block_size: found 16, expected a multiple of 64"):
        Engine(block_size=16)


@pytest.mark.parametrize(
    "scheduling",
    [
        Scheduling(policy="priority"),
        Scheduling(sliding_window=256),
        Scheduling(n=3),
        Scheduling(long_prefill_token_threshold=64),
        Scheduling(prefix_caching=True),
    ],
    ids=lambda one: str(one.policy if one.policy == "priority" else one),
)
@pytest.mark.parametrize("concurrency", [None, 6])
def test_watching_changes_nothing_whatever_the_scheduling(
    scheduling: Scheduling, concurrency: int | None
) -> None:
    rng = np.random.default_rng(5)
    prompt = rng.integers(10, 700, 60)
    trace = Trace(
        np.cumsum(rng.exponential(0.2, 60)),
        prompt,
        rng.integers(1, 90, 60),
        priority=rng.integers(0, 3, 60),
        hash_ids=HashIds.of([range(-(-tokens // 128)) for tokens in prompt.tolist()], 128),
    )
    engine = Engine(max_num_seqs=8, max_model_len=1024, num_kv_blocks=20)
    unwatched = simulate(trace, engine, COST, scheduling=scheduling, concurrency=concurrency)
    watched = simulate(
        trace,
        engine,
        COST,
        scheduling=scheduling,
        concurrency=concurrency,
        timeline_seconds=0.25,
        request_times=True,
    )
    assert_same(replace(watched, timeline=None, request_times=None), unwatched)
    times, timeline = watched.request_times, watched.timeline
    assert times is not None
    assert timeline is not None
    assert times.row.tolist() == np.repeat(np.arange(60), scheduling.n).tolist()
    assert (times.arrival_seconds <= times.scheduled_seconds + 1e-9).all()
    assert (times.scheduled_seconds < times.first_token_seconds).all()
    assert (times.first_token_seconds <= times.finish_seconds).all()
    assert timeline.steps.sum() == watched.engine_steps
    assert timeline.running.max() <= 8
    assert timeline.waiting.min() >= 0
    assert timeline.running[-1] == timeline.waiting[-1] == timeline.blocks_in_use[-1] == 0
