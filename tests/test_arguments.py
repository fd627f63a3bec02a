"""Arguments of the wrong type: every public function says in one line what it found and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ladder_opt as lo
from ladder_opt.arguments import _fits, _hints, checked
from ladder_opt.errors import InputError, UsageError
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_trace

FUNCTIONS = {name: getattr(lo, name) for name in lo.__all__ if inspect.isfunction(getattr(lo, name))}
TAKES_NOTHING = {"json_schemas"}


class Nobody:
    """A type that no function takes."""


WRONG: tuple[Any, ...] = ("file.csv", Path("file.csv"), 17, None, Nobody(), 1.5, ["file.csv"], {})


def cases() -> Iterator[Any]:
    for name, function in FUNCTIONS.items():
        for argument, hint in _hints(inspect.unwrap(function)).items():
            for value in WRONG:
                if not _fits(value, hint):
                    yield pytest.param(name, argument, value, id=f"{name} {argument} {type(value).__name__}")


def valid() -> dict[str, Any]:
    """An argument of each type that functions take, by the words of its annotation."""
    plan = make_plan()
    engine = lo.ServerEngine(block_size=128, max_num_seqs=8, max_model_len=2048, num_kv_blocks=200)
    return {
        "Plan": plan,
        "Plan | None": plan,
        "Plan | Contents": plan,
        "Given": STEPS,
        "StepHistogram": STEPS,
        "Engine": ENGINE,
        "ServerEngine": engine,
        "CostModel": make_cost(),
        "Ladders": lo.default_ladders(ENGINE),
        "AnyTrace": make_trace(requests=3),
        "AnyTrace | Sequence[AnyTrace]": make_trace(requests=3),
        "Trace": make_trace(requests=3),
        "Drift": lo.drift(plan, STEPS, tell_parts=False),
        "TotalsHistogram": lo.TotalsHistogram(np.array([4]), np.array([9]), np.array([3.0])),
        "SequenceHistogram": STEPS.decode_calls(ENGINE),
        "Bucketer": lo.Bucketer.from_engine(ENGINE, plan=plan),
        "Sequence[Workload]": [lo.Workload(steps=STEPS, restarts=1.0)],
        "GaudiOptions": lo.GaudiOptions(page_seconds=0.001, row_seconds=0.001, graph_seconds=1.0),
        "str": "name",
        "str | Path": "file",
        "str | Path | Sequence[str | Path]": "file",
        "Sequence[str | Path]": ["file"],
        "Sequence[RequestRecords]": [],
        "Iterable[MeasurementRow]": [],
        "Mapping[str, Sequence[Any]]": {},
        "dict[str, Any]": {},
        "int": 4,
        "float": 1.0,
    }


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return valid()


def test_every_public_function_checks_its_arguments() -> None:
    unchecked = {name for name, function in FUNCTIONS.items() if not hasattr(function, "__wrapped__")}
    assert unchecked == TAKES_NOTHING


@pytest.mark.parametrize(("name", "argument", "value"), list(cases()))
def test_a_wrong_type_is_one_line(arguments: dict[str, Any], name: str, argument: str, value: Any) -> None:
    function = FUNCTIONS[name]
    given = {
        each.name: arguments[each.annotation]
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.name != argument and each.kind is not each.VAR_KEYWORD
    }
    with pytest.raises(UsageError) as error:
        function(**given, **{argument: value})
    line = str(error.value)
    assert line.startswith(f"{name}: found ")
    assert f" as {argument}, expected " in line
    assert "\n" not in line
    assert len(line) < 400


def test_lines_say_how_such_a_thing_is_come_by(tmp_path: Path) -> None:
    api: Any = lo  # called as type checkers would refuse
    for call, line in (
        (
            lambda: api.tune("steps.csv"),
            (
                "tune: found 'steps.csv' (str) as source, expected StepHistogram, Replay, Trace, "
                "TraceStream, several of Trace or TraceStream or StepsFile, such as "
                "lo.read_steps(path).steps or lo.read_trace(path)"
            ),
        ),
        (
            lambda: api.drift(Path("plan.json"), STEPS),
            (
                f"drift: found 'plan.json' ({type(tmp_path).__name__}) as plan, expected Plan, such as "
                "lo.read_plan(path)"
            ),
        ),
        (
            lambda: api.tune(STEPS, "prices.json"),
            "tune: found 'prices.json' (str) as cost, expected CostModel, such as lo.read_cost_model(path)",
        ),
        (
            lambda: api.read_plan(3),
            "read_plan: found 3 (int) as path, expected text or a path",
        ),
    ):
        with pytest.raises(UsageError) as error:
            call()  # type: ignore[no-untyped-call]
        assert str(error.value) == line
    lo.write_steps(STEPS, tmp_path / "steps.csv")
    read = lo.read_steps(tmp_path / "steps.csv")
    with pytest.raises(UsageError, match=r"expected StepHistogram: its \.steps is one"):
        api.price_ladders(read, ENGINE, make_cost(), lo.default_ladders(ENGINE), restarts=1.0)


def test_a_steps_file_as_read_is_traffic(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("num_seqs,num_blocks,steps,note\n5,3,1000,x\n8,9,3000,y\n", encoding="utf-8")
    read = lo.read_steps(path)
    assert len(read.warnings) == 1
    plan = lo.tune(read, make_cost(), engine=ENGINE)
    assert plan.provenance.inputs[0].path == str(path)
    assert plan.provenance.inputs[0].sha256 == read.sha256
    assert set(read.warnings) <= set(plan.warnings)
    bare = lo.tune(read.steps, make_cost(), engine=ENGINE)
    assert plan.result == bare.result
    assert set(read.warnings) <= set(lo.drift(plan, read).warnings)
    assert lo.drift(plan, read).inputs[0].path == str(path)
    ladders = lo.default_ladders(ENGINE)
    assert lo.evaluate(read, ladders, make_cost(), engine=ENGINE).provenance.inputs[0].path == str(path)
    assert set(read.warnings) <= set(lo.frontier(read, make_cost(), engine=ENGINE).warnings)


def test_what_fits_is_let_through() -> None:
    @checked
    def function(number: float, sizes: list[int] | None = None, ask: Callable[[], int] | None = None) -> str:
        return f"{number} {sizes} {ask}"

    call: Any = function
    assert call(3) == "3 None None"
    assert call(np.float64(0.5), [1, np.int64(2)]).startswith("0.5 [1, ")
    for wrong in (True, "3", None):
        with pytest.raises(UsageError, match="as number, expected a number"):
            call(wrong)
    with pytest.raises(
        UsageError, match="found a list of 'a' \\(str\\) as sizes, expected several of a whole number"
    ):
        call(1, ["a"])
    with pytest.raises(UsageError, match="found a ndarray as sizes, expected several of a whole number"):
        call(1, np.array([0.5]))
    assert call(1, np.array([3, 4])).startswith("1 [3 4]")
    with pytest.raises(UsageError, match="expected a function"):
        call(1, None, 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda api: api.SolveOptions(restarts="1"),
            "SolveOptions: found '1' (str) as restarts, expected a number",
        ),
        (
            lambda api: api.ReplayOptions(replicas="8"),
            "ReplayOptions: found '8' (str) as replicas, expected a whole number",
        ),
        (
            lambda api: api.Limits(max_variants=2.5),
            "Limits: found 2.5 (float) as max_variants, expected a whole number",
        ),
        (
            lambda api: api.SolveOptions(restarts=10**5000),
            "SolveOptions: found a whole number beyond any count as restarts, expected a number",
        ),
        (
            lambda api: api.SolveOptions(time_limit_seconds=float("nan")),
            "--time-limit: found nan, expected 0 s or more",
        ),
        (
            lambda api: api.MeasureOptions(time_limit_seconds=-1),
            "time_limit_seconds: found -1, expected 0 s or more",
        ),
        (lambda api: api.Executor(jobs="x"), "Executor: found 'x' (str) as jobs, expected a whole number"),
        (
            lambda api: api.Workload(steps=3, restarts=1),
            "Workload: found 3 (int) as steps, expected StepHistogram, such as lo.read_steps(path).steps",
        ),
        (
            lambda api: api.sweep(make_trace(), grid={"max_num_seqs": 8}),
            "sweep: found a dict as grid, expected a mapping to several values",
        ),
        (
            lambda api: api.append_history("history.jsonl", {"time": Path()}),
            (
                "append_history: found Object of type PosixPath is not JSON serializable, expected a record "
                "of history_record"
            ),
        ),
        (
            lambda api: api.solve_ladders(STEPS, ENGINE, make_cost(), restarts=1, structure="raged"),
            "structure: found 'raged', expected one of product, ragged; did you mean ragged?",
        ),
    ],
)
def test_fields_and_what_is_inside(make: Callable[[Any], Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        make(lo)
    assert str(error.value) == line


def test_profiles_are_told() -> None:
    assert "azure2023_conv" in lo.PROFILES
    for name in lo.PROFILES:
        assert len(lo.synthesize(name, requests=3)) == 3


def test_numbers_of_numpy_become_pythons_own() -> None:
    engine = lo.Engine(max_num_seqs=np.int64(8), max_model_len=np.int32(1024))  # type: ignore[arg-type]
    assert type(engine.max_num_seqs) is type(engine.max_model_len) is int
    given: Any = [np.int64(4), 8], np.array([3, 8])
    assert lo.Ladders(*given) == lo.Ladders((4, 8), (3, 8))
    two: Any = np.int64(2)
    assert type(lo.Scheduling(n=two).n) is int
    assert type(lo.SolveOptions(max_variants=two).max_variants) is int
    steps = lo.StepHistogram(np.array([4, 7]), np.array([3, 5]), np.array([10.0, 20.0]))
    half: Any = np.float32(0.5)
    cost = lo.read_cost_model()
    solved = [lo.solve_ladders(steps, engine, cost, restarts=each) for each in (half, 0.5)]
    assert solved[0].objective_seconds == solved[1].objective_seconds
    pinned: Any = np.array([4, 8])
    assert lo.SolveOptions(num_seqs=pinned) == lo.SolveOptions(num_seqs=(4, 8))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: lo.StepHistogram(np.array([2**63 + 5], np.uint64), np.array([1]), np.array([1.0])),
            "num_seqs: found 9223372036854775813, expected at most 9223372036854775807",
        ),
        (
            lambda: lo.StepHistogram(np.array([4]), np.array([1]), [10**400]),  # type: ignore[arg-type]
            "steps: found a number that no float holds, expected a finite one",
        ),
    ],
)
def test_values_out_of_range(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == line


@pytest.mark.parametrize(
    "read",
    [
        lo.read_trace,
        lo.read_cost_model,
        lo.read_steps,
        lo.read_plan,
        lo.read_model_shape,
        lambda path: lo.calibrate(path, ENGINE),
    ],
)
def test_names_that_are_too_long_for_a_file(read: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match=r"^a{300}: found [^\n]*, expected [^\n]*$"):
        read("a" * 300)
