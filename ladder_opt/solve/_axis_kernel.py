"""One ladder given the other, exactly, in numba: a shortest path, with labels where limits bind.

Both axes become the same path problem. `_edge` prices the step from one rung to the next: its seconds, the
variants it opens, their compile seconds. Without limits the best value at each
rung is enough. With limits each rung keeps every label (seconds, variants, compile seconds) that no other
one there beats in all three; labels that cannot end below the incumbent, by a Lagrangian bound on what is
left of the path, are dropped. Both are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.solve.problem import RowTerms

HUGE = 1e300
NO_LIMIT = 1 << 60


@njit(cache=True, nogil=True, inline="always")
def _edge(
    along_rows: bool,
    low: int,
    high: int,
    terms: RowTerms,
    base: int,
    other: NDArray[np.int64],
) -> tuple[float, int, float]:
    """From position low to rung high (position p is candidate p - 1), against the other axis above base."""
    cumulative, step_seconds, price, compile_seconds, first_column, reach = terms
    seconds = 0.0
    variants = 0
    compiles = 0.0
    below = base
    for rung in other:
        at = rung + 1
        if along_rows:
            steps = (cumulative[high, at] - cumulative[low, at]) - (
                cumulative[high, below] - cumulative[low, below]
            )
            row = high - 1
            column = rung
            opens = below <= min(first_column[row, column], reach[low, column])
        else:
            steps = (cumulative[at, high] - cumulative[at, low]) - (
                cumulative[below, high] - cumulative[below, low]
            )
            row = rung
            column = high - 1
            opens = low <= min(first_column[row, column], reach[below, column])
        seconds += steps * step_seconds[row, column]
        if opens:
            seconds += price[row, column]
            variants += 1
            compiles += compile_seconds[row, column]
        below = at
    return seconds, variants, compiles


@njit(cache=True, nogil=True)
def trace_back(parent: NDArray[np.int64], chosen: NDArray[np.int64]) -> int:
    """Fill `chosen` with the rungs on the way to the last position, ascending; return how many there are."""
    count = 0
    at = parent.size - 1
    while at > 0:
        chosen[count] = at - 1
        count += 1
        at = parent[at]
    chosen[:count] = chosen[:count][::-1].copy()
    return count


@njit(cache=True, nogil=True)
def best_ladder(
    along_rows: bool,
    terms: RowTerms,
    lowest_below: NDArray[np.int64],
    other: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> tuple[float, int]:
    """The cheapest ladder on one axis, no limits.

    Args:
        along_rows: True to choose rows given columns, False to choose columns given rows.
        terms: what edges are priced with.
        lowest_below: (candidates + 1,) the lowest position that may be the rung below each one.
        other: the rungs on the other axis, candidates' indices, ascending.
        chosen: (candidates,), filled with the rungs.

    Returns:
        (seconds, number of rungs).
    """
    cumulative, step_seconds, price, _, first_column, reach = terms
    size = chosen.size
    best = np.full(size + 1, HUGE)
    parent = np.full(size + 1, -1, np.int64)
    best[0] = 0.0
    if along_rows:
        for high in range(1, size + 1):
            for low in range(lowest_below[high], high):
                seconds, _, _ = _edge(True, low, high, terms, 0, other)
                if best[low] + seconds < best[high]:
                    best[high] = best[low] + seconds
                    parent[high] = low
    else:
        # The long axis: all predecessors of a column at once, one rung of the other axis after another.
        below = np.empty((other.size, size + 1))
        starts = np.empty(other.size, np.int64)
        last = 0
        for rung in range(other.size):
            at = other[rung] + 1
            below[rung] = cumulative[at] - cumulative[last]
            starts[rung] = last
            last = at
        sums = np.empty(size)
        for high in range(1, size + 1):
            sums[:high] = best[:high]
            for rung in range(other.size):
                row = other[rung]
                t = step_seconds[row, high - 1]
                ahead = below[rung, high]
                for low in range(high):
                    sums[low] += (ahead - below[rung, low]) * t
                opening = price[row, high - 1]
                for low in range(min(first_column[row, high - 1], reach[starts[rung], high - 1]) + 1):
                    sums[low] += opening
            lowest = lowest_below[high]
            parent[high] = lowest + np.argmin(sums[lowest:high])
            best[high] = sums[parent[high]]
    return best[size], trace_back(parent, chosen)


@njit(cache=True, nogil=True)
def all_edges(
    along_rows: bool,
    terms: RowTerms,
    lowest_below: NDArray[np.int64],
    base: int,
    other: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Every `_edge` at once, [high, low] from position low to rung high; arguments of `pareto_ladders`.

    Returns:
        (seconds, variants, compile seconds), each (size + 1, size + 1), filled from lowest_below[high] to
        high - 1. Variants are whole numbers.
    """
    cumulative, step_seconds, price, compile_seconds, first_column, reach = terms
    size = lowest_below.size - 1
    seconds = np.zeros((size + 1, size + 1))
    variants = np.zeros((size + 1, size + 1))
    compiles = np.zeros((size + 1, size + 1))
    if along_rows:
        for high in range(1, size + 1):
            for low in range(lowest_below[high], high):
                seconds[high, low], variants[high, low], compiles[high, low] = _edge(
                    True, low, high, terms, base, other
                )
        return seconds, variants, compiles
    # One row of the result after another: it stays in the cache while the rungs add to it.
    below = np.empty((other.size, size + 1))
    starts = np.empty(other.size, np.int64)
    last = base
    for rung in range(other.size):
        below[rung] = cumulative[other[rung] + 1] - cumulative[last]
        starts[rung] = last
        last = other[rung] + 1
    for high in range(1, size + 1):
        column = high - 1
        lowest = lowest_below[high]
        for rung in range(other.size):
            row = other[rung]
            t = step_seconds[row, column]
            ahead = below[rung, high]
            for low in range(lowest, high):
                seconds[high, low] += (ahead - below[rung, low]) * t
            for low in range(lowest, min(first_column[row, column], reach[starts[rung], column]) + 1):
                seconds[high, low] += price[row, column]
                variants[high, low] += 1.0
                compiles[high, low] += compile_seconds[row, column]
    return seconds, variants, compiles


@njit(cache=True, nogil=True)
def path(
    edges: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    lowest_below: NDArray[np.int64],
    per_variant: float,
    per_compile_second: float,
    chosen: NDArray[np.int64],
) -> tuple[float, int, float, int]:
    """The cheapest ladder over `all_edges`, with variants and compile seconds charged more.

    Args:
        chosen: (size,), filled with the rungs.

    Returns:
        (seconds before the charges, variants, compile seconds, number of rungs).
    """
    seconds, variants, compiles = edges
    size = chosen.size
    best = np.full(size + 1, HUGE)
    parent = np.full(size + 1, -1, np.int64)
    sums = np.empty(size)
    best[0] = 0.0
    for high in range(1, size + 1):
        lowest = lowest_below[high]
        for low in range(lowest, high):
            sums[low] = (
                best[low]
                + seconds[high, low]
                + (per_variant * variants[high, low] + per_compile_second * compiles[high, low])
            )
        parent[high] = lowest + np.argmin(sums[lowest:high])
        best[high] = sums[parent[high]]
    count = 0
    at = size
    total_seconds = 0.0
    total_variants = 0.0
    total_compiles = 0.0
    while at > 0:
        chosen[count] = at - 1
        count += 1
        low = parent[at]
        total_seconds += seconds[at, low]
        total_variants += variants[at, low]
        total_compiles += compiles[at, low]
        at = low
    chosen[:count] = chosen[:count][::-1].copy()
    return total_seconds, int(total_variants), total_compiles, count


@njit(cache=True, nogil=True)
def pareto_ladders(
    along_rows: bool,
    terms: RowTerms,
    lowest_below: NDArray[np.int64],
    base: int,
    other: NDArray[np.int64],
    max_variants: int,
    max_compile_seconds: float,
    per_variant: float,
    per_compile_second: float,
    threshold: float,
    max_work: int,
) -> tuple[
    NDArray[np.float64],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.int64],
    NDArray[np.int64],
    int,
]:
    """All ladders on one axis that none beats in seconds, variants and compile seconds, cheapest first.

    Args:
        base: the position on the other axis above which its rungs' steps count.
        max_variants: limit on variants; NO_LIMIT where ladders need not be compared in them.
        max_compile_seconds: limit on their compile seconds; HUGE likewise.
        per_variant: Lagrange multiplier of the first limit, >= 0; any value is exact, a good one is fast.
        per_compile_second: Lagrange multiplier of the second limit, >= 0.
        threshold: ladders whose seconds plus both multipliers' prices reach it are left out.
        max_work: labels to extend before giving up.

    Returns:
        Labels as (seconds, variants, compile seconds, parent label, position), and where those of whole
        ladders start (-1: given up); from there to the end each is one ladder, followed through its parents.
    """
    edges = all_edges(along_rows, terms, lowest_below, base, other)
    labels: tuple[
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.int64],
        int,
    ] = pareto_paths(
        edges,
        lowest_below,
        max_variants,
        max_compile_seconds,
        per_variant,
        per_compile_second,
        threshold,
        max_work,
    )
    return labels


@njit(cache=True, nogil=True)
def pareto_paths(
    edges: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    lowest_below: NDArray[np.int64],
    max_variants: int,
    max_compile_seconds: float,
    per_variant: float,
    per_compile_second: float,
    threshold: float,
    max_work: int,
) -> tuple[
    NDArray[np.float64],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.int64],
    NDArray[np.int64],
    int,
]:
    """`pareto_ladders` over edges that are there already.

    Labels come cheapest first. Where variants alone or compile seconds alone are counted, one is beaten just
    if the least of that count so far is no more than its own; where both are, it is held against every one
    kept.
    """
    edge_seconds, edge_variants, edge_compiles = edges
    size = edge_seconds.shape[0] - 1
    counts_variants = max_variants < NO_LIMIT
    counts_compiles = max_compile_seconds < HUGE
    work = 0
    # Seconds to go from each position, limits relaxed at the multipliers' prices.
    to_go = np.full(size + 1, HUGE)
    to_go[size] = 0.0
    for low in range(size - 1, -1, -1):
        for high in range(low + 1, size + 1):
            if lowest_below[high] > low:
                break
            seconds = edge_seconds[high, low]
            variants = int(edge_variants[high, low])
            compiles = edge_compiles[high, low]
            value = to_go[high] + seconds + per_variant * variants + per_compile_second * compiles
            to_go[low] = min(to_go[low], value)
    # Labels, those of one position together, cheapest first.
    capacity = 1024
    label_seconds = np.empty(capacity)
    label_variants = np.empty(capacity, np.int64)
    label_compiles = np.empty(capacity)
    label_parent = np.empty(capacity, np.int64)
    label_position = np.empty(capacity, np.int64)
    start = np.zeros(size + 2, np.int64)
    label_seconds[0] = 0.0
    label_variants[0] = 0
    label_compiles[0] = 0.0
    label_parent[0] = -1
    label_position[0] = 0
    start[1] = 1
    total = 1
    new_seconds = np.empty(64)
    new_variants = np.empty(64, np.int64)
    new_compiles = np.empty(64)
    new_parent = np.empty(64, np.int64)
    for high in range(1, size + 1):
        found = 0
        for low in range(lowest_below[high], high):
            if start[low] == start[low + 1]:
                continue
            seconds = edge_seconds[high, low]
            variants = int(edge_variants[high, low])
            compiles = edge_compiles[high, low]
            work += start[low + 1] - start[low]
            if work > max_work:
                return label_seconds, label_variants, label_compiles, label_parent, label_position, -1
            for label in range(start[low], start[low + 1]):
                s = label_seconds[label] + seconds
                v = label_variants[label] + variants if counts_variants else 0
                k = label_compiles[label] + compiles if counts_compiles else 0.0
                if v > max_variants or k > max_compile_seconds:
                    continue
                if s + per_variant * v + per_compile_second * k + to_go[high] >= threshold:
                    continue
                if found == new_seconds.size:
                    new_seconds = np.concatenate((new_seconds, np.empty(found)))
                    new_variants = np.concatenate((new_variants, np.empty(found, np.int64)))
                    new_compiles = np.concatenate((new_compiles, np.empty(found)))
                    new_parent = np.concatenate((new_parent, np.empty(found, np.int64)))
                new_seconds[found] = s
                new_variants[found] = v
                new_compiles[found] = k
                new_parent[found] = label
                found += 1
        begin = total
        least_variants = NO_LIMIT
        least_compiles = HUGE
        for index in np.argsort(new_seconds[:found]):
            # Sorted by seconds: every label kept so far is no dearer.
            beaten = new_variants[index] >= least_variants and new_compiles[index] >= least_compiles
            if beaten and counts_variants and counts_compiles:
                beaten = False
                for label in range(begin, total):
                    if (
                        label_variants[label] <= new_variants[index]
                        and label_compiles[label] <= new_compiles[index]
                    ):
                        beaten = True
                        break
            if beaten:
                continue
            least_variants = min(least_variants, new_variants[index])
            least_compiles = min(least_compiles, new_compiles[index])
            if total == capacity:
                label_seconds = np.concatenate((label_seconds, np.empty(capacity)))
                label_variants = np.concatenate((label_variants, np.empty(capacity, np.int64)))
                label_compiles = np.concatenate((label_compiles, np.empty(capacity)))
                label_parent = np.concatenate((label_parent, np.empty(capacity, np.int64)))
                label_position = np.concatenate((label_position, np.empty(capacity, np.int64)))
                capacity *= 2
            label_seconds[total] = new_seconds[index]
            label_variants[total] = new_variants[index]
            label_compiles[total] = new_compiles[index]
            label_parent[total] = new_parent[index]
            label_position[total] = high
            total += 1
        start[high + 1] = total
    return (
        label_seconds[:total],
        label_variants[:total],
        label_compiles[:total],
        label_parent[:total],
        label_position[:total],
        start[size],
    )


def rungs_of(label: int, parent: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ladder that a label stands for, candidates' indices, ascending."""
    rungs = []
    while position[label] > 0:
        rungs.append(int(position[label]) - 1)
        label = int(parent[label])
    return np.array(rungs[::-1], np.int64)
