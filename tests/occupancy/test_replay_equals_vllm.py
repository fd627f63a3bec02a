"""The replay against vLLM's own scheduler: every step of it, on small random cases and on a real trace."""

from __future__ import annotations

import bisect
import csv
import gzip
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.replay import Replay, simulate
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import HashIds, Trace
from tests.occupancy.replay_cases import (
    TICK_SECONDS,
    Case,
    make_case,
    make_cost,
    seeded,
    with_recorded_hits,
    with_settings,
    with_shared_prefixes,
)
from tests.vllm_oracle import OracleReplay, StepLoad, replay_with_vllm

pytestmark = pytest.mark.vllm


def supplied_tokens(case: Case) -> list[int] | None:
    """Whole blocks of what was cached, at most prompt - 1 tokens."""
    if case.cached_tokens is None:
        return None
    size = case.engine.block_size
    return [
        max(whole for whole in range(0, prompt, size) if whole <= cached)
        for prompt, cached in zip(case.prompts, case.cached_tokens, strict=True)
    ]


def prompts_of(case: Case) -> list[list[int]] | None:
    """The tokens of the prompts; each its own where nothing says what they share."""
    if case.hash_ids is not None:
        return tokens_of(case.hash_ids, case.prompts)
    if case.cached_tokens is not None:
        return [[row] * prompt for row, prompt in enumerate(case.prompts)]
    return None


def tokens_of(hash_ids: HashIds, prompts: list[int]) -> list[list[int]]:
    """Prompts whose blocks hold equal tokens where their ids are equal, and no equal ones elsewhere."""
    made = []
    for row, prompt in enumerate(prompts):
        ids = hash_ids.values[hash_ids.offsets[row] : hash_ids.offsets[row + 1]].tolist()
        made.append([ids[at // hash_ids.block_tokens] for at in range(prompt)])
    return made


def step_seconds_of(case: Case) -> Callable[[StepLoad], float]:
    """Seconds of a step, as the design states them."""

    def seconds(load: StepLoad) -> float:
        prefill = case.cost.replay_seconds.per_prefill_token * load.num_prefill_tokens
        if load.num_decodes < case.engine.min_batched_seqs:
            own = case.cost.replay_seconds.per_sequence_gather * load.decode_blocks
            return case.cost.step_seconds.base + own + prefill
        return float(case.cost.batched_step_seconds(*padded(load, case.ladders))) + prefill

    return seconds


def padded(load: StepLoad, ladders: Ladders) -> tuple[int, int]:
    s = ladders.num_seqs[bisect.bisect_left(ladders.num_seqs, load.num_decodes)]
    m = ladders.num_blocks[bisect.bisect_left(ladders.num_blocks, load.max_blocks)]
    return s, m


def assert_equal(case: Case) -> OracleReplay:
    """Replays both ways, compares everything, and returns vLLM's."""
    num_kv_blocks = case.engine.num_kv_blocks or case.engine.usable_kv_blocks + 1
    theirs = replay_with_vllm(
        None if case.concurrency else case.arrivals,
        case.prompts,
        case.outputs,
        block_size=case.engine.block_size,
        max_num_seqs=case.engine.max_num_seqs,
        max_model_len=case.engine.max_model_len,
        max_num_batched_tokens=case.engine.max_num_batched_tokens,
        num_gpu_blocks=num_kv_blocks,
        step_seconds=step_seconds_of(case),
        concurrency=case.concurrency,
        priorities=case.priorities,
        prompts=prompts_of(case),
        supplied_tokens=supplied_tokens(case),
        **asdict(case.scheduling),
    )
    assert_replays_as(case, theirs)
    return theirs


def assert_replays_as(case: Case, theirs: OracleReplay) -> None:
    trace = Trace(
        np.array(case.arrivals),
        np.array(case.prompts),
        np.array(case.outputs),
        priority=None if case.priorities is None else np.array(case.priorities),
        hash_ids=case.hash_ids,
        cached_tokens=None if case.cached_tokens is None else np.array(case.cached_tokens),
    )
    for stepwise in (False, True):
        ours = simulate(
            trace,
            case.engine,
            case.cost,
            ladders=case.ladders,
            concurrency=case.concurrency,
            scheduling=case.scheduling,
            per_sequence=True,
            stepwise=stepwise,
        )
        assert_same_steps(case, ours, theirs)


def assert_same_steps(case: Case, ours: Replay, theirs: OracleReplay) -> None:

    steps: Counter[tuple[int, int]] = Counter()
    gathers: Counter[tuple[int, int]] = Counter()
    calls: Counter[tuple[int, int]] = Counter()
    for load in theirs.loads:
        calls.update(load.prefills)
        if load.num_decodes < case.engine.min_batched_seqs:
            calls.update((own, 1) for own in load.decodes)
        if load.num_decodes:
            steps[load.num_decodes, load.max_blocks] += 1
            gathers[load.num_decodes, load.max_blocks] += load.decode_blocks
    cells = list(zip(ours.steps.num_seqs.tolist(), ours.steps.num_blocks.tolist(), strict=True))
    assert dict(zip(cells, ours.steps.steps.tolist(), strict=True)) == steps
    assert ours.steps.gathers_real is not None
    assert dict(zip(cells, ours.steps.gathers_real.tolist(), strict=True)) == gathers
    assert cells == sorted(steps)
    table = ours.sequences
    assert table is not None
    own = zip(table.num_blocks.tolist(), table.query_len.tolist(), strict=True)
    assert dict(zip(own, table.calls.tolist(), strict=True)) == calls
    assert ours.prefill_only_steps == len(theirs.loads) - steps.total()
    assert ours.preemptions == theirs.preemptions
    assert ours.end_seconds == theirs.end_seconds
    started = 0.0 if case.concurrency else case.arrivals[0]
    assert started + ours.busy_seconds + ours.idle_seconds == ours.end_seconds


@pytest.mark.parametrize("lengths", ["any", "one", "tails", "blocks"])
@pytest.mark.parametrize("arrivals", ["burst", "mixed", "sparse", "closed"])
@pytest.mark.parametrize("pool", ["tiny", "some", "full"])
def test_seeded_cases_equal_vllm(pool: str, arrivals: str, lengths: str) -> None:
    random = seeded(f"{pool} {arrivals} {lengths}")
    for _ in range(4):
        assert_equal(make_case(random, pool=pool, arrivals=arrivals, lengths=lengths))


@given(
    random=st.randoms(use_true_random=False),
    pool=st.sampled_from(["tiny", "some", "full"]),
    arrivals=st.sampled_from(["burst", "mixed", "sparse", "closed"]),
    lengths=st.sampled_from(["any", "one", "tails", "blocks"]),
)
def test_any_case_equals_vllm(random: Random, pool: str, arrivals: str, lengths: str) -> None:
    assert_equal(make_case(random, pool=pool, arrivals=arrivals, lengths=lengths))


@pytest.mark.parametrize("lengths", ["any", "tails", "blocks"])
@pytest.mark.parametrize("arrivals", ["burst", "mixed", "closed"])
@pytest.mark.parametrize("pool", ["tiny", "some", "full"])
def test_seeded_cases_with_settings_equal_vllm(pool: str, arrivals: str, lengths: str) -> None:
    random = seeded(f"settings {pool} {arrivals} {lengths}")
    for _ in range(8):
        assert_equal(with_settings(make_case(random, pool=pool, arrivals=arrivals, lengths=lengths), random))


@given(
    random=st.randoms(use_true_random=False),
    pool=st.sampled_from(["tiny", "some", "full"]),
    arrivals=st.sampled_from(["burst", "mixed", "sparse", "closed"]),
    lengths=st.sampled_from(["any", "one", "tails", "blocks"]),
)
def test_any_case_with_settings_equals_vllm(random: Random, pool: str, arrivals: str, lengths: str) -> None:
    assert_equal(with_settings(make_case(random, pool=pool, arrivals=arrivals, lengths=lengths), random))


CACHES = {"prefixes": with_shared_prefixes, "recorded": with_recorded_hits}
"""What a case says of the prefix cache: what prompts hold, or how much of each was found."""


@pytest.mark.parametrize("cached", CACHES)
@pytest.mark.parametrize("settings", [False, True], ids=["plain", "settings"])
@pytest.mark.parametrize("arrivals", ["burst", "mixed", "closed"])
@pytest.mark.parametrize("pool", ["tiny", "some", "full"])
def test_seeded_cases_with_prefix_caching_equal_vllm(
    pool: str, arrivals: str, cached: str, *, settings: bool
) -> None:
    random = seeded(f"{cached} {pool} {arrivals} {settings}")
    for lengths in ("any", "blocks", "any", "tails", "blocks", "any"):
        case = make_case(random, pool=pool, arrivals=arrivals, lengths=lengths)
        case = with_settings(case, random) if settings else case
        assert_equal(CACHES[cached](case, random))


@pytest.mark.parametrize("cached", CACHES)
@given(
    random=st.randoms(use_true_random=False),
    pool=st.sampled_from(["tiny", "some", "full"]),
    arrivals=st.sampled_from(["burst", "mixed", "sparse", "closed"]),
    lengths=st.sampled_from(["any", "one", "tails", "blocks"]),
)
def test_any_case_with_prefix_caching_equals_vllm(
    cached: str, random: Random, pool: str, arrivals: str, lengths: str
) -> None:
    case = with_settings(make_case(random, pool=pool, arrivals=arrivals, lengths=lengths), random)
    assert_equal(CACHES[cached](case, random))


@pytest.mark.parametrize("arrivals", ["burst", "mixed", "sparse", "closed"])
def test_hits_that_vllm_has_recorded_give_its_steps(arrivals: str) -> None:
    """Prompts share prefixes in vLLM's own cache; the replay is told no more than how much it found."""
    random = seeded(f"from the record {arrivals}")
    hits = 0
    for lengths in ("any", "blocks", "any", "tails", "blocks", "any"):
        shared = with_shared_prefixes(
            make_case(random, pool="full", arrivals=arrivals, lengths=lengths), random
        )
        theirs = assert_equal(shared)
        assert_replays_as(replace(shared, hash_ids=None, cached_tokens=theirs.cached_tokens), theirs)
        hits += sum(theirs.cached_tokens)
    assert hits > 0


def test_hits_on_a_warmed_cache_give_vllms_steps() -> None:
    """One request after another, each with a known part of a prompt that was cached long before."""
    block_size, prompt, seconds = 64, 1000, 4096.0
    known = [0, 1, 63, 64, 65, 500, 640, 999, 1000]  # tokens in common with a prompt of its own
    warm = [[row] * prompt for row in range(len(known))]
    later = [[row] * common + [100 + row] * (prompt - common) for row, common in enumerate(known)]
    count = 2 * len(known)
    case = Case(
        engine=Engine(block_size=block_size, max_num_seqs=4, max_model_len=1024, num_kv_blocks=1000),
        cost=make_cost(seeded("warmed")),
        ladders=Ladders((4,), (16,)),
        arrivals=[seconds * row for row in range(count)],
        prompts=[prompt] * count,
        outputs=[9] * count,
        scheduling=Scheduling(prefix_caching=True),
        cached_tokens=[0] * len(known) + known,
    )
    theirs = replay_with_vllm(
        case.arrivals,
        case.prompts,
        case.outputs,
        block_size=block_size,
        max_num_seqs=4,
        max_model_len=1024,
        max_num_batched_tokens=case.engine.max_num_batched_tokens,
        num_gpu_blocks=1000,
        step_seconds=step_seconds_of(case),
        prefix_caching=True,
        prompts=[*warm, *later],
    )
    assert theirs.cached_tokens[len(known) :] == [0, 0, 0, 64, 64, 448, 640, 960, 960]
    assert_replays_as(case, theirs)


def test_the_settings_are_met() -> None:
    """Preemption by priority, and blocks that leave a window."""
    random = seeded("settings are met")
    cases = [
        with_settings(make_case(random, pool="tiny", arrivals="mixed", lengths="blocks"), random)
        for _ in range(60)
    ]
    by_priority = [case for case in cases if case.scheduling.policy == "priority" and case.priorities]
    assert sum(assert_equal(case).preemptions > 0 for case in by_priority) >= 3
    windowed = [case for case in cases if case.scheduling.sliding_window is not None]
    full = [replace(case, scheduling=replace(case.scheduling, sliding_window=None)) for case in windowed]
    blocks = [sum(sum(load.decodes) for load in assert_equal(case).loads) for case in windowed]
    most = [sum(sum(load.decodes) for load in assert_equal(case).loads) for case in full]
    assert sum(own < whole for own, whole in zip(blocks, most, strict=True)) >= 5


def test_the_kinds_of_cases_cover_what_they_name() -> None:
    """Without this, a generator that never preempts or splits a prompt would pass the tests above."""
    random = seeded("kinds")
    tiny = [make_case(random, pool="tiny", arrivals="burst", lengths="blocks") for _ in range(20)]
    assert sum(assert_equal(case).preemptions > 0 for case in tiny) >= 5
    tails = [make_case(random, pool="full", arrivals="burst", lengths="tails") for _ in range(20)]
    whole_chunks_and_one = [
        case
        for case in tails
        for prompt in case.prompts
        if prompt % case.engine.max_num_batched_tokens == 1 < prompt
    ]
    assert len(whole_chunks_and_one) >= 20


@pytest.mark.shared
@pytest.mark.parametrize(
    ("num_kv_blocks", "concurrency", "preempts"),
    [(None, None, False), (150, None, True), (None, 12, False)],
    ids=["open", "small-pool", "closed"],
)
def test_real_trace_equals_vllm(
    shared_dir: Path, num_kv_blocks: int | None, concurrency: int | None, *, preempts: bool
) -> None:
    engine = Engine(num_kv_blocks=num_kv_blocks)
    arrivals, prompts, outputs = read_azure(
        shared_dir / "traces" / "AzureLLMInferenceTrace_conv.csv.gz", engine.max_model_len, requests=400
    )
    case = Case(
        engine=engine,
        cost=make_cost(seeded("real trace")),
        ladders=default_ladders(engine),
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        concurrency=concurrency,
    )
    assert bool(assert_equal(case).preemptions) == preempts


def read_azure(path: Path, max_model_len: int, *, requests: int) -> tuple[list[float], list[int], list[int]]:
    """The first requests that fit: arrivals from 0 (on the tick's grid), prompt and output tokens."""
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    first: datetime | None = None
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            if prompt + output > max_model_len:
                continue
            # "2023-11-16 18:15:46.6805900": seven digits, of which fromisoformat keeps six
            arrival = datetime.fromisoformat(row["TIMESTAMP"])
            first = first or arrival
            arrivals.append(int((arrival - first).total_seconds() / TICK_SECONDS) * TICK_SECONDS)
            prompts.append(prompt)
            outputs.append(output)
            if len(prompts) == requests:
                break
    return arrivals, prompts, outputs
