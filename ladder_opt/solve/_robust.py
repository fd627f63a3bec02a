"""The robust solver: one pair of ladders for several workloads, the least worst regret, proven.

**Sets and objective.** Workloads k = 1..K have histograms w_k and server starts r_k of their own; candidates,
prices and limits are common. With f_k(S, M) the plain objective of `problem` on w_k and r_k, and f_k* its
least within the same limits, the regret of ladders is f_k / f_k* - 1: a share, so that a long trace does not
outvote a short one. Sought are the ladders that minimise

    worst(S, M) = max over k of g_k(S, M),    g_k = f_k / f_k* = 1 + regret.

Where f_k* = 0 a share of it says nothing: there g_k = 1 + f_k / (the most that any ladders could cost), so
that 0 s is still a regret of 0. A workload that costs nothing under any ladders has a regret of 0 and is left
out. Where only a bound on f_k* is known, the bound takes its place: regrets are then never understated, and
worst is minimised for those references exactly as for true ones.

**Candidates.** The problem of the *added-up* histogram reduces the candidates: a size that no step of the sum
has is one that no step of any workload has, and the moves of `problem` then raise no f_k and break no limit.

**Bound.** For weights L >= 0 that add up to 1, a maximum is no less than a weighted mean:

    bound(L) = min over ladders of  sum over k of L_k g_k   <=   min over ladders of worst.

The sum is a *plain* product problem with steps sum L_k w_k / f_k* and restarts sum L_k r_k / f_k*, which
`_product` solves or bounds. bound is concave in L, and the vector g of the ladders that attain it is a
supergradient: every pair of ladders x ever looked at gives the cut bound(L) <= sum L_k g_k(x). The L that
maximise the least cut (a linear programme in K + 1 variables) are tried next: multipliers bound the mixed
problem there and propose ladders, until new ones no longer lower the cuts. Solving each of these problems to
its end was tried first: it took most of the time at 64 x 512, and the weights were no better.

**Search.** The largest bound may stay below the least worst, where only a mixture of two pairs of ladders
would have equal regrets. What is left is searched with the weights fixed: the ascent and the depth-first
search of `_product` run on the mixed problem with the least worst *known* as their incumbent. They leave
out only num_seqs ladders (whole, or by one end) whose mixed bound reaches it, and a mixed bound is below
worst. For each num_seqs ladder left over, `settle` finds the num_blocks ladder of least worst ratio exactly:
weights made for that ladder alone close most, since with the rows given the bound is one shortest path;
labels of K components (`_robust_kernel.least_worst`) do the rest. Limits are components too, with
multipliers of their own.

*Guarantee.* If the search ends, no pair of ladders is better than the incumbent by more than
RELATIVE_TOLERANCE. Out of time, the larger of bound(L) and what the search has reached is a valid bound.

**Ties** go to fewer variants, then fewer rungs, among the ladders looked at; and, once the worst ratio is
proven, to ladders of the same worst ratio that a search with one variant less to spend finds
(`_with_fewer_variants`).

*Example.* Two workloads, two pairs of ladders x and y, g(x) = (1, 1.04), g(y) = (1.03, 1). Weights (4/7, 3/7)
give the bound 1.0171, and no weights give more; the least worst is 1.03. The search starts with y and finds
no better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ladder_opt.errors import SolveError
from ladder_opt.solve._ascent import Relaxation, ascend
from ladder_opt.solve._incumbent import MOST_WORK, Incumbent, tie_price
from ladder_opt.solve._product import (
    ASCENT_ITERATIONS,
    TIE_WORK,
    ProductSearch,
    keeps_guard,
    root_relaxation,
)
from ladder_opt.solve._robust_incumbent import RobustIncumbent
from ladder_opt.solve._workloads import Known, Pool, Workloads, best_weights
from ladder_opt.solve.problem import Floats, Integers, LadderProblem
from ladder_opt.solve.result import RELATIVE_TOLERANCE

_FIRST_WORK = 20_000_000
_MORE_WORK = 4
_POLISH_WORK = 2_000_000
_POLISHED = 6
_MIX_SHARE = 0.5  # of the time, for weights
_TIE_PAIRS = 1024  # candidate rung pairs up to which fewer variants are looked for: a quarter of the time
_CLOSE_ENOUGH = 0.02  # cut and bound, of what they are below the least worst

Progress = Callable[[float, float], None]
"""Called with (worst ratio known, bound on it) now and then."""


class _MixIncumbent(Incumbent):
    """The plain incumbent of a mixed problem that tells the pool of all ladders it is offered."""

    def __init__(self, pool: Pool, problem: LadderProblem, deadline: float) -> None:
        rough = problem.restarts * problem.compile_seconds
        super().__init__(problem, rough + tie_price(problem, 1.0), deadline)
        self.pool = pool

    def offer(self, seconds: float, rows: Integers, columns: Integers) -> None:
        self.pool.add(rows, columns)
        super().offer(seconds, rows, columns)


@dataclass(frozen=True)
class RobustSearch:
    """What a search over workloads ends with.

    Attributes:
        best: the ladders of least worst ratio, and their ratios.
        bound: no ladders within the limits have a worst ratio below it.
        mixed_bound: the bound before the search, by weights and multipliers.
        proven: whether the bound reaches the best, but for the tolerance.
        weights: float64 (workloads,), those of the largest mixed bound.
        nodes: nodes of the depth-first searches.
        bound_evaluations: relaxations solved.
    """

    best: Known
    bound: float
    mixed_bound: float
    proven: bool
    weights: Floats
    nodes: int
    bound_evaluations: int


class _Robust:
    """State of one solve."""

    def __init__(
        self,
        workloads: Workloads,
        starts: Sequence[tuple[Integers, Integers]],
        deadline: float,
        progress: Progress | None,
        *,
        below: float = np.inf,
    ) -> None:
        self.workloads = workloads
        self.deadline = deadline
        self.progress = progress
        plain = Incumbent(workloads.base, workloads.base.compile_seconds, deadline)
        self.pool = Pool(
            workloads,
            max_variants=plain.max_variants,
            max_compile_seconds=plain.max_compiles,
            below=below,
        )
        for rows, columns in starts:
            self.pool.add(rows, columns)
        self.bound = 1.0  # each workload's own optimum is a bound on it
        self.weights = np.full(len(workloads), 1.0 / len(workloads))
        self.relaxation: Relaxation | None = None
        self.nodes = self.evaluations = 0

    @property
    def closed(self) -> bool:
        """Whether the bound reaches the least worst ratio known."""
        return self.bound >= self.pool.worst * (1 - 0.5 * RELATIVE_TOLERANCE)

    def tell(self) -> None:
        if self.progress is not None:
            self.progress(self.pool.worst, self.bound)

    def raise_mixed_bound(self, deadline: float) -> None:
        """Find weights of the largest mixed bound, as far as known ladders tell, and bounds by multipliers.

        Only at the last weights is the mixed problem searched, in `close`: ladders close to its optimum give
        cuts almost as good as those that attain it.
        """
        weights = self.weights
        tried: list[tuple[Floats, Relaxation]] = []
        while True:
            relaxation, bound = self._bound_mix(weights, deadline)
            self.bound = max(self.bound, bound)
            tried.append((weights, relaxation))
            self.tell()
            vectors = self.pool.vectors()
            if not len(vectors):
                return
            reached = [float((vectors @ each).min()) for each, _ in tried]
            best = int(np.argmax(reached))
            self.weights, self.relaxation = tried[best]
            if self.closed or time.perf_counter() > deadline:
                return
            weights, cut = best_weights(vectors, len(weights))
            open_above = max(0.0, self.pool.worst - reached[best])
            if cut - reached[best] <= _CLOSE_ENOUGH * open_above + RELATIVE_TOLERANCE:
                return

    def _bound_mix(self, weights: Floats, deadline: float) -> tuple[Relaxation, float]:
        """Multipliers for the mixed problem, and its bound on the worst ratio."""
        problem, constant = self.workloads.mixed(weights)
        incumbent = _MixIncumbent(self.pool, problem, deadline)
        best = self.pool.best
        if best is None:
            incumbent.start()
        else:
            incumbent.improve_from(best.rows)
        relaxation, solved = ascend(self._warm(root_relaxation(incumbent)), incumbent, ASCENT_ITERATIONS)
        self.evaluations += solved
        return relaxation, min(relaxation.bound, incumbent.seconds) + constant

    def _warm(self, root: Relaxation) -> Relaxation:
        """The multipliers of the mix before are good ones for the next."""
        known = self.relaxation
        if known is None:
            return root
        return replace(
            root,
            multipliers=known.multipliers,
            per_variant=known.per_variant,
            per_compile_second=known.per_compile_second,
        )

    def polish(self) -> None:
        """Alternate exact one-axis solves for the worst ratio, from the best ladders known."""
        incumbent = RobustIncumbent(self.pool, self.weights, self.deadline)
        for known in self.pool.best_first()[:_POLISHED]:
            rows = known.rows
            last = np.inf
            while self.pool.worst < last and time.perf_counter() < self.deadline:
                last = self.pool.worst
                incumbent.settle(rows, work=_POLISH_WORK)
                best = self.pool.best
                if best is None:
                    return
                incumbent.settle(best.columns, work=_POLISH_WORK, along_rows=True)
                rows = (self.pool.best or best).rows
        self.tell()

    def close(self, most_work: int | None = None) -> None:
        """Search what mixed bounds leave open, with so much work at most."""
        incumbent = RobustIncumbent(self.pool, self.weights, self.deadline)
        progress = self.progress
        constant = incumbent.constant
        search = ProductSearch(
            incumbent,
            None
            if progress is None
            else lambda _, bound: progress(self.pool.worst, max(self.bound, bound + constant)),
            most_work=most_work,
        )
        bound, proven = search.run(self._warm(root_relaxation(incumbent)))
        self.nodes += search.nodes
        self.evaluations += search.evaluations
        self.bound = self.pool.worst if proven else max(self.bound, bound + constant)

    def solve_pinned(self) -> None:
        """One axis given: one ladder is sought. Both given: none."""
        base = self.workloads.base
        every_row, every_column = (np.arange(size) for size in base.shape)
        if base.rows_pinned and base.columns_pinned:
            self.pool.add(every_row, every_column)
            self.bound = self.pool.worst
            return
        incumbent = RobustIncumbent(self.pool, self.weights, self.deadline)
        work = _FIRST_WORK
        while not self.closed:
            given = every_row if base.rows_pinned else every_column
            bound = incumbent.settle(given, work=work, along_rows=not base.rows_pinned)
            self.bound = max(self.bound, min(bound + incumbent.constant, self.pool.worst))
            if bound >= incumbent.bar:
                self.bound = self.pool.worst
            work = min(MOST_WORK, work * _MORE_WORK)
            if time.perf_counter() > self.deadline:
                return


def search_workloads(
    workloads: Workloads,
    starts: Sequence[tuple[Integers, Integers]],
    *,
    time_limit_seconds: float,
    progress: Progress | None = None,
) -> RobustSearch:
    """Find the ladders of least worst ratio, and prove it or state the bound.

    Args:
        workloads: one or more, none of which costs nothing under all ladders.
        starts: ladders to begin with, candidates' indices: the workloads' own best.
        time_limit_seconds: when to stop.
        progress: told of the worst ratio and the bound now and then.

    Raises:
        SolveError: no ladders keep the limits, or none were found in time.
    """
    started = time.perf_counter()
    robust = _Robust(workloads, starts, started + time_limit_seconds, progress)
    mixed_bound = robust.bound
    if workloads.base.rows_pinned or workloads.base.columns_pinned:
        robust.solve_pinned()
    else:
        robust.raise_mixed_bound(started + _MIX_SHARE * time_limit_seconds)
        mixed_bound = min(robust.bound, robust.pool.worst)
        if not robust.closed:
            robust.polish()
        if not robust.closed:
            robust.close()
    best = robust.pool.best
    if best is None:
        raise SolveError(
            "no ladder keeps all limits"
            if robust.bound == np.inf
            else "no ladder within the limits was found in time"
        )
    proven = robust.closed
    trimmed = _trimmed(robust.pool, best)
    return RobustSearch(
        best=_with_fewer_variants(robust, trimmed) if proven else trimmed,
        bound=float(best.ratios.max()) if proven else min(robust.bound, float(best.ratios.max())),
        mixed_bound=mixed_bound,
        proven=proven,
        weights=robust.weights,
        nodes=robust.nodes,
        bound_evaluations=robust.evaluations,
    )


def _with_fewer_variants(robust: _Robust, best: Known) -> Known:
    """The ladders, or others of the same worst ratio with fewer variants: a tie goes to fewer.

    Each look has one variant less to spend, and `TIE_WORK` edges for what the mixed bound leaves open.
    """
    base = robust.workloads.base
    if base.step_seconds.size > _TIE_PAIRS or (base.rows_pinned and base.columns_pinned):
        return best
    while best.num_variants > 1 and time.perf_counter() <= robust.deadline:
        limits = replace(base.limits, max_variants=best.num_variants - 1)
        workloads = replace(robust.workloads, base=replace(base, limits=limits))
        below = float(best.ratios.max()) * (1 + RELATIVE_TOLERANCE)
        look = _Robust(workloads, [(best.rows, best.columns)], robust.deadline, None, below=below)
        look.weights = robust.weights
        if base.rows_pinned or base.columns_pinned:
            incumbent = RobustIncumbent(look.pool, look.weights, robust.deadline)
            given = np.arange(base.shape[0 if base.rows_pinned else 1])
            incumbent.settle(given, work=TIE_WORK, along_rows=not base.rows_pinned)
        else:
            look.raise_mixed_bound(robust.deadline)
            if not look.closed:
                look.close(TIE_WORK)
        found = look.pool.best
        if found is None:
            break
        best = _trimmed(look.pool, found)
    return best


def _trimmed(pool: Pool, best: Known) -> Known:
    """Drop rungs that no workload misses: a tie goes to fewer rungs."""
    base = pool.workloads.base
    for axis, pinned in ((0, base.rows_pinned), (1, base.columns_pinned)):
        if pinned:
            continue
        for rung in (best.rows, best.columns)[axis][:-1]:
            trial = [best.rows, best.columns]
            trial[axis] = trial[axis][trial[axis] != rung]
            other = pool.look_at(trial[0], trial[1])
            if other is None or not keeps_guard(base, *trial) or other.num_variants > best.num_variants:
                continue
            if (other.ratios <= best.ratios * (1 + 1e-13)).all():
                best = other
    return best
