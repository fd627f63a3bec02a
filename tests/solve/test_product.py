"""The product solver against brute force, its own bounds, and the laws of the problem."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.problem import Limits, build_problem
from ladder_opt.solve.result import RELATIVE_TOLERANCE, SolveResult, Status
from tests import oracles
from tests.seeds import seeds


def cost_of(instance: oracles.Instance) -> CostModel:
    base, per_seq, per_iteration, per_gather = instance.step
    compile_base, compile_it, compile_sq = instance.compile
    return CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "test",
            "kernel": instance.kernel,
            "step_seconds": {
                "base": base,
                "per_seq": per_seq,
                "per_iteration": per_iteration,
                "per_gather": per_gather,
            },
            "compile_seconds": {
                "base": compile_base,
                "per_iteration": compile_it,
                "per_iteration_sq": compile_sq,
            },
            "graphs_per_variant": instance.graphs,
        }
    )


def steps_of(instance: oracles.Instance) -> StepHistogram:
    cells = np.array([(n, b) for n, b, _ in instance.cells], np.int64)
    return StepHistogram(cells[:, 0], cells[:, 1], np.array([w for _, _, w in instance.cells], np.float64))


def engine_of(instance: oracles.Instance) -> Engine:
    usable = instance.usable_kv_blocks
    return Engine(
        max_num_seqs=instance.max_num_seqs,
        max_model_len=instance.max_num_blocks * 128,
        num_kv_blocks=None if math.isinf(usable) else int(usable) + 1,
    )


def random_instance(seed: int) -> oracles.Instance:
    rng = np.random.default_rng(seed)
    seqs, blocks = int(rng.integers(4, 12)), int(rng.integers(1, 9))
    count = int(rng.integers(1, 14))
    cells = tuple(
        (int(rng.integers(1, seqs + 1)), int(rng.integers(1, blocks + 1)), float(rng.integers(1, 2000)))
        for _ in range(count)
    )
    zero = rng.random(7) < 0.25
    step = np.where(zero[:4], 0.0, [0.01, 1e-3, 2e-3, 2e-4] * rng.uniform(0.1, 3, 4))
    compiles = np.where(zero[4:], 0.0, [0.9, 0.05, 0.002] * rng.uniform(0.1, 3, 3))
    return oracles.Instance(
        kernel=["per_block", "chunked"][seed % 2],
        cells=cells,
        max_num_seqs=seqs,
        max_num_blocks=blocks,
        step=tuple(step.tolist()),
        compile=tuple(compiles.tolist()),
        restarts=float(rng.choice([0.0, 0.05, 1.0, 4.0])),
        graphs=int(rng.choice([1, 3])),
    )


@pytest.mark.parametrize("seed", seeds(150))
def test_equals_brute_force(seed: int) -> None:
    instance = random_instance(seed)
    expected, variants = oracles.brute_force(instance)
    result = solve_ladders(
        steps_of(instance), engine_of(instance), cost_of(instance), restarts=instance.restarts
    )
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=1e-12)
    assert result.lower_bound_seconds <= expected * (1 + RELATIVE_TOLERANCE) + 1e-12
    assert result.ragged_bound_seconds <= expected * (1 + RELATIVE_TOLERANCE) + 1e-12
    got = oracles.price(instance, result.ladders.num_seqs, result.ladders.num_blocks)
    assert got[1] <= variants  # a tie goes to fewer variants


@pytest.mark.parametrize("seed", seeds(150))
def test_equals_brute_force_within_limits(seed: int) -> None:
    instance = random_instance(1000 + seed)
    rng = np.random.default_rng(seed)
    one = oracles.price(instance, (instance.max_num_seqs,), (instance.max_num_blocks,))[2]
    max_variants = int(rng.integers(1, 12)) if seed % 3 != 1 else None
    budget = float(one * rng.uniform(1.0, 8.0)) if seed % 3 != 0 else None
    expected, _ = oracles.brute_force(instance, max_variants=max_variants, max_compile_seconds=budget)
    result = solve_ladders(
        steps_of(instance),
        engine_of(instance),
        cost_of(instance),
        restarts=instance.restarts,
        limits=Limits(max_variants=max_variants, max_compile_seconds=budget),
    )
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=1e-12)


def solved_as_brute_force(instance: oracles.Instance, limits: Limits, *, within: float) -> SolveResult | None:
    """The solver's result, as good as brute force's to `within` seconds; None where limits leave nothing."""
    expected, variants = oracles.brute_force(instance, guard=limits.guard, max_variants=limits.max_variants)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    if math.isinf(expected):
        refused = f"--max-variants: found {limits.max_variants}, expected at least"
        with pytest.raises(SolveError, match=refused):
            solve_ladders(*problem, restarts=instance.restarts, limits=limits)
        return None
    result = solve_ladders(*problem, restarts=instance.restarts, limits=limits)
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=within)
    got = oracles.price(instance, result.ladders.num_seqs, result.ladders.num_blocks)
    assert got[1] <= variants
    return result


@pytest.mark.parametrize("seed", seeds(120))
def test_equals_brute_force_with_a_guard_and_a_short_pool(seed: int) -> None:
    rng = np.random.default_rng(5000 + seed)
    plain = random_instance(5000 + seed)
    usable = float("inf")
    cells = plain.cells
    if seed % 3:
        usable = float(rng.integers(plain.max_num_blocks, plain.max_num_blocks + plain.max_num_seqs))
        cells = tuple(cell for cell in cells if cell[0] - 1 + cell[1] <= usable) or ((1, 1, 1.0),)
    instance = dataclasses.replace(plain, cells=cells, usable_kv_blocks=usable)
    guard = float(rng.choice([1.0, 1.25, 1.5, 2.0, 4.0])) if seed % 2 else None
    max_variants = int(rng.integers(8, 40)) if seed % 5 == 0 else None
    result = solved_as_brute_force(instance, Limits(guard=guard, max_variants=max_variants), within=1e-12)
    if result is None:
        return
    got = oracles.price(instance, result.ladders.num_seqs, result.ladders.num_blocks)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    price = price_ladders(*problem, result.ladders, restarts=instance.restarts)
    assert price.num_variants == got[1]
    assert price.compile_seconds == pytest.approx(got[2])


@pytest.mark.parametrize("seed", seeds(60))
def test_unstructured_tables_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seqs, blocks = int(rng.integers(5, 10)), int(rng.integers(2, 8))
    table = {(s, m): float(rng.uniform(0.1, 1.0)) for s in range(4, seqs + 1) for m in range(1, blocks + 1)}
    price = {pair: float(rng.uniform(1, 30)) for pair in table}
    cells = [(int(rng.integers(4, seqs + 1)), int(rng.integers(1, blocks + 1)), 40.0) for _ in range(10)]
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "table",
            "kernel": "per_block",
            "step_seconds": {},
            "compile_seconds": {},
            "step_table": [[s, m, t] for (s, m), t in table.items()],
            "compile_table": [[s, m, t] for (s, m), t in price.items()],
        }
    )
    best = math.inf
    for num_seqs in oracles.ladders(4, seqs):
        for num_blocks in oracles.ladders(1, blocks):
            total = sum(price[s, m] for s in num_seqs for m in num_blocks)
            for n, b, weight in cells:
                s = next(r for r in num_seqs if r >= n)
                total += weight * table[s, next(r for r in num_blocks if r >= b)]
            best = min(best, total)
    grid = np.array(cells)
    steps = StepHistogram(grid[:, 0].astype(int), grid[:, 1].astype(int), grid[:, 2])
    engine = Engine(max_num_seqs=seqs, max_model_len=blocks * 128)
    result = solve_ladders(steps, engine, cost, restarts=1.0)
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(best, rel=RELATIVE_TOLERANCE)


@pytest.mark.parametrize("axis", ["num_seqs", "num_blocks"])
@pytest.mark.parametrize("seed", seeds(20))
def test_a_pinned_axis_stays(seed: int, axis: str) -> None:
    instance = random_instance(2000 + seed)
    rng = np.random.default_rng(seed)
    low, top = (4, instance.max_num_seqs) if axis == "num_seqs" else (1, instance.max_num_blocks)
    every = list(oracles.ladders(low, top))
    pin = every[int(rng.integers(len(every)))]
    pins = Ladders(pin, ()) if axis == "num_seqs" else Ladders((), pin)
    result = solve_ladders(
        steps_of(instance),
        engine_of(instance),
        cost_of(instance),
        restarts=instance.restarts,
        pins=pins,
    )
    if axis == "num_seqs":
        free = oracles.ladders(1, instance.max_num_blocks)
        expected = min(oracles.price(instance, pin, other)[0] for other in free)
        assert result.ladders.num_seqs == pin
    else:
        free = oracles.ladders(4, instance.max_num_seqs)
        expected = min(oracles.price(instance, other, pin)[0] for other in free)
        assert result.ladders.num_blocks == pin
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=1e-12)


def test_infeasible_limits_say_the_least_that_would_do() -> None:
    instance = random_instance(1)
    engine = engine_of(instance)
    cost = cost_of(instance)
    steps = steps_of(instance)
    pins = Ladders((4, engine.max_num_seqs), (1, engine.max_num_blocks))
    with pytest.raises(SolveError, match="--max-variants: found 2, expected at least 4"):
        solve_ladders(steps, engine, cost, restarts=1.0, pins=pins, limits=Limits(max_variants=2))
    with pytest.raises(SolveError, match=r"--warmup-budget: found 0\.001 s, expected at least"):
        solve_ladders(steps, engine, cost, restarts=1.0, limits=Limits(max_compile_seconds=0.001))


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 30))
def test_a_larger_budget_is_never_worse(seed: int, budget: int, more: int) -> None:
    instance = random_instance(seed)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    small = solve_ladders(*problem, restarts=instance.restarts, limits=Limits(max_variants=budget))
    large = solve_ladders(*problem, restarts=instance.restarts, limits=Limits(max_variants=budget + more))
    assert large.objective_seconds <= small.objective_seconds * (1 + 2 * RELATIVE_TOLERANCE)


@given(st.integers(0, 10_000), st.data())
def test_bound_below_optimum_below_any_ladders(seed: int, data: st.DataObject) -> None:
    instance = random_instance(seed)
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    result = solve_ladders(*problem, restarts=instance.restarts)
    seqs = data.draw(st.sets(st.integers(4, instance.max_num_seqs))) | {instance.max_num_seqs}
    blocks = data.draw(st.sets(st.integers(1, instance.max_num_blocks))) | {instance.max_num_blocks}
    any_ladders = Ladders(tuple(sorted(seqs)), tuple(sorted(blocks)))
    price = price_ladders(*problem, any_ladders, restarts=instance.restarts)
    slack = 1 + 2 * RELATIVE_TOLERANCE
    assert result.lower_bound_seconds <= result.objective_seconds * slack
    assert result.objective_seconds <= price.objective_seconds * slack + 1e-12
    plain = oracles.price(instance, any_ladders.num_seqs, any_ladders.num_blocks)
    assert price.objective_seconds == pytest.approx(plain[0], rel=1e-12)
    assert price.num_variants == plain[1]


@given(st.integers(0, 10_000), st.data())
def test_adding_a_rung_never_raises_padding_in_the_flat_kernel(seed: int, data: st.DataObject) -> None:
    instance = random_instance(2 * seed)
    assert instance.kernel == "per_block"
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    seqs = data.draw(st.sets(st.integers(4, instance.max_num_seqs))) | {instance.max_num_seqs}
    blocks = data.draw(st.sets(st.integers(1, instance.max_num_blocks))) | {instance.max_num_blocks}
    more_seqs = seqs | data.draw(st.sets(st.integers(4, instance.max_num_seqs)))
    fewer = price_ladders(*problem, Ladders(tuple(sorted(seqs)), tuple(sorted(blocks))), restarts=0)
    more = price_ladders(*problem, Ladders(tuple(sorted(more_seqs)), tuple(sorted(blocks))), restarts=0)
    assert more.gathers.padded <= fewer.gathers.padded
    assert fewer.gathers.real <= fewer.gathers.padded


def test_candidates_keep_a_rung_that_no_batch_equals() -> None:
    # 9 sequences of 4 blocks: rung 9 gathers 54 pages, rung 11 gathers 44.
    steps = StepHistogram(np.array([9]), np.array([4]), np.array([1000.0]))
    instance = oracles.Instance(
        "chunked", ((9, 4, 1000.0),), 32, 4, (0.0, 0.0, 0.0, 0.001), (0.0, 0.0, 0.0), 0.0
    )
    result = solve_ladders(steps, Engine(max_model_len=512), cost_of(instance), restarts=0.0)
    assert result.objective_seconds == pytest.approx(44.0)
    problem = build_problem(steps, Engine(max_model_len=512), cost_of(instance), restarts=0.0)
    assert 11 in problem.rows


@pytest.mark.parametrize("seed", seeds(80))
def test_limits_in_pools_so_small_that_many_rungs_open_no_variant(seed: int) -> None:
    """With chunks of up to 32 entries, a pool of fewer pages records none of a small batch's variants."""
    rng = np.random.default_rng(70_000 + seed)
    plain = dataclasses.replace(random_instance(70_001 + 2 * seed), kernel="chunked")
    usable = float(rng.integers(max(plain.max_num_blocks, plain.max_num_seqs), 33))
    cells = tuple(cell for cell in plain.cells if cell[0] - 1 + cell[1] <= usable) or ((1, 1, 1.0),)
    instance = dataclasses.replace(plain, cells=cells, usable_kv_blocks=usable)
    max_variants = int(rng.integers(1, 4))
    solved_as_brute_force(instance, Limits(max_variants=max_variants), within=1e-9)


@given(st.integers(1, 7), st.data())
def test_covers_by_a_number_of_intervals_against_every_choice(rows: int, data: st.DataObject) -> None:
    price = st.sampled_from([0.0, 0.25, 1.0, 2.5, dp_kernel.HUGE])
    costs = np.full((rows + 1, rows + 1), dp_kernel.HUGE)
    for i, j in itertools.combinations(range(rows + 1), 2):
        costs[i, j] = data.draw(price)
    most = data.draw(st.integers(1, rows))
    below, above = dp_kernel.counted_rows(costs, most), dp_kernel.counted_rows_above(costs, most)
    for count in range(most + 1):
        for end in range(rows + 1):
            for found, first, last in ((below[count, end], 0, end), (above[count, end], end, rows)):
                inner = itertools.combinations(range(first + 1, last), max(count - 1, 0))
                paths = [(first, *cut, last) for cut in inner] if count and first < last else []
                sums = [sum(costs[i, j] for i, j in itertools.pairwise(path)) for path in paths]
                expected = 0.0 if not count and first == last else min(sums, default=dp_kernel.HUGE)
                assert found == expected or min(found, expected) >= dp_kernel.HUGE
