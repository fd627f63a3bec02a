"""The frontier against brute force: every point, and no other."""

from __future__ import annotations

import pytest

from ladder_opt.solve._frontier import solve_frontier
from ladder_opt.solve.problem import build_problem
from tests import oracles
from tests.seeds import seeds
from tests.solve.test_product import cost_of, engine_of, random_instance, steps_of


def brute_force(instance: oracles.Instance) -> list[tuple[float, float]]:
    free = oracles.Instance(**{**vars(instance), "restarts": 0.0})
    points = []
    for seqs in oracles.ladders(instance.min_batched_seqs, instance.max_num_seqs):
        for blocks in oracles.ladders(1, instance.max_num_blocks):
            steps, _, compiles = oracles.price(free, seqs, blocks)
            points.append((compiles, steps))
    kept: list[tuple[float, float]] = []
    for compiles, steps in sorted(points):
        if not kept or steps < kept[-1][1] * (1 - 1e-10) - 1e-12:
            if kept and compiles <= kept[-1][0] * (1 + 1e-10):
                kept.pop()
            kept.append((compiles, steps))
    return kept


@pytest.mark.parametrize("seed", seeds(80))
def test_equals_brute_force(seed: int) -> None:
    instance = random_instance(7000 + seed)
    problem = build_problem(steps_of(instance), engine_of(instance), cost_of(instance), restarts=1.0)
    points, complete = solve_frontier(problem, time_limit_seconds=60)
    assert complete
    found = [(point.compile_seconds, point.step_seconds) for point in points]
    expected = brute_force(instance)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    for point in points:
        ladders = problem.ladders(point.rows, point.columns)
        free = oracles.Instance(**{**vars(instance), "restarts": 0.0})
        steps, variants, compiles = oracles.price(free, ladders.num_seqs, ladders.num_blocks)
        assert point.step_seconds == pytest.approx(steps, rel=1e-9, abs=1e-12)
        assert point.compile_seconds == pytest.approx(compiles, rel=1e-9, abs=1e-12)
        assert variants == point.num_variants


@pytest.mark.parametrize("compile_base", [0.0, 1e-6, 1e6])
def test_both_ends_are_there_however_compiles_compare_with_steps(compile_base: float) -> None:
    """Rungs much cheaper than the top one, steps that barely differ: no fixed slope reaches both ends."""
    instance = oracles.Instance(
        kernel="per_block",
        cells=((4, 1, 1000.0), (4, 2, 500.0), (6, 5, 1.0)),
        max_num_seqs=6,
        max_num_blocks=8,
        step=(0.01, 1e-9, 0.0, 1e-3),
        compile=(compile_base, 0.0, 0.01),
        restarts=1.0,
    )
    problem = build_problem(steps_of(instance), engine_of(instance), cost_of(instance), restarts=1.0)
    points, complete = solve_frontier(problem, time_limit_seconds=60)
    assert complete
    found = [(point.compile_seconds, point.step_seconds) for point in points]
    assert len(found) == len(brute_force(instance))
    for got, wanted in zip(found, brute_force(instance), strict=True):
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_out_of_time_nothing_is_called_complete() -> None:
    instance = random_instance(7001)
    problem = build_problem(steps_of(instance), engine_of(instance), cost_of(instance), restarts=1.0)
    points, complete = solve_frontier(problem, time_limit_seconds=0)
    assert points
    assert not complete
