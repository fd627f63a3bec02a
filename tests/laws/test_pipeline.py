"""From a trace to the bucketer: one law a test. `--hypothesis-profile=slow` tries 10,000 cases of each."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_opt.bucketer import Bucketer
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.baselines import price_baselines
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import plan_from_dict
from ladder_opt.plan.tune import tune
from ladder_opt.solve.api import lower_bound, solve_frontier_of, solve_ladders
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.problem import Limits
from tests.laws.cases import costs, engines, histograms, traces

NEAR = 1e-9
RESTARTS = st.sampled_from([0.0, 0.25, 1.0, 30.0])


def rungs(low: int, top: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(low, top), max_size=6).map(lambda some: tuple(sorted({*some, top})))


def at_most(low: float, high: float) -> bool:
    return low <= high + NEAR * (1 + abs(high))


@st.composite
def cases(draw: st.DrawFn) -> tuple[StepHistogram, Engine, CostModel, float]:
    engine = draw(engines())
    return draw(histograms(engine)), engine, draw(costs()), draw(RESTARTS)


Case = tuple[StepHistogram, Engine, CostModel, float]


def scaled(cost: CostModel, factor: float) -> CostModel:
    data = cost.to_dict()
    for part in ("step_seconds", "compile_seconds"):
        data[part] = {name: value * factor for name, value in data[part].items()}
    return CostModel.model_validate(data)


@given(cases(), st.sampled_from([0.125, 3.0, 1000.0]))
def test_seconds_of_another_unit_change_no_choice(case: Case, factor: float) -> None:
    steps, engine, cost, restarts = case
    found = solve_ladders(steps, engine, cost, restarts=restarts)
    again = solve_ladders(steps, engine, scaled(cost, factor), restarts=restarts)
    assert again.objective_seconds == pytest.approx(factor * found.objective_seconds, rel=1e-7, abs=1e-9)


@given(cases(), st.sampled_from([0.5, 4.0]))
def test_steps_and_starts_twice_as_often_cost_twice_as_much(case: Case, factor: float) -> None:
    steps, engine, cost, restarts = case
    found = solve_ladders(steps, engine, cost, restarts=restarts)
    again = solve_ladders(steps.scaled(factor), engine, cost, restarts=restarts * factor)
    assert again.objective_seconds == pytest.approx(factor * found.objective_seconds, rel=1e-7, abs=1e-9)


@given(cases())
def test_bound_below_ragged_below_product_below_baselines(case: Case) -> None:
    steps, engine, cost, restarts = case
    bound = lower_bound(steps, engine, cost, restarts=restarts)
    ragged = solve_ladders(steps, engine, cost, restarts=restarts, structure="ragged")
    product = solve_ladders(steps, engine, cost, restarts=restarts)
    assert at_most(bound, ragged.objective_seconds)
    assert at_most(ragged.objective_seconds, product.objective_seconds)
    for _, price in price_baselines(steps, engine, cost, restarts=restarts):
        assert at_most(product.objective_seconds, price.objective_seconds)


@given(st.data())
def test_another_rung_never_makes_steps_dearer(data: st.DataObject) -> None:
    engine = data.draw(engines())
    steps, cost = data.draw(histograms(engine)), data.draw(costs())
    ladders = Ladders(data.draw(rungs(4, engine.max_num_seqs)), data.draw(rungs(1, engine.max_num_blocks)))
    before = price_ladders(steps, engine, cost, ladders, restarts=1.0)
    block = data.draw(st.integers(1, engine.max_num_blocks))
    wider = replace(ladders, num_blocks=tuple(sorted({*ladders.num_blocks, block})))
    assert at_most(price_ladders(steps, engine, cost, wider, restarts=1.0).step_seconds, before.step_seconds)
    if cost.kernel == "per_block":  # gathers of the chunked kernel do not rise steadily with num_seqs
        seqs = data.draw(st.integers(4, engine.max_num_seqs))
        wider = replace(ladders, num_seqs=tuple(sorted({*ladders.num_seqs, seqs})))
        after = price_ladders(steps, engine, cost, wider, restarts=1.0)
        assert at_most(after.step_seconds, before.step_seconds)


@given(st.data())
def test_parts_of_a_histogram_add_up(data: st.DataObject) -> None:
    engine = data.draw(engines())
    one, two, cost = data.draw(histograms(engine)), data.draw(histograms(engine)), data.draw(costs())
    ladders = default_ladders(engine)
    together = price_ladders(StepHistogram.sum_of([one, two]), engine, cost, ladders, restarts=1.0)
    parts = [price_ladders(each, engine, cost, ladders, restarts=1.0) for each in (one, two)]

    def sums(price: LadderPrice) -> list[float]:
        gathers = price.gathers
        return [price.step_seconds, gathers.padded, gathers.ragged_floor, price.batched_steps]

    added = [one + two for one, two in zip(*map(sums, parts), strict=True)]
    assert sums(together) == pytest.approx(added, rel=1e-12)
    assert together.compile_seconds == parts[0].compile_seconds == parts[1].compile_seconds


@given(cases())
def test_a_looser_limit_never_costs_more(case: Case) -> None:
    steps, engine, cost, restarts = case
    last = float("inf")
    for most in (1, 2, 3, 5, None):
        try:
            found = solve_ladders(
                steps, engine, cost, restarts=restarts, limits=Limits(max_variants=most)
            ).objective_seconds
        except SolveError:
            assert last == float("inf")
            continue
        assert at_most(found, last)
        last = found


@given(cases(), st.sampled_from([1.0, 1.3, 2.0, 5.0]))
def test_a_guard_holds_for_every_size_and_is_not_free(case: Case, guard: float) -> None:
    steps, engine, cost, restarts = case
    found = solve_ladders(steps, engine, cost, restarts=restarts, limits=Limits(guard=guard))
    free = solve_ladders(steps, engine, cost, restarts=restarts)
    assert at_most(free.objective_seconds, found.objective_seconds)
    for ladder, smallest in ((found.ladders.num_seqs, 4), (found.ladders.num_blocks, 1)):
        for size in range(smallest, ladder[-1] + 1):
            assert min(rung for rung in ladder if rung >= size) <= guard * size * (1 + NEAR)


@given(cases())
def test_pinning_the_optimum_gives_it_again(case: Case) -> None:
    steps, engine, cost, restarts = case
    found = solve_ladders(steps, engine, cost, restarts=restarts)
    for pins in (
        Ladders(found.ladders.num_seqs, ()),
        Ladders((), found.ladders.num_blocks),
        Ladders(found.ladders.num_seqs, found.ladders.num_blocks),
    ):
        again = solve_ladders(steps, engine, cost, restarts=restarts, pins=pins)
        assert again.objective_seconds == pytest.approx(found.objective_seconds, rel=1e-7, abs=1e-9)


@given(cases())
def test_the_optimum_is_on_the_frontier(case: Case) -> None:
    steps, engine, cost, restarts = case
    points, complete = solve_frontier_of(steps, engine, cost)
    prices = [price_ladders(steps, engine, cost, point, restarts=restarts) for point in points]
    found = solve_ladders(steps, engine, cost, restarts=restarts)
    assert complete
    assert min(price.objective_seconds for price in prices) == pytest.approx(
        found.objective_seconds, rel=1e-6, abs=1e-9
    )
    assert [price.compile_seconds for price in prices] == sorted(price.compile_seconds for price in prices)


@given(cases(), st.sampled_from(["product", "ragged"]))
def test_plans_come_back_from_json_and_are_dispatched_as_they_were_priced(case: Case, structure: str) -> None:
    steps, engine, cost, restarts = case
    asked = SolveOptions(restarts=restarts, structure=structure)  # type: ignore[arg-type]
    plan = tune(steps, cost, engine=engine, options=asked)
    again = plan_from_dict(json.loads(plan.to_json()))
    assert again == plan
    bucketer = Bucketer.from_engine(engine, plan=again, environ={})
    assert not bucketer.warnings
    assert len(bucketer.batched_variants()) == plan.result.num_variants
    price = price_ladders(steps, engine, cost, again.ladders, restarts=restarts)
    assert price.objective_seconds == pytest.approx(plan.result.objective_seconds, rel=1e-12)
    hits = dict.fromkeys(zip(price.pair_seqs.tolist(), price.pair_blocks.tolist(), strict=True), 0.0)
    declined = padded = 0.0  # a variant that reads all pages at once is not recorded, so not dispatched to
    for num_seqs, num_blocks, weight in zip(steps.num_seqs, steps.num_blocks, steps.steps, strict=True):
        pair = bucketer.dispatch(int(num_seqs), int(num_blocks))
        if pair is not None:
            assert num_seqs >= engine.min_batched_seqs
            hits[pair] += weight
            padded += weight * float(cost.geometry.gathers(*pair))
        elif num_seqs >= engine.min_batched_seqs:
            declined += weight
    assert declined == pytest.approx(price.unrecorded_steps)
    if not declined:
        assert list(hits.values()) == pytest.approx(price.hits.tolist())
        assert padded == pytest.approx(price.gathers.padded)


@given(st.data())
def test_a_replay_decodes_every_token_once(data: st.DataObject) -> None:
    engine = data.draw(engines())
    trace, cost = data.draw(traces(engine)), data.draw(costs())
    fits = trace.prompt_tokens + trace.output_tokens <= engine.max_model_len
    assume(fits.any())
    replay = simulate(trace, engine, cost)
    assert replay.requests + sum(replay.set_aside.values()) == len(trace)
    assert replay.set_aside.get("beyond_max_model_len", 0) == int((~fits).sum())
    decoded = float((replay.steps.steps * replay.steps.num_seqs).sum())
    # A prompt's last chunk gives the first token; one that was preempted prefills what it had again.
    expected = int((trace.output_tokens[fits] - 1).sum())
    assert expected - replay.preemptions <= decoded <= expected
    real, floor = replay.steps.real_gathers(), replay.steps.ragged_floor()
    least = replay.steps.steps * (replay.steps.num_seqs - 1 + replay.steps.num_blocks)
    assert (least <= real).all()
    assert (real <= floor).all()


@given(st.data())
def test_copies_of_a_trace_on_as_many_engines_are_as_many_replays(data: st.DataObject) -> None:
    engine = data.draw(engines())
    trace, cost = data.draw(traces(engine)), data.draw(costs())
    assume((trace.prompt_tokens + trace.output_tokens <= engine.max_model_len).any())
    one = simulate(trace, engine, cost)
    three = simulate([trace] * 3, engine, cost)
    assert three.steps.num_seqs.tolist() == one.steps.num_seqs.tolist()
    assert three.steps.steps.tolist() == (3 * one.steps.steps).tolist()
    assert np.array_equal(three.steps.real_gathers(), 3 * one.steps.real_gathers())
