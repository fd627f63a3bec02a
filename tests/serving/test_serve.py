"""A real `vllm serve` with a plan, from loading to record, and one without, ended by SIGKILL.

Both run the reference backend on the CPU; two starts in all. What is proven of the record: for requests that
all wait while the first ones' prompts are computed, so that their schedule does not hang on the clock, the
steps that the server recorded equal, cell by cell, those of the replay of the trace that it recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt.cli import main
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.steps_file import read_steps
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, read_plan, write_plan
from ladder_opt.plan.tune import tune
from ladder_opt.trace.recorded import TRACE_PREFIX, read_recorded_trace
from ladder_opt.trace.table import Trace
from tests.plan.plans import make_cost
from tests.serving.server import Answer, Server
from tests.serving.traffic import dense_tokens, draw, mixed

pytestmark = [pytest.mark.vllm, pytest.mark.serving]

ENGINE = Engine(
    block_size=128, max_num_seqs=8, max_model_len=1024, max_num_batched_tokens=32, num_kv_blocks=41
)
ARGUMENTS = {
    "block_size": ENGINE.block_size,
    "max_num_seqs": ENGINE.max_num_seqs,
    "max_model_len": ENGINE.max_model_len,
    "max_num_batched_tokens": ENGINE.max_num_batched_tokens,
    "num_gpu_blocks_override": ENGINE.num_kv_blocks,
}
RECORD_SECONDS = 0.2
LONG = draw([960] * 24, [12] * 24, seed=1)  # 720 steps of prefill: time for the others to arrive
OTHERS = mixed(20, seed=2)
ATTEMPTS = 12
TURN_SECONDS = 0.005  # from a first token to its arrival here
MARGIN_SECONDS = 0.3  # between two clocks that see an arrival and a first token

Cells = dict[tuple[int, int], tuple[float, float]]  # {(num_seqs, num_blocks): (steps, gathers_real)}


@dataclass(frozen=True)
class Burst:
    """`LONG` and `OTHERS`, served together, and what was recorded of them.

    Attributes:
        answers: in the order of the requests.
        trace: the requests as recorded, in the order of their arrival.
        steps: the steps recorded meanwhile.
        overtaken: whether all were waiting before the prompts of `LONG` were computed, and of these each
            before the prompt of the one ahead of it was.
    """

    answers: list[Answer]
    trace: Trace
    steps: Cells
    overtaken: bool


@dataclass(frozen=True)
class Served:
    """A server that is still up, and its last burst."""

    server: Server
    record: Path
    burst: Burst


def make_plan() -> Plan:
    """A plan of few variants, for traffic like that of the test with a third of the long requests."""
    requests = LONG[: len(LONG) // 3] + OTHERS
    trace = Trace(
        np.zeros(len(requests)),
        np.array([len(request.prompt) for request in requests]),
        np.array([request.output_tokens for request in requests]),
    )
    options = SolveOptions(max_variants=5, restarts=0.01)
    return tune(trace, make_cost(), engine=ENGINE, options=options)


def start(model: Path, folder: Path, cache: Path, config: dict[str, Any]) -> Server:
    """A server with the reference backend and a record in `folder`."""
    return Server(
        model,
        folder,
        cache,
        arguments=ARGUMENTS,
        additional_config={
            "ladder_opt_backend": "reference",
            "ladder_opt_record": str(folder / "record"),
            "ladder_opt_record_seconds": RECORD_SECONDS,
            **config,
        },
    )


def serve(server: Server, record: Path) -> Burst:
    """Serve the requests together and read the record of them."""
    earlier_steps, earlier_requests = steps_of(record), requests_of(record)
    started_at = time.time()
    answers = server.complete_in_order(LONG + OTHERS)
    requests = trace_of(record, at_least=earlier_requests + len(answers))
    trace = requests.take(np.arange(earlier_requests, len(requests)))
    assert trace.arrival_seconds is not None
    waiting_seconds = float(trace.arrival_seconds[-1] - trace.arrival_seconds[0]) + MARGIN_SECONDS
    prefilled_at = max(answer.first_token_at for answer in answers[: len(LONG)])
    # A request is sent once the one before it waits, so that the third shows that the second does.
    in_turn = all(
        later.asked_at + TURN_SECONDS < answer.first_token_at
        for answer, later in zip(answers[: len(LONG)], answers[2:], strict=False)
    )
    steps = difference(written_after(record, time.time()), earlier_steps)
    return Burst(answers, trace, steps, in_turn and started_at + waiting_seconds < prefilled_at)


def steps_of(record: Path) -> Cells:
    """What a record's steps file holds so far."""
    files = list(record.glob("steps-*.csv"))
    assert len(files) <= 1
    return cells(read_steps(files[0], ENGINE).steps) if files else {}


def requests_of(record: Path) -> int:
    """How many requests a record holds so far."""
    return len(read_recorded_trace(record)) if list(record.glob(f"{TRACE_PREFIX}*.parquet")) else 0


def cells(steps: StepHistogram) -> Cells:
    rows = zip(steps.num_seqs, steps.num_blocks, steps.steps, steps.real_gathers(), strict=True)
    return {(int(n), int(b)): (float(weight), float(real)) for n, b, weight, real in rows}


def difference(later: Cells, earlier: Cells) -> Cells:
    """What was added to each cell; cells with nothing added are left out."""
    added = {}
    for size, (steps, real) in later.items():
        before_steps, before_real = earlier.get(size, (0.0, 0.0))
        if steps != before_steps:
            added[size] = (steps - before_steps, real - before_real)
    return added


def written_after(record: Path, moment: float) -> Cells:
    """The steps, once they were written after a moment and a write that may have been under way then."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        file = next(iter(record.glob("steps-*.csv")), None)
        if file is not None and file.stat().st_mtime > moment + RECORD_SECONDS:
            return steps_of(record)
        time.sleep(RECORD_SECONDS)
    raise AssertionError(f"no steps written in {record}")


def trace_of(record: Path, *, at_least: int) -> Trace:
    """The recorded requests, once there are so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if requests_of(record) >= at_least:
            return read_recorded_trace(record)
        time.sleep(RECORD_SECONDS)
    raise AssertionError(f"found {requests_of(record)} requests recorded in {record}, expected {at_least}")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan()


@pytest.fixture(scope="module")
def oracle(tiny_model: Path, inductor_cache: Path) -> list[list[int]]:
    return dense_tokens(tiny_model, LONG + OTHERS, inductor_cache)


@pytest.fixture(scope="module")
def with_plan(
    plan: Plan, tiny_model: Path, inductor_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("with_plan")
    write_plan(plan, folder / "plan.json")
    with start(tiny_model, folder, inductor_cache, {"ladder_opt": str(folder / "plan.json")}) as server:
        for _ in range(ATTEMPTS):  # on a busy machine requests may come late
            burst = serve(server, folder / "record")
            if burst.overtaken:
                break
        yield Served(server, folder / "record", burst)


def test_the_ladders_in_use_are_the_plans(plan: Plan, with_plan: Served) -> None:
    report = with_plan.server.report()
    assert tuple(report["num_seqs"]) == plan.num_seqs != default_ladders(ENGINE).num_seqs
    assert tuple(report["num_blocks"]) == plan.num_blocks != default_ladders(ENGINE).num_blocks
    assert report["source"].endswith("plan.json")
    assert report["kernel"] == plan.kernel


def test_every_variant_was_recorded_and_nothing_compiled_while_serving(plan: Plan, with_plan: Served) -> None:
    report = with_plan.server.report()
    assert report["recorded"] == report["enumerated"]
    assert len(report["recorded"]) == plan.result.num_variants == report["warmup_compiles"] > 2
    assert report["compiles_since"] == report["late_compiles"] == report["unrecorded"] == 0
    assert sum(report["dispatched"].values()) > 50
    assert report["per_sequence_steps"] > 0
    assert {int(pair.split(" x ")[0]) for pair in report["dispatched"]} <= set(plan.num_seqs)
    assert {int(pair.split(" x ")[1]) for pair in report["dispatched"]} <= set(plan.num_blocks)


def test_tokens_are_those_of_dense_attention(with_plan: Served, oracle: list[list[int]]) -> None:
    assert [answer.tokens for answer in with_plan.burst.answers] == oracle
    assert len({token for tokens in oracle for token in tokens}) > 100  # not a model that says one thing


def test_recorded_steps_equal_the_replay_of_the_recorded_trace(plan: Plan, with_plan: Served) -> None:
    burst = with_plan.burst
    assert burst.overtaken, f"in {ATTEMPTS} attempts requests came too late for one schedule"
    assert sorted(burst.trace.prompt_tokens) == sorted(len(request.prompt) for request in LONG + OTHERS)
    # All were waiting before the schedule could depend on when they came: a closed loop with room for all.
    replay = simulate(
        burst.trace, ENGINE, read_cost_model(), ladders=plan.ladders, concurrency=len(burst.trace)
    )
    assert cells(replay.steps) == burst.steps
    assert sum(steps for steps, _ in burst.steps.values()) > 100


def test_the_record_feeds_tune_and_verify(with_plan: Served, tmp_path: Path) -> None:
    record = with_plan.record
    (steps_file,) = record.glob("steps-*.csv")
    beside = json.loads(steps_file.with_suffix(".json").read_text())
    assert beside["late_compiles"] == 0
    assert beside["gathers"]["padded"] >= beside["gathers"]["ragged_floor"] >= beside["gathers"]["real"] > 0
    engine = tmp_path / "engine.json"
    engine.write_text(json.dumps(beside["engine"]))
    tuned = tmp_path / "tuned.json"
    assert main(["tune", "--steps", str(steps_file), "--engine", str(engine), "-o", str(tuned)]) == 0
    assert read_plan(tuned).engine.num_kv_blocks == ENGINE.num_kv_blocks
    (trace_file,) = record.glob(f"{TRACE_PREFIX}*.parquet")
    assert main(["tune", str(trace_file), "--engine", str(engine), "-o", str(tuned)]) == 0
    assert main(["verify", str(tuned), "--steps", str(steps_file), "--compiler", "eager"]) == 0


def test_without_a_plan_tokens_are_the_same_and_sigkill_leaves_whole_files(
    tiny_model: Path, inductor_cache: Path, tmp_path: Path, oracle: list[list[int]]
) -> None:
    record = tmp_path / "record"
    with start(tiny_model, tmp_path, inductor_cache, {}) as server:
        burst = serve(server, record)
        report = server.report()
        assert report["source"] == "the default ladders"
        assert report["recorded"] == report["enumerated"]
        assert report["compiles_since"] == report["unrecorded"] == 0
        assert [answer.tokens for answer in burst.answers] == oracle
        counted = sum(steps for steps, _ in steps_of(record).values())

        server.flood(mixed(60, seed=3))
        deadline = time.monotonic() + 60
        while sum(steps for steps, _ in steps_of(record).values()) <= counted + 20:  # well under way
            assert time.monotonic() < deadline
            time.sleep(RECORD_SECONDS / 4)
        server.kill()
    last = steps_of(record)
    assert sum(steps for steps, _ in last.values()) > counted
    (steps_file,) = record.glob("steps-*.csv")
    assert json.loads(steps_file.with_suffix(".json").read_text())["late_compiles"] == 0
    assert requests_of(record) >= len(burst.answers)
