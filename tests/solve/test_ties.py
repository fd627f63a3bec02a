"""Ties against brute force: of ladders that cost the same, those of fewest variants, whatever the limits.

Costs are small whole numbers and often 0, so that many ladders cost the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import SolveResult, Status
from ladder_opt.solve.robust import Workload, solve_robust
from tests import oracles
from tests.solve.test_product import cost_of, engine_of, steps_of
from tests.solve.test_ragged import ragged_price
from tests.solve.test_spyre_env import every_choice, price, random_shared, solve_shared

MANY = settings(max_examples=max(300, (settings.default or settings()).max_examples))
SEEDS = st.integers(0, 10**9)
SAME = 1e-9


def round_instance(rng: np.random.Generator, *, seqs: int, blocks: int) -> oracles.Instance:
    """A small problem of whole numbers, at most so large."""
    top, most = int(rng.integers(4, seqs + 1)), int(rng.integers(1, blocks + 1))
    cells = tuple(
        (int(rng.integers(4, top + 1)), int(rng.integers(1, most + 1)), float(rng.integers(1, 4)))
        for _ in range(int(rng.integers(1, 5)))
    )
    step, compiles = rng.integers(0, 3, 4) * 1.0, rng.integers(0, 3, 3) * 1.0
    return oracles.Instance(
        kernel=str(rng.choice(["per_block", "chunked"])),
        cells=cells,
        max_num_seqs=top,
        max_num_blocks=most,
        step=tuple(step.tolist()),
        compile=tuple(compiles.tolist()),
        restarts=float(rng.choice([0.0, 0.0, 0.5, 1.0, 2.0])),
    )


def some_limits(rng: np.random.Generator, instance: oracles.Instance) -> Limits:
    """None, one, or several of the limits."""
    one = oracles.price(instance, (instance.max_num_seqs,), (instance.max_num_blocks,))[2]
    asked = int(rng.integers(0, 8))
    return Limits(
        max_variants=int(rng.integers(1, 12)) if asked & 1 else None,
        max_compile_seconds=float(one * rng.uniform(1, 12)) if asked & 2 else None,
        guard=float(rng.choice([1.25, 1.5, 2.0, 3.0])) if asked & 4 else None,
    )


def best_of(prices: Iterable[tuple[float, int, float]], limits: Limits) -> tuple[float, int] | None:
    """(objective, variants) of the best within the limits on what is compiled; None for none."""
    allowed = [
        each
        for each in prices
        if (limits.max_variants is None or each[1] <= limits.max_variants)
        and (limits.max_compile_seconds is None or each[2] <= limits.max_compile_seconds * (1 + 1e-12))
    ]
    least = min((each[0] for each in allowed), default=math.inf)
    fewest = min((each[1] for each in allowed if each[0] <= least + SAME * max(1.0, least)), default=0)
    return (least, fewest) if allowed else None


def ladders_of(instance: oracles.Instance, guard: float | None) -> tuple[list[Any], list[Any]]:
    """Every ladder of either axis that keeps a guard."""
    axes = []
    for low, top in ((instance.min_batched_seqs, instance.max_num_seqs), (1, instance.max_num_blocks)):
        every = oracles.ladders(low, top)
        axes.append([each for each in every if guard is None or oracles.keeps_guard(each, low, guard)])
    return axes[0], axes[1]


def assert_best(found: tuple[float, int, float], best: tuple[float, int]) -> None:
    assert found[0] == pytest.approx(best[0], rel=SAME, abs=SAME)
    assert found[1] == best[1]


def solve_as_known(instance: oracles.Instance, best: object | None, **asked: Any) -> SolveResult | None:
    """The proven result; None where no ladders are within the limits, which the solver has to say too."""
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    if best is None:
        with pytest.raises(SolveError):
            solve_ladders(*problem, restarts=instance.restarts, **asked)
        return None
    result = solve_ladders(*problem, restarts=instance.restarts, **asked)
    assert result.status is Status.OPTIMAL
    return result


@MANY
@given(SEEDS, st.sampled_from(["", "num_seqs", "num_blocks"]))
def test_product_ladders(seed: int, pinned: str) -> None:
    rng = np.random.default_rng(seed)
    instance = round_instance(rng, seqs=9, blocks=6)
    limits = some_limits(rng, instance)
    seqs, blocks = ladders_of(instance, limits.guard)
    pins = Ladders((), ())
    if pinned == "num_seqs":
        seqs = [seqs[int(rng.integers(len(seqs)))]]
        pins = Ladders(seqs[0], ())
    elif pinned == "num_blocks":
        blocks = [blocks[int(rng.integers(len(blocks)))]]
        pins = Ladders((), blocks[0])
    best = best_of((oracles.price(instance, s, b) for s, b in itertools.product(seqs, blocks)), limits)
    result = solve_as_known(instance, best, limits=limits, pins=pins)
    if best is None or result is None:
        return
    assert_best(oracles.price(instance, result.ladders.num_seqs, result.ladders.num_blocks), best)


@given(SEEDS)
def test_ragged_ladders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instance = round_instance(rng, seqs=7, blocks=3)
    limits = some_limits(rng, instance)
    seqs, blocks = ladders_of(instance, limits.guard)
    every = (
        ragged_price(instance, dict(zip(s, chosen, strict=True)))
        for s in seqs
        for chosen in itertools.product(blocks, repeat=len(s))
    )
    best = best_of(every, limits)
    result = solve_as_known(instance, best, limits=limits, structure="ragged")
    if best is None or result is None:
        return
    assert result.ladders.ragged is not None
    of = dict(zip(result.ladders.num_seqs, result.ladders.ragged, strict=True))
    assert_best(ragged_price(instance, of), best)


@given(SEEDS)
def test_ladders_of_the_spyre_plugin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shared = random_shared(seed % 100_000)
    shared = dataclasses.replace(
        shared, batched=dataclasses.replace(shared.batched, restarts=float(rng.choice([0.0, 1.0])))
    )
    priced = [found for found, _ in every_choice(shared)]
    limits = Limits(
        max_variants=int(rng.integers(4, 24)) if seed % 3 == 1 else None,
        max_compile_seconds=float(min(p[2] for p in priced) * rng.uniform(1, 3)) if seed % 3 == 2 else None,
    )
    best = best_of(priced, limits)
    if best is None:
        return
    result = solve_shared(shared, limits)
    assert result.status is Status.OPTIMAL
    ladders = result.ladders
    assert_best(price(shared, ladders.num_seqs, ladders.num_blocks, ladders.query_lens or ()), best)


@given(SEEDS)
def test_robust_ladders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = round_instance(rng, seqs=8, blocks=4)
    other = round_instance(rng, seqs=first.max_num_seqs, blocks=first.max_num_blocks)
    cells = tuple(
        (min(n, first.max_num_seqs), min(b, first.max_num_blocks), weight) for n, b, weight in other.cells
    )
    family = [first, dataclasses.replace(first, cells=cells, restarts=other.restarts)]
    limits = some_limits(rng, first)
    seqs, blocks = ladders_of(first, limits.guard)
    optima = [
        best_of((oracles.price(each, s, b) for s, b in itertools.product(seqs, blocks)), limits)
        for each in family
    ]
    if any(each is None or each[0] <= 0 for each in optima):
        return  # no ladders, or regrets of our own making beside an optimum of 0 s
    worst = []
    for s, b in itertools.product(seqs, blocks):
        of = [oracles.price(each, s, b) for each in family]
        regret = max(found[0] / optimum[0] for found, optimum in zip(of, optima, strict=True) if optimum)
        worst.append((regret, of[0][1], of[0][2]))
    best = best_of(worst, limits)
    assert best is not None
    result = solve_robust(
        [Workload(steps=steps_of(each), restarts=each.restarts) for each in family],
        engine_of(first),
        cost_of(first),
        limits=limits,
    )
    assert result.status is Status.OPTIMAL
    ladders = result.ladders
    variants = oracles.price(first, ladders.num_seqs, ladders.num_blocks)[1]
    assert_best((1 + result.worst_regret, variants, 0.0), best)


def test_the_case_that_was_found() -> None:
    """5, 9 x 1, 2, 4, 7 costs the same 0.609 s with 8 variants."""
    instance = oracles.Instance(
        kernel="chunked",
        cells=((9, 4, 1.0),),
        max_num_seqs=9,
        max_num_blocks=7,
        step=(0.0, 0.001, 0.3, 0.0),
        compile=(1.0, 3.0, 0.0),
        restarts=0.0,
    )
    engine = Engine(block_size=64, max_num_seqs=9, max_model_len=448)
    limits = Limits(max_compile_seconds=50.0, guard=1.5)
    result = solve_ladders(steps_of(instance), engine, cost_of(instance), restarts=0.0, limits=limits)
    assert result.objective_seconds == pytest.approx(0.609)
    assert oracles.price(instance, result.ladders.num_seqs, result.ladders.num_blocks)[1] == 7
