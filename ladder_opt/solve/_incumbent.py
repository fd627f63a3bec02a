"""The best ladders found so far, and how better ones are looked for: alternating one-axis solves.

Without limits one axis given the other is a shortest path. Within limits the path is solved at a price on
variants and compile seconds that is just high enough to keep them; that gives ladders and a bound, and
where the two differ, labels close the gap (`_axis_kernel.pareto_paths`). Alternations give labels little
work and are content without; `settle` gives them all they need.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve.problem import Floats, Integers, LadderProblem
from ladder_opt.solve.result import RELATIVE_TOLERANCE

_BUDGET_SLACK = 1e-9
_MOST_PRICES = 60
_PRICED_PATHS = 30  # what prices and labels cost beside a plain path over one rung
_ALTERNATION_WORK = 300_000
MOST_WORK = 1 << 60
"""As much as it takes, in a count that the loops can hold."""


@dataclass(frozen=True)
class _OneAxis:
    """The best ladder known on one axis, empty with HUGE seconds for none; no ladder is below `bound`."""

    seconds: float
    rungs: Integers
    bound: float


@dataclass(frozen=True)
class _Point:
    """A ladder on one axis: objective, what the limits count, rungs."""

    seconds: float
    variants: int
    compiles: float
    rungs: Integers


_Edges = tuple[Floats, Floats, Floats]


class Incumbent:
    """Best ladders of a problem, as candidates' indices.

    Attributes:
        seconds: objective, tie price included; before the first, more than any ladders cost.
        rows: num_seqs rungs.
        columns: num_blocks rungs.
        max_variants: the limit, NO_LIMIT without.
        max_compiles: the limit in compile seconds, HUGE without.
        work: edges that the bounds have looked at, the measure of work.
        alternation_work: edges that one-axis solves have looked at.
    """

    def __init__(self, problem: LadderProblem, price: Floats, deadline: float) -> None:
        self.problem = problem
        self.price = price
        self.deadline = deadline
        self.seconds = _dearest(problem, price)
        self._rounding = 1e-15 * self.seconds  # of sums that cancel; all that counts where the optimum is 0
        self.rows: Integers = np.zeros(0, np.int64)
        self.columns: Integers = np.zeros(0, np.int64)
        limits = problem.limits
        self.limited = limits.max_variants is not None or limits.max_compile_seconds is not None
        self.max_variants = axis_kernel.NO_LIMIT if limits.max_variants is None else limits.max_variants
        self.max_compiles = axis_kernel.HUGE
        if limits.max_compile_seconds is not None:
            self.max_compiles = limits.max_compile_seconds * (1 + _BUDGET_SLACK)
        self.work = 0  # edges
        self.alternation_work = 0  # edges
        self._tried: set[bytes] = set()
        # What a unit of the search's one price buys: a variant, or the compile seconds of a typical one.
        self._per_variant = 0.0 if limits.max_variants is None else 1.0
        self._per_compile = 0.0
        if limits.max_compile_seconds is not None:
            self._per_compile = 1.0 / problem.typical_compile_seconds

    @property
    def bar(self) -> float:
        """Bounds from here on are closed: the best objective, less half the tolerance."""
        return self.seconds - 0.5 * RELATIVE_TOLERANCE * abs(self.seconds) - self._rounding

    def priced(self, per_variant: float, per_compile_second: float) -> Floats:
        """Seconds a variant costs, with multipliers of the limits added."""
        if not (per_variant or per_compile_second):
            return self.price
        return self.price + per_variant + per_compile_second * self.problem.compile_seconds

    def allowance(self, per_variant: float, per_compile_second: float) -> float:
        """What the limits allow, at their multipliers: to be taken off a priced sum."""
        allowance = 0.0
        if self.problem.limits.max_variants is not None:
            allowance += per_variant * self.max_variants
        if self.problem.limits.max_compile_seconds is not None:
            allowance += per_compile_second * self.max_compiles
        return allowance

    def offer(self, seconds: float, rows: Integers, columns: Integers) -> None:
        """Take these ladders if they are better."""
        if seconds < self.seconds:
            self.seconds, self.rows, self.columns = seconds, rows, columns

    def look_below(self, seconds: float) -> None:
        """Take ladders that cost less than this, though none are known; equal ones count as better."""
        self.seconds = seconds + 4 * self._rounding
        if seconds == 0.0:  # nothing but the tie price, of every variant
            self.seconds += 2 * float(self.price.sum())

    def add_work(self, edges: int) -> None:
        """Count edges that the bounds looked at: `may_alternate` keeps alternations in proportion."""
        self.work += edges

    def may_alternate(self) -> bool:
        """Whether alternations have so far looked at no more edges than the bounds have."""
        return self.alternation_work <= self.work

    def improve_from(self, rows: Integers) -> None:
        """Choose columns for these rows, rows for those columns, and so on, until nothing gets better."""
        key = rows.tobytes()
        if key in self._tried:
            return
        self._tried.add(key)
        last = axis_kernel.HUGE
        while time.perf_counter() <= self.deadline or not len(self.rows):
            columns = self._one_axis(False, rows, _ALTERNATION_WORK).rungs
            if not len(columns):
                return
            found = self._one_axis(True, columns, _ALTERNATION_WORK)
            if not len(found.rungs):
                return
            rows = found.rungs
            self.offer(found.seconds, rows, columns)
            if found.seconds >= last * (1 - 1e-12):
                return
            last = found.seconds

    def settle(self, rungs: Integers, *, work: int, along_rows: bool = False) -> float:
        """Find the best ladder on the other axis for these rungs, within the limits; take it if it is better.

        Args:
            rungs: num_seqs rungs, or num_blocks rungs with `along_rows`.
            work: labels to extend at most; `MOST_WORK` for as many as it takes.
            along_rows: choose num_seqs rungs.

        Returns:
            A bound: no ladder for these rungs is better. It reaches the incumbent unless `work` ran out.
        """
        found = self._one_axis(along_rows, rungs, work)
        if len(found.rungs):
            pair = (found.rungs, rungs) if along_rows else (rungs, found.rungs)
            self.offer(found.seconds, pair[0], pair[1])
        return found.bound

    def start(self) -> None:
        """First ladders: the top row alone, then rows spread evenly, twice as many each time."""
        rows = self.problem.shape[0]
        count = 1
        while True:
            even = np.linspace(-1, rows - 1, min(count, rows) + 1)[1:]
            self.improve_from(np.unique(np.round(even).astype(np.int64)))
            # Every rung but one has a variant of its own.
            if count >= min(rows, self.max_variants) or time.perf_counter() > self.deadline:
                return
            count *= 2

    def _one_axis(self, along_rows: bool, other: Integers, work: int) -> _OneAxis:
        size = self.problem.shape[0 if along_rows else 1]
        self.alternation_work += len(other) * size * size // 2
        rungs = self._path(along_rows, other)
        seconds, variants, compiles = self._totals(along_rows, rungs, other)
        if variants <= self.max_variants and compiles <= self.max_compiles:
            return _OneAxis(seconds, rungs, seconds)
        self.alternation_work += _PRICED_PATHS * size * size // 2
        edges = self._edges(along_rows, other)
        best, unit_price = self._priced(along_rows, edges, _Point(seconds, variants, compiles, rungs))
        wanted = min(best.seconds, self.seconds)
        if best.bound >= wanted * (1 - 0.5 * RELATIVE_TOLERANCE) - self._rounding:
            return best
        labelled = self._labelled(along_rows, edges, unit_price, wanted, work)
        if labelled is None:
            return best
        # Labels look below what is known only: with none found, what is known is the best.
        return labelled if len(labelled.rungs) else _OneAxis(best.seconds, best.rungs, wanted)

    def _priced(self, along_rows: bool, edges: _Edges, free: _Point) -> tuple[_OneAxis, float]:
        """The price at which the path keeps the limits: its ladder, the best bound, the bound's price.

        At every price u the cheapest path is a line, seconds + u * used, and the bound their lower envelope
        less u * allowed. Between a path that breaks the limits and one that keeps them the next price is
        where their two lines cross (Handler and Zang, Networks 10, 1980): the path there lies below both, or
        the top of the envelope is reached. That takes some 5 paths; halving the interval took 20.
        """
        allowed = self.allowance(self._per_variant, self._per_compile)
        best = _OneAxis(axis_kernel.HUGE, np.zeros(0, np.int64), free.seconds)
        best_price = 0.0
        low, high = free, None
        unit_price = 1e6 * max(free.seconds, 1e-12)  # at first: with as few variants as can be
        for _ in range(_MOST_PRICES):
            point = self._path_over(along_rows, edges, unit_price)
            over = self._used(point) - allowed
            # At a high price the rounding of a difference that should be 0 would count.
            bound = point.seconds + unit_price * (min(over, 0.0) if self._keeps_limits(point) else over)
            if bound > best.bound:
                best, best_price = _OneAxis(best.seconds, best.rungs, bound), unit_price
            if self._keeps_limits(point):
                if point.seconds < best.seconds:
                    best = _OneAxis(point.seconds, point.rungs, best.bound)
                high = point
            elif high is None:
                break
            else:
                low = point
            fewer = self._used(low) - self._used(high)
            crossing = (high.seconds - low.seconds) / fewer if fewer > 0 else unit_price
            if not 0 < crossing < math.inf or abs(crossing - unit_price) <= 1e-12 * unit_price:
                break
            unit_price = crossing
        return best, best_price

    def _used(self, point: _Point) -> float:
        return self._per_variant * point.variants + self._per_compile * point.compiles

    def _keeps_limits(self, point: _Point) -> bool:
        return point.variants <= self.max_variants and point.compiles <= self.max_compiles

    def _labelled(
        self, along_rows: bool, edges: _Edges, unit_price: float, below: float, work: int
    ) -> _OneAxis | None:
        """The best ladder below some seconds, by labels; empty for none, None where the work ran out."""
        p = self.problem
        seconds, _, _, parent, position, first = axis_kernel.pareto_paths(
            edges,
            p.lowest_row if along_rows else p.lowest_column,
            self.max_variants,
            self.max_compiles,
            unit_price * self._per_variant,
            unit_price * self._per_compile,
            below + unit_price * self.allowance(self._per_variant, self._per_compile),
            work,
        )
        if first < 0:
            return None
        if first == len(seconds):
            return _OneAxis(axis_kernel.HUGE, np.zeros(0, np.int64), below)
        rungs = axis_kernel.rungs_of(first, parent, position)
        return _OneAxis(float(seconds[first]), rungs, float(seconds[first]))

    def _edges(self, along_rows: bool, other: Integers) -> _Edges:
        p = self.problem
        edges: _Edges = axis_kernel.all_edges(
            along_rows,
            p.row_terms(self.price),
            p.lowest_row if along_rows else p.lowest_column,
            0,
            other,
        )
        return edges

    def _path_over(self, along_rows: bool, edges: _Edges, unit_price: float) -> _Point:
        """The cheapest ladder with every variant and compile second charged more."""
        p = self.problem
        chosen = np.zeros(p.shape[0] if along_rows else p.shape[1], np.int64)
        seconds, variants, compiles, count = axis_kernel.path(
            edges,
            p.lowest_row if along_rows else p.lowest_column,
            unit_price * self._per_variant,
            unit_price * self._per_compile,
            chosen,
        )
        return _Point(seconds, variants, compiles, chosen[:count])

    def _path(self, along_rows: bool, other: Integers) -> Integers:
        """The cheapest ladder, no limits."""
        p = self.problem
        chosen = np.zeros(p.shape[0] if along_rows else p.shape[1], np.int64)
        _, count = axis_kernel.best_ladder(
            along_rows,
            p.row_terms(self.price),
            p.lowest_row if along_rows else p.lowest_column,
            other,
            chosen,
        )
        return chosen[:count]

    def _totals(self, along_rows: bool, rungs: Integers, other: Integers) -> tuple[float, int, float]:
        """(objective with the tie price, variants, compile seconds)."""
        rows, columns = (rungs, other) if along_rows else (other, rungs)
        step_seconds, variants, compiles = self.problem.totals(rows, columns)
        opens = self.problem.opens(rows, columns)
        return step_seconds + float((self.price[np.ix_(rows, columns)] * opens).sum()), variants, compiles


def as_good_with_fewer(problem: LadderProblem, objective: float, variants: int, deadline: float) -> Incumbent:
    """An incumbent for ladders that cost no more, with one variant less to spend; it has none yet.

    Args:
        problem: the instance.
        objective: seconds of the ladders known.
        variants: of the ladders known.
        deadline: of the solve.
    """
    fewer = replace(problem, limits=replace(problem.limits, max_variants=variants - 1))
    price = problem.restarts * problem.compile_seconds
    incumbent = Incumbent(fewer, price + tie_price(problem, objective), deadline)
    incumbent.look_below(objective * (1 + RELATIVE_TOLERANCE))
    return incumbent


def tie_price(problem: LadderProblem, seconds: float) -> float:
    """What a variant is charged so that of equal ladders those with fewer variants win.

    All variants together stay below a quarter of the tolerance of `seconds`, a typical objective. Where
    that is 0 the problem's own scale takes its place: large beside rounding, small beside anything real.
    """
    rows, columns = problem.shape
    if seconds > 0:
        return 0.25 * RELATIVE_TOLERANCE * seconds / (rows * columns)
    return 1e-13 * _dearest(problem, problem.restarts * problem.compile_seconds)


def _dearest(problem: LadderProblem, price: Floats) -> float:
    """A bound from above: every step at the dearest rung pair, and every variant compiled."""
    steps = float(problem.cumulative[-1, -1])
    return 2.0 * (steps * float(problem.step_seconds.max()) + float(price.sum())) + 1e-9
