"""The product solver: one num_seqs ladder, one num_blocks ladder, proven.

**Relaxation.** Give every row r (a batch size) a block ladder of its own, z[r, c] = 1 if it holds column c.
Rows padded to the same num_seqs rung share theirs. If all z[r, .] must be equal to one y, the problem is
the product problem; if not, it is the *ragged* problem, which `_dp_kernel` solves exactly in polynomial
time. With multipliers L[r, c] that add up to 0 over r for every c, the terms L[r, c] * z[r, c] vanish
wherever all rows agree, so

    bound(L) = min over ragged solutions of  cost + sum L[r, c] * z[r, c]   <=   product optimum.

The ragged solver takes the multipliers as a charge for each rung of an interval, at no extra cost. The bound is
concave in L; its supergradient is z - mean over rows of z. Limits enter the same way, with multipliers
>= 0: mu * (variants - max_variants) and nu * (compile seconds - max_compile_seconds).

**Ascent.** Polyak steps, scale * (incumbent - bound) / |gradient|^2, the scale cut and the best multipliers
restored when the bound stalls. On real histograms the ragged bound starts 0.05 to 0.5 % below the
optimum, and the multipliers close most of it.

**Incumbent.** Every new set of rows that the relaxation proposes starts an alternation of exact one-axis
solves (`_axis_kernel`), within the limits.

**Branching.** Best bound first. Where limits bind, first on the number of rungs |S| (the relaxation then keeps
it exactly), then on the row, or column, that recent relaxed solutions agree on least: a rung or not. A node
whose rows are all decided is solved exactly by the one-axis solver, so the search is finite, and it
ends with a proof: every node is either solved exactly or bounded from below by the incumbent, to
RELATIVE_TOLERANCE.

**Ties.** Each variant is charged a tie price so small that all of them together stay below half the tolerance: among
equal ladders the one with fewer variants wins. Rungs that change nothing are then dropped.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InternalError, SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve.problem import Floats, Integers, LadderProblem
from ladder_opt.solve.result import RELATIVE_TOLERANCE, SolveResult, Status, StopReason

ROOT_ITERATIONS = 400
NODE_ITERATIONS = 30
_STALLED_AFTER = 5
_SCALE_CUT = 0.7
_MEMORY = 0.9  # of the running averages that branching looks at
_UNDECIDED = 0.03  # a row used less (or left less) than this is taken as settled, columns come first
_BUDGET_SLACK = 1e-9

Progress = Callable[[float, float], None]
"""Called with (objective_seconds, lower_bound_seconds) now and then."""


@dataclass(frozen=True)
class _Node:
    """A part of the search space, with what is known of it."""

    row_state: NDArray[np.int8]
    column_state: NDArray[np.int8]
    min_rungs: int
    max_rungs: int
    multipliers: Floats
    per_variant: float = 0.0
    per_compile_second: float = 0.0
    bound: float = -np.inf
    row_use: Floats = field(default_factory=lambda: np.zeros(0))
    column_use: Floats = field(default_factory=lambda: np.zeros(0))
    mean_rungs: float = 1.0


class _Search:
    """State of one solve; `run` does it."""

    def __init__(self, problem: LadderProblem, time_limit_seconds: float, progress: Progress | None) -> None:
        self.problem = problem
        self.started = time.perf_counter()
        self.deadline = self.started + time_limit_seconds
        self.progress = progress
        self.rows, self.columns = problem.shape
        self.price = problem.restarts * problem.compile_seconds
        self.max_variants = axis_kernel.NO_LIMIT
        if problem.limits.max_variants is not None:
            self.max_variants = problem.limits.max_variants
        self.max_compiles = axis_kernel.HUGE
        if problem.limits.max_compile_seconds is not None:
            self.max_compiles = problem.limits.max_compile_seconds * (1 + _BUDGET_SLACK)
        self.limited = problem.limits.max_variants is not None or problem.limits.max_compile_seconds is not None
        self.best_seconds = axis_kernel.HUGE
        self.best_rows: Integers = np.zeros(0, np.int64)
        self.best_columns: Integers = np.zeros(0, np.int64)
        self.tried: set[bytes] = set()
        self.nodes = 0
        self.evaluations = 0
        self.ragged_bound = -np.inf
        # A typical compile, to bring the gradient of the seconds limit to the scale of the others.
        self.compile_scale = max(float(problem.compile_seconds.mean()), 1e-300)

    # -- incumbents -----------------------------------------------------------------------------

    def one_axis(
        self, along_rows: bool, other: Integers, state: NDArray[np.int8], node: _Node, incumbent: float
    ) -> tuple[float, Integers]:
        """The best ladder on one axis against `other`, within the limits; (HUGE, ...) for none."""
        p = self.problem
        chosen = np.zeros(len(state), np.int64)
        data = (p.cumulative, p.step_seconds, self.price, p.compile_seconds, p.first_column)
        if self.limited:
            seconds, count = axis_kernel.best_ladder_within(
                along_rows,
                *data,
                other,
                state,
                self.max_variants,
                self.max_compiles,
                node.per_variant,
                node.per_compile_second,
                incumbent,
                chosen,
            )
        else:
            seconds, count = axis_kernel.best_ladder(along_rows, *data, other, state, chosen)
        return float(seconds), chosen[:count]

    def improve_from(self, rows: Integers, node: _Node) -> None:
        """Alternate exact one-axis solves from these rows; keep what is better than the incumbent."""
        key = rows.tobytes()
        if key in self.tried:
            return
        self.tried.add(key)
        last = axis_kernel.HUGE
        while True:
            seconds, columns = self.one_axis(False, rows, node.column_state, node, axis_kernel.HUGE)
            if not len(columns):
                return
            seconds, rows = self.one_axis(True, columns, node.row_state, node, axis_kernel.HUGE)
            if not len(rows):
                return
            if seconds < self.best_seconds:
                self.best_seconds, self.best_rows, self.best_columns = seconds, rows, columns
            if seconds >= last * (1 - 1e-12) or time.perf_counter() > self.deadline:
                return
            last = seconds

    def first_incumbents(self, node: _Node) -> None:
        """Spread rows evenly, in every number of them that is a power of two."""
        count = 1
        while True:
            even = np.unique(np.round(np.linspace(-1, self.rows - 1, min(count, self.rows) + 1)[1:]).astype(np.int64))
            wanted = np.union1d(even, np.flatnonzero(node.row_state > 0))
            self.improve_from(wanted, node)
            if count >= self.rows or time.perf_counter() > self.deadline:
                break
            count *= 2
        if not len(self.best_rows):
            # The least ladders are feasible (build_problem saw to it): the required rungs alone.
            self.improve_from(np.flatnonzero(node.row_state > 0), node)

    # -- bounds ---------------------------------------------------------------------------------

    def ascend(self, node: _Node, iterations: int, scale: float) -> _Node:
        """Raise the node's bound by adjusting multipliers; refresh what branching looks at."""
        p = self.problem
        best = node
        multipliers, mu, nu = node.multipliers, node.per_variant, node.per_compile_second
        costs = np.empty((self.rows + 1, self.rows + 1))
        chosen = np.zeros(self.rows, np.int64)
        has_rung = np.zeros((self.rows, self.columns))
        row_use = np.zeros(self.rows) if not len(node.row_use) else node.row_use
        column_use = np.zeros(self.columns) if not len(node.column_use) else node.column_use
        mean_rungs = node.mean_rungs
        column_forced = node.column_state > 0
        column_out = node.column_state < 0
        cumulative_multipliers = np.zeros((self.rows + 1, self.columns))
        stalled = 0
        for _ in range(iterations):
            np.cumsum(multipliers, axis=0, out=cumulative_multipliers[1:])
            price = self.price + (mu + nu * p.compile_seconds if self.limited else 0.0)
            dp_kernel.ragged_costs(
                p.cumulative,
                p.step_seconds,
                price,
                p.first_column,
                cumulative_multipliers,
                node.row_state,
                column_forced,
                column_out,
                costs,
            )
            self.evaluations += 1
            bound, count = dp_kernel.cheapest_rows(costs, node.min_rungs, node.max_rungs, chosen)
            if count == 0:
                return replace(node, bound=np.inf)
            variants, compiles = dp_kernel.ragged_solution(
                p.cumulative,
                p.step_seconds,
                price,
                p.compile_seconds,
                p.first_column,
                cumulative_multipliers,
                column_forced,
                column_out,
                chosen[:count],
                has_rung,
            )
            bound -= self._allowance(mu, nu)
            row_use = _MEMORY * row_use
            row_use[chosen[:count]] += 1 - _MEMORY
            column_use = _MEMORY * column_use + (1 - _MEMORY) * has_rung.mean(axis=0)
            mean_rungs = _MEMORY * mean_rungs + (1 - _MEMORY) * count
            self.improve_from(chosen[:count].copy(), node)
            if bound > best.bound + 1e-12 * abs(bound):
                best = replace(
                    best, multipliers=multipliers, per_variant=mu, per_compile_second=nu, bound=float(bound)
                )
                stalled = 0
            else:
                stalled += 1
                if stalled >= _STALLED_AFTER:
                    scale *= _SCALE_CUT
                    stalled = 0
                    multipliers, mu, nu = best.multipliers, best.per_variant, best.per_compile_second
            if self.is_closed(best.bound) or time.perf_counter() > self.deadline:
                break
            gradient = has_rung - has_rung.mean(axis=0)
            over_variants, over_compiles = self._excess(variants, compiles, mu, nu)
            norm = float((gradient * gradient).sum()) + over_variants**2 + over_compiles**2
            if norm == 0.0:
                break
            step = scale * (self.best_seconds - bound) / norm
            multipliers = multipliers + step * gradient
            mu = max(0.0, mu + step * over_variants)
            nu = max(0.0, nu + step * over_compiles / self.compile_scale)
        return replace(best, row_use=row_use, column_use=column_use, mean_rungs=mean_rungs)

    def _allowance(self, mu: float, nu: float) -> float:
        allowance = 0.0
        if self.problem.limits.max_variants is not None:
            allowance += mu * self.max_variants
        if self.problem.limits.max_compile_seconds is not None:
            allowance += nu * self.max_compiles
        return allowance

    def _excess(self, variants: int, compiles: float, mu: float, nu: float) -> tuple[float, float]:
        """Gradient of the limits' multipliers, in variants and in typical compiles."""
        over_variants = over_compiles = 0.0
        if self.problem.limits.max_variants is not None:
            over_variants = float(variants - self.max_variants)
            if mu <= 0.0:
                over_variants = max(0.0, over_variants)
        if self.problem.limits.max_compile_seconds is not None:
            over_compiles = (compiles - self.max_compiles) / self.compile_scale
            if nu <= 0.0:
                over_compiles = max(0.0, over_compiles)
        return over_variants, over_compiles

    def is_closed(self, bound: float) -> bool:
        """Whether nothing better than the incumbent can lie above this bound."""
        return bound >= self.best_seconds - 0.5 * RELATIVE_TOLERANCE * abs(self.best_seconds)

    # -- search ---------------------------------------------------------------------------------

    def root(self) -> _Node:
        row_state = np.full(self.rows, 1 if self.problem.rows_pinned else 0, np.int8)
        column_state = np.full(self.columns, 1 if self.problem.columns_pinned else 0, np.int8)
        row_state[-1] = column_state[-1] = 1
        return _Node(
            row_state=row_state,
            column_state=column_state,
            min_rungs=1,
            max_rungs=min(self.rows, self.max_variants),
            multipliers=np.zeros((self.rows, self.columns)),
        )

    def solve_exactly(self, node: _Node) -> bool:
        """Solve a node with one axis decided; False if neither is."""
        for along_rows, state, decided in (
            (False, node.column_state, node.row_state),
            (True, node.row_state, node.column_state),
        ):
            if (decided == 0).any():
                continue
            fixed = np.flatnonzero(decided > 0)
            seconds, chosen = self.one_axis(along_rows, fixed, state, node, self.best_seconds)
            if len(chosen) and seconds < self.best_seconds:
                self.best_seconds = seconds
                self.best_rows, self.best_columns = (chosen, fixed) if along_rows else (fixed, chosen)
            return True
        return False

    def children(self, node: _Node) -> list[_Node]:
        if self.limited and node.min_rungs < node.max_rungs:
            middle = int(min(max(np.floor(node.mean_rungs), node.min_rungs), node.max_rungs - 1))
            return [replace(node, max_rungs=middle), replace(node, min_rungs=middle + 1)]
        rows_open = np.where(node.row_state == 0, np.minimum(node.row_use, 1 - node.row_use), -1.0)
        columns_open = np.where(node.column_state == 0, np.minimum(node.column_use, 1 - node.column_use), -1.0)
        on_rows = rows_open.max() > _UNDECIDED or columns_open.max() <= 0.0
        made = []
        for value in (1, -1):
            row_state, column_state = node.row_state.copy(), node.column_state.copy()
            if on_rows:
                row_state[int(rows_open.argmax())] = value
            else:
                column_state[int(columns_open.argmax())] = value
            rungs = int((row_state > 0).sum())
            if rungs > node.max_rungs or int((row_state >= 0).sum()) < node.min_rungs:
                continue
            if rungs == node.max_rungs:
                row_state[row_state == 0] = -1
            made.append(replace(node, row_state=row_state, column_state=column_state))
        return made

    def run(self) -> tuple[float, bool]:
        """Search until proven or out of time; return (lower bound, proven)."""
        root = self.root()
        self.first_incumbents(root)
        if self.solve_exactly(root):
            if not len(self.best_rows):
                raise SolveError("the limits and pinned rungs leave no ladder")
            self.ragged_bound = self.best_seconds
            return self.best_seconds, True
        first = self.ascend(root, 1, 1.0)
        self.ragged_bound = first.bound
        if not len(self.best_rows):
            raise InternalError("no ladder within limits that were found feasible")
        root = self.ascend(first, ROOT_ITERATIONS, 1.0)
        heap: list[tuple[float, int, _Node]] = [(root.bound, 0, root)]
        pushed = 1
        while heap:
            bound, _, node = heapq.heappop(heap)
            if self.is_closed(bound):
                return min(bound, self.best_seconds), True
            if time.perf_counter() > self.deadline:
                return bound, False
            self.nodes += 1
            if self.progress is not None:
                self.progress(self.best_seconds, bound)
            for child in self.children(node):
                if self.solve_exactly(child):
                    continue
                bounded = self.ascend(child, NODE_ITERATIONS, 0.5)
                if not self.is_closed(bounded.bound):
                    heapq.heappush(heap, (bounded.bound, pushed, bounded))
                    pushed += 1
        return self.best_seconds, True


def solve_product(
    problem: LadderProblem, *, time_limit_seconds: float, progress: Progress | None = None
) -> SolveResult:
    """Find the best pair of ladders, and prove it or state the gap.

    Args:
        problem: the instance.
        time_limit_seconds: when to stop; the result is then FEASIBLE with the bound reached.
        progress: told of bounds now and then.

    Raises:
        SolveError: limits and pins leave no ladder.
    """
    search = _Search(problem, time_limit_seconds, progress)
    search.first_incumbents(search.root())
    tie_price = 0.25 * RELATIVE_TOLERANCE * abs(search.best_seconds) / (search.rows * search.columns)
    search = _Search(problem, time_limit_seconds, progress)
    search.price = search.price + tie_price
    bound, proven = search.run()
    row_rungs, column_rungs = _without_idle_rungs(problem, search.best_rows, search.best_columns)
    objective = _objective(problem, row_rungs, column_rungs)
    # The tie price is in the bound as well, and worth at most a quarter of the tolerance.
    lower = min(bound, objective)
    return SolveResult(
        ladders=Ladders(
            tuple(int(s) for s in problem.rows[row_rungs]), tuple(int(m) for m in problem.columns[column_rungs])
        ),
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        stop_reason=StopReason.PROVEN if proven else StopReason.TIME_LIMIT,
        objective_seconds=objective,
        lower_bound_seconds=max(0.0, lower),
        ragged_bound_seconds=max(0.0, min(search.ragged_bound, objective)),
        nodes=search.nodes,
        bound_evaluations=search.evaluations,
        solve_seconds=time.perf_counter() - search.started,
    )


def ragged_bound(problem: LadderProblem) -> float:
    """The relaxation without multipliers: every num_seqs rung has a block ladder of its own."""
    search = _Search(problem, time_limit_seconds=np.inf, progress=None)
    return max(0.0, search.ascend(search.root(), 1, 1.0).bound)


def _objective(problem: LadderProblem, rows: Integers, columns: Integers) -> float:
    corners = problem.cumulative[np.r_[0, rows + 1]][:, np.r_[0, columns + 1]]
    steps = np.diff(np.diff(corners, axis=0), axis=1)
    cells = np.ix_(rows, columns)
    below = np.r_[-1, columns[:-1]][None, :]
    opens = below < problem.first_column[cells]
    compiles = float((problem.compile_seconds[cells] * opens).sum())
    return float((steps * problem.step_seconds[cells]).sum()) + problem.restarts * compiles


def _variants(problem: LadderProblem, rows: Integers, columns: Integers) -> int:
    below = np.r_[-1, columns[:-1]][None, :]
    return int((below < problem.first_column[np.ix_(rows, columns)]).sum())


def _without_idle_rungs(
    problem: LadderProblem, rows: Integers, columns: Integers
) -> tuple[Integers, Integers]:
    """Drop rungs that neither seconds nor variants need: a tie goes to fewer rungs."""
    objective = _objective(problem, rows, columns)
    variants = _variants(problem, rows, columns)
    allowed = objective + 1e-13 * abs(objective)
    for axis, pinned in ((0, problem.rows_pinned), (1, problem.columns_pinned)):
        if pinned:
            continue
        for rung in (rows, columns)[axis][:-1]:
            trial = [rows, columns]
            trial[axis] = trial[axis][trial[axis] != rung]
            if _variants(problem, trial[0], trial[1]) <= variants and _objective(problem, *trial) <= allowed:
                rows, columns = trial
    return rows, columns
