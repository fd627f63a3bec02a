"""`ladder-opt drift`: exit codes, texts, histories, hostile input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.monitor.history import read_drift_history
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.steps_file import write_steps
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.table import Trace
from tests.cli.runs import ENGINE, Run
from tests.plan.plans import STEPS, make_cost

pytestmark = pytest.mark.usefixtures("folder")

NEW = StepHistogram(np.array([4, 6]), np.array([5, 12]), np.array([2000.0, 900.0]))
MEASURED = """num_seqs,num_blocks,seconds,compile_seconds
4,4,0.030,4.1
4,16,0.080,4.0
8,4,0.050,4.2
8,8,0.080,3.9
8,16,0.150,4.0
5,9,0.075,4.0
"""


@pytest.fixture
def plan(folder: Path, run: Run) -> str:
    """A plan for steps.csv, and new.csv beside it."""
    run("tune", "--steps", "steps.csv", "--cost", "cost.json", *ENGINE, "-o", "plan.json")
    write_steps(NEW, "new.csv")
    return "plan.json"


def test_the_same_steps_hold(run: Run, plan: str) -> None:
    ran = run("drift", plan, "--steps", "steps.csv")
    assert ran.out.startswith(
        "holds: the plan costs 0.00% (0 ms) more than the best ladders would; 5% is allowed"
    )
    assert "cost model round numbers: the plan's prices" in ran.out
    assert "as many server starts are charged for a step as the plan was" in ran.err


def test_new_steps_end_with_code_1_past_the_limit(run: Run, plan: str) -> None:
    ran = run("drift", plan, "--steps", "new.csv", code=1)
    assert ran.out.startswith("drifted: the plan costs ")
    assert "what changed: the regret went from 0.00% to" in ran.out
    assert "best num_seqs" in ran.out
    regret = run("drift", plan, "--steps", "new.csv", "--json", code=1).json()["regret"]
    assert run("drift", plan, "--steps", "new.csv", "--max-regret", f"{100 * regret + 0.1}%").code == 0
    assert run("drift", plan, "--steps", "new.csv", "--max-regret", str(regret * 0.999), code=1).code == 1


def test_strict_ends_with_code_1_for_a_warning(run: Run, plan: str) -> None:
    few = StepHistogram(np.array([1]), np.array([2]), np.array([10.0]))
    write_steps(few, "few.csv")
    any_regret = ["--max-regret", "99"]
    assert "no step reaches batched decode" in run("drift", plan, "--steps", "few.csv", *any_regret).err
    run("drift", plan, "--steps", "few.csv", *any_regret, "--strict", code=1)
    run("drift", plan, "--steps", "steps.csv", "--strict")


def test_traces_take_the_plans_engine_and_replicas(run: Run) -> None:
    run("tune", "trace.csv", "--cost", "cost.json", *ENGINE, "--replicas", "3", "-o", "plan.json")
    found = run("drift", "plan.json", "trace.csv", "--json").json()
    assert found["regret"] == pytest.approx(0.0, abs=1e-12)
    assert found["workloads"][0]["name"] == "trace.csv"
    assert found["parts"]["now"] == found["regret"]
    one = run("drift", "plan.json", "trace.csv", "--replicas", "1", "--max-regret", "9", "--json").json()
    assert one["workloads"][0]["restarts"] == pytest.approx(found["workloads"][0]["restarts"] / 3)
    quick = run("drift", "plan.json", "trace.csv", "--no-parts", "--json").json()
    assert (quick["parts"], quick["parts_note"]) == (None, None)


def test_a_history_grows_by_a_line_a_run(run: Run, plan: str) -> None:
    for steps, code in (("steps.csv", 0), ("new.csv", 1)):
        run("drift", plan, "--steps", steps, "--history", "drift.jsonl", code=code)
    frame = read_drift_history("drift.jsonl")
    assert frame["is_over"].tolist() == [False, True]
    assert frame["inputs"].tolist() == [["steps.csv"], ["new.csv"]]


@pytest.mark.parametrize("steps", ["steps.csv", "new.csv"])
def test_a_torn_history_does_not_swallow_the_verdict(run: Run, plan: str, steps: str) -> None:
    code = int(steps == "new.csv")
    arguments = ["drift", plan, "--steps", steps, "--history", "drift.jsonl"]
    verdict = run(*arguments, code=code).out
    line = Path("drift.jsonl").read_text(encoding="utf-8")
    Path("drift.jsonl").write_text(f"{line}{line[:90]}", encoding="utf-8")
    ran = run(*arguments, code=code)
    assert ran.out == verdict
    assert ran.err.splitlines()[-1] == (
        "warning: drift.jsonl: line 2 is torn and left as found; 1 whole ones count"
    )
    lines = Path("drift.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == [line.rstrip(), line[:90]]
    assert json.loads(lines[2])["is_over"] is bool(code)
    assert run(*arguments, "--strict", code=1).out == verdict


@pytest.mark.parametrize(
    "history",
    [
        b"remember the milk\n",
        b"\xff\xfe",
        b'{"schema": "ladder_opt/drift-history/2"}\n',
        b"[]\n",
        b'{"a": NaN}\n',
    ],
)
@pytest.mark.parametrize("steps", ["steps.csv", "new.csv"])
def test_a_damaged_history_is_told_after_the_verdict(run: Run, plan: str, steps: str, history: bytes) -> None:
    verdict = run("drift", plan, "--steps", steps, code=int(steps == "new.csv"))
    Path("drift.jsonl").write_bytes(history)
    ran = run(
        "drift", plan, "--steps", steps, "--history", "drift.jsonl", code=1 if steps == "new.csv" else 2
    )
    assert ran.out == verdict.out
    (line,) = [line for line in ran.err.splitlines() if line.startswith("ladder-opt: ")]
    assert line.startswith("ladder-opt: drift.jsonl")
    assert line.endswith("; the history was left as it is")
    assert Path("drift.jsonl").read_bytes() == history


def slow_trace(requests: int, per_second: float, prompt: tuple[int, int], output: tuple[int, int]) -> Trace:
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / per_second, requests))
    lengths = rng.integers(*prompt, requests), rng.integers(*output, requests)
    return Trace(arrivals - arrivals[0], *lengths)


def test_parts_are_told_in_seconds_where_hardly_a_step_is_batched(run: Run) -> None:
    """Rate and lengths as shares: +10 and -3 of an optimum that costs nearly nothing."""
    run("tune", "trace.csv", "--cost", "cost.json", *ENGINE, "--uptime", "10000s", "-o", "plan.json")
    write_trace(slow_trace(300, 0.03, (800, 1500), (200, 500)), "slow.parquet")
    ran = run("drift", "plan.json", "slow.parquet", code=1)
    assert "its parts in seconds, for with rate or lengths" in ran.out
    assert "percentage points" not in ran.out
    parts = run("drift", "plan.json", "slow.parquet", "--json", code=1).json()["parts"]
    assert parts["is_small_base"] is True
    assert parts["rate"] > 1
    seconds = parts["seconds"]
    named = [seconds[name] for name in ("rate", "length", "mix", "cost")]
    assert sum(named) == pytest.approx(seconds["now"] - seconds["then"])
    assert max(map(abs, named)) < 2 * seconds["now"]
    ordinary = run("drift", "plan.json", "trace.csv", "--json").json()["parts"]
    assert ordinary["is_small_base"] is False


def test_what_is_not_given_is_the_plans(run: Run) -> None:
    """One scheduling option leaves the plan's others as they are."""
    scheduling = ["--n", "2", "--long-prefill-token-threshold", "64"]
    run("tune", "trace.csv", "--cost", "cost.json", *ENGINE, *scheduling, "-o", "plan.json")
    whole = run("drift", "plan.json", "trace.csv", "--max-regret", "99", "--json").json()
    same = run("drift", "plan.json", "trace.csv", "--n", "2", "--max-regret", "99", "--json").json()
    assert same["workloads"] == whole["workloads"]
    text = " ".join(run("drift", "--help").out.split())
    for option in ("--replicas", "--concurrency", "--n", "--block-size", "--scheduling-policy"):
        told = text[text.index(f" {option} ") :]
        assert "[the plan's]" in told[: told.index("<", told.index("<") + 1)]
    assert "[default: 1]" not in text
    assert "[default: 1.0]" in text  # --rate-scale: new traffic is taken at its own


def test_new_prices_by_file_and_by_measurement(run: Run, plan: str) -> None:
    dear = make_cost(compile_seconds={"base": 4.0}, name="dear")
    Path("dear.json").write_text(json.dumps(dear.to_dict()), encoding="utf-8")
    ran = run("drift", plan, "--steps", "steps.csv", "--cost", "dear.json", "--max-regret", "9")
    assert "cost model dear: other prices than the plan was made with" in ran.out
    assert "compile_seconds.base" in ran.out
    Path("measured.csv").write_text(MEASURED, encoding="utf-8")
    found = run(
        "drift", plan, "--steps", "steps.csv", "--measured", "measured.csv", "--max-regret", "9", "--json"
    )
    data = found.json()
    assert data["cost"]["changed"] is True
    compiles = next(each for each in data["predictions"] if each["quantity"] == "compile")
    assert compiles["ratio"] == pytest.approx(2.0, rel=0.05)
    assert data["parts"]["rate"] == pytest.approx(0.0, abs=1e-9)
    beside = run(
        *(
            "drift",
            plan,
            "--steps",
            "steps.csv",
            "--measured",
            "measured.csv",
            "--cost",
            "cost.json",
            "--json",
        )
    ).json()
    assert beside["cost"]["changed"] is False
    assert len(beside["predictions"]) == 2


def test_an_older_plan_needs_its_prices_named(run: Run, plan: str) -> None:
    data = json.loads(Path(plan).read_text(encoding="utf-8"))
    del data["cost"], data["occupancy"]
    Path(plan).write_text(json.dumps(data), encoding="utf-8")
    assert run.fails("drift", plan, "--steps", "steps.csv") == (
        "found no prices: the plan does not hold those of its cost model round numbers, expected --cost or "
        "--plan-cost"
    )
    ran = run("drift", plan, "--steps", "steps.csv", "--plan-cost", "cost.json")
    assert "what changed is not told apart: the plan does not hold the steps" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.json"], "found neither, expected trace files or --steps"),
        (["plan.json", "trace.csv", "--steps", "steps.csv"], "found both, expected trace files or --steps"),
        (["plan.json", "--steps", "steps.csv", "--max-regret", "some"], "--max-regret: found 'some'"),
        (["plan.json", "--steps", "steps.csv", "--max-regret", "-1%"], "--max-regret: found '-1%'"),
        (
            ["plan.json", "--steps", "steps.csv", "--restarts", "1", "--uptime", "1h"],
            "--restarts: found --uptime as well, expected one of the two",
        ),
        (["plan.json", "--steps", "steps.csv", "--history", "steps.csv"], "found an input of this very run"),
        (["plan.json", "--steps", "steps.csv", "--history", "no/h.jsonl"], "no: found No such file"),
        (["plan.json", "--steps", "steps.csv", "--cost", "none.json"], "none.json: found no such file"),
        (
            ["plan.json", "--steps", "steps.csv", "--measured", "steps.csv"],
            "found no measurements that calibrate",
        ),
        (["plan.json", "--steps", "steps.csv", "--block-size", "64"], "found a plan for block_size 128"),
        (["plan.json", "--steps", "none.csv"], "none.csv: found No such file"),
        (["steps.csv", "--steps", "steps.csv"], "expected a plan"),
        (["none.json", "--steps", "steps.csv"], "none.json: found No such file"),
    ],
)
@pytest.mark.usefixtures("plan")
def test_one_line_for_a_mistake(run: Run, arguments: list[str], message: str) -> None:
    assert message in run.fails("drift", *arguments)


def test_steps_beyond_the_engine_are_an_error(run: Run, plan: str) -> None:
    write_steps(StepHistogram(np.array([9]), np.array([1]), np.array([1.0])), "wide.csv")
    assert "expected at most the engine's max_num_seqs = 8" in run.fails("drift", plan, "--steps", "wide.csv")
    ran = run("drift", plan, "--steps", "wide.csv", "--max-num-seqs", "16", "--max-regret", "9")
    assert "num_seqs" in ran.err  # clamped, and told


def test_names_of_files_cannot_write_to_the_terminal(run: Run) -> None:
    odd = "\x1b[31mred\x1b[0m.csv"
    write_steps(STEPS, odd)
    run("tune", "--steps", "steps.csv", "--cost", "cost.json", *ENGINE, "-o", "plan.json")
    ran = run("drift", "plan.json", "--steps", odd)
    assert "\x1b" not in ran.out + ran.err
