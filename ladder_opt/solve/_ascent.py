"""Lower bounds from the ragged relaxation, raised by multipliers; see `_product` for the mathematics."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve._incumbent import Incumbent
from ladder_opt.solve.problem import Floats

INTERVAL_WORK = 12
"""Edges of a search that take as long as one column of one interval of the relaxation."""
_STALLED_AFTER = 10
_SCALE_CUT = 0.6
_LEAST_SCALE = 1e-3
_MEMORY = 0.9  # of the running mean of the number of rungs


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """A range of the number of num_seqs rungs, with the best multipliers known for it.

    Attributes:
        min_rungs: at least so many num_seqs rungs.
        max_rungs: at most so many.
        multipliers: float64 (rows, columns), seconds charged for the rung in that row's ladder; sums over
            rows are 0.
        per_variant: multiplier of the limit on variants, >= 0.
        per_compile_second: multiplier of the limit on compile seconds, >= 0.
        bound: seconds that no ladders in the range go below, -inf before the first ascent.
        alive: bool (rows + 1, rows + 1), intervals of rows that a better solution may hold; shared
            by all parts of a search, and only ever thinned.
        scale: step length of the ascent, relative to Polyak's.
        mean_rungs: rungs of recent relaxed solutions.
    """

    min_rungs: int
    max_rungs: int
    multipliers: Floats
    alive: NDArray[np.bool_]
    per_variant: float = 0.0
    per_compile_second: float = 0.0
    bound: float = -np.inf
    scale: float = 1.0
    mean_rungs: float = 1.0

    def cumulative_multipliers(self) -> Floats:
        """(rows + 1, columns): differences are the charges of an interval of rows."""
        rows, columns = self.multipliers.shape
        cumulative = np.zeros((rows + 1, columns))
        np.cumsum(self.multipliers, axis=0, out=cumulative[1:])
        return cumulative

    def price(self, incumbent: Incumbent) -> Floats:
        """Seconds a variant costs, the limits' multipliers included."""
        return incumbent.priced(self.per_variant, self.per_compile_second)

    def allowance(self, incumbent: Incumbent) -> float:
        """What the limits allow at these multipliers."""
        return incumbent.allowance(self.per_variant, self.per_compile_second)


def is_closed(bound: float, incumbent: Incumbent) -> bool:
    """Whether nothing better than the incumbent can lie above this bound."""
    return bound >= incumbent.bar


def interval_costs(relaxation: Relaxation, incumbent: Incumbent) -> Floats:
    """Cheapest charged block ladder of every interval of rows alive; drops those it shows to be useless."""
    p = incumbent.problem
    costs = np.empty((p.shape[0] + 1, p.shape[0] + 1))
    dp_kernel.ragged_costs(
        p.row_terms(relaxation.price(incumbent)),
        p.lowest_column,
        relaxation.cumulative_multipliers(),
        relaxation.alive,
        costs,
    )
    dp_kernel.drop_intervals(costs, incumbent.bar + relaxation.allowance(incumbent), relaxation.alive)
    return costs


def ascend(start: Relaxation, incumbent: Incumbent, iterations: int) -> tuple[Relaxation, int]:
    """Raise the bound; every new set of rows on the way is tried as an incumbent.

    Returns:
        The best relaxation, and how many were solved.
    """
    p = incumbent.problem
    rows, columns = p.shape
    counted = start.min_rungs > 1 or start.max_rungs < rows
    best = current = start
    scale = start.scale
    mean_rungs = start.mean_rungs
    stalled = 0
    chosen = np.zeros(rows, np.int64)
    has_rung = np.zeros((rows, columns))
    solved = 0
    typical = p.typical_compile_seconds
    while solved < iterations and scale > _LEAST_SCALE:
        costs = interval_costs(current, incumbent)
        if counted:
            seconds, count = dp_kernel.cheapest_rows_counted(costs, start.min_rungs, start.max_rungs, chosen)
        else:
            seconds, count = dp_kernel.cheapest_rows(costs, chosen)
        solved += 1
        if count == 0:
            # No cover is left that could beat the incumbent.
            return replace(best, bound=np.inf), solved
        bound = float(seconds) - current.allowance(incumbent)
        variants, compiles = dp_kernel.ragged_solution(
            p.row_terms(current.price(incumbent)),
            p.lowest_column,
            current.cumulative_multipliers(),
            chosen[:count],
            has_rung,
        )
        mean_rungs = _MEMORY * mean_rungs + (1 - _MEMORY) * count
        incumbent.add_work(int(current.alive.sum()) * columns * INTERVAL_WORK)
        if incumbent.may_alternate():
            incumbent.improve_from(chosen[:count].copy())
        if bound > best.bound + 1e-12 * abs(bound):
            best = replace(current, bound=bound)
            stalled = 0
        else:
            stalled += 1
            if stalled >= _STALLED_AFTER:
                scale *= _SCALE_CUT
                stalled = 0
                current = best
        if is_closed(best.bound, incumbent) or time.perf_counter() > incumbent.deadline:
            break
        gradient = has_rung - has_rung.mean(axis=0)
        over_variants, over_compiles = excess(current, incumbent, variants, compiles)
        norm = float((gradient * gradient).sum()) + over_variants**2 + over_compiles**2
        if norm == 0.0:
            break
        step = scale * (incumbent.seconds - bound) / norm
        current = replace(
            current,
            multipliers=current.multipliers + step * gradient,
            per_variant=max(0.0, current.per_variant + step * over_variants),
            per_compile_second=max(0.0, current.per_compile_second + step * over_compiles / typical),
        )
    return replace(best, scale=scale, mean_rungs=mean_rungs), solved


def excess(
    relaxation: Relaxation, incumbent: Incumbent, variants: int, compiles: float
) -> tuple[float, float]:
    """Gradient of the limits' multipliers, in variants and in typical compiles; none may go below 0."""
    limits = incumbent.problem.limits
    over_variants = over_compiles = 0.0
    if limits.max_variants is not None:
        over_variants = float(variants - incumbent.max_variants)
        if relaxation.per_variant <= 0.0:
            over_variants = max(0.0, over_variants)
    if limits.max_compile_seconds is not None:
        over_compiles = (compiles - incumbent.max_compiles) / incumbent.problem.typical_compile_seconds
        if relaxation.per_compile_second <= 0.0:
            over_compiles = max(0.0, over_compiles)
    return over_variants, over_compiles
