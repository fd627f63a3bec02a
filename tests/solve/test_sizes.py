"""One ladder alone, against every choice of sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ladder_opt.errors import SolveError
from ladder_opt.solve.sizes import SizePrices, price_sizes, solve_sizes


def least(
    steps: dict[int, float], candidates: list[int], prices: SizePrices, most: int
) -> tuple[float, tuple[int, ...]]:
    """The cheapest of all choices, the fewest sizes among equals, sum by sum."""
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for count in range(1, most + 1):
        for sizes in itertools.combinations(candidates, count):
            if prices.beyond_seconds is None and sizes[-1] != candidates[-1]:
                continue
            total = prices.restarts * prices.size_seconds * count
            for rows, weight in steps.items():
                above = [size for size in sizes if size >= rows]
                if above:
                    total += prices.row_seconds * (above[0] - rows) * weight
                else:
                    total += (prices.beyond_seconds or 0.0) * weight
            if total < best[0] - 1e-9:
                best = (total, sizes)
    return best


amounts = st.sampled_from([0.0, 0.25, 1.0, 3.0, 40.0])


@given(
    st.dictionaries(st.integers(1, 9), st.integers(1, 50).map(float), min_size=1, max_size=6),
    st.sets(st.integers(1, 9), min_size=1, max_size=7),
    st.builds(
        SizePrices,
        row_seconds=amounts,
        size_seconds=amounts,
        beyond_seconds=st.one_of(st.none(), amounts),
        restarts=st.sampled_from([0.0, 0.5, 2.0]),
    ),
    st.one_of(st.none(), st.integers(1, 5)),
)
@example({3: 10.0, 8: 1.0}, {1, 2, 3, 4, 5, 6, 7, 8}, SizePrices(row_seconds=1.0, size_seconds=4.0), None)
def test_no_other_sizes_are_cheaper(
    steps: dict[int, float], candidates: set[int], prices: SizePrices, max_sizes: int | None
) -> None:
    rows, weights = np.array(list(steps), np.int64), np.array(list(steps.values()))
    choose_from = sorted(candidates)
    if prices.beyond_seconds is None and max(steps) > choose_from[-1]:
        with pytest.raises(SolveError, match=f"found steps of {max(steps)} rows, expected at most"):
            solve_sizes(rows, weights, choose_from, prices, max_sizes=max_sizes)
        return
    found = solve_sizes(rows, weights, choose_from, prices, max_sizes=max_sizes)
    expected, sizes = least(steps, choose_from, prices, min(max_sizes or 99, len(choose_from)))
    assert found.objective_seconds == pytest.approx(expected, rel=1e-12, abs=1e-9)
    assert len(found.sizes) == len(sizes)
    assert set(found.sizes) <= candidates


def test_the_example_of_the_docstring() -> None:
    rows, weights = np.array([3, 8]), np.array([10.0, 1.0])
    prices = SizePrices(row_seconds=1.0, size_seconds=4.0)
    found = solve_sizes(rows, weights, range(1, 9), prices)
    assert found.sizes == (3, 8)
    assert found.objective_seconds == 8.0
    assert price_sizes([3, 8], [10.0, 1.0], [8], prices).objective_seconds == 54.0


def test_price_says_what_is_padded_and_what_lies_beyond() -> None:
    price = price_sizes([1, 2, 9], [4.0, 1.0, 5.0], [2, 4], SizePrices(row_seconds=0.5, beyond_seconds=2.0))
    assert (price.padded_rows, price.steps_beyond, price.rows, price.steps) == (4.0, 5.0, 51.0, 10.0)
    assert price.objective_seconds == 0.5 * 4 + 2.0 * 5
    assert price_sizes([9], [1.0], [2], SizePrices(row_seconds=1.0)).objective_seconds == math.inf


def test_no_candidates_is_refused() -> None:
    with pytest.raises(SolveError, match="found 0 to choose from"):
        solve_sizes(np.array([1]), np.array([1.0]), [], SizePrices(row_seconds=1.0))
