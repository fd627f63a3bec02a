"""The product solver: one num_seqs ladder, one num_blocks ladder, proven.

**Relaxation.** Give every row r (a batch size) a block ladder of its own, z[r, c] = 1 if it holds column c.
Rows padded to the same num_seqs rung share theirs. If all z[r, .] must be equal to one y, the problem is
the product problem; if not, it is the *ragged* problem, which `_dp_kernel` solves exactly in polynomial
time. With multipliers L[r, c] that add up to 0 over r for every c, the terms L[r, c] * z[r, c] vanish
wherever all rows agree, so

    bound(L) = min over ragged solutions of  cost + sum L[r, c] * z[r, c]   <=   product optimum.

The ragged solver takes the multipliers as a charge for each rung of an interval, at no extra cost. The
bound is concave in L; its supergradient is z - mean over rows of z. Limits enter the same way, with
multipliers >= 0: mu * (variants - max_variants) and nu * (compile seconds - max_compile_seconds).

**Ascent** (`_ascent`). Polyak steps, scale * (incumbent - bound) / |gradient|^2, the scale cut and the best
multipliers restored when the bound stalls. On real histograms the ragged bound starts 0.05 to 1 % below
the optimum, and the multipliers leave 0.001 to 0.5 %.

Large instances start on coarse rows: with only every eighth, then fourth, then second row for a candidate,
steps cost next to nothing, and the multipliers of a row are shared out evenly among the rows that it stands
for. Any multipliers that add up to 0 are valid, so nothing is lost; ladders found there are ladders of
the problem. Not under a guard or with query lengths among the rows, where coarse rows may leave no ladder.

**Incumbent** (`_incumbent`). Every new set of rows that the relaxation proposes starts an alternation of
exact one-axis solves, within the limits.

**Search** (`_search_kernel`). Depth first over num_seqs ladders, from the top or from the bottom, the
multipliers fixed: the rungs decided share one block ladder exactly, the other rows stay relaxed. Either
it finishes, which proves the incumbent, or both directions are given up at a number of edges, in proportion
to what the bounds have cost so far, and the multipliers are raised further. Where limits bind, the range of
the number of num_seqs rungs is then split, each half with multipliers of its own: the relaxation keeps that
number exactly, which closes most of the gap that limits leave.

The search is finite; when all ranges are closed the incumbent is optimal to RELATIVE_TOLERANCE. Out of
time, the bound is the least of those of the open ranges.

**Ties.** Each variant is charged a tie price so small that all of them together stay below half the
tolerance, which leads to fewer variants among equal ladders. Rungs that change nothing are then dropped.
Looks for ladders of the same objective with one variant less to spend (`_with_fewer_variants`) prove the
rest, as far as their share of the work goes.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import SolveError
from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve._ascent import INTERVAL_WORK, Relaxation, ascend, interval_costs, is_closed
from ladder_opt.solve._depth_first import FINISHED, LEAF, PAUSED, DepthFirst
from ladder_opt.solve._incumbent import MOST_WORK, Incumbent, as_good_with_fewer, tie_price
from ladder_opt.solve.problem import Floats, Integers, LadderProblem, Limits
from ladder_opt.solve.result import SolveResult, Status, StopReason

ASCENT_ITERATIONS = 150
SEARCH_WORK = 20_000_000
"""Edges that the first search of a range may at least look at in each direction; each later one four times as
many."""
_MORE_WORK = 4
_STRIDES = (8, 4, 2)
_LEAST_COARSE_ROWS = 12
_WARM_SCALE = 0.5
_SCALE_AGAIN = 0.3
_LEAST_TIME_SECONDS = 10.0
TIE_WORK = 2_000_000
"""Edges that a look for fewer variants may always take."""
_TIE_SHARE = 4
"""Where variants are free, so that ties abound: one part in so many of the solve's own work besides."""

Progress = Callable[[float, float], None]
"""Called with (objective_seconds, lower_bound_seconds) now and then."""


class ProductSearch:
    """State of one solve."""

    def __init__(
        self, incumbent: Incumbent, progress: Progress | None, *, most_work: int | None = None
    ) -> None:
        self.incumbent = incumbent
        self.progress = progress
        self.most_work = most_work
        self.edges_searched = 0
        self.multipliers: Relaxation | None = None  # of the whole range, as raised first
        self.nodes = 0
        self.evaluations = 0
        self.ragged_bound = -np.inf

    @property
    def work(self) -> int:
        """Edges looked at so far, by bounds and searches."""
        return self.incumbent.work + self.edges_searched

    @property
    def work_left(self) -> int:
        """Edges that may still be looked at."""
        return MOST_WORK if self.most_work is None else max(1, self.most_work - self.work)

    def out_of_time(self) -> bool:
        """Whether the time is up, or the work that was granted done."""
        is_spent = self.most_work is not None and self.work > self.most_work
        return is_spent or time.perf_counter() > self.incumbent.deadline

    def raise_bound(
        self, relaxation: Relaxation, iterations: int, incumbent: Incumbent | None = None
    ) -> Relaxation:
        if self.most_work is not None:
            of_one = int(relaxation.alive.sum()) * self.incumbent.problem.shape[1] * INTERVAL_WORK
            iterations = min(iterations, max(1, self.work_left // max(1, of_one)))
        better, solved = ascend(relaxation, incumbent or self.incumbent, iterations)
        self.evaluations += solved
        return better

    def run(self, start: Relaxation | None = None, *, is_warm: bool = False) -> tuple[float, bool]:
        """Search until proven or out of time; return (lower bound, proven).

        Args:
            start: multipliers to begin with, over the whole range; default: none.
            is_warm: whether they are as good as coarse rows would make them.
        """
        incumbent = self.incumbent
        first = start or root_relaxation(incumbent)
        first = self.raise_bound(first, 1)
        self.ragged_bound = first.bound
        if not is_warm:
            first = self.warm_start(first)
        # A part's bound may come from a search, above what its multipliers alone give (relaxation.bound).
        heap = [(first.bound, 0, 0, True, first)]
        pushed = 1
        while heap:
            bound, _, tries, ascends, relaxation = heapq.heappop(heap)
            if is_closed(bound, incumbent):
                break
            if self.out_of_time():
                return bound, False
            if self.progress is not None:
                self.progress(incumbent.seconds, bound)
            if ascends:
                relaxation = self.raise_bound(relaxation, ASCENT_ITERATIONS)
            self.multipliers = self.multipliers or relaxation
            bound = max(bound, relaxation.bound)
            if is_closed(bound, incumbent):
                continue
            # In proportion to what the bounds took so far: less was lost on ascents that had stalled.
            work = min(MOST_WORK, max(SEARCH_WORK, 2 * incumbent.work) * _MORE_WORK**tries)
            work = min(work, self.work_left)
            reached = self.search_both_ways(relaxation, work)
            if reached is None:
                continue
            # Where the search got on, more of it is worth more than further steps of the ascent.
            ascends = reached <= relaxation.bound
            bound = max(bound, reached)
            again = replace(relaxation, scale=max(_SCALE_AGAIN, relaxation.scale))
            parts = [again]
            if incumbent.limited and relaxation.min_rungs < relaxation.max_rungs:
                middle = int(np.clip(relaxation.mean_rungs, relaxation.min_rungs, relaxation.max_rungs - 1))
                # Intervals useless in one range may be needed in the other.
                parts = [
                    replace(again, max_rungs=middle, alive=relaxation.alive.copy()),
                    replace(again, min_rungs=middle + 1),
                ]
                ascends = True
            for part in parts:
                heapq.heappush(heap, (bound, pushed, tries + 1, ascends, part))
                pushed += 1
        return incumbent.seconds, True

    def warm_start(self, first: Relaxation) -> Relaxation:
        """Multipliers from the problem with rungs on every eighth, fourth, second row alone.

        A coarse problem has a fraction of the intervals, so that most steps of the ascent cost next to
        nothing. Its bound says nothing about the problem; its multipliers are as valid as any.
        """
        problem = self.incumbent.problem
        if problem.num_query_rows or problem.lowest_row.any():  # coarse rows may leave no ladder
            return first
        warm, finest = first, np.arange(problem.shape[0])
        coarsest: Integers | None = None
        for stride in _STRIDES:
            kept = finest[::-stride][::-1]
            if len(kept) < _LEAST_COARSE_ROWS:
                continue
            coarse = Incumbent(
                coarse_rows(problem, kept), self.incumbent.price[kept], self.incumbent.deadline
            )
            coarse.seconds = self.incumbent.seconds
            start = root_relaxation(coarse)
            if coarsest is not None:
                start = _spread(warm, coarsest, kept, onto=start)
            warm, coarsest = self.raise_bound(start, ASCENT_ITERATIONS, coarse), kept
            self.incumbent.add_work(coarse.work)
            if len(coarse.rows):
                self.incumbent.offer(coarse.seconds, kept[coarse.rows], coarse.columns)
        if coarsest is None:
            return first
        return replace(_spread(warm, coarsest, finest, onto=first), scale=_WARM_SCALE)

    def search_both_ways(self, relaxation: Relaxation, work: int) -> float | None:
        """Search a range from either end; None where one search finishes, else the better bound."""
        best = relaxation.bound
        for upward in (False, True):
            reached = self.search(relaxation, work, upward=upward)
            if reached is None:
                return None
            best = max(best, reached)
        return best

    def search(self, relaxation: Relaxation, work: int, *, upward: bool) -> float | None:
        """Search a range to its end (None), or as far as `work` edges and the time go (the bound then)."""
        incumbent = self.incumbent
        if self.out_of_time():  # what a search begins with may take seconds
            return relaxation.bound
        search = DepthFirst(incumbent, relaxation, upward=upward)
        allowance = relaxation.allowance(incumbent)
        found = PAUSED
        unsettled = incumbent.seconds  # least bound of ladders whose best block ladder was not found in time
        while search.fits and found != FINISHED and search.edges_seen < work and not self.out_of_time():
            found = search.advance(incumbent.bar + allowance)
            if found == LEAF:
                rows = search.leaf_rows
                unsettled = min(unsettled, incumbent.settle(rows, work=work))
            if self.progress is not None:
                self.progress(incumbent.seconds, relaxation.bound)
        self.nodes += search.nodes
        self.edges_searched += search.edges_seen
        if found == FINISHED:
            return None if is_closed(unsettled, incumbent) else unsettled
        return min(search.open_bound() - allowance, unsettled, incumbent.seconds)


def coarse_rows(problem: LadderProblem, kept: Integers) -> LadderProblem:
    """The problem with these rows for candidates, the last of them included; not for a guard on rows."""
    positions = np.r_[0, kept + 1]
    return replace(
        problem,
        rows=problem.rows[kept],
        cumulative=np.ascontiguousarray(problem.cumulative[positions]),
        step_seconds=np.ascontiguousarray(problem.step_seconds[kept]),
        compile_seconds=np.ascontiguousarray(problem.compile_seconds[kept]),
        first_column=np.ascontiguousarray(problem.first_column[kept]),
        reach=np.ascontiguousarray(problem.reach[positions]),
        lowest_row=np.ascontiguousarray(problem.lowest_row[: len(positions)]),
    )


def _spread(coarse: Relaxation, of: Integers, over: Integers, *, onto: Relaxation) -> Relaxation:
    """Multipliers of rows `of` shared out evenly among the rows `over` that end at each of them."""
    group = np.searchsorted(of, over)
    shares = 1.0 / np.bincount(group, minlength=len(of))
    return replace(
        onto,
        multipliers=coarse.multipliers[group] * shares[group][:, None],
        per_variant=coarse.per_variant,
        per_compile_second=coarse.per_compile_second,
        mean_rungs=coarse.mean_rungs,
    )


def root_relaxation(incumbent: Incumbent) -> Relaxation:
    """No multipliers, any number of rungs that the limits leave: the ragged problem."""
    problem = incumbent.problem
    rows, columns = problem.shape
    most = rows
    if (problem.first_column >= 0).all() and (problem.reach[:-1, -1] >= columns).all():
        # Every rung opens a variant of its own: at the lowest of the rungs that share the top column's, which
        # is no higher than what it shares. Query lengths above all that fit the longest sequence open none,
        # and only one of them can be needed. In a short pool any number of rungs may open none.
        most = min(rows, incumbent.max_variants + 1)
    return Relaxation(
        min_rungs=1,
        max_rungs=most,
        multipliers=np.zeros(incumbent.problem.shape),
        alive=_allowed_intervals(incumbent.problem),
    )


def _allowed_intervals(problem: LadderProblem) -> NDArray[np.bool_]:
    """[i, j]: whether rung j may stand above position i."""
    position = np.arange(problem.shape[0] + 1)
    allowed: NDArray[np.bool_] = position[:, None] >= problem.lowest_row[None, :]
    return np.ascontiguousarray(np.triu(allowed, 1))


def solve_product(
    problem: LadderProblem, *, time_limit_seconds: float, progress: Progress | None = None
) -> SolveResult:
    """Find the best pair of ladders, and prove it or state the gap.

    Args:
        problem: the instance.
        time_limit_seconds: when to stop; the result is then FEASIBLE with the bound reached.
        progress: told of bounds now and then.

    Raises:
        SolveError: no ladder keeps the limits, or none was found in time.
    """
    started = time.perf_counter()
    deadline = started + time_limit_seconds
    price = problem.restarts * problem.compile_seconds
    if problem.rows_pinned or problem.columns_pinned:
        incumbent, bound = _solve_pinned(problem, price, deadline)
        search = ProductSearch(incumbent, progress)
        proven = is_closed(bound, incumbent)
        search.ragged_bound = bound
    else:
        rough = Incumbent(problem, price, deadline)
        rough.start()
        incumbent = Incumbent(problem, price + tie_price(problem, rough.seconds), deadline)
        incumbent.improve_from(rough.rows)
        search = ProductSearch(incumbent, progress)
        bound, proven = search.run()
    if not len(incumbent.rows) or not len(incumbent.columns):
        raise SolveError(
            "no ladder keeps all limits" if proven else "no ladder within the limits was found in time"
        )
    row_rungs, column_rungs = without_idle_rungs(problem, incumbent.rows, incumbent.columns)
    objective = problem.objective(row_rungs, column_rungs)
    if proven:
        row_rungs, column_rungs = _with_fewer_variants(
            problem, row_rungs, column_rungs, after=search, deadline=deadline
        )
    least, objective = objective, problem.objective(row_rungs, column_rungs)
    return SolveResult(
        ladders=problem.ladders(row_rungs, column_rungs),
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        stop_reason=StopReason.PROVEN if proven else StopReason.TIME_LIMIT,
        objective_seconds=objective,
        lower_bound_seconds=min(least, objective) if proven else max(0.0, min(bound, objective)),
        ragged_bound_seconds=max(0.0, min(search.ragged_bound, objective)),
        nodes=search.nodes,
        bound_evaluations=search.evaluations,
        solve_seconds=time.perf_counter() - started,
    )


def _with_fewer_variants(
    problem: LadderProblem, rows: Integers, columns: Integers, *, after: ProductSearch, deadline: float
) -> tuple[Integers, Integers]:
    """The ladders, or others of the same objective with fewer variants: see "Ties" above.

    Args:
        problem: the instance.
        rows: num_seqs rungs that are proven best, candidates' indices.
        columns: num_blocks rungs, likewise.
        after: the search that proved them; its work says how much more is in proportion.
        deadline: of the solve.
    """
    if problem.rows_pinned and problem.columns_pinned:
        return rows, columns
    objective = problem.objective(rows, columns)
    are_all_charged = bool((problem.restarts * problem.compile_seconds).all())
    left = TIE_WORK + (0 if are_all_charged else after.work // _TIE_SHARE)
    while left > 0:
        variants = problem.totals(rows, columns)[1]
        if variants <= 1 or time.perf_counter() > deadline:
            break
        incumbent = as_good_with_fewer(problem, objective, variants, deadline)
        if problem.rows_pinned or problem.columns_pinned:
            given = np.arange(problem.shape[0 if problem.rows_pinned else 1])
            incumbent.settle(given, work=left, along_rows=not problem.rows_pinned)
            left -= incumbent.alternation_work
        else:
            search = ProductSearch(incumbent, None, most_work=left)
            incumbent.improve_from(rows)
            start = root_relaxation(incumbent)
            known = after.multipliers
            if known is not None:
                start = replace(
                    start, multipliers=known.multipliers, per_compile_second=known.per_compile_second
                )
            search.run(start, is_warm=True)
            left -= search.work
        if not len(incumbent.rows):
            break
        rows, columns = without_idle_rungs(problem, incumbent.rows, incumbent.columns)
    return rows, columns


def _solve_pinned(problem: LadderProblem, price: Floats, deadline: float) -> tuple[Incumbent, float]:
    """With one axis given, the other is one exact path; with both, there is nothing to choose."""
    every_row, every_column = (np.arange(size) for size in problem.shape)
    incumbent = Incumbent(
        problem, price + tie_price(problem, problem.objective(every_row, every_column)), deadline
    )
    if problem.rows_pinned and problem.columns_pinned:
        incumbent.offer(problem.objective(every_row, every_column), every_row, every_column)
        return incumbent, incumbent.seconds
    if problem.rows_pinned:
        return incumbent, incumbent.settle(every_row, work=MOST_WORK)
    return incumbent, incumbent.settle(every_column, along_rows=True, work=MOST_WORK)


def ragged_bound(problem: LadderProblem) -> float:
    """The relaxation without multipliers: every num_seqs rung has a block ladder of its own."""
    incumbent = Incumbent(problem, problem.restarts * problem.compile_seconds, deadline=np.inf)
    costs = interval_costs(root_relaxation(incumbent), incumbent)
    seconds, _ = dp_kernel.cheapest_rows(costs, np.zeros(problem.shape[0], np.int64))
    return max(0.0, float(seconds))


def least_variants(problem: LadderProblem) -> int:
    """No ladders have fewer variants (out of time: a bound)."""
    ones = replace(compiles_alone(problem), compile_seconds=np.ones_like(problem.compile_seconds))
    found = solve_product(ones, time_limit_seconds=_LEAST_TIME_SECONDS)
    return int(np.ceil(found.lower_bound_seconds - 1e-6))


def least_compile_seconds(problem: LadderProblem) -> float:
    """No ladders take fewer compile seconds (out of time: a bound)."""
    found = solve_product(compiles_alone(problem), time_limit_seconds=_LEAST_TIME_SECONDS)
    return found.lower_bound_seconds


def compiles_alone(problem: LadderProblem) -> LadderProblem:
    return replace(problem, limits=Limits(), step_seconds=np.zeros_like(problem.step_seconds), restarts=1.0)


def without_idle_rungs(
    problem: LadderProblem, rows: Integers, columns: Integers
) -> tuple[Integers, Integers]:
    """Drop rungs that neither seconds nor variants need: a tie goes to fewer rungs."""
    objective = problem.objective(rows, columns)
    _, variants, compiles = problem.totals(rows, columns)
    allowed = objective + 1e-13 * abs(objective)
    for axis, pinned in ((0, problem.rows_pinned), (1, problem.columns_pinned)):
        if pinned:
            continue
        for rung in (rows, columns)[axis][:-1]:
            trial = [rows, columns]
            trial[axis] = trial[axis][trial[axis] != rung]
            # In a short pool a rung's going can make a dearer variant one that occurs.
            step_seconds, fewer, less = problem.totals(*trial)
            if fewer > variants or less > compiles or not keeps_guard(problem, *trial):
                continue
            if step_seconds + problem.restarts * less <= allowed:
                rows, columns = trial
    return rows, columns


def keeps_guard(problem: LadderProblem, rows: Integers, columns: Integers) -> bool:
    """Whether each rung's size and the rung below are allowed together."""
    return all(
        bool((np.r_[0, rungs[:-1] + 1] >= lowest[rungs + 1]).all())
        for rungs, lowest in ((rows, problem.lowest_row), (columns, problem.lowest_column))
    )
