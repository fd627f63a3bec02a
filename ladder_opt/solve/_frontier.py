"""Every Pareto-optimal pair of ladders: (compile seconds, step seconds), complete.

A sweep of weights finds the points on the convex hull and misses those inside it. Here each edge of the
hull, from A to B (compile seconds w_A < w_B, step seconds t_A > t_B), is searched to its end, from left to
right:

* At the slope R = (t_A - t_B) / (w_B - w_A), a point that nothing known dominates lies under one of the
  corners between known neighbours, (t_i, w_{i+1}), so its value t + R*w is below the largest corner value.
* The depth-first search of the product solver, with multipliers raised at restarts = R and that corner value
  as its threshold, visits every num_seqs ladder that may have such a point, and for each of them the labels
  of `_axis_kernel.pareto_ladders` are all block ladders that none beats in both.
* Points found lower the corners, and the threshold with them.

The two ends are solved for by themselves. When the search of every gap between them has finished, no pair
of ladders is left that would add a point. Out of time, the gaps not searched are open: what was found
stands, and `complete` is False.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ladder_opt.errors import SolveError
from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve._ascent import Relaxation, ascend
from ladder_opt.solve._depth_first import FINISHED, LEAF, PAUSED, DepthFirst
from ladder_opt.solve._incumbent import Incumbent
from ladder_opt.solve._product import compiles_alone, root_relaxation, solve_product
from ladder_opt.solve.problem import Integers, LadderProblem
from ladder_opt.solve.result import SolveResult, Status

_SWEEP = 40  # slopes of the first, rough sweep
_SWEEP_ITERATIONS = 25
_GAP_ITERATIONS = 60
_SEARCH_WORK = 4_000_000  # edges, in each direction, before multipliers are raised again
_MORE_WORK = 4
_LABEL_WORK = 1 << 40
_RELATIVE_TOLERANCE = 1e-12  # points closer than this are one point

Progress = Callable[[float], None]


@dataclass(frozen=True)
class FrontierPoint:
    """One pair of ladders, as candidates' indices, and what it costs."""

    compile_seconds: float
    step_seconds: float
    num_variants: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Gap:
    """Compile seconds from low to high, and the hull's slope there: step seconds for a compile second."""

    slope: float
    low: float
    high: float


class _Staircase:
    """Known points that none dominates, by compile seconds."""

    def __init__(self) -> None:
        self.points: list[FrontierPoint] = []
        self._compiles: list[float] = []

    def would_take(self, compile_seconds: float, step_seconds: float) -> bool:
        """Whether no known point is as good."""
        slack = _RELATIVE_TOLERANCE * abs(compile_seconds)
        at = bisect.bisect_right(self._compiles, compile_seconds + slack)
        if not at:
            return True
        return step_seconds < self.points[at - 1].step_seconds - _RELATIVE_TOLERANCE * abs(step_seconds)

    def add(self, point: FrontierPoint) -> None:
        """Take a point that `would_take` says yes to; drop those it beats."""
        slack = _RELATIVE_TOLERANCE * abs(point.compile_seconds)
        start = bisect.bisect_left(self._compiles, point.compile_seconds - slack)
        end = start
        least = point.step_seconds - _RELATIVE_TOLERANCE * abs(point.step_seconds)
        while end < len(self.points) and self.points[end].step_seconds >= least:
            end += 1
        self.points[start:end] = [point]
        self._compiles[start:end] = [point.compile_seconds]

    def hull(self) -> list[FrontierPoint]:
        """Points on the lower convex hull."""
        kept: list[FrontierPoint] = []
        for point in self.points:
            while len(kept) > 1 and _turns_up(kept[-2], kept[-1], point):
                kept.pop()
            kept.append(point)
        return kept

    def next_gap(self, searched: float) -> Gap | None:
        """The hull edge that goes on beyond the compile seconds searched so far."""
        hull = self.hull()
        for left, right in itertools.pairwise(hull):
            if right.compile_seconds > searched * (1 + _RELATIVE_TOLERANCE):
                slope = (left.step_seconds - right.step_seconds) / (
                    right.compile_seconds - left.compile_seconds
                )
                return Gap(slope, max(searched, left.compile_seconds), right.compile_seconds)
        return None

    def bar(self, gap: Gap) -> float:
        """The largest corner value of a gap: no point that would be new there reaches it."""
        start = max(0, bisect.bisect_right(self._compiles, gap.low) - 1)
        end = bisect.bisect_left(self._compiles, gap.high * (1 - _RELATIVE_TOLERANCE)) + 1
        corners = [
            a.step_seconds + gap.slope * b.compile_seconds
            for a, b in itertools.pairwise(self.points[start:end])
        ]
        return max(corners, default=-np.inf) * (1 - _RELATIVE_TOLERANCE)


def _turns_up(a: FrontierPoint, b: FrontierPoint, c: FrontierPoint) -> bool:
    """Whether b is on or above the line from a to c."""
    left = (b.step_seconds - a.step_seconds) * (c.compile_seconds - a.compile_seconds)
    return left >= (c.step_seconds - a.step_seconds) * (b.compile_seconds - a.compile_seconds)


class _Collector(Incumbent):
    """An incumbent whose bar is set from outside, and that keeps every pair of ladders it is offered."""

    def __init__(self, problem: LadderProblem, deadline: float, staircase: _Staircase) -> None:
        super().__init__(problem, problem.restarts * problem.compile_seconds, deadline)
        self.staircase = staircase

    def offer(self, seconds: float, rows: Integers, columns: Integers) -> None:  # noqa: ARG002
        step_seconds, variants, compiles = self.problem.totals(rows, columns)
        if self.staircase.would_take(compiles, step_seconds):
            self.staircase.add(
                FrontierPoint(compiles, step_seconds, variants, tuple(rows.tolist()), tuple(columns.tolist()))
            )
        self.rows, self.columns = rows, columns


def solve_frontier(
    problem: LadderProblem, *, time_limit_seconds: float, progress: Progress | None = None
) -> tuple[list[FrontierPoint], bool]:
    """All Pareto-optimal points by compile seconds, and whether they are complete.

    Args:
        problem: an instance without limits on variants or compile seconds; restarts do not matter.
        time_limit_seconds: when to stop.
        progress: called with the share of the gaps searched.
    """
    deadline = time.perf_counter() + time_limit_seconds
    staircase = _Staircase()
    starts = dict(_sweep(problem, deadline, staircase))
    if not _add_ends(problem, deadline, staircase):
        return staircase.points, False
    least, most = staircase.points[0].compile_seconds, staircase.points[-1].compile_seconds
    searched = least
    while (gap := staircase.next_gap(searched)) is not None:
        if progress is not None:
            progress((searched - least) / (most - least))
        nearest = _nearest(starts, gap.slope)
        collector = _Collector(replace(problem, restarts=gap.slope), deadline, staircase)
        start = replace(root_relaxation(collector), multipliers=starts[nearest].multipliers)
        relaxation = starts[gap.slope] = _raise(collector, gap, start)
        if staircase.next_gap(searched) != gap and time.perf_counter() < deadline:
            continue  # multipliers found points below the edge: start from the new one
        if not _search_gap(collector, gap, relaxation):
            return staircase.points, False
        searched = gap.high
    return staircase.points, True


def _add_ends(problem: LadderProblem, deadline: float, staircase: _Staircase) -> bool:
    """Add the points of least compile seconds and of least step seconds; False where they are not proven.

    No slope of a sweep is sure to reach either: that depends on the smallest difference between two points.
    """

    def solved(instance: LadderProblem) -> SolveResult:
        return solve_product(instance, time_limit_seconds=max(0.0, deadline - time.perf_counter()))

    free = replace(problem, restarts=0.0)
    collector = _Collector(free, deadline, staircase)
    proven = time.perf_counter() < deadline
    try:
        least = solved(compiles_alone(problem))
        within = replace(problem.limits, max_compile_seconds=least.objective_seconds)
        for result in (solved(replace(free, limits=within)), solved(free)):
            collector.offer(0.0, *problem.indices(result.ladders))
            proven &= result.status is Status.OPTIMAL
    except SolveError:
        return False  # none found in time
    return proven and least.status is Status.OPTIMAL


def _nearest(slopes: Iterable[float], slope: float) -> float:
    return min(slopes, key=lambda each: abs(np.log(each / slope)))


def _sweep(
    problem: LadderProblem, deadline: float, staircase: _Staircase
) -> Iterator[tuple[float, Relaxation]]:
    """Rough multipliers and points over slopes from "compiles are free" to "compiles are all that counts"."""
    steps = float(problem.cumulative[-1, -1]) * float(problem.step_seconds.max()) + 1e-12
    one = max(problem.typical_compile_seconds, 1e-12)
    relaxation = None
    for slope in np.geomspace(1e-9, 10.0, _SWEEP) * steps / one:
        collector = _Collector(replace(problem, restarts=float(slope)), deadline, staircase)
        collector.start()
        known = min(p.step_seconds + slope * p.compile_seconds for p in staircase.points)
        collector.seconds = known * (1 + 1e-9)
        root = root_relaxation(collector)
        if relaxation is not None:
            root = replace(root, multipliers=relaxation.multipliers)
        relaxation, _ = ascend(root, collector, _SWEEP_ITERATIONS)
        yield float(slope), relaxation
        if time.perf_counter() > deadline:
            return


def _raise(collector: _Collector, gap: Gap, relaxation: Relaxation) -> Relaxation:
    """Raise multipliers at a gap's slope, against its largest corner."""
    collector.seconds = collector.staircase.bar(gap)
    alive = root_relaxation(collector).alive
    better, _ = ascend(
        replace(relaxation, alive=alive, scale=max(relaxation.scale, 0.5)), collector, _GAP_ITERATIONS
    )
    return better


def _search_gap(collector: _Collector, gap: Gap, relaxation: Relaxation) -> bool:
    """Find every point of a gap; False where the time ran out."""
    staircase = collector.staircase
    work = _SEARCH_WORK
    while True:
        collector.seconds = staircase.bar(gap)
        if relaxation.bound >= collector.seconds:
            return True
        for upward in (False, True):
            search = DepthFirst(collector, relaxation, upward=upward)
            found = PAUSED
            while search.fits and found != FINISHED and search.edges_seen < work:
                if time.perf_counter() > collector.deadline:
                    return False
                found = search.advance(staircase.bar(gap))
                if found == LEAF and not _collect(collector.problem, staircase, search.leaf_rows, gap):
                    return False
            if found == FINISHED:
                return True
        if time.perf_counter() > collector.deadline:
            return False
        work *= _MORE_WORK
        relaxation = _raise(collector, gap, relaxation)


def _collect(
    problem: LadderProblem,
    staircase: _Staircase,
    rows: Integers,
    gap: Gap,
) -> bool:
    """Add all points of one num_seqs ladder in a gap; False where that is too much work."""
    seconds, _, compiles, parent, position, first = axis_kernel.pareto_ladders(
        False,
        problem.row_terms(np.zeros_like(problem.compile_seconds)),
        problem.lowest_column,
        0,
        rows,
        axis_kernel.NO_LIMIT,
        gap.high,
        0.0,
        gap.slope,
        staircase.bar(gap),
        _LABEL_WORK,
    )
    if first < 0:
        return False
    for label in range(first, len(seconds)):
        if not staircase.would_take(float(compiles[label]), float(seconds[label])):
            continue
        chosen = axis_kernel.rungs_of(label, parent, position)
        step_seconds, variants, compile_seconds = problem.totals(rows, chosen)
        staircase.add(
            FrontierPoint(
                compile_seconds, step_seconds, variants, tuple(rows.tolist()), tuple(chosen.tolist())
            )
        )
    return True
