"""A plan on traffic it was not made for: regret, wear, what changed, starts, prices."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.monitor.drift import cost_of, drift
from ladder_opt.monitor.parts import Parts
from ladder_opt.monitor.prices import Measured, with_measured
from ladder_opt.monitor.result import Drift
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.trace.table import Trace
from tests import oracles
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan, make_trace

SMALL = Engine(max_num_seqs=7, max_model_len=5 * 128)
NEW = StepHistogram(np.array([2, 4, 6, 8]), np.array([1, 5, 12, 16]), np.array([70.0, 2000.0, 900.0, 40.0]))


def without(plan: Plan, *keys: str) -> Plan:
    """The plan as an older release would have written it."""
    data = plan.to_dict()
    for key in keys:
        place: Any = data
        *path, last = key.split(".")
        for part in path:
            place = place[part]
        del place[last]
    return plan_from_dict(data)


def parts_of(found: Drift) -> Parts:
    assert found.parts is not None, found.parts_note
    return found.parts


def brute_force_regret(
    ladders: Ladders, cells: list[tuple[int, int, float]], cost: CostModel, restarts: float
) -> tuple[float, float]:
    """(cost, optimum) by trying every pair of ladders."""
    instance = oracles.Instance(
        kernel=cost.kernel,
        cells=tuple(cells),
        max_num_seqs=SMALL.max_num_seqs,
        max_num_blocks=SMALL.max_num_blocks,
        step=(
            cost.step_seconds.base,
            cost.step_seconds.per_seq,
            cost.step_seconds.per_iteration,
            cost.step_seconds.per_gather,
        ),
        compile=(cost.compile_seconds.base, cost.compile_seconds.per_iteration, 0.0),
        restarts=restarts,
    )
    mine, _, _ = oracles.price(instance, ladders.num_seqs, ladders.num_blocks)
    best, _ = oracles.brute_force(instance)
    return mine, best


cell_lists = st.lists(
    st.tuples(st.integers(4, 7), st.integers(1, 5), st.integers(1, 500)),
    min_size=1,
    max_size=8,
    unique_by=lambda cell: cell[:2],
)


def histogram(cells: list[tuple[int, int, int]]) -> StepHistogram:
    seqs, blocks, steps = zip(*cells, strict=True)
    return StepHistogram(np.array(seqs), np.array(blocks), np.array(steps, np.float64))


@settings(max_examples=25, deadline=None)
@given(then=cell_lists, now=cell_lists)
def test_the_regret_is_that_of_every_pair_of_ladders_tried(
    then: list[tuple[int, int, int]], now: list[tuple[int, int, int]]
) -> None:
    cost = make_cost(compile_seconds={"base": 0.5, "per_iteration": 0.1})
    plan = tune(histogram(then), cost, engine=SMALL)
    found = drift(plan, histogram(now), options=SolveOptions(restarts=1.0), tell_parts=False)
    mine, best = brute_force_regret(plan.ladders, [(n, b, float(w)) for n, b, w in now], cost, 1.0)
    assert found.worst.objective_seconds == pytest.approx(mine)
    assert found.worst.optimum_seconds == pytest.approx(best)
    assert found.regret == pytest.approx(mine / best - 1, abs=1e-9)
    assert found.regret_seconds == pytest.approx(mine - best, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(then=cell_lists, now=cell_lists)
def test_parts_add_up_to_the_change(
    then: list[tuple[int, int, int]], now: list[tuple[int, int, int]]
) -> None:
    plan = tune(histogram(then), make_cost(), engine=SMALL)
    found = drift(plan, histogram(now), make_cost(compile_seconds={"base": 4.0}))
    parts = parts_of(found)
    assert parts.then == 0.0
    assert parts.now == found.regret
    assert parts.mix + parts.rate + parts.length + parts.cost == pytest.approx(parts.now, abs=1e-9)


def test_the_very_same_steps_have_not_drifted() -> None:
    found = drift(make_plan(), STEPS)
    assert found.regret == pytest.approx(0.0, abs=1e-12)
    parts = parts_of(found)
    assert (parts.mix, parts.rate, parts.length, parts.cost) == pytest.approx((0, 0, 0, 0), abs=1e-12)
    assert parts.largest is None or found.regret < 1e-9
    assert found.dead_rungs == ()
    assert not found.is_over
    assert not found.cost_changed


def test_the_very_same_trace_has_not_drifted() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE, options=SolveOptions(uptime_seconds=3600.0))
    assert (plan.provenance.replay or {})["settled"]
    found = drift(plan, trace)
    assert found.regret == pytest.approx(0.0, abs=1e-12)
    parts = parts_of(found)
    assert (parts.mix, parts.rate, parts.length, parts.cost) == pytest.approx((0, 0, 0, 0), abs=1e-12)
    assert found.worst.requests == 300


def traced_plan(trace: Trace) -> Plan:
    options = SolveOptions(uptime_seconds=3600.0)
    return tune(trace, make_cost(), engine=replace(ENGINE, max_num_seqs=16), options=options)


def test_a_doubled_rate_is_the_rate() -> None:
    trace = make_trace(per_second=0.3)
    assert trace.arrival_seconds is not None
    plan = traced_plan(trace)
    found = drift(plan, replace(trace, arrival_seconds=trace.arrival_seconds / 2))
    assert found.regret > 0.001
    parts = parts_of(found)
    assert parts.largest == "rate"
    assert parts.rate == pytest.approx(found.regret)
    assert (parts.mix, parts.length) == pytest.approx((0, 0), abs=1e-12)


def test_doubled_lengths_are_the_length() -> None:
    rng = np.random.default_rng(4)
    trace = make_trace(per_second=0.3)
    trace = replace(trace, prompt_tokens=rng.integers(100, 600, len(trace)))
    plan = traced_plan(trace)
    twice = replace(trace, prompt_tokens=trace.prompt_tokens * 2, output_tokens=trace.output_tokens * 2)
    found = drift(plan, twice)
    assert found.regret > 0.001
    assert parts_of(found).largest == "length"
    assert abs(parts_of(found).rate) < 0.1 * found.regret


def test_bursts_are_the_mix() -> None:
    trace = make_trace(per_second=0.3)
    assert trace.arrival_seconds is not None
    plan = traced_plan(trace)
    # The same requests over the same span, all of the first half at its very beginning and end.
    half, end = len(trace) // 2, float(trace.arrival_seconds[-1])
    arrivals = np.sort(np.r_[np.zeros(half), np.full(len(trace) - half, end)])
    parts = parts_of(drift(plan, replace(trace, arrival_seconds=arrivals)))
    assert parts.largest == "mix"
    assert (parts.rate, parts.length) == pytest.approx((0, 0), abs=1e-12)


def test_steps_of_larger_batches_are_the_rate_and_of_longer_ones_the_length() -> None:
    def cells(seqs: list[int], blocks: list[int]) -> StepHistogram:
        return StepHistogram(np.array(seqs), np.array(blocks), np.array([1000.0, 2000.0, 500.0]))

    plan = tune(cells([4, 5, 6], [3, 4, 5]), make_cost(), engine=ENGINE)
    larger = parts_of(drift(plan, cells([7, 8, 8], [3, 4, 5])))
    assert larger.of_steps
    assert larger.largest == "rate"
    assert parts_of(drift(plan, cells([4, 5, 6], [11, 13, 14]))).largest == "length"


def test_rungs_that_lost_their_steps_and_sizes_without_a_rung() -> None:
    plan = make_plan(num_seqs=(5, 8), num_blocks=(3, 7, 16))
    found = drift(plan, NEW)
    assert [(each.axis, each.rung) for each in found.dead_rungs] == [("num_blocks", 3)]
    (dead,) = found.dead_rungs
    assert dead.share_then == pytest.approx(1000 / 4500)
    assert not dead.has_to_stay
    by_size = {(each.axis, each.size): each for each in found.far_sizes}
    assert set(by_size) == {("num_seqs", 4), ("num_seqs", 6), ("num_blocks", 5), ("num_blocks", 12)}
    twelve = by_size["num_blocks", 12]
    assert (twelve.rung, twelve.factor) == (16, 16 / 12)
    assert (twelve.share, twelve.share_then) == pytest.approx((900 / 2940, 0.0))
    # 1 ms a page; 8 sequences: chunks of 4 blocks, so that 12 blocks are 96 pages and 16 are 128.
    assert twelve.seconds == pytest.approx(900 * (128 - 96) * 0.001)
    assert found.far_sizes[0].seconds == max(each.seconds or 0 for each in found.far_sizes)


def test_a_measured_table_prices_no_size_between_its_rungs() -> None:
    rows = [[s, m, 0.01 + 0.001 * s * m] for s in (4, 8) for m in (3, 7, 16)]
    cost = make_cost(step_table=rows)
    plan = tune(STEPS, cost, engine=ENGINE)
    found = drift(plan, NEW)
    assert found.regret >= 0
    assert found.worst.default_seconds is None
    assert all(each.seconds is None for each in found.far_sizes)


# Server starts.


def test_steps_are_charged_as_many_starts_a_step_as_the_plans_were() -> None:
    plan = make_plan(restarts=5.0)
    assert drift(plan, STEPS.scaled(3.0)).worst.restarts == pytest.approx(15.0)
    assert drift(plan, STEPS.scaled(3.0)).regret == pytest.approx(0.0, abs=1e-12)
    assert drift(plan, STEPS, options=SolveOptions(restarts=2.0)).worst.restarts == 2.0
    spanned = drift(plan, STEPS, options=SolveOptions(span_seconds=7200.0))
    assert spanned.worst.restarts == pytest.approx(5.0)  # a plan that was told its starts
    given = drift(plan, STEPS, options=SolveOptions(span_seconds=7200.0, uptime_seconds=3600.0))
    assert given.worst.restarts == pytest.approx(2.0)


def test_a_trace_is_charged_by_the_plans_uptime() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE, options=SolveOptions(uptime_seconds=100.0))
    found = drift(plan, trace)
    assert found.worst.restarts == pytest.approx(trace.span_seconds / 100.0)


# What a plan was asked to keep.


def test_the_optimum_keeps_the_plans_limits() -> None:
    plan = make_plan(max_variants=3, guard=4.0)
    found = drift(plan, NEW)
    best = found.optimum_ladders
    assert best is not None
    assert oracles.keeps_guard(best.num_seqs, 4, 4.0)
    assert oracles.keeps_guard(best.num_blocks, 1, 4.0)
    assert len(best.num_seqs) * len(best.num_blocks) <= 12
    free = drift(plan, NEW, options=SolveOptions(restarts=found.worst.restarts))
    assert free.worst.optimum_seconds < found.worst.optimum_seconds


def test_a_plan_over_its_budget_under_new_prices_says_so() -> None:
    plan = make_plan(warmup_budget_seconds=45.0)
    found = drift(plan, STEPS, make_cost(compile_seconds={"base": 7.0}))
    assert "the plan is over the limits that it was asked to keep, under these prices" in found.warnings


def test_ragged_spyre_and_robust_plans() -> None:
    ragged = make_plan(structure="ragged")
    found = drift(ragged, NEW)
    assert found.optimum_ladders is not None
    assert found.optimum_ladders.ragged is not None
    assert drift(ragged, STEPS).regret == pytest.approx(0.0, abs=1e-9)
    spyre = make_spyre_plan()
    calls = replace(NEW, sequences=NEW.decode_calls(ENGINE))
    assert drift(spyre, calls).regret > 0
    robust = tune(
        [make_trace(seed=1), make_trace(seed=2, per_second=0.1)],
        make_cost(),
        engine=ENGINE,
        options=SolveOptions(robust=True, uptime_seconds=3600.0),
    )
    assert robust.result.robust is not None
    both = drift(robust, [make_trace(seed=1), make_trace(seed=2, per_second=0.1)])
    assert [each.name for each in both.workloads] == ["workload 1", "workload 2"]
    assert both.regret == max(each.regret for each in both.workloads)
    assert both.regret == pytest.approx(robust.result.robust.worst_regret, abs=1e-9)
    assert both.parts is None
    assert both.parts_note == (
        "what changed is not told apart for a robust plan, which was made for several workloads"
    )


def test_an_engine_that_batches_nothing() -> None:
    engine = Engine(max_num_seqs=3, max_model_len=16 * 128)
    few = StepHistogram(np.array([1, 3]), np.array([2, 5]), np.array([10.0, 20.0]))
    found = drift(tune(few, make_cost(), engine=engine), few)
    assert found.regret == 0.0
    assert found.optimum_ladders is None
    assert any("no step reaches batched decode" in line for line in found.warnings)


# Plans of older releases.


def test_an_older_plan_says_what_cannot_be_told() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE)
    older = without(plan, "cost", "occupancy", "provenance.traffic")
    with pytest.raises(
        UsageError, match="found no prices: the plan does not hold those of its cost model round"
    ):
        drift(older, trace)
    found = drift(older, trace, plan_cost=make_cost())
    assert found.parts is None
    assert found.parts_note is not None
    assert "holds no rate and lengths" in found.parts_note
    assert all(each.share_then is None for each in found.far_sizes)
    with_steps = drift(older, STEPS, make_cost())
    assert (
        "prices: the plan does not hold its own, so that what moved since is not told" in with_steps.warnings
    )


def test_an_evaluated_plan_has_no_regret_of_its_own() -> None:
    plan = evaluate(STEPS, Ladders((8,), (16,)), make_cost(), engine=ENGINE)
    found = drift(plan, STEPS)
    assert found.promised_regret is None
    assert found.regret > 0
    assert parts_of(found).then is None
    assert parts_of(found).mix == pytest.approx(found.regret)


def test_prices_of_a_built_in_model_are_found_by_their_digest() -> None:
    plan = without(tune(STEPS, engine=ENGINE), "cost")
    held = cost_of(plan)
    assert held is not None
    assert held.sha256() == plan.provenance.cost_sha256
    other = plan.model_copy(
        update={"provenance": plan.provenance.model_copy(update={"cost_sha256": "0" * 64})}
    )
    assert cost_of(other) is None


# Prices.


def test_terms_that_moved_and_what_they_cost() -> None:
    plan = make_plan()
    now = make_cost(step_seconds={"base": 0.01, "per_gather": 0.002})
    found = drift(plan, STEPS, now)
    (term,) = found.terms
    assert (term.term, term.then, term.now, term.moved) == ("step_seconds.per_gather", 0.001, 0.002, True)
    assert term.seconds == pytest.approx(0.001 * plan.result.gathers.padded)
    assert found.cost_changed
    assert parts_of(found).cost == pytest.approx(found.regret)


def test_a_term_within_the_new_interval_has_not_moved() -> None:
    fit = {"parameters": {"per_gather": {"value": 0.0011, "low": 0.0009, "high": 0.0013}}}
    now = make_cost(step_seconds={"base": 0.01, "per_gather": 0.0011}, fit=fit)
    (term,) = drift(make_plan(), STEPS, now).terms
    assert (term.low, term.high, term.moved) == (0.0009, 0.0013, False)


def test_compile_terms_are_compared_by_the_variant() -> None:
    now = make_cost(compile_seconds={"base": 0.5}, graphs_per_variant=4)
    assert drift(make_plan(), STEPS, now).terms == ()
    now = make_cost(compile_seconds={"base": 1.0}, graphs_per_variant=4)
    plan = make_plan(restarts=3.0)
    (term,) = drift(plan, STEPS, now).terms
    assert (term.then, term.now) == (2.0, 4.0)
    assert term.seconds == pytest.approx(3.0 * 2.0 * plan.result.num_variants)


def test_measurements_beside_the_plans_prices() -> None:
    plan = make_plan()
    seqs, blocks = np.array([4, 4, 8]), np.array([8, 16, 16])
    said = make_cost().batched_step_seconds(seqs, blocks)
    step = Measured.of("step", seqs, blocks, said * [1.0, 1.2, 1.4], spread=0.02)
    attention = Measured.of("attention", seqs, blocks, 2 * said + 0.5)
    variants = Measured.of("compile", [4], [8], [3.0])
    found = {
        each.quantity: each for each in drift(plan, STEPS, measured=[step, attention, variants]).predictions
    }
    assert (found["step"].rows, found["step"].noise) == (3, 0.02)
    assert found["step"].ratio == pytest.approx(1.2)
    assert (found["step"].worst_num_seqs, found["step"].worst_num_blocks) == (8, 16)
    assert found["attention"].ratio == pytest.approx(2.0)  # less what attention takes beside the rung pair
    assert found["compile"].ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("steps", [4], [1], [1.0]), "quantity: found 'steps', expected one of step, attention, compile"),
        (
            ("step", [4, 4], [1], [1.0]),
            "found 2 num_seqs, 1 num_blocks, 1 seconds, expected columns of one length",
        ),
        (("step", [4], [1], [0.0]), "found seconds or sizes of 0 or less, expected rung pairs from 1"),
        (
            ("step", [4], [1], [float("nan")]),
            "found seconds or sizes of 0 or less, expected rung pairs from 1",
        ),
        (("step", [0], [1], [1.0]), "found seconds or sizes of 0 or less, expected rung pairs from 1"),
    ],
)
def test_measurements_that_cannot_be(columns: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        Measured.of(*columns)
    assert message in str(error.value)


def test_what_was_not_measured_keeps_the_plans_prices() -> None:
    then = make_cost()
    fitted = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "new",
            "step_seconds": {"base": 0.5, "per_gather": 0.25},
            "compile_seconds": {},
            "fit": {"parameters": {"step_seconds.base": {"value": 0.5}}},
        }
    )
    made = with_measured(then, fitted)
    assert made.step_seconds == fitted.step_seconds
    assert made.compile_seconds == then.compile_seconds
    assert (made.replay_seconds, made.startup_seconds) == (then.replay_seconds, then.startup_seconds)


# Results.


def test_the_result_is_frozen_and_goes_to_json_and_a_table() -> None:
    found = drift(make_plan(), NEW, make_cost(compile_seconds={"base": 3.0}), max_regret=0.01)
    with pytest.raises(FrozenInstanceError):
        found.max_regret = 1.0  # type: ignore[misc]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["schema"] == "ladder_opt/drift/1"
    assert data["regret"] == found.regret
    assert data["is_over"] is found.is_over is True
    assert data["parts"]["largest"] in {"rate", "length", "mix", "cost"}
    frame = found.to_frame()
    assert list(frame.index) == ["new traffic"]
    assert frame["regret"].item() == found.regret


def test_a_share_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-regret: found -1, expected a share of 0 or more"):
        drift(make_plan(), STEPS, max_regret=-1.0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"guard": "much"}, "provenance.asked.guard: found 'much', expected a number"),
        ({"max_variants": True}, "provenance.asked.max_variants: found True, expected a number"),
        ({"guard": 0.5}, "--guard: found 0.5, expected a factor of 1 or more"),
        ({"num_seqs": 8}, "provenance.asked.num_seqs: found 8, expected a list of whole numbers"),
        ({"num_blocks": [1.5]}, "provenance.asked.num_blocks: found [1.5], expected a list of whole numbers"),
        ({"replicas": -1}, "provenance.asked.replicas: found -1, expected a whole number of 1 or more"),
        ({"scheduling": 3}, "provenance.asked.scheduling: found int, expected an object of settings"),
        ({"scheduling": {"n": "x"}}, "provenance.asked: found n: found 'x', expected a whole number"),
    ],
)
def test_a_plan_that_was_asked_for_nonsense(asked: dict[str, Any], message: str) -> None:
    data = make_plan().to_dict()
    data["provenance"]["asked"] |= asked
    with pytest.raises(InputError) as error:
        drift(plan_from_dict(data), STEPS)
    assert message in str(error.value)


def test_replay_options_of_the_plan_hold() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(replicas=2, rate_scale=3.0))
    found = drift(plan, trace)
    assert found.worst.restarts == pytest.approx(2 * trace.span_seconds / 86400)
    assert (
        "the plan was made for its traces at 3 times their rate; these are taken at 1 times theirs"
        in found.warnings
    )
    loop = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(concurrency=6))
    closed = drift(loop, trace)
    assert closed.regret == pytest.approx(0.0, abs=1e-9)
    assert closed.parts_note == "rate: a closed loop has none, so that its part is 0"
    assert parts_of(closed).rate == pytest.approx(0.0, abs=1e-12)
