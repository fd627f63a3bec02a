"""Small traffic, prices and plans that the tests of plans and of the command line share."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.tune import tune
from ladder_opt.trace.table import Trace

ENGINE = Engine(max_num_seqs=8, max_model_len=16 * 128)
STEPS = StepHistogram(np.array([2, 5, 5, 8]), np.array([1, 3, 7, 9]), np.array([70.0, 1000.0, 500.0, 3000.0]))


def make_cost(**changes: Any) -> CostModel:
    """Prices of round numbers: 1 ms a page, 2 s a compile."""
    data: dict[str, Any] = {
        "schema": "ladder_opt/cost/1",
        "name": "round numbers",
        "step_seconds": {"base": 0.01, "per_gather": 0.001},
        "compile_seconds": {"base": 2.0},
        "replay_seconds": {"per_sequence_gather": 0.001, "per_prefill_token": 0.0001},
        "startup_seconds": 30.0,
    }
    return CostModel.model_validate(data | changes)


def make_trace(*, requests: int = 300, seed: int = 0, per_second: float = 0.4) -> Trace:
    """Requests of 100 to 1200 prompt and 10 to 300 output tokens."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / per_second, requests))
    return Trace(arrivals - arrivals[0], rng.integers(100, 1200, requests), rng.integers(10, 300, requests))


def make_plan(**options: Any) -> Plan:
    """A plan for `STEPS` on `ENGINE`."""
    return tune(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(**options))


def make_spyre_plan(**options: Any) -> Plan:
    """A plan for the Spyre plugin as it is today, on the same steps."""
    steps = replace(STEPS, sequences=STEPS.decode_calls(ENGINE))
    return tune(steps, make_cost(), engine=ENGINE, options=SolveOptions(target="spyre-env", **options))


def with_result(plan: Plan, **result: Any) -> Plan:
    """A plan with other entries in its `result`, read again."""
    data = copy.deepcopy(plan.to_dict())
    data["result"] |= result
    return plan_from_dict(data)
