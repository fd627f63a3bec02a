"""The benchmarks run, and their witnesses agree with the solver on small instances."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    cold_start,
    common,
    jobs,
    large_trace,
    peers,
    plans,
    readme_demo,
    replay_rate,
    robust,
    serve,
    serving,
    solver,
)
from benchmarks.milp import solve_milp
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders
from ladder_opt.measurement.bench import Point, Timed
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import Status
from ladder_opt.solve.robust import Workload
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import Trace
from tests import oracles
from tests.serving.server import Answer

SEQS, BLOCKS = 8, 6
TERMS = (0.02, 1e-3, 2e-3, 2e-4)
COMPILES = (0.9, 0.05, 0.002)


def small_trace(requests: int, seed: int = 3) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(
        arrival_seconds=np.sort(rng.uniform(0, 200, requests)),
        prompt_tokens=rng.integers(20, 3000, requests),
        output_tokens=rng.integers(1, 200, requests),
    )


def cost_of(kernel: str) -> CostModel:
    step = dict(zip(("base", "per_seq", "per_iteration", "per_gather"), TERMS, strict=True))
    compiles = dict(zip(("base", "per_iteration", "per_iteration_sq"), COMPILES, strict=True))
    return CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "test",
            "kernel": kernel,
            "step_seconds": step,
            "compile_seconds": compiles,
        }
    )


@pytest.mark.parametrize("seed", range(10))
def test_milp_alternation_and_brute_force_bear_the_solver_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = ("chunked", "per_block")[seed % 2]
    max_variants = None if seed % 4 < 2 else int(rng.integers(2, 8))
    budget = float(rng.uniform(3, 8)) if seed in {8, 9} else None
    engine = Engine(max_num_seqs=SEQS, max_model_len=BLOCKS * 128)
    cells = {(int(rng.integers(3, SEQS + 1)), int(rng.integers(1, BLOCKS + 1))) for _ in range(12)}
    weighted = tuple((n, b, float(rng.integers(1, 5000))) for n, b in sorted(cells))
    seqs, blocks, counts = (np.array(column) for column in zip(*weighted, strict=True))
    steps = StepHistogram(seqs, blocks, counts)
    cost = cost_of(kernel)
    restarts = float(rng.uniform(0.1, 3))
    limits = Limits(max_variants=max_variants, max_compile_seconds=budget)

    ours = solve_ladders(steps, engine, cost, restarts=restarts, limits=limits)
    milp = solve_milp(
        steps, engine, cost, restarts=restarts, max_variants=max_variants, max_compile_seconds=budget
    )
    assert ours.status is Status.OPTIMAL
    assert milp.proven
    assert milp.variables == 15 * 21
    assert milp.objective_seconds == pytest.approx(ours.objective_seconds, rel=1e-9)
    assert milp.lower_bound_seconds == pytest.approx(ours.objective_seconds, rel=1e-6)
    assert milp.ladders is not None
    price = price_ladders(steps, engine, cost, milp.ladders, restarts=restarts)
    assert max_variants is None or price.num_variants <= max_variants
    assert budget is None or price.compile_seconds <= budget * (1 + 1e-9)

    instance = oracles.Instance(kernel, weighted, SEQS, BLOCKS, TERMS, COMPILES, restarts)
    best, _ = oracles.brute_force(instance, max_variants=max_variants, max_compile_seconds=budget)
    assert ours.objective_seconds == pytest.approx(best, rel=1e-9)


def test_milp_without_time_proves_nothing() -> None:
    engine = Engine(max_num_seqs=12, max_model_len=16 * 128)
    steps = solver.synthetic("scatter", engine, np.random.default_rng(0))
    result = solve_milp(steps, engine, cost_of("chunked"), restarts=1.0, time_limit_seconds=0.0)
    assert not result.proven


@pytest.mark.parametrize("kernel", solver.KERNELS)
@pytest.mark.parametrize("kind", ["peak", "scatter"])
def test_solver_rows(kernel: str, kind: str) -> None:
    engine = Engine(max_num_seqs=10, max_model_len=8 * 128)
    steps = solver.synthetic(kind, engine, np.random.default_rng(1))
    outcomes = [
        solver.solve_all(
            solver.Instance(kind, steps, engine, read_cost_model().with_kernel(kernel), 1.0, limit),
            time_limit_seconds=10.0,
            milp_seconds=10.0,
            in_child=False,
        )
        for limit in solver.LIMITS
    ]
    assert [problem for outcome in outcomes for problem in outcome.disagreements()] == []
    rows = [solver.row(outcome) for outcome in outcomes]
    assert [row["status"] for row in rows] == ["optimal"] * 3
    assert [row["HiGHS"] for row in rows] == ["equal"] * 3
    assert rows[0]["size"] == "10x8"
    assert outcomes[0].alternated is not None
    assert len(outcomes[0].alternated.objectives) == solver.STARTS
    assert [row["middle"] for row in rows[1:]] == ["-", "-"]
    assert len(solver.table(outcomes).splitlines()) == 4


def test_a_witness_below_a_proven_optimum_is_told() -> None:
    engine = Engine(max_num_seqs=10, max_model_len=8 * 128)
    steps = solver.synthetic("scatter", engine, np.random.default_rng(1))
    instance = solver.Instance("scatter", steps, engine, cost_of("chunked"), 1.0, "none")
    outcome = solver.solve_all(instance, time_limit_seconds=10.0, milp_seconds=0.0, in_child=False)
    assert outcome.ours is not None
    better = solver.Alternated((outcome.ours.objective_seconds * (1 - 1e-6),), 0.0)
    told = solver.Outcome(instance, outcome.candidates, outcome.ours, better, None).disagreements()
    assert len(told) == 1
    assert told[0].startswith("scatter 10x8 chunked 1 none: alternation found ")
    ended = solver.Outcome(instance, outcome.candidates, None, None, None)
    assert ended.disagreements() == ["scatter 10x8 chunked 1 none: no result 3 s after its time limit"]
    assert solver.row(ended)["status"] == "ended"


def test_plans_rows_and_markdown() -> None:
    trace = small_trace(400)
    case = plans.Case("tiny", "tiny", max_num_seqs=8, max_model_len=2048, replicas=2)
    free, limited = plans.run_case(case, trace, time_limit_seconds=10.0)
    assert (free.status, limited.status) == ("optimal", "optimal")
    assert free.objective_seconds[0] <= free.objective_seconds[1]
    assert limited.warmup_seconds[0] <= free.warmup_seconds[1] * (1 + 1e-9)
    assert free.requests == int((trace.prompt_tokens + trace.output_tokens <= 2048).sum()) < len(trace)
    assert free.default_rungs == (2, 5)
    table = plans.to_markdown([free, limited])
    lines = table.splitlines()
    assert len(lines) == 6
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert f"({free.requests} of 400 requests fit)" in lines[2]
    assert "2 x 8 seqs, 2k" in lines[2]
    assert "| as the default's |" in lines[3]
    short = plans.short_table([free, limited]).splitlines()
    assert len(short) == 3
    assert f"{limited.saved:.1%}" in short[2]


def test_bodies_go_between_the_markers() -> None:
    text = f"above\n{plans.BEGIN}\nold\n{plans.END}\nbelow\n"
    assert (
        common.between(text, plans.BEGIN, plans.END, "new")
        == f"above\n{plans.BEGIN}\nnew\n{plans.END}\nbelow\n"
    )
    for broken in ("no markers", f"{plans.END} {plans.BEGIN}", text + text):
        with pytest.raises(ValueError, match="found no single pair of markers"):
            common.between(broken, plans.BEGIN, plans.END, "new")


@pytest.fixture
def plans_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    readme, page = tmp_path / "README.md", tmp_path / "page.md"
    for path in (readme, page):
        path.write_text(f"{plans.BEGIN}\nold\n{plans.END}\n")
    monkeypatch.setattr(common, "README", readme)
    monkeypatch.setattr(plans, "PAGE", page)
    return readme, page


def test_plans_refuse_a_page_without_markers(
    plans_pages: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    readme, page = plans_pages
    page.write_text("nothing here\n")
    assert plans.main(["--write-docs"]) == 2
    assert page.read_text() == "nothing here\n"
    assert "old" in readme.read_text()
    assert "found no single pair of markers" in capsys.readouterr().err


def test_plans_do_not_lose_rows_of_a_page(
    plans_pages: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plans.main(["--write-docs", "--shared", str(tmp_path)]) == 2
    assert all("old" in path.read_text() for path in plans_pages)
    assert "no page is written" in capsys.readouterr().err


def test_replay_rate_rows() -> None:
    traces = {"tiny": small_trace(150), "made": synthesize(requests=100, seed=1)}
    results = replay_rate.measure(traces, repeats=1, slow_repeats=1, plain_requests=60, vllm_requests=0)
    assert [result.contender for result in results] == [
        "simulate",
        "simulate",
        "its step loop",
        "simulate",
        "plain twin",
    ]
    assert [result.requests for result in results] == [150, 100, 150, 60, 60]
    assert [result.steps_that_differ for result in results] == [None, None, 0, None, 0]
    assert all(math.isfinite(result.best_rate) and result.best_rate > 0 for result in results)
    assert len(replay_rate.table(results).splitlines()) == 6


@pytest.mark.vllm
def test_replay_rate_beside_vllm() -> None:
    results = replay_rate.measure(
        {"tiny": small_trace(60)}, repeats=1, slow_repeats=1, plain_requests=0, vllm_requests=20
    )
    assert [result.contender for result in results] == [
        "simulate",
        "its step loop",
        "simulate",
        "vLLM Scheduler",
    ]
    assert results[-1].steps_that_differ == 0


def test_import_times_add_up_by_package() -> None:
    text = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       100 |        100 |   numpy.linalg\n"
        "import time:       300 |        400 | numpy\n"
        "import time:        50 |         50 | json\n"
        "a line of the program's own\n"
    )
    assert cold_start.import_times(text) == pytest.approx({"numpy": 400e-6, "json": 50e-6})


def test_absent_traces_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = common.read_traces(["azure-conv", "sample"], tmp_path)
    assert list(traces) == ["sample"]
    assert "the bundled sample stands in for it" in capsys.readouterr().out


def test_readme_quotes_what_the_demo_prints() -> None:
    readme = common.README.read_text(encoding="utf-8")
    assert readme_demo.with_demo(readme, readme_demo.demo_output()) == readme


def test_robust_rows_and_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sizes", "10x8", "--no-traces", "--time-limit", "20", "--kernels", "chunked"]
    assert robust.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "4 of 4 proven within 20 s" in printed
    engine = Engine(max_num_seqs=8, max_model_len=6 * 128)
    workloads = tuple(Workload(steps=steps, restarts=1.0) for steps in robust.synthetic_workloads(engine, 2))
    instance = robust.Instance("2 synthetic", workloads, engine, cost_of("chunked"), "none")
    outcome = robust.solve_all(instance, time_limit_seconds=20.0)
    assert outcome.disagreements() == []
    assert outcome.result.worst_regret > 0
    better = dataclasses.replace(outcome, mix=outcome.result.worst_regret / 2)
    (told,) = better.disagreements()
    assert told.startswith("2 synthetic 8x6 chunked none: the plan for the sum has a worst regret of")


def test_serving_measures_what_a_step_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = {
        "register_seconds": 0.001,
        "modules": ["a"],
        "host": "numpy",
        "host_seconds": 1.0,
        "host_modules": 2,
    }
    monkeypatch.setattr(serving, "measure_start", lambda *, repeats: start | {"share": 0.001})
    assert serving.main(["--repeats", "1", "--steps", "50", "--at-most", "1e9"]) == 0
    shown = capsys.readouterr().out
    for name in serving.contenders(1):
        assert (name in shown) is (name != "nothing")
    assert serving.main(["--repeats", "1", "--steps", "50", "--at-most=-1e9"]) == 1
    assert "failed: found" in capsys.readouterr().err


def test_serving_starts_the_entry_point_in_a_process_of_its_own() -> None:
    seconds, modules = serving.run_inside(serving._REGISTER)
    assert seconds > 0
    assert "ladder_opt.vllm_plugin.hooks" in modules
    assert "numpy" not in modules


def test_large_trace_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"

    def child(what: str) -> large_trace.Result:
        return large_trace.child(
            argparse.Namespace(child=what, file=path, requests=2000, rate=4.0, replicas=70, jobs=1)
        )

    drawn = large_trace.in_process("draw", path, 2000, ["--rate=4"])
    assert (drawn.what, drawn.requests, drawn.digest) == ("draw", 2000, None)
    assert 50 < drawn.peak_mib < large_trace.AT_MOST_MIB
    rows = [drawn, child("stream"), child("in memory")]
    assert rows[1].digest == rows[2].digest
    assert rows[1].busy_share == rows[2].busy_share
    assert "CPU s per million" in large_trace.table(rows)


def test_jobs_rows() -> None:
    ways = jobs.measure(requests=400, replicas=4, jobs=2, repeats=1)
    assert [way.name for way in ways] == ["1 job", "2 threads", "2 processes"]
    assert "of 1 job's" in jobs.table(ways)


def test_peers_that_are_not_there_are_told(tmp_path: Path) -> None:
    assert peers.why_no_vidur(None) == (
        "Vidur is left out: --vidur or LADDER_OPT_VIDUR names no checkout (benchmarks/peers.py says how)"
    )
    assert peers.why_no_vidur(tmp_path) == (
        f"Vidur is left out: no vidur/simulator.py under {tmp_path} (benchmarks/peers.py says how)"
    )


@pytest.mark.skipif(
    peers.why_no_vidur(Path(os.environ.get(peers.VIDUR_VARIABLE, "."))) is not None,
    reason=f"{peers.VIDUR_VARIABLE} names no checkout of Vidur",
)
def test_replay_rate_beside_vidur() -> None:
    rows = replay_rate.measure(
        {"small": small_trace(60)},
        repeats=1,
        slow_repeats=1,
        plain_requests=0,
        vllm_requests=0,
        vidur_requests=60,
        vidur=Path(os.environ[peers.VIDUR_VARIABLE]),
    )
    assert rows[-1].contender == replay_rate.VIDUR
    assert rows[-1].requests == 60
    assert rows[-1].best_rate > 0


def test_serve_plans_with_what_it_measured() -> None:
    """Prices known, the plan gathers less than the default ladders, and by as much as the prices say."""
    sliced = common.squeezed(small_trace(200), serve.ENGINE, 60, span_seconds=20.0)
    assert len(sliced) == 60
    assert sliced.arrival_seconds is not None
    assert (sliced.arrival_seconds[0], sliced.arrival_seconds[-1]) == (0.0, 20.0)
    measured = serve.Measured(cost_of("chunked"), 0.0, 10)
    contenders, plan = serve.make_contenders(sliced, measured, other_seconds=0.03)
    assert [contender.name for contender in contenders] == ["default", "plan"]
    assert contenders[1].ladders == plan.ladders
    assert plan.result.num_variants <= 10
    for contender in contenders:
        bucketer = common.bucketer_of(contender.ladders, serve.ENGINE)
        contender.attention_seconds = serve.pair_seconds(bucketer, {}, measured.cost)
    default, tuned = contenders
    truth = serve.replayed(sliced, default, measured.cost, 0.03, 2e-4)
    default.token_seconds, default.first_token_seconds = [truth.per_output_token], [truth.to_first_token]
    base, per_token = serve.fit_rest(sliced, default, measured.cost)
    found = serve.replayed(sliced, default, measured.cost, base, per_token)
    assert found == pytest.approx(truth, rel=1e-3)
    for contender, token_seconds in zip(contenders, ([0.1, 0.2], [0.09, 0.16]), strict=True):
        times = serve.replayed(sliced, contender, measured.cost, base, per_token)
        contender.predicted_token_seconds = times.per_output_token
        contender.token_seconds = contender.cpu_seconds = token_seconds
        contender.report = {"recorded": [1, 2], "warmup_seconds": 3.0, "compiles_since": 0}
    assert tuned.predicted_token_seconds < default.predicted_token_seconds
    assert json.loads(json.dumps(serve.to_dict(tuned)))["attention_seconds"]
    rows = serve.rows(contenders)
    assert (rows[0]["ratio, predicted"], rows[0]["ratio, measured"]) == ("1.000", "1.000")
    assert rows[1]["ratio, measured"] == rows[1]["ratio of CPU"] == "0.850"
    assert float(rows[1]["ratio, predicted"]) < 1


def test_serve_fits_what_was_made_by_the_formula() -> None:
    bucketer = common.bucketer_of(default_ladders(serve.ENGINE), serve.ENGINE)
    compiled: set[Point] = set()

    def sizes(point: Point) -> tuple[int, int]:
        """(chunks, pages), by the table in docs/files.md."""
        per_chunk = max(1, min(32 // point.num_seqs, point.num_blocks))
        chunks = -(-point.num_blocks // per_chunk)
        return chunks, point.num_seqs * per_chunk * chunks

    def compiled_in(point: Point) -> Timed:
        compiled.add(point)
        return Timed(1.5 + 0.25 * sizes(point)[0], 9.0)

    def one_layer_s(point: Point) -> Timed:
        assert point in compiled
        chunks, pages = sizes(point)
        return Timed((0.002 + 3e-4 * chunks + 1e-5 * pages) / 6, 9.0)

    bench: Any = SimpleNamespace(compile=compiled_in, step=one_layer_s)
    found = serve.measure(bench, bucketer)
    step, compiles = found.cost.step_seconds, found.cost.compile_seconds
    assert (step.base, step.per_iteration, step.per_gather) == pytest.approx((0.002, 3e-4, 1e-5))
    assert (compiles.base, compiles.per_iteration) == pytest.approx((1.5, 0.25))
    assert found.worst_error == pytest.approx(0, abs=1e-9)
    assert found.variants == len(bucketer.batched_variants())


def test_serve_times_tokens_by_request() -> None:
    answers = [
        Answer([1, 2, 3], 9.0, 10.0, 10.4),
        Answer([1], 5.0, 5.0, 5.0),
        Answer([1, 2], 6.5, 7.0, 7.6),
    ]
    assert serve.times_of(answers) == pytest.approx(((0.2 + 0.6) / 2, 0.5))
