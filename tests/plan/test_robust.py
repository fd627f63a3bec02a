"""Robust plans: each trace on its own, the worst of them least."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.replay import simulate, sum_of_replays
from ladder_opt.plan.frontier import frontier
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.parts import PlanRobust
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.trace.table import Trace
from tests.plan.plans import ENGINE, STEPS, make_cost, make_trace


def long_trace(*, requests: int = 200, seed: int = 5) -> Trace:
    """Few requests, but longer ones than `make_trace` makes."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(4.0, requests))
    return Trace(arrivals - arrivals[0], rng.integers(900, 1500, requests), rng.integers(200, 500, requests))


TRACES = [make_trace(), long_trace()]


def robust_plan(traces: Any = TRACES, **options: Any) -> Plan:
    return tune(traces, make_cost(), engine=ENGINE, options=SolveOptions(robust=True, **options))


def robust_of(plan: Plan) -> PlanRobust:
    assert plan.result.robust is not None
    return plan.result.robust


def seconds_on(trace: Trace, ladders: Ladders, *, replayed_with: Ladders, restarts: float) -> float:
    """What ladders cost on a trace's own replay."""
    steps = simulate(trace, ENGINE, make_cost(), ladders=replayed_with).steps
    options = SolveOptions(restarts=restarts)
    return evaluate(steps, ladders, make_cost(), engine=ENGINE, options=options).result.objective_seconds


@pytest.mark.parametrize("restarts", [None, 0.5])
def test_the_numbers_are_those_of_each_trace_alone(restarts: float | None) -> None:
    plan = robust_plan(restarts=restarts)
    robust = robust_of(plan)
    assert plan.provenance.replay is not None
    assert plan.provenance.replay["settled"]
    assert robust.status == "optimal"
    assert robust.gap <= 1e-8
    for trace, workload in zip(TRACES, robust.workloads, strict=True):
        replay = simulate(trace, ENGINE, make_cost(), ladders=plan.ladders)
        starts = replay.server_seconds / 86400 if restarts is None else restarts
        assert workload.restarts == pytest.approx(starts)
        again = evaluate(
            replay.steps, plan.ladders, make_cost(), engine=ENGINE, options=SolveOptions(restarts=starts)
        )
        assert workload.objective_seconds == pytest.approx(again.result.objective_seconds)
        best = tune(replay.steps, make_cost(), engine=ENGINE, options=SolveOptions(restarts=starts))
        assert workload.optimum_seconds == pytest.approx(best.result.objective_seconds)
        regret = again.result.objective_seconds / best.result.objective_seconds - 1
        assert workload.regret == pytest.approx(regret, abs=1e-8)
    assert robust.worst_regret == max(each.regret for each in robust.workloads)
    assert robust.mix is not None
    assert robust.worst_regret <= robust.mix.worst_regret + 1e-8
    assert all(robust.worst_regret <= each.own_plan_worst_regret + 1e-8 for each in robust.workloads)
    assert all(robust.worst_regret <= each.worst_regret + 1e-8 for each in robust.baselines)


def test_other_plans_regrets_are_on_the_same_steps() -> None:
    plan = robust_plan(restarts=1.0)
    robust = robust_of(plan)
    assert robust.mix is not None
    assert robust.worst_regret > 1e-4  # the traces are at odds
    for ladders, said in (
        (Ladders(robust.mix.num_seqs, robust.mix.num_blocks), robust.mix.worst_regret),
        (Ladders((4, 8), (1, 2, 4, 8, 16)), robust.baseline_regret("default")),
    ):
        regrets = [
            seconds_on(trace, ladders, replayed_with=plan.ladders, restarts=1.0) / each.optimum_seconds - 1
            for trace, each in zip(TRACES, robust.workloads, strict=True)
        ]
        assert said == pytest.approx(max(regrets), abs=1e-8)


def test_the_ordinary_numbers_are_of_the_sum() -> None:
    plan = robust_plan()
    result, robust = plan.result, robust_of(plan)
    assert robust.mix is not None
    assert result.objective_seconds == pytest.approx(sum(each.objective_seconds for each in robust.workloads))
    assert result.restarts == pytest.approx(sum(each.restarts for each in robust.workloads))
    # What the sum could cost at the least is known from the plan for the sum.
    assert result.status == "feasible"
    assert result.stop_reason == "least worst regret"
    assert result.lower_bound_seconds == pytest.approx(robust.mix.objective_seconds)
    assert result.gap == pytest.approx(1 - result.lower_bound_seconds / result.objective_seconds)
    whole = simulate(TRACES, ENGINE, make_cost(), ladders=plan.ladders)
    parts = [simulate(trace, ENGINE, make_cost(), ladders=plan.ladders) for trace in TRACES]
    assert sum_of_replays(parts).to_dict() == whole.to_dict()
    assert plan.provenance.replay is not None
    assert whole.to_dict().items() <= plan.provenance.replay.items()
    assert result.steps.total == whole.steps.total_steps
    assert [each.path for each in robust.workloads] == ["workload 1", "workload 2"]


def test_one_workload_is_the_plain_plan_and_says_so() -> None:
    for source in (STEPS, make_trace(), [make_trace()]):
        plan = robust_plan(source)
        plain = tune(source, make_cost(), engine=ENGINE)
        assert plan.ladders == plain.ladders
        assert plan.result.status == "optimal"
        assert robust_of(plan).worst_regret <= 1e-8
        assert "--robust: one workload, so that the plan is the best for that one alone" in plan.warnings


def test_limits_pins_and_guard_hold_for_the_optima_too() -> None:
    plan = robust_plan(max_variants=6, guard=3.0, num_seqs=(4, 8))
    robust = robust_of(plan)
    assert plan.num_seqs == (4, 8)
    assert plan.result.num_variants <= 6
    for trace, each in zip(TRACES, robust.workloads, strict=True):
        steps = simulate(trace, ENGINE, make_cost(), ladders=plan.ladders).steps
        options = SolveOptions(restarts=each.restarts, max_variants=6, guard=3.0, num_seqs=(4, 8))
        alone = tune(steps, make_cost(), engine=ENGINE, options=options)
        assert each.optimum_seconds == pytest.approx(alone.result.objective_seconds)


def test_holdout_is_of_each_trace() -> None:
    plan = robust_plan(holdout=0.25)
    held = robust_of(plan).holdout
    assert plan.result.holdout is None
    assert held is not None
    assert held.share == 0.25
    seen = [trace.split_by_time(0.25)[0] for trace in TRACES]
    assert robust_plan(seen).ladders == plan.ladders
    for trace, each in zip(TRACES, held.workloads, strict=True):
        unseen = trace.split_by_time(0.25)[1]
        rest = evaluate(unseen, plan.ladders, make_cost(), engine=ENGINE)
        assert each.objective_seconds == pytest.approx(rest.result.objective_seconds)
    assert held.worst_regret == max(each.regret for each in held.workloads)


def test_the_verdict_is_about_the_worst_regret() -> None:
    robust = robust_of(robust_plan())
    default = robust.baseline_regret("default")
    assert default is not None
    saved = (default - robust.worst_regret) / (1 + default)
    assert robust_plan(min_gain=saved - 1e-6).verdict == "adopt"
    assert robust_plan(min_gain=saved + 1e-6).verdict == "keep-default"


def test_a_workload_of_next_to_nothing_that_decides_is_named() -> None:
    few = Trace(np.array([0.0, 1.0]), np.array([100, 200]), np.array([5, 5]))
    plan = robust_plan([make_trace(), few], restarts=0.01)
    (warning,) = [each for each in plan.warnings if "Leave it out" in each]
    worst = robust_of(plan).worst_regret
    assert warning.startswith("workload 2: ")
    assert warning.endswith(f"the others would pay at most 0.00% above their own best, not {worst:.2%}")
    assert not any("Leave it out" in each for each in robust_plan().warnings)


def test_out_of_time_a_warning_says_between_what() -> None:
    plan = robust_plan(time_limit_seconds=0.0)
    robust = robust_of(plan)
    assert robust.status == "feasible"
    assert robust.stop_reason == "time limit"
    assert robust.lower_bound <= robust.worst_regret
    assert any(
        each.startswith("not proven within 0 s: the least worst regret lies") for each in plan.warnings
    )


def test_a_plan_file_keeps_it() -> None:
    plan = robust_plan(holdout=0.25)
    assert plan_from_dict(plan.to_dict()) == plan
    assert "robust" in plan.to_dict()["result"]
    assert plan.provenance.asked is not None
    assert plan.provenance.asked["robust"] is True


def test_an_engine_that_batches_nothing() -> None:
    plan = tune(
        TRACES,
        make_cost(),
        engine=Engine(max_num_seqs=3, max_model_len=2048),
        options=SolveOptions(robust=True),
    )
    assert plan.verdict == "not-used"
    assert plan.result.robust is None


def test_refusals() -> None:
    with pytest.raises(UsageError, match="--structure: found 'ragged', expected 'product' with --robust"):
        SolveOptions(robust=True, structure="ragged")
    with pytest.raises(UsageError, match="--weights: found with --robust, expected none: the worst"):
        tune(
            TRACES,
            make_cost(),
            engine=ENGINE,
            options=SolveOptions(robust=True),
            replay_options=ReplayOptions(weights=(1.0, 2.0)),
        )
    with pytest.raises(UsageError, match="--robust: found for given ladders, expected with tune alone"):
        evaluate(STEPS, Ladders((8,), (16,)), make_cost(), engine=ENGINE, options=SolveOptions(robust=True))
    with pytest.raises(UsageError, match="--robust: found for a frontier, expected with tune alone"):
        frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(robust=True))
    with pytest.raises(UsageError, match="--holdout: found a histogram, expected traces"):
        robust_plan(STEPS, holdout=0.2)


def test_target_spyre_env_chooses_query_lengths_too() -> None:
    plan = robust_plan(target="spyre-env", restarts=1.0)
    robust = robust_of(plan)
    assert plan.query_lens is not None
    assert plan.result.sequences is not None
    assert robust.status == "optimal"
    assert robust.mix is not None
    assert robust.worst_regret <= robust.mix.worst_regret + 1e-8
    for trace, workload in zip(TRACES, robust.workloads, strict=True):
        replay = simulate(trace, ENGINE, make_cost(), ladders=plan.ladders, per_sequence=True)
        again = evaluate(replay, plan.ladders, make_cost(), engine=ENGINE, options=SolveOptions(restarts=1.0))
        assert workload.objective_seconds == pytest.approx(again.result.objective_seconds)
