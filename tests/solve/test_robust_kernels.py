"""The kernels of the least worst regret against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.solve import _robust_kernel as kernel
from ladder_opt.solve._workloads import best_weights


def paths(size: int, lowest: list[int]) -> list[tuple[int, ...]]:
    """Every ladder on an axis, as positions from 0 to size."""
    found = []
    for count in range(size):
        for inner in itertools.combinations(range(1, size), count):
            whole = (0, *inner, size)
            if all(low >= lowest[high] for low, high in itertools.pairwise(whole)):
                found.append(whole)
    return found


@given(st.integers(0, 100_000), st.integers(1, 7), st.integers(1, 4), st.integers(0, 2))
def test_the_path_kernels_equal_enumeration(seed: int, size: int, workloads: int, limits: int) -> None:
    rng = np.random.default_rng(seed)
    components = workloads + limits
    edges = rng.integers(0, 6, (components, size + 1, size + 1)).astype(float)
    lowest = [0] * (size + 1)
    if seed % 2:
        lowest = [max(0, high - int(rng.integers(1, 4))) for high in range(size + 1)]
    start = np.r_[rng.integers(0, 3, workloads), np.full(limits, -float(rng.integers(2, 14)))]
    totals = {
        path: start + sum(edges[:, high, low] for low, high in itertools.pairwise(path))
        for path in paths(size, lowest)
    }
    weights = rng.random(components)
    chosen = np.zeros(size, np.int64)
    value, count = kernel.best_path(edges, weights, np.array(lowest), chosen)
    assert value == pytest.approx(min(weights @ (total - start) for total in totals.values()))
    found = (0, *(chosen[:count] + 1).tolist())
    assert weights @ (totals[found] - start) == pytest.approx(value)

    bar = float(rng.integers(4, 25)) - 0.5
    tests = [*np.eye(components), np.r_[rng.dirichlet(np.ones(workloads)), rng.random(limits)]]
    thresholds = np.r_[np.full(workloads, bar), np.full(limits, 1e-9), bar]
    allowed = [
        total[:workloads].max()
        for total in totals.values()
        if total[:workloads].max() < bar and (total[workloads:] <= 0).all()
    ]
    count = kernel.least_worst(
        edges, np.array(lowest), start, workloads, np.array(tests), thresholds, 1 << 40, chosen
    )
    if not allowed:
        assert count == kernel.NONE
        return
    got = totals[0, *(chosen[:count] + 1).tolist()]
    assert got[:workloads].max() == min(allowed)
    assert (got[workloads:] <= 0).all()
    assert (
        kernel.least_worst(edges, np.array(lowest), start, workloads, np.array(tests), thresholds, 0, chosen)
        == kernel.GIVEN_UP
    )


@given(st.integers(0, 100_000), st.integers(1, 4), st.integers(1, 12))
def test_weights_are_those_of_the_largest_least_cut(seed: int, workloads: int, known: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = 1 + rng.exponential(0.05, (known, workloads))
    weights, bound = best_weights(vectors, workloads)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    assert (vectors @ weights).min() == pytest.approx(bound, abs=1e-7)
    for other in rng.dirichlet(np.ones(workloads), 50):
        assert (vectors @ other).min() <= bound + 1e-7
