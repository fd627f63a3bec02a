"""What `calibrate` is told twice, cannot be, or fits badly: said, set aside with a count, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_opt.calibration.api import calibrate, kind_of
from ladder_opt.cli.app import main
from ladder_opt.cost.poor_fit import poor_fit
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import evaluate
from tests.calibration import measured as made
from tests.calibration.runs import SERVER, TRUTH, made_trace, server_run, write_records
from tests.calibration.test_mixed import STARTS, iterations

ENGINE = Engine()


def test_layers_asked_for_scale_rows_of_other_layers_and_it_is_told(tmp_path: Path) -> None:
    """A row is one layer's share: of a model with twice the layers, attention takes twice as long."""
    path = made.write_measurements(tmp_path / "m.csv", layers=20)
    as_said, as_asked = calibrate(path, ENGINE), calibrate(path, ENGINE, layers=40)
    for name in ("per_iteration", "per_gather"):
        one, other = (getattr(each.cost.step_seconds, name) for each in (as_said, as_asked))
        assert other == pytest.approx(2 * one, rel=1e-3)
    assert as_asked.cost.graphs_per_variant == 40
    (line,) = set(as_asked.warnings) - set(as_said.warnings)
    assert line == (
        f"{path}: its rows say layers 20; their seconds of one layer were taken 40 times, as --layers says"
    )
    assert calibrate(path, ENGINE, layers=20).warnings == as_said.warnings


def test_layers_of_rows_that_do_not_say_are_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    lines = ["kernel,num_seqs,num_blocks,step_seconds"]
    lines += [f"chunked,{s},{m},{made.step_seconds(made.ATTENTION, s, m) / 40}" for s, m in made.PAIRS]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate(path, ENGINE, layers=40)
    assert found.cost.step_seconds.per_iteration == pytest.approx(made.ATTENTION["per_iteration"], rel=1e-3)
    assert not any("layers" in line for line in found.warnings)


def test_layers_that_a_server_contradicts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(made.warmup_lines(STARTS[0], debug=True)), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        calibrate(path, ENGINE, layers=20)
    assert str(error.value) == f"--layers: found 20, expected 40, as {path} says"
    assert calibrate(path, ENGINE, layers=40).cost.graphs_per_variant == 40


def test_options_that_nothing_uses_are_told(tmp_path: Path) -> None:
    table = made.write_table(tmp_path / "t.csv")
    found = calibrate(table, ENGINE, layers=3, graphs_per_variant=5)
    assert found.notes == ("--layers 3 is left aside: no file times a single layer",)
    write_records(server_run(made_trace(1)), tmp_path / "requests.jsonl")
    notes = calibrate(tmp_path / "requests.jsonl", SERVER, layers=3, kernel="chunked", table="always").notes
    assert notes == tuple(
        f"{option} is left aside: per-request records time whole steps and no compile"
        for option in ("--layers", "--kernel", "--table always")
    )
    rows = made.write_measurements(tmp_path / "m.csv")
    assert calibrate(rows, ENGINE, graphs_per_variant=5).notes == (
        f"{rows}: 40 graphs a variant, taken as 5 as asked for",
    )


def test_iterations_that_no_engine_of_these_limits_has_are_set_aside(tmp_path: Path) -> None:
    lines = iterations(1)
    good = lines[0]
    lines += [
        made.iteration_line(0.1, prefill=0, decodes=33, usage=1.0),
        made.iteration_line(0.1, prefill=10**9, decodes=4, usage=1.0),
        made.iteration_line(0.1, prefill=500, decodes=20, usage=1.0),
        made.iteration_line(0.1, prefill=0, decodes=4, usage=100.2),
        made.iteration_line(0.1, prefill=0, decodes=4, usage=1.0).replace("100.00 ms", f"{'9' * 400} ms"),
        made.iteration_line(0.1, prefill=0, decodes=4, usage=1.0).replace(
            "4 generation tokens", f"{'4' * 5000} generation tokens"
        ),
    ]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate(path, replace(ENGINE, num_kv_blocks=2049))
    assert found.notes == (
        f"{path}: 1 iterations set aside: a time that is not from 1e-12 s to 1e+09 s",
        f"{path}: 1 iterations set aside: more sequences than max_num_seqs 32",
        f"{path}: 1 iterations set aside: more than all KV blocks in use",
        f"{path}: 2 iterations set aside: more tokens than max_num_batched_tokens 512",
        f"{path}: 1 iterations set aside: several tokens a decode",
    )
    (tmp_path / "clean.log").write_text("\n".join(lines[:-6]), encoding="utf-8")
    clean = calibrate(tmp_path / "clean.log", replace(ENGINE, num_kv_blocks=2049))
    assert clean.cost.step_seconds == found.cost.step_seconds
    path.write_text(good, encoding="utf-8")
    with pytest.raises(InputError, match=r"found 1 more sequences than max_num_seqs 1, expected warm-up"):
        calibrate(path, replace(ENGINE, max_num_seqs=1))


@pytest.mark.parametrize("seconds", ["9" * 400, "1000000000.1"])
def test_a_warmup_longer_than_any_is_refused(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"\nINFO Recorded 4/4 per-seq and 2/2 batched-decode attention variants in {seconds}s.\n")
    with pytest.raises(InputError) as error:
        calibrate(path, ENGINE)
    expected = "expected seconds of a warm-up, up to 1e+09"
    assert str(error.value) == f"{path}:2: found {seconds[:40]} s, {expected}"


def test_tokens_that_come_faster_than_any_step_are_not_fitted(tmp_path: Path) -> None:
    run = server_run(made_trace(1))
    last = run.timings.last_token_seconds.copy()
    first = run.timings.first_token_seconds
    quick = np.flatnonzero(run.trace.output_tokens > 1)[:5]
    last[quick] = first[quick] + [1e-15, 1e-9, 0.0, 1e-12, 1e-7]
    write_records(replace(run, timings=replace(run.timings, last_token_seconds=last)), tmp_path / "r.jsonl")
    found = calibrate(tmp_path / "r.jsonl", SERVER)
    assert found.notes == ("5 requests replayed and not fitted: tokens less than a microsecond apart",)
    assert found.cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.05)


def write_noisy(path: Path) -> Path:
    """Compiles that have little to do with their iterations: R2 about a half."""
    rng = np.random.default_rng(3)
    lines = ["num_seqs,num_blocks,seconds,compile_seconds"]
    for s, m in made.PAIRS:
        compiled = made.compile_seconds(s, m) * np.exp(0.7 * rng.standard_normal())
        lines.append(f"{s},{m},{made.step_seconds(made.STEP, s, m)},{compiled}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_fit_that_misses_is_told_and_a_plan_says_so_too(tmp_path: Path) -> None:
    found = calibrate(write_noisy(tmp_path / "t.csv"), ENGINE)
    assert found.cost.fit is not None
    residuals = found.cost.fit["residuals"]
    assert residuals["compile"]["r_squared"] < 0.8 < residuals["step"]["r_squared"]
    line = poor_fit("compile", residuals["compile"])
    assert line is not None
    assert line.startswith("compile_seconds: the formula misses what was measured (R2 0.")
    assert [each for each in found.warnings if "formula misses" in each] == [line]
    steps = StepHistogram(np.array([8]), np.array([8]), np.array([1000.0]))
    plan = evaluate(
        steps, Ladders((32,), (64,)), found.cost, engine=ENGINE, options=SolveOptions(restarts=1.0)
    )
    assert line in plan.warnings


@pytest.mark.parametrize(
    ("residuals", "is_told"),
    [
        ({"r_squared": 0.79, "relative": {"p5": -0.3, "p95": 0.2}}, True),
        ({"r_squared": 0.81, "relative": {"p5": -0.3, "p95": 0.2}}, False),
        ({"r_squared": 0.1, "relative": {"p5": -0.05, "p95": 0.05}}, False),  # all rows alike
        ({"r_squared": 0.1}, True),
        ({"r_squared": None}, False),
        ({"r_squared": 0.1, "relative": {"p5": "low", "p95": 0.2}}, False),
        (3, False),
    ],
)
def test_what_counts_as_a_fit_that_misses(residuals: object, is_told: bool) -> None:
    assert (poor_fit("step", residuals) is not None) is is_told


def test_one_graph_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = made.write_measurements(tmp_path / "m.csv", layers=1)
    for options, words in (((), "1 graph a variant"), (("--graphs-per-variant", "2"), "2 graphs a variant")):
        assert main(["calibrate", str(rows), "-o", str(tmp_path / "c.json"), *options]) == 0
        assert f"kernel chunked; {words}\n" in capsys.readouterr().out


@pytest.fixture(scope="module")
def six_kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Callable[[list[Path]], object]]:
    """A file of each kind, of one server; and the cost model of a list of them."""
    folder = tmp_path_factory.mktemp("kinds")
    files = {name: folder / name for name in ("steps.log", "requests.jsonl", "warmup.log")}
    files["steps.log"].write_text("\n".join(iterations(2, steps=60)), encoding="utf-8")
    write_records(server_run(made_trace(1, requests=40)), files["requests.jsonl"])
    files["warmup.log"].write_text("\n".join(made.warmup_lines(STARTS[0], debug=True)), encoding="utf-8")
    few = made.PAIRS[::6]
    paths = [
        *files.values(),
        made.write_measurements(folder / "rows.csv", pairs=few),
        made.write_table(folder / "table.csv", pairs=few, graphs=made.LAYERS),
        made.write_microbenchmark(folder / "micro.tsv", pairs=few),
    ]
    # Layers are told: of some files, such as the microbenchmark and a log of iterations, none says how many.
    return paths, lambda given: calibrate(given, SPYRE, layers=made.LAYERS).cost.to_dict()


SPYRE = replace(ENGINE, num_kv_blocks=2049)


@given(order=st.permutations(range(6)), count=st.integers(2, 6))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_files_of_all_kinds_give_one_model_in_any_order(
    six_kinds: tuple[list[Path], Callable[[list[Path]], object]], order: list[int], count: int
) -> None:
    paths, model_of = six_kinds
    chosen = [paths[at] for at in order[:count]]
    assert model_of(chosen) == model_of(sorted(chosen)) == model_of(chosen[::-1])


def test_all_six_kinds_at_once(
    six_kinds: tuple[list[Path], Callable[[list[Path]], object]], tmp_path: Path
) -> None:
    paths, _ = six_kinds
    found = calibrate(paths, SPYRE).cost
    assert found.fit is not None
    assert len({kind_of(path).name for path in paths}) == 5  # the two logs are of one kind
    assert {one["path"] for one in found.fit["source"]} == {str(path) for path in paths}
    assert found.step_seconds.base == pytest.approx(made.STEP["base"], rel=0.1)  # whole steps come first
    assert found.step_seconds.per_iteration == pytest.approx(made.STEP["per_iteration"], rel=0.1)
    assert found.compile_seconds.per_iteration == pytest.approx(made.COMPILE["per_iteration"], rel=0.3)
