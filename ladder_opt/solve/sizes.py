"""One ladder alone: sizes that steps are padded up to, with a price for what lies beyond the last.

**Sets.** Candidates s_1 < ... < s_k. A step of n rows is padded to the smallest chosen size >= n; where
there is none it runs as it is, which costs `beyond_seconds` more. (A captured CUDA graph is such a size, and
a step beyond the largest one runs without a graph.)

**Objective.** For chosen sizes C and steps w_n,

    row_seconds * sum of w_n * (C^(n) - n)  +  beyond_seconds * sum over n > max C of w_n
        +  restarts * size_seconds * |C|

What a step's own n rows take is left out: it is the same for any C.

**Recursion.** With W_i steps of at most s_i rows, and R_i rows in them, padding all steps in (s_i, s_j] to
s_j costs c(i, j) = row_seconds * (s_j * (W_j - W_i) - (R_j - R_i)) + restarts * size_seconds, and leaving all
steps above s_i without a size c(i, end) = beyond_seconds * (W - W_i). The best C is the shortest path
0 -> i -> ... -> end of at most p + 1 edges, p being the most sizes allowed: exact, in O(p * k^2), by the
kernel of the row axis in `_dp_kernel`. Of equal prices the fewest sizes win.

**Example.** 10 steps of 3 rows and 1 of 8, row_seconds 1, size_seconds 4, restarts 1, nothing allowed beyond:
C = {3, 8} costs 0 + 8, C = {8} costs 10 * 5 + 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InternalError, SolveError

_MAX_CANDIDATES = 4096


@dataclass(frozen=True, kw_only=True)
class SizePrices:
    """What padding and sizes cost.

    Attributes:
        row_seconds: a row that a step is padded by.
        size_seconds: having a size, at each start.
        beyond_seconds: what a step beyond the last size takes longer; None: the last candidate is a size.
        restarts: server starts that sizes are charged for.
    """

    row_seconds: float
    size_seconds: float = 0.0
    beyond_seconds: float | None = None
    restarts: float = 1.0


@dataclass(frozen=True, kw_only=True)
class SizesPrice:
    """What given sizes cost.

    Attributes:
        sizes: the sizes, ascending.
        objective_seconds: as in this module's docstring.
        rows: rows of all steps, unpadded.
        padded_rows: rows that padding adds, over all steps.
        steps: all steps.
        steps_beyond: those beyond the last size.
    """

    sizes: tuple[int, ...]
    objective_seconds: float
    rows: float
    padded_rows: float
    steps: float
    steps_beyond: float


def price_sizes(
    rows: Sequence[int], steps: Sequence[float], sizes: Sequence[int], prices: SizePrices
) -> SizesPrice:
    """Price sizes on steps, one step size at a time; shares no code with `solve_sizes`.

    Args:
        rows: rows of a step, each >= 1.
        steps: how often a step has as many.
        sizes: ascending, at least one.
        prices: what they cost.
    """
    padded = beyond = 0.0
    for n, weight in zip(rows, steps, strict=True):
        size = next((size for size in sizes if size >= n), None)
        if size is None:
            beyond += weight
        else:
            padded += weight * (size - n)
    objective = prices.row_seconds * padded + prices.restarts * prices.size_seconds * len(sizes)
    if beyond:
        objective = math.inf if prices.beyond_seconds is None else objective + prices.beyond_seconds * beyond
    return SizesPrice(
        sizes=tuple(sizes),
        objective_seconds=objective,
        rows=math.fsum(n * weight for n, weight in zip(rows, steps, strict=True)),
        padded_rows=padded,
        steps=math.fsum(steps),
        steps_beyond=beyond,
    )


def solve_sizes(
    rows: NDArray[np.int64],
    steps: NDArray[np.float64],
    candidates: Sequence[int],
    prices: SizePrices,
    *,
    max_sizes: int | None = None,
) -> SizesPrice:
    """The cheapest sizes, proven by the recursion being exact.

    Args:
        rows: (cells,), rows of a step, each >= 1.
        steps: (cells,), how often a step has as many.
        candidates: sizes to choose from, ascending, each >= 1.
        prices: what they cost.
        max_sizes: the most sizes; None for no limit.

    Raises:
        SolveError: no candidates, too many, or steps beyond the last with nothing allowed there.
        InternalError: the plain pricing disagrees.
    """
    from ladder_opt.solve._dp_kernel import HUGE, cheapest_rows_counted  # noqa: PLC0415  (numba)

    if not 1 <= len(candidates) <= _MAX_CANDIDATES:
        raise SolveError(f"sizes: found {len(candidates)} to choose from, expected 1 to {_MAX_CANDIDATES}")
    if prices.beyond_seconds is None and rows.size and rows.max() > candidates[-1]:
        raise SolveError(
            f"sizes: found steps of {rows.max()} rows, expected at most {candidates[-1]}, the largest size "
            "allowed, or a price for what lies beyond"
        )
    sizes = np.asarray(candidates, np.int64)
    order = np.argsort(rows, kind="stable")
    sums = np.cumsum(np.r_[0.0, steps[order]]), np.cumsum(np.r_[0.0, (rows * steps)[order]])
    at = np.searchsorted(rows[order], np.r_[0, sizes], side="right")
    weight, total_rows = sums[0][at], sums[1][at]
    count = len(sizes)
    costs = np.full((count + 2, count + 2), HUGE)
    padded = sizes * (weight[None, 1:] - weight[:, None]) - (total_rows[None, 1:] - total_rows[:, None])
    ascending = np.arange(count + 1)[:, None] <= np.arange(count)[None, :]
    price = prices.row_seconds * padded + prices.restarts * prices.size_seconds
    costs[: count + 1, 1 : count + 1] = np.where(ascending, price, HUGE)
    if prices.beyond_seconds is None:
        costs[count, count + 1] = 0.0
    else:
        costs[1 : count + 1, count + 1] = prices.beyond_seconds * (sums[0][-1] - weight[1:])
    most = count if max_sizes is None else min(max_sizes, count)
    chosen = np.empty(count + 1, np.int64)
    seconds, edges = cheapest_rows_counted(costs, 2, most + 1, chosen)
    result = price_sizes(
        rows.tolist(), steps.tolist(), [int(sizes[index]) for index in chosen[: edges - 1]], prices
    )
    tolerance = 1e-9 + 1e-12 * prices.row_seconds * result.rows  # the recursion works with sums of all rows
    if not math.isclose(result.objective_seconds, seconds, rel_tol=1e-9, abs_tol=tolerance):
        raise InternalError(f"the solver says {seconds!r} s, the check {result.objective_seconds!r} s")
    return result
