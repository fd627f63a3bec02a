"""One ladder given, the other of least worst ratio sought; the mathematics stands in `_robust`."""

from __future__ import annotations

import numpy as np

from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve import _robust_kernel as kernel
from ladder_opt.solve._incumbent import Incumbent
from ladder_opt.solve._workloads import Pool, best_weights
from ladder_opt.solve.problem import Floats, Integers

_LEAF_ROUNDS = 12  # of weights made for one num_seqs ladder
_TESTS = 8  # weights that labels and a num_seqs ladder are tried with
_LIMIT_ROUNDING = 1e-13


class RobustIncumbent(Incumbent):
    """An incumbent of a mixed problem whose seconds are the least worst ratio known, the constant off."""

    def __init__(self, pool: Pool, weights: Floats, deadline: float) -> None:
        problem, self.constant = pool.workloads.mixed(weights)
        super().__init__(problem, problem.restarts * problem.compile_seconds, deadline)
        self.pool = pool
        self.weights = weights
        self._tests: list[Floats] = []
        self._catch_up()

    def offer(self, seconds: float, rows: Integers, columns: Integers) -> None:  # noqa: ARG002
        self.pool.add(rows, columns)
        self._catch_up()

    def _catch_up(self) -> None:
        self.seconds = min(self.seconds, self.pool.worst - self.constant)
        best = self.pool.best
        if best is not None:
            self.rows, self.columns = best.rows, best.columns

    def settle(self, rungs: Integers, *, work: int, along_rows: bool = False) -> float:
        """As `Incumbent.settle`, for the worst of the workloads."""
        leaf = _Leaf(self, rungs, along_rows=along_rows)
        bound = leaf.raise_bound(self._tests)
        if bound - self.constant < self.bar:
            bound = leaf.label(work)
        self._tests = leaf.tests[:_TESTS]
        return bound - self.constant


class _Leaf:
    """One ladder given, the other sought; components are ratios, then excesses over limits."""

    def __init__(self, incumbent: RobustIncumbent, rungs: Integers, *, along_rows: bool) -> None:
        self.incumbent = incumbent
        self.rungs = rungs
        self.along_rows = along_rows
        workloads = incumbent.pool.workloads
        p = workloads.base
        self.workloads = len(workloads)
        limits: list[float] = []
        of_variants = of_compiles = -1
        if p.limits.max_variants is not None:
            of_variants = self.workloads + len(limits)
            limits.append(float(incumbent.max_variants))
        if p.limits.max_compile_seconds is not None:
            of_compiles = self.workloads + len(limits)
            limits.append(incumbent.max_compiles)
        # A limit used up in full weighs as much as a ratio of 1 does.
        scales = [limit if limit > 0 else p.typical_compile_seconds for limit in limits]
        self.start = np.r_[
            workloads.offsets, [-limit / scale for limit, scale in zip(limits, scales, strict=True)]
        ]
        size = p.shape[0] if along_rows else p.shape[1]
        self.lowest = p.lowest_row if along_rows else p.lowest_column
        self.edges = np.zeros((len(self.start), size + 1, size + 1))
        for k, scale in enumerate(workloads.scales):
            terms = p.row_terms(workloads.restarts[k] / scale * p.compile_seconds)
            terms = terms._replace(cumulative=workloads.cumulative[k] / scale)
            self.edges[k], variants, compiles = axis_kernel.all_edges(
                along_rows, terms, self.lowest, 0, rungs
            )
        # Limits count the same for every workload.
        if of_variants >= 0:
            self.edges[of_variants] = variants
        if of_compiles >= 0:
            self.edges[of_compiles] = compiles
        for component, scale in enumerate(scales, start=self.workloads):
            self.edges[component] /= scale
        self.tests: list[Floats] = []
        self._values: list[float] = []
        self._vectors: list[Floats] = []
        self._chosen = np.zeros(size, np.int64)

    @property
    def bar(self) -> float:
        """The least worst ratio known, less half the tolerance."""
        return self.incumbent.bar + self.incumbent.constant

    def raise_bound(self, known: list[Floats]) -> float:
        """A bound on the worst ratio by weights for this ladder; ladders found on the way are offered."""
        first = np.r_[self.incumbent.weights, np.zeros(len(self.start) - self.workloads)]
        bound = -np.inf
        for weights in [*known, first]:
            bound = max(bound, self._try(weights))
            if bound >= self.bar:
                return self._sorted(bound)
        for _ in range(_LEAF_ROUNDS):
            weights, cut = best_weights(self._vectors, self.workloads)
            if cut <= bound + 1e-3 * (self.bar - bound):
                break
            bound = max(bound, self._try(weights))
            if bound >= self.bar:
                break
        return self._sorted(bound)

    def _sorted(self, bound: float) -> float:
        order = np.argsort(self._values)[::-1]
        self.tests = [self.tests[at] for at in order]
        return bound

    def _try(self, weights: Floats) -> float:
        """The least weighted sum: a bound."""
        value, count = kernel.best_path(self.edges, weights, self.lowest, self._chosen)
        value = float(value) + float(weights @ self.start)
        rungs = self._chosen[:count].copy()
        positions = np.r_[0, rungs + 1]
        self._vectors.append(self.start + self.edges[:, positions[1:], positions[:-1]].sum(axis=1))
        self._offer(rungs)
        self.tests.append(weights)
        self._values.append(value)
        return value

    def _offer(self, found: Integers) -> None:
        rows, columns = (found, self.rungs) if self.along_rows else (self.rungs, found)
        self.incumbent.offer(0.0, rows, columns)

    def label(self, work: int) -> float:
        """The best ladder, by labels; a bound that reaches the incumbent unless the work ran out."""
        units = list(np.eye(len(self.start)))
        tests = [*self.tests[:_TESTS], *units]
        # Excesses over limits are at most 0, so any weighted sum of a ladder worth having is below the bar.
        thresholds = np.full(len(tests), self.bar)
        thresholds[len(tests) - len(units) + self.workloads :] = _LIMIT_ROUNDING
        count = kernel.least_worst(
            self.edges,
            self.lowest,
            self.start,
            self.workloads,
            np.array(tests),
            thresholds,
            work,
            self._chosen,
        )
        if count == kernel.GIVEN_UP:
            return max(self._values)
        if count != kernel.NONE:
            self._offer(self._chosen[:count].copy())
        return self.bar
