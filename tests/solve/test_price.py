"""Prices of ladders against plain Python: seconds, variants, pages, hits, what each rung earns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import best_absent_rung, price_ladders, value_rungs
from tests import oracles
from tests.seeds import seeds
from tests.solve.test_product import cost_of, engine_of, random_instance, steps_of


def drawn(data: st.DataObject, instance: oracles.Instance) -> Ladders:
    seqs = data.draw(st.sets(st.integers(4, instance.max_num_seqs))) | {instance.max_num_seqs}
    blocks = data.draw(st.sets(st.integers(1, instance.max_num_blocks))) | {instance.max_num_blocks}
    return Ladders(tuple(sorted(seqs)), tuple(sorted(blocks)))


def padded_to(instance: oracles.Instance, ladders: Ladders) -> dict[tuple[int, int], float]:
    """Steps of each rung pair."""
    hits = {(s, m): 0.0 for s in ladders.num_seqs for m in ladders.num_blocks}
    for n, b, weight in instance.cells:
        if n >= 4:
            s = next(rung for rung in ladders.num_seqs if rung >= n)
            hits[s, next(rung for rung in ladders.num_blocks if rung >= b)] += weight
    return hits


@given(st.integers(0, 10_000), st.data())
def test_every_number_equals_plain_python(seed: int, data: st.DataObject) -> None:
    instance = random_instance(seed)
    ladders = drawn(data, instance)
    price = price_ladders(
        steps_of(instance), engine_of(instance), cost_of(instance), ladders, restarts=instance.restarts
    )
    objective, variants, compiles = oracles.price(instance, ladders.num_seqs, ladders.num_blocks)
    assert price.objective_seconds == pytest.approx(objective, rel=1e-12)
    assert price.num_variants == variants
    assert price.compile_seconds == pytest.approx(compiles, rel=1e-12)
    assert price.step_seconds == pytest.approx(objective - instance.restarts * compiles, rel=1e-9, abs=1e-9)
    hits = padded_to(instance, ladders)
    assert price.hits.ravel().tolist() == pytest.approx(list(hits.values()))
    shapes = {pair: oracles.shape(instance.kernel, *pair) for pair in hits}
    assert price.gathers.padded == pytest.approx(sum(hits[pair] * shapes[pair][2] for pair in hits))
    assert price.gathers.ragged_floor == sum(n * b * w for n, b, w in instance.cells if n >= 4)
    assert price.gathers.real == price.gathers.ragged_floor  # the sequences' own blocks are not known
    assert price.gathers.fixable == price.gathers.padded - price.gathers.ragged_floor
    assert price.batched_steps == sum(w for n, _, w in instance.cells if n >= 4)
    assert price.per_sequence_steps == sum(w for n, _, w in instance.cells if n < 4)
    used = {shapes[pair][0] for pair in hits if hits[pair]}
    lowest = {}
    for pair in sorted(hits, reverse=True):
        lowest[shapes[pair][0]] = pair
    assert list(price.dead_variants) == sorted(
        pair for variant, pair in lowest.items() if variant not in used
    )


@given(st.integers(0, 10_000), st.data())
def test_a_rung_is_worth_what_the_objective_loses_without_it(seed: int, data: st.DataObject) -> None:
    instance = random_instance(seed)
    ladders = drawn(data, instance)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    price = price_ladders(*problem, ladders, restarts=instance.restarts)
    values = value_rungs(*problem, price)
    assert [(value.axis, value.rung) for value in values] == [
        *(("num_seqs", rung) for rung in ladders.num_seqs),
        *(("num_blocks", rung) for rung in ladders.num_blocks),
    ]
    whole = oracles.price(instance, ladders.num_seqs, ladders.num_blocks)[0]
    hits = padded_to(instance, ladders)
    for value in values:
        is_seqs = value.axis == "num_seqs"
        own = sum(weight for pair, weight in hits.items() if pair[0 if is_seqs else 1] == value.rung)
        assert value.hits == pytest.approx(own)
        if value.rung == (ladders.num_seqs if is_seqs else ladders.num_blocks)[-1]:
            assert value.forced
            assert value.marginal_seconds == 0.0
            continue
        assert not value.forced
        seqs = tuple(rung for rung in ladders.num_seqs if not is_seqs or rung != value.rung)
        blocks = tuple(rung for rung in ladders.num_blocks if is_seqs or rung != value.rung)
        without = oracles.price(instance, seqs, blocks)[0]
        assert value.marginal_seconds == pytest.approx(without - whole, rel=1e-6, abs=1e-6 * (1 + whole))


def test_pinned_rungs_are_forced() -> None:
    instance = random_instance(1)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    ladders = Ladders((4, instance.max_num_seqs), (1, instance.max_num_blocks))
    price = price_ladders(*problem, ladders, restarts=1.0)
    values = value_rungs(*problem, price, pinned=Ladders((), ladders.num_blocks))
    assert [value.forced for value in values] == [False, True, True, True]


STEPS = StepHistogram(np.array([2, 5, 8]), np.array([1, 3, 9]), np.array([7.0, 10.0, 1.0]))
ENGINE = Engine(max_num_seqs=8, max_model_len=16 * 128)
INSTANCE = oracles.Instance(
    "chunked", ((5, 3, 10.0), (8, 9, 1.0)), 8, 16, (1.0, 0.0, 0.0, 0.0), (5.0, 0.0, 0.0), 2.0
)


def test_what_is_dead_by_hand() -> None:
    price = price_ladders(STEPS, ENGINE, cost_of(INSTANCE), Ladders((4, 8), (4, 9, 16)), restarts=2.0)
    # s = 4: m = 4 is one variant, 9 and 16 another; s = 8 (4 blocks a chunk): 1, 3 and 4 chunks.
    assert price.num_variants == 5
    assert price.dead_variants == ((4, 4), (4, 9), (8, 16))
    assert price.objective_seconds == 11.0 + 2 * 5 * 5.0
    assert price.to_dict() == {
        "objective_seconds": 61.0,
        "restarts": 2.0,
        "step_seconds": 11.0,
        "warmup_seconds": 25.0,
        "num_variants": 5,
        "gathers": {"real": 222.0, "ragged_floor": 222.0, "padded": 10 * 32 + 96},
        "steps": {"total": 18.0, "batched": 11.0, "per_sequence": 7.0},
    }


def test_no_ladder_at_all_costs_nothing() -> None:
    engine = Engine(max_num_seqs=3, max_model_len=16 * 128)
    few = StepHistogram(np.array([2]), np.array([1]), np.array([7.0]))
    price = price_ladders(few, engine, cost_of(INSTANCE), Ladders((), (16,)), restarts=2.0)
    assert (price.objective_seconds, price.num_variants, price.dead_variants) == (0.0, 0, ())
    assert (price.batched_steps, price.per_sequence_steps, price.gathers.overpay) == (0.0, 7.0, 0.0)
    (value,) = value_rungs(few, engine, cost_of(INSTANCE), price)
    assert (value.axis, value.rung, value.hits, value.forced) == ("num_blocks", 16, 0.0, True)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda cost: price_ladders(STEPS, ENGINE, cost, Ladders((4,), (16,)), restarts=1),
            UsageError,
            "num_seqs: found [4], expected a rung of 8 or more",
        ),
        (
            lambda cost: price_ladders(STEPS, ENGINE, cost, Ladders((8,), (4, 8)), restarts=1),
            UsageError,
            "num_blocks: found [4, 8], expected a rung of 9 or more",
        ),
        (
            lambda cost: price_ladders(STEPS, ENGINE, cost, Ladders((), (16,)), restarts=1),
            UsageError,
            "num_seqs: found [], expected a rung of 8 or more",
        ),
        (
            lambda cost: price_ladders(STEPS, Engine(max_num_seqs=6), cost, Ladders((6,), (64,)), restarts=1),
            InputError,
            "num_seqs: found 8, expected at most max_num_seqs = 6",
        ),
    ],
)
def test_steps_beyond_ladders_or_engine_are_told(
    make: Callable[..., object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        make(cost_of(INSTANCE))
    assert str(raised.value) == message


@pytest.mark.parametrize("seed", seeds(20))
def test_no_absent_rung_of_an_optimal_plan_pays_for_itself(seed: int) -> None:
    instance = random_instance(seed)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    solved = solve_ladders(*problem, restarts=instance.restarts)
    price = price_ladders(*problem, solved.ladders, restarts=instance.restarts)
    absent = best_absent_rung(*problem, price)
    if absent is None:
        every = (instance.max_num_seqs - 3, instance.max_num_blocks)
        assert (len(solved.ladders.num_seqs), len(solved.ladders.num_blocks)) == every
        return
    assert absent.costs_seconds - absent.saves_step_seconds >= -1e-9 * solved.objective_seconds - 1e-12
    rungs = {"num_seqs": solved.ladders.num_seqs, "num_blocks": solved.ladders.num_blocks}
    rungs[absent.axis] = tuple(sorted((*rungs[absent.axis], absent.rung)))
    trial = oracles.price(instance, rungs["num_seqs"], rungs["num_blocks"])
    assert absent.num_variants == trial[1] - price.num_variants
    more = instance.restarts * (trial[2] - price.compile_seconds)
    assert absent.costs_seconds == pytest.approx(more, rel=1e-9, abs=1e-9 * (1 + trial[2]))
