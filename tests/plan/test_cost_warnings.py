"""Warnings where a plan leans on what its cost model was never measured at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import evaluate, tune
from tests.plan.plans import ENGINE, STEPS, make_cost

WHOLE = {"num_seqs": [4, 8], "num_blocks": [1, 16], "iterations": [1, 4], "gathers": [4, 128]}
PLAN = Ladders((8,), (4, 16))  # 1,500 steps at 8 x 4... of STEPS those of 3 blocks; the others at 8 x 16


def with_fit(**fit: Any) -> CostModel:
    return make_cost(fit=fit)


def told(cost: CostModel, ladders: Ladders = PLAN, restarts: float = 1.0) -> list[str]:
    plan = evaluate(STEPS, ladders, cost, engine=ENGINE, options=SolveOptions(restarts=restarts))
    return list(plan.warnings)


def test_within_the_range_nothing_is_told() -> None:
    assert told(with_fit(range={"step": WHOLE, "compile": WHOLE})) == []
    assert told(make_cost()) == []


def test_steps_beyond_the_range() -> None:
    """1,000 steps of 0.042 s are measured, 3,500 of 0.138 s are not: 483 of 525 s."""
    (line,) = told(with_fit(range={"step": WHOLE | {"gathers": [4, 64]}, "compile": WHOLE}))
    assert line == (
        "92% of the plan's step seconds are extrapolated: the cost model was fitted to num_seqs 4 to 8, "
        "iterations 1 to 4, gathers 4 to 64; rung pairs such as 8 x 16 lie beyond"
    )


def test_compiles_beyond_the_range() -> None:
    """One variant of one iteration, one of four."""
    (line,) = told(with_fit(range={"step": WHOLE, "compile": WHOLE | {"iterations": [1, 2]}}))
    assert line == (
        "50% of the plan's compile seconds are extrapolated: the cost model was fitted to iterations 1 to 2; "
        "rung pairs such as 8 x 16 lie beyond"
    )


def test_sizes_far_below_the_range_count_too() -> None:
    (line,) = told(with_fit(range={"step": WHOLE | {"gathers": [100, 128]}}))
    assert "8% of the plan's step seconds are extrapolated" in line
    assert "such as 8 x 4 lie beyond" in line


def test_a_table_extrapolates_nothing() -> None:
    rows = [[s, m, 0.1] for s in (4, 8) for m in (1, 2, 4, 8, 16)]
    cost = make_cost(step_table=rows, fit={"range": {"step": WHOLE | {"gathers": [1, 2]}}})
    assert told(cost) == []


@pytest.mark.parametrize(
    "held", [None, 3, {"step": 3}, {"step": {"gathers": "4 to 8"}}, {"gathers": [1]}, []]
)
def test_a_fit_that_says_it_otherwise_is_passed_over(held: object) -> None:
    assert told(with_fit(range=held, parameters=[1])) == []


def entry(high: float, *, is_told: bool) -> dict[str, Any]:
    return {"value": 0.0, "low": 0.0, "high": high, "told_from_zero": is_told}


def test_a_term_that_could_not_be_told_and_may_matter() -> None:
    """At 5 ms an iteration, 1,000 steps of one and 3,500 of four cost 75 s of 529 s."""
    parameters = {"step_seconds.per_iteration": entry(5e-3, is_told=False)}
    (line,) = told(with_fit(parameters=parameters))
    assert line == (
        "step_seconds.per_iteration: the measurements could not tell it from zero; at the upper end of its "
        "interval, 0.005, it would be 14% of the plan's cost"
    )
    assert told(with_fit(parameters={"step_seconds.per_iteration": entry(5e-3, is_told=True)})) == []
    assert told(with_fit(parameters={"step_seconds.per_iteration": entry(5e-5, is_told=False)})) == []


def test_the_option_that_says_more_is_named_where_it_does() -> None:
    cost = with_fit(parameters={"step_seconds.per_iteration": entry(5e-3, is_told=False)})
    options = SolveOptions(num_seqs=PLAN.num_seqs, num_blocks=PLAN.num_blocks, restarts=1.0)
    (line,) = tune(STEPS, cost, engine=ENGINE, options=options).warnings
    assert line.endswith("14% of the plan's cost (see --uncertainty 40)")
    (line,) = tune(STEPS, cost, engine=ENGINE, options=replace(options, robust=True)).warnings[:1]
    assert line.endswith("14% of the plan's cost")  # it does not go with --robust
    few = StepHistogram(np.array([2]), np.array([3]), np.array([100.0]))
    compiles = with_fit(parameters={"compile_seconds.base": entry(5.0, is_told=False)})
    line = tune(few, compiles, engine=ENGINE, options=options).warnings[0]
    assert line.startswith("compile_seconds.base: the measurements could not tell it from zero")
    assert "--uncertainty" not in line


def test_compiles_that_could_not_be_told_count_by_server_starts() -> None:
    parameters = {"compile_seconds.per_iteration_sq": entry(1.0, is_told=False)}
    assert told(with_fit(parameters=parameters)) == []  # 17 s of 529 s
    (line,) = told(with_fit(parameters=parameters), restarts=100.0)
    assert line.startswith("compile_seconds.per_iteration_sq: the measurements could not tell it from zero")


def test_plans_are_warned_of_too() -> None:
    cost = with_fit(range={"step": WHOLE | {"gathers": [4, 16]}})
    plan = tune(STEPS, cost, engine=ENGINE)
    assert any("step seconds are extrapolated" in line for line in plan.warnings)


def test_the_built_in_model_is_quiet_where_it_was_measured_and_tells_where_not() -> None:
    plan = evaluate(STEPS, Ladders((8,), (4, 16)), read_cost_model(), engine=ENGINE)
    assert list(plan.warnings) == []
    long = Engine(max_num_seqs=8, max_model_len=1024 * 128)
    plan = evaluate(STEPS, Ladders((8,), (1024,)), read_cost_model(), engine=long)
    assert any("fitted to num_seqs 4 to 32, num_blocks 4 to 128" in line for line in plan.warnings)


def test_a_fit_without_compiles() -> None:
    fit = {"range": {"step": WHOLE, "compile": WHOLE}}
    assert told(make_cost(fit=fit, compile_seconds={})) == [
        "no compile is priced: rungs look free to a plan, and its warm-up is not told"
    ]
    assert told(make_cost(compile_seconds={})) == []  # nobody fitted it: free compiles may be meant
