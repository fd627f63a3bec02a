"""One ladder given the other for several workloads at once, in numba: paths of vectors.

A step from one rung to the next costs a vector: the seconds of each workload, as a share of its own best,
and what it takes of each limit. Weights make a shortest path of it (`best_path`). For the worst of the
workloads a rung keeps every label, a vector that no other one there is at or below in all
components; labels that cannot end below the threshold, by what any of several weights says of the rest of the
path, are dropped (`least_worst`). Both are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.solve._axis_kernel import trace_back

HUGE = 1e300
NONE, GIVEN_UP = -1, -2


@njit(cache=True, nogil=True)
def best_path(
    edges: NDArray[np.float64],
    weights: NDArray[np.float64],
    lowest_below: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> tuple[float, int]:
    """The ladder of the least weighted cost: its cost, and how many rungs of it `chosen` was filled with."""
    components, size = edges.shape[0], edges.shape[1] - 1
    best = np.full(size + 1, HUGE)
    parent = np.full(size + 1, -1, np.int64)
    best[0] = 0.0
    sums = np.empty(size)
    for high in range(1, size + 1):
        lowest = lowest_below[high]
        sums[lowest:high] = best[lowest:high]
        for d in range(components):
            weight = weights[d]
            if weight != 0.0:
                for low in range(lowest, high):
                    sums[low] += weight * edges[d, high, low]
        at = lowest + np.argmin(sums[lowest:high])
        best[high] = sums[at]
        parent[high] = at
    return best[size], trace_back(parent, chosen)


@njit(cache=True, nogil=True)
def _to_go(
    edges: NDArray[np.float64], weights: NDArray[np.float64], lowest_below: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[position]: least weighted cost of the rest of a ladder."""
    components, size = edges.shape[0], edges.shape[1] - 1
    to_go = np.full(size + 1, HUGE)
    to_go[size] = 0.0
    for high in range(size, 0, -1):
        for low in range(lowest_below[high], high):
            value = to_go[high]
            for d in range(components):
                value += weights[d] * edges[d, high, low]
            to_go[low] = min(to_go[low], value)
    return to_go


@njit(cache=True, nogil=True)
def least_worst(
    edges: NDArray[np.float64],
    lowest_below: NDArray[np.int64],
    start: NDArray[np.float64],
    workloads: int,
    weights: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    max_work: int,
    chosen: NDArray[np.int64],
) -> int:
    """The ladder whose largest component among the first `workloads` is least.

    Args:
        edges: (components, candidates + 1, candidates + 1), [d, high, low] for allowed steps.
        lowest_below: (candidates + 1,) the lowest position that may be the rung below each one.
        start: (components,) what a ladder without rungs costs.
        workloads: how many components the worst is taken of.
        weights: (tests, components) >= 0; a ladder counts only where every test holds:
        thresholds: (tests,) its weighted cost stays below.
        max_work: labels to extend or compare before giving up.
        chosen: (candidates,), filled with the rungs.

    Returns:
        How many rungs; NONE where no ladder passes the tests, GIVEN_UP where the work ran out.
    """
    components, size = edges.shape[0], edges.shape[1] - 1
    tests = weights.shape[0]
    to_go = np.empty((tests, size + 1))
    for test in range(tests):
        to_go[test] = _to_go(edges, weights[test], lowest_below)
    capacity = 1024
    costs = np.empty((capacity, components))
    parent = np.empty(capacity, np.int64)
    position = np.empty(capacity, np.int64)
    first = np.zeros(size + 2, np.int64)
    costs[0] = start
    parent[0] = -1
    position[0] = 0
    first[1] = 1
    total = 1
    new_costs = np.empty((64, components))
    new_parent = np.empty(64, np.int64)
    new_sum = np.empty(64)
    cost = np.empty(components)
    work = 0
    for high in range(1, size + 1):
        found = 0
        for low in range(lowest_below[high], high):
            work += first[low + 1] - first[low]
            for label in range(first[low], first[low + 1]):
                whole = 0.0
                for d in range(components):
                    cost[d] = costs[label, d] + edges[d, high, low]
                    whole += cost[d]
                hopeless = False
                for test in range(tests):
                    value = to_go[test, high]
                    for d in range(components):
                        value += weights[test, d] * cost[d]
                    if value >= thresholds[test]:
                        hopeless = True
                        break
                if hopeless:
                    continue
                if found == new_parent.size:
                    new_costs = np.concatenate((new_costs, np.empty((found, components))))
                    new_parent = np.concatenate((new_parent, np.empty(found, np.int64)))
                    new_sum = np.concatenate((new_sum, np.empty(found)))
                new_costs[found] = cost
                new_parent[found] = label
                new_sum[found] = whole
                found += 1
        if work > max_work:
            return GIVEN_UP
        begin = total
        for index in np.argsort(new_sum[:found]):
            # Sorted by the sum of all components: none is at or below one that comes earlier.
            beaten = False
            for label in range(begin, total):
                beaten = True
                for d in range(components):
                    if costs[label, d] > new_costs[index, d]:
                        beaten = False
                        break
                if beaten:
                    work += label - begin
                    break
            if beaten:
                continue
            work += total - begin
            if work > max_work:
                return GIVEN_UP
            if total == capacity:
                costs = np.concatenate((costs, np.empty((capacity, components))))
                parent = np.concatenate((parent, np.empty(capacity, np.int64)))
                position = np.concatenate((position, np.empty(capacity, np.int64)))
                capacity *= 2
            costs[total] = new_costs[index]
            parent[total] = new_parent[index]
            position[total] = high
            total += 1
        first[high + 1] = total
    best = HUGE
    at = -1
    for label in range(first[size], total):
        worst = costs[label, :workloads].max()
        if worst < best:
            best = worst
            at = label
    if at < 0:
        return NONE
    count = 0
    while position[at] > 0:
        chosen[count] = position[at] - 1
        count += 1
        at = parent[at]
    chosen[:count] = chosen[:count][::-1].copy()
    return count
