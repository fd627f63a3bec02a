"""The ragged solver against brute force, and against the product solver."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.api import Structure, lower_bound, solve_ladders
from ladder_opt.solve.price import price_ladders, value_rungs
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import RELATIVE_TOLERANCE, Status
from tests import oracles
from tests.seeds import seeds
from tests.solve.test_product import cost_of, engine_of, random_instance, steps_of


def ragged_price(instance: oracles.Instance, ladders: dict[int, tuple[int, ...]]) -> tuple[float, int, float]:
    """(objective, variants, compile seconds), each num_seqs rung priced as a product of its own."""
    total, variants, compiles = 0.0, 0, 0.0
    below = instance.min_batched_seqs - 1
    for rung, blocks in ladders.items():
        cells = tuple(cell for cell in instance.cells if below < cell[0] <= rung)
        part = oracles.Instance(
            **{**vars(instance), "cells": cells, "restarts": 0.0, "min_batched_seqs": below + 1}
        )
        seconds, count, compile_seconds = oracles.price(part, (rung,), blocks)
        total, variants, compiles = total + seconds, variants + count, compiles + compile_seconds
        below = rung
    return total + instance.restarts * compiles, variants, compiles


def brute_force(
    instance: oracles.Instance, max_variants: int | None, budget: float | None, guard: float | None
) -> float:
    best = math.inf
    blocks = list(oracles.ladders(1, instance.max_num_blocks))
    if guard is not None:
        blocks = [b for b in blocks if oracles.keeps_guard(b, 1, guard)]
    for seqs in oracles.ladders(instance.min_batched_seqs, instance.max_num_seqs):
        if guard is not None and not oracles.keeps_guard(seqs, instance.min_batched_seqs, guard):
            continue
        for chosen in itertools.product(blocks, repeat=len(seqs)):
            objective, variants, compiles = ragged_price(instance, dict(zip(seqs, chosen, strict=True)))
            if max_variants is not None and variants > max_variants:
                continue
            if budget is not None and compiles > budget * (1 + 1e-12):
                continue
            best = min(best, objective)
    return best


def small_instance(seed: int) -> oracles.Instance:
    plain = random_instance(seed)
    rng = np.random.default_rng(seed)
    seqs, blocks = int(rng.integers(4, 7)), int(rng.integers(1, 5))
    cells = tuple(
        (int(rng.integers(4, seqs + 1)), int(rng.integers(1, blocks + 1)), float(rng.integers(1, 900)))
        for _ in range(8)
    )
    return oracles.Instance(**{**vars(plain), "cells": cells, "max_num_seqs": seqs, "max_num_blocks": blocks})


@pytest.mark.parametrize("seed", seeds(60))
def test_equals_brute_force(seed: int) -> None:
    instance = small_instance(seed)
    rng = np.random.default_rng(seed)
    one = oracles.price(instance, (instance.max_num_seqs,), (instance.max_num_blocks,))[2]
    max_variants = int(rng.integers(1, 10)) if seed % 4 in {1, 3} else None
    budget = float(one * rng.uniform(1.0, 6.0)) if seed % 4 in {2, 3} else None
    guard = 2.0 if seed % 5 == 4 else None
    expected = brute_force(instance, max_variants, budget, guard)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    limits = Limits(max_variants=max_variants, max_compile_seconds=budget, guard=guard)
    if math.isinf(expected):
        with pytest.raises(SolveError):
            solve_ladders(*problem, restarts=instance.restarts, limits=limits, structure="ragged")
        return
    result = solve_ladders(*problem, restarts=instance.restarts, limits=limits, structure="ragged")
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=1e-12)
    assert result.ladders.ragged is not None
    price = price_ladders(*problem, result.ladders, restarts=instance.restarts)
    plain = ragged_price(instance, dict(zip(result.ladders.num_seqs, result.ladders.ragged, strict=True)))
    assert price.objective_seconds == pytest.approx(plain[0], rel=1e-12)
    assert price.num_variants == plain[1]


@pytest.mark.parametrize("seed", seeds(40))
def test_never_worse_than_product_and_its_bound(seed: int) -> None:
    instance = random_instance(3000 + seed)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    limits = Limits(max_variants=12 if seed % 2 else None)
    product = solve_ladders(*problem, restarts=instance.restarts, limits=limits)
    ragged = solve_ladders(*problem, restarts=instance.restarts, limits=limits, structure="ragged")
    assert ragged.objective_seconds <= product.objective_seconds * (1 + 2 * RELATIVE_TOLERANCE) + 1e-12
    if limits.max_variants is None:
        bound = lower_bound(*problem, restarts=instance.restarts)
        assert ragged.objective_seconds == pytest.approx(bound, rel=1e-9, abs=1e-12)


def test_marginal_values_are_prices_without_the_rung() -> None:
    instance = small_instance(4)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    ladders = Ladders.from_ragged(
        {instance.max_num_seqs: (1, instance.max_num_blocks), 4: (instance.max_num_blocks,)}
    )
    price = price_ladders(*problem, ladders, restarts=1.0)
    values = value_rungs(*problem, price)
    assert {(v.axis, v.rung, v.of_num_seqs) for v in values if not v.forced} == {
        ("num_seqs", 4, None),
        ("num_blocks", 1, instance.max_num_seqs),
    }
    without = Ladders.from_ragged({instance.max_num_seqs: (1, instance.max_num_blocks)})
    marginal = price_ladders(*problem, without, restarts=1.0).objective_seconds - price.objective_seconds
    assert next(v for v in values if v.axis == "num_seqs" and v.rung == 4).marginal_seconds == marginal


def test_fewer_variants_than_any_product_are_no_reason_to_refuse() -> None:
    steps = StepHistogram(np.array([4, 7, 11]), np.array([2, 5, 7]), np.array([10.0, 20.0, 30.0]))
    engine = Engine(max_num_seqs=11, max_model_len=7 * 128)
    cost = cost_of(random_instance(1))
    limits = Limits(guard=1.5, max_variants=9)
    with pytest.raises(SolveError, match=r"--max-variants: found 9, expected at least 10 with --guard 1\.5"):
        solve_ladders(steps, engine, cost, restarts=1.0, limits=limits)
    ragged = solve_ladders(steps, engine, cost, restarts=1.0, limits=limits, structure="ragged")
    assert price_ladders(steps, engine, cost, ragged.ladders, restarts=1.0).num_variants <= 9


@pytest.mark.parametrize("structure", ["product", "ragged"])
def test_a_table_too_sparse_for_the_guard_is_told(structure: Structure) -> None:
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "sparse",
            "step_seconds": {},
            "compile_seconds": {"base": 1.0},
            "step_table": [[s, m, 0.1 * s * m] for s in (4, 8) for m in (1, 4, 16)],
        }
    )
    steps = StepHistogram(np.array([5]), np.array([3]), np.array([10.0]))
    engine = Engine(max_num_seqs=8, max_model_len=16 * 128)
    with pytest.raises(
        SolveError,
        match=r"num_seqs sizes of the measured table: found 8 after 4, expected sizes that keep --guard 1\.5",
    ):
        solve_ladders(steps, engine, cost, restarts=1.0, limits=Limits(guard=1.5), structure=structure)
