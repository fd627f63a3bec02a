"""The frontier as the library and the command line give it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladder_opt.cli.app import main
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.occupancy.steps_file import write_steps
from ladder_opt.plan.frontier import frontier
from ladder_opt.plan.options import SolveOptions
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_trace


def test_every_plan_is_on_it() -> None:
    found = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(restarts=3.0))
    assert found.complete
    for restarts in (0.0, 0.1, 1.0, 3.0, 50.0):
        plan = make_plan(restarts=restarts)
        best = min(price.step_seconds + restarts * price.compile_seconds for price in found.prices)
        assert plan.result.objective_seconds == pytest.approx(best, rel=1e-9)
    for budget in (40.0, 50.0, 60.0):
        plan = make_plan(warmup_budget_seconds=budget, restarts=0.0)
        allowed = found.best_within(budget)
        assert allowed is not None
        assert plan.result.step_seconds == pytest.approx(allowed.step_seconds, rel=1e-9)
    chosen = found.prices[found.chosen]
    assert chosen.objective_seconds == pytest.approx(make_plan(restarts=3.0).result.objective_seconds)


def test_what_a_minute_buys() -> None:
    found = frontier(STEPS, make_cost(), engine=ENGINE)
    after = found.best_within(found.prices[0].warmup_seconds + 60)
    assert after is not None
    assert found.minute_after(0) == found.prices[0].step_seconds - after.step_seconds
    assert found.minute_before(0) is None
    assert found.minute_after(len(found) - 1) == 0.0
    assert found.best_within(1.0) is None
    assert 0 < found.knee < len(found) - 1


def test_guard_and_budgets_hold_for_every_point() -> None:
    found = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(guard=2.0))
    for price in found.prices:
        for rungs, smallest in ((price.ladders.num_seqs, 4), (price.ladders.num_blocks, 1)):
            sizes = (smallest, *(rung + 1 for rung in rungs))
            assert all(rung <= 2.0 * size for rung, size in zip(rungs, sizes, strict=False))
    every = frontier(STEPS, make_cost(), engine=ENGINE)
    few = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(max_variants=5))
    assert [price.ladders for price in few.prices] == [
        price.ladders for price in every.prices if price.num_variants <= 5
    ]
    assert 0 < len(few) < len(every)


def test_what_a_frontier_is_not_asked_for() -> None:
    for options, engine, message in (
        (SolveOptions(structure="ragged"), ENGINE, "--structure: found 'ragged', expected 'product'"),
        (SolveOptions(num_seqs=[4]), ENGINE, "--num-seqs, --num-blocks: found a pinned axis"),
        (SolveOptions(), Engine(max_num_seqs=3), "max_num_seqs: found 3, expected 4 or more"),
    ):
        with pytest.raises(UsageError, match=message):
            frontier(STEPS if engine is ENGINE else make_trace(), make_cost(), engine=engine, options=options)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps, cost, output = tmp_path / "steps.csv", tmp_path / "cost.json", tmp_path / "f.csv"
    write_steps(STEPS, steps)
    cost.write_text(json.dumps(make_cost().to_dict()), encoding="utf-8")
    arguments = ["frontier", "--steps", str(steps), "--cost", str(cost), "--max-num-seqs", "8"]
    arguments += ["--max-model-len", "2048", "-o", str(output)]
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    lines = output.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "warmup_seconds,step_seconds,num_variants,num_seqs,num_blocks,knee,chosen"
    assert len(lines) == 1 + len(data["points"])
    assert data["complete"]
    assert main(arguments) == 0
    assert f"{len(data['points'])} Pareto-optimal pairs of ladders (complete" in capsys.readouterr().out
