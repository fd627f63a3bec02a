"""The ragged relaxation in numba: a block ladder of its own for every interval of rows.

For rows (i, j] padded to row j, with D[c] = steps with n in (s_i, s_j] and b <= m_c, the cheapest block
ladder obeys

    f[c] = extra[c] + D[c]*t[c] + min over a < c of (f[a] - D[a]*t[c] + price[c] * [a opens c's variant])

where t = step_seconds[j]. Over all a the bracket is a minimum of lines with slopes -D[a], which fall as a
rises, at the point t[c]: the lower envelope is a stack, and a query walks along it from where the last
one ended. Where t rises with c the walk is amortised, and an interval costs O(columns) instead of
O(columns^2); for any other t the answer is the same and only the walk is longer. Predecessors that share
c's variant pay no compile and are few (at most 32 // s of them): they are tried one by one. So are those
that a short KV pool frees of their compile, and all of them under a guard, where lines drop out at
both ends and no stack keeps the envelope: there an interval does cost O(columns^2).

A quadratic loop over all (a, c) was tried first: the same numbers, 20 times as slow at 64 columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.solve._axis_kernel import trace_back
from ladder_opt.solve.problem import RowTerms

HUGE = 1e300  # "not allowed"; finite, so that no difference of two such values is NaN


@njit(cache=True, nogil=True)
def interval_dp(
    steps_below: NDArray[np.float64],
    step_seconds: NDArray[np.float64],
    price: NDArray[np.float64],
    first_column: NDArray[np.int64],
    lowest_below: NDArray[np.int64],
    reach: NDArray[np.int64],
    extra: NDArray[np.float64],
    best: NDArray[np.float64],
    parent: NDArray[np.int64],
    hull: NDArray[np.int64],
) -> float:
    """Cheapest block ladder of one interval of rows. Position p means column p - 1; 0 means no rung yet.

    Args:
        steps_below: (columns + 1,) D.
        step_seconds: (columns,) t.
        price: (columns,) seconds a newly opened variant costs.
        first_column: (columns,) lowest column that shares the variant.
        lowest_below: (columns + 1,) the lowest position that may be the rung below each one.
        reach: (columns,) the highest position below each column above which its variant is compiled.
        extra: (columns,) seconds charged for having the rung.
        best: (columns + 1,) f, filled.
        parent: (columns + 1,) the rung below, as a position, filled.
        hull: (columns + 1,) work.
    """
    columns = step_seconds.size
    best[0] = 0.0
    inserted = 0
    size = 0
    low = 0
    for c in range(1, columns + 1):
        t = step_seconds[c - 1]
        opens_from = min(first_column[c - 1], reach[c - 1]) + 1
        if lowest_below[c] > 0:
            # Lines drop out at the front too, and no stack keeps their envelope: every predecessor is tried.
            value = HUGE
            origin = c - 1
            for a in range(lowest_below[c], c):
                seconds = best[a] - steps_below[a] * t
                if a < opens_from:
                    seconds += price[c - 1]
                if seconds < value:
                    value = seconds
                    origin = a
            best[c] = value + steps_below[c] * t + extra[c - 1]
            parent[c] = origin
            continue
        while inserted < opens_from:
            a = inserted
            inserted += 1
            if size > 0 and steps_below[hull[size - 1]] == steps_below[a]:
                if best[a] >= best[hull[size - 1]]:
                    continue
                size -= 1
            while size > 1:
                q = hull[size - 1]
                p = hull[size - 2]
                # Drop the middle line where p and a cross before p and q do.
                if (best[q] - best[p]) * (steps_below[a] - steps_below[q]) < (best[a] - best[q]) * (
                    steps_below[q] - steps_below[p]
                ):
                    break
                size -= 1
            hull[size] = a
            size += 1
        value = HUGE
        origin = c - 1
        if size > 0:
            # Along the envelope lines fall, then rise, at any point; from c to c + 1 the least moves little.
            low = min(low, size - 1)
            while low > 0 and (
                best[hull[low - 1]] - steps_below[hull[low - 1]] * t
                <= best[hull[low]] - steps_below[hull[low]] * t
            ):
                low -= 1
            while low < size - 1 and (
                best[hull[low + 1]] - steps_below[hull[low + 1]] * t
                < best[hull[low]] - steps_below[hull[low]] * t
            ):
                low += 1
            origin = hull[low]
            value = best[origin] - steps_below[origin] * t + price[c - 1]
        for a in range(opens_from, c):
            if best[a] - steps_below[a] * t < value:
                value = best[a] - steps_below[a] * t
                origin = a
        best[c] = value + steps_below[c] * t + extra[c - 1]
        parent[c] = origin
    return float(best[columns])


@njit(cache=True, nogil=True)
def ragged_costs(
    terms: RowTerms,
    lowest_below: NDArray[np.int64],
    multipliers: NDArray[np.float64],
    alive: NDArray[np.bool_],
    costs: NDArray[np.float64],
) -> None:
    """Fill costs[i, j] for every interval of rows i < j that is alive (HUGE for the others).

    Args:
        terms: what edges are priced with.
        lowest_below: (columns + 1,) the lowest position that may be the rung below each one.
        multipliers: (rows + 1, columns) cumulative over rows: having rung c in the ladder of rows (i, j]
            is charged multipliers[j, c] - multipliers[i, c].
        alive: (rows + 1, rows + 1) whether the interval may be part of a better solution.
        costs: (rows + 1, rows + 1), filled.
    """
    cumulative, step_seconds, price, _, first_column, reach = terms
    rows, columns = step_seconds.shape
    below = np.empty(columns + 1)
    extra = np.empty(columns)
    best = np.empty(columns + 1)
    parent = np.empty(columns + 1, np.int64)
    hull = np.empty(columns + 1, np.int64)
    costs[:, :] = HUGE
    for j in range(1, rows + 1):
        for i in range(j):
            if not alive[i, j]:
                continue
            for c in range(columns):
                below[c] = cumulative[j, c] - cumulative[i, c]
                extra[c] = multipliers[j, c] - multipliers[i, c]
            below[columns] = cumulative[j, columns] - cumulative[i, columns]
            costs[i, j] = interval_dp(
                below,
                step_seconds[j - 1],
                price[j - 1],
                first_column[j - 1],
                lowest_below,
                reach[i],
                extra,
                best,
                parent,
                hull,
            )


@njit(cache=True, nogil=True)
def cheapest_rows(costs: NDArray[np.float64], chosen: NDArray[np.int64]) -> tuple[float, int]:
    """Shortest path over interval costs, any number of intervals.

    Returns:
        (seconds, number of rungs), (HUGE, 0) for none; `chosen` is filled with the rows, ascending.
    """
    rows = costs.shape[0] - 1
    best = np.full(rows + 1, HUGE)
    parent = np.full(rows + 1, -1, np.int64)
    best[0] = 0.0
    for j in range(1, rows + 1):
        for i in range(j):
            if best[i] + costs[i, j] < best[j]:
                best[j] = best[i] + costs[i, j]
                parent[j] = i
    if best[rows] >= HUGE:
        return HUGE, 0
    return best[rows], trace_back(parent, chosen)


@njit(cache=True, nogil=True)
def drop_intervals(costs: NDArray[np.float64], threshold: float, alive: NDArray[np.bool_]) -> None:
    """Mark intervals that no cover of all rows below the threshold can hold.

    The cheapest cover through (i, j] costs best[i] + costs[i, j] + rest[j]; costs are lower bounds, so what
    is dropped once may stay dropped under any multipliers.
    """
    rows = costs.shape[0] - 1
    best = np.full(rows + 1, HUGE)
    rest = np.full(rows + 1, HUGE)
    best[0] = 0.0
    rest[rows] = 0.0
    for j in range(1, rows + 1):
        for i in range(j):
            best[j] = min(best[j], best[i] + costs[i, j])
    for i in range(rows - 1, -1, -1):
        for j in range(i + 1, rows + 1):
            rest[i] = min(rest[i], costs[i, j] + rest[j])
    for i in range(rows):
        for j in range(i + 1, rows + 1):
            if best[i] + costs[i, j] + rest[j] >= threshold:
                alive[i, j] = False


@njit(cache=True, nogil=True)
def cheapest_rows_counted(
    costs: NDArray[np.float64], min_rungs: int, max_rungs: int, chosen: NDArray[np.int64]
) -> tuple[float, int]:
    """The same with min_rungs to max_rungs intervals; (HUGE, 0) where there are not enough rows."""
    rows = costs.shape[0] - 1
    best = counted_rows(costs, max_rungs)
    count = min_rungs
    for rungs in range(min_rungs, max_rungs + 1):
        if best[rungs, rows] < best[count, rows]:
            count = rungs
    if best[count, rows] >= HUGE:
        return HUGE, 0
    j = rows
    for rungs in range(count, 0, -1):
        chosen[rungs - 1] = j - 1
        for i in range(j):
            # The very sum that counted_rows took the minimum of.
            if best[rungs - 1, i] + costs[i, j] == best[rungs, j]:
                j = i
                break
    return best[count, rows], count


@njit(cache=True, nogil=True)
def counted_rows(costs: NDArray[np.float64], max_rungs: int) -> NDArray[np.float64]:
    """Cheapest cover of rows 0..j by exactly p intervals, (max_rungs + 1, rows + 1); HUGE for none."""
    rows = costs.shape[0] - 1
    best = np.full((max_rungs + 1, rows + 1), HUGE)
    best[0, 0] = 0.0
    for rungs in range(1, max_rungs + 1):
        # p intervals cover p rows or more. Where rows are required, few positions can be reached with p.
        for i in range(rungs - 1, rows):
            start = best[rungs - 1, i]
            if start < HUGE:
                for j in range(i + 1, rows + 1):
                    best[rungs, j] = min(best[rungs, j], start + costs[i, j])
    return best


@njit(cache=True, nogil=True)
def counted_rows_above(costs: NDArray[np.float64], max_rungs: int) -> NDArray[np.float64]:
    """The same for rows j..rows, from the other end."""
    rows = costs.shape[0] - 1
    best = np.full((max_rungs + 1, rows + 1), HUGE)
    best[0, rows] = 0.0
    for rungs in range(1, max_rungs + 1):
        reached = np.flatnonzero(best[rungs - 1] < HUGE)
        for i in range(rows - rungs + 1):
            for j in reached[np.searchsorted(reached, i + 1) :]:
                best[rungs, i] = min(best[rungs, i], best[rungs - 1, j] + costs[i, j])
    return best


@njit(cache=True, nogil=True)
def ragged_solution(
    terms: RowTerms,
    lowest_below: NDArray[np.int64],
    multipliers: NDArray[np.float64],
    chosen: NDArray[np.int64],
    has_rung: NDArray[np.float64],
) -> tuple[int, float]:
    """Block ladders of the chosen rows.

    Args:
        terms: what edges are priced with.
        lowest_below: as for `ragged_costs`, and `multipliers` too.
        chosen: rows, ascending (all of the array counts).
        has_rung: (rows, columns), filled: 1 where the ladder that pads row r holds column c.

    Returns:
        (variants, compile seconds) of the ragged solution.
    """
    cumulative, step_seconds, price, compile_seconds, first_column, reach = terms
    columns = step_seconds.shape[1]
    below = np.empty(columns + 1)
    extra = np.empty(columns)
    best = np.empty(columns + 1)
    parent = np.empty(columns + 1, np.int64)
    hull = np.empty(columns + 1, np.int64)
    has_rung[:, :] = 0.0
    variants = 0
    seconds = 0.0
    i = 0
    for rung in range(chosen.size):
        row = int(chosen[rung])
        j = row + 1
        for c in range(columns):
            below[c] = cumulative[j, c] - cumulative[i, c]
            extra[c] = multipliers[j, c] - multipliers[i, c]
        below[columns] = cumulative[j, columns] - cumulative[i, columns]
        interval_dp(
            below,
            step_seconds[row],
            price[row],
            first_column[row],
            lowest_below,
            reach[i],
            extra,
            best,
            parent,
            hull,
        )
        c = columns
        while c > 0:
            has_rung[i:j, c - 1] = 1.0
            if parent[c] <= min(first_column[row, c - 1], reach[i, c - 1]):
                variants += 1
                seconds += compile_seconds[row, c - 1]
            c = int(parent[c])
        i = j
    return variants, seconds
