"""Robust plans as people read them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.tune import tune
from ladder_opt.report.terminal import console
from ladder_opt.report.text import plan_text
from ladder_opt.trace.table import Trace
from ladder_opt.units import duration_text
from tests.plan.plans import ENGINE, make_cost, make_trace


def two_traces() -> list[Trace]:
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(4.0, 200))
    long = Trace(arrivals - arrivals[0], rng.integers(900, 1500, 200), rng.integers(200, 500, 200))
    return [make_trace(), long]


def changed(plan: Plan, **robust: Any) -> Plan:
    data = copy.deepcopy(plan.to_dict())
    data["result"]["robust"] |= robust
    return plan_from_dict(data)


def test_the_worst_each_workload_and_the_plan_for_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    plan = tune(
        two_traces(),
        make_cost(),
        engine=ENGINE,
        options=SolveOptions(robust=True, restarts=1.0, holdout=0.25),
    )
    robust = plan.result.robust
    assert robust is not None
    assert robust.holdout is not None

    def text(shown: Plan) -> str:
        console().print(plan_text(shown))
        return capsys.readouterr().out

    printed = text(plan)
    default = robust.baseline_regret("default")
    assert (
        f"; the worst of 2 workloads pays {robust.worst_regret:.2%} above its own best "
        f"(default: {default:.2%})" in printed
    )
    assert "optimal, proven: no ladders have a smaller worst regret" in printed
    assert "the sum of the workloads:" in printed
    for each in robust.workloads:
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{each.path}  ")]
        assert f"{each.regret:.2%}" in line
        assert f"{each.own_plan_worst_regret:.2%}" in line
    held = robust.holdout
    assert (
        f"on the last 25% of the traffic, which it has not seen, the worst regret is {held.worst_regret:.2%}"
        in (" ".join(printed.split()))
    )
    same = {"num_seqs": plan.num_seqs, "num_blocks": plan.num_blocks}
    mix = {"objective_seconds": 1.0, "worst_regret": 0.5}
    assert "for the sum of the workloads would have the same ladders" in text(
        changed(plan, mix={**same, **mix})
    )
    other = text(changed(plan, mix={**same, **mix, "num_seqs": [8]}))
    assert "would have a worst regret of 50.00% and cost" in " ".join(other.split())
    rough = text(
        changed(plan, status="feasible", stop_reason="time limit", lower_bound=0.01, worst_regret=0.02)
    )
    assert "feasible: the least worst regret lies between 1.000% and 2.000% (time limit)" in rough
    unproven = copy.deepcopy(plan.to_dict()["result"]["robust"]["workloads"])
    unproven[0] |= {"optimum_status": "feasible", "path": "a/very/long/path/" + "x" * 60}
    rough = text(changed(plan, workloads=unproven))
    assert f">= {duration_text(robust.workloads[0].optimum_lower_bound_seconds)}" in rough
    assert "..." + "x" * 27 in rough
