"""Several workloads on one set of candidates, and the pairs of ladders known for them; see `_robust`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from ladder_opt.solve.problem import Floats, Integers, LadderProblem

_MOST_MULTIPLIER = 1e6  # of a limit used up in full, in shares of a workload's best


@dataclass(frozen=True, kw_only=True)
class Workloads:
    """An instance for the robust solver.

    Attributes:
        base: the problem of all workloads added up: its candidates, limits and prices are everyone's.
        cumulative: float64 (workloads, rows + 1, columns + 1), steps of each as in `LadderProblem`.
        restarts: float64 (workloads,).
        optima: float64 (workloads,), seconds that no ladders go below on a workload alone.
        scales: float64 (workloads,), > 0, what a regret is a share of: the optimum, or where that is 0, the
            most that any ladders could cost there.
    """

    base: LadderProblem
    cumulative: Floats
    restarts: Floats
    optima: Floats
    scales: Floats

    def __len__(self) -> int:
        return len(self.scales)

    @property
    def offsets(self) -> Floats:
        """(workloads,) what is added to seconds / scale to make it 1 + regret: 0 but for an optimum of 0."""
        offsets: Floats = 1.0 - self.optima / self.scales
        return offsets

    def seconds(self, rows: Integers, columns: Integers) -> Floats:
        """(workloads,) objective of ladders, candidates' indices."""
        corners = self.cumulative[:, np.r_[0, rows + 1]][:, :, np.r_[0, columns + 1]]
        steps = np.diff(np.diff(corners, axis=1), axis=2)
        cells = np.ix_(rows, columns)
        compiles = float((self.base.compile_seconds[cells] * self.base.opens(rows, columns)).sum())
        step_seconds = (steps * self.base.step_seconds[cells]).sum(axis=(1, 2))
        seconds: Floats = step_seconds + self.restarts * compiles
        return seconds

    def ratios(self, rows: Integers, columns: Integers) -> Floats:
        """(workloads,) 1 + regret of ladders."""
        return self.seconds(rows, columns) / self.scales + self.offsets

    def mixed(self, weights: Floats) -> tuple[LadderProblem, float]:
        """The plain problem whose objective, with the constant, is the weighted sum of the ratios."""
        shares = weights / self.scales
        problem = replace(
            self.base,
            cumulative=np.ascontiguousarray(np.tensordot(shares, self.cumulative, axes=1)),
            restarts=float(shares @ self.restarts),
        )
        return problem, float(weights @ self.offsets)

    def only(self, kept: NDArray[np.bool_]) -> Workloads:
        """Some of them."""
        return replace(
            self,
            cumulative=self.cumulative[kept],
            restarts=self.restarts[kept],
            optima=self.optima[kept],
            scales=self.scales[kept],
        )


@dataclass(frozen=True)
class Known:
    """A pair of ladders, as candidates' indices, with what is known of it."""

    rows: Integers
    columns: Integers
    ratios: Floats
    num_variants: int

    @property
    def order(self) -> tuple[float, int, int]:
        """What the best is least in."""
        return float(self.ratios.max()), self.num_variants, len(self.rows) + len(self.columns)


class Pool:
    """Every pair of ladders that was tried and keeps the limits.

    Attributes:
        best: the one of least worst ratio; None before the first.
        below: the best has a worst ratio below this.
    """

    def __init__(
        self,
        workloads: Workloads,
        *,
        max_variants: float,
        max_compile_seconds: float,
        below: float = np.inf,
    ) -> None:
        self.workloads = workloads
        self.best: Known | None = None
        self.below = below
        self._max_variants = max_variants
        self._max_compile_seconds = max_compile_seconds
        self._known: dict[bytes, Known] = {}

    @property
    def worst(self) -> float:
        """The least worst ratio known."""
        return self.below if self.best is None else float(self.best.ratios.max())

    def add(self, rows: Integers, columns: Integers) -> None:
        """Look at ladders; those beyond the limits are not kept."""
        key = rows.tobytes() + b"/" + columns.tobytes()
        if key in self._known:
            return
        known = self.look_at(rows, columns)
        if known is None:
            return
        self._known[key] = known
        if known.order[0] < self.below and (self.best is None or known.order < self.best.order):
            self.best = known

    def look_at(self, rows: Integers, columns: Integers) -> Known | None:
        """What is to be known of ladders; None for those beyond the limits."""
        _, variants, compiles = self.workloads.base.totals(rows, columns)
        if variants > self._max_variants or compiles > self._max_compile_seconds:
            return None
        return Known(rows, columns, self.workloads.ratios(rows, columns), variants)

    def vectors(self) -> Floats:
        """(pairs, workloads) ratios of all that is known."""
        return np.array([known.ratios for known in self._known.values()])

    def best_first(self) -> list[Known]:
        """All that is known, least worst ratio first."""
        return sorted(self._known.values(), key=lambda known: known.order)


def dearest(problem: LadderProblem, cumulative: Floats, restarts: float) -> float:
    """No ladders cost a workload more: every step at the dearest rung pair, and every variant compiled."""
    steps = float(cumulative[-1, -1])
    return steps * float(problem.step_seconds.max()) + restarts * float(problem.compile_seconds.sum())


def best_weights(vectors: Sequence[Floats] | Floats, workloads: int) -> tuple[Floats, float]:
    """Weights at which the least weighted sum of known vectors is largest, and that sum.

    Args:
        vectors: (known, components); components beyond `workloads` are excesses over limits.
        workloads: the weights of so many components add up to 1, the others are only >= 0.

    Returns:
        The master problem's optimum: no weights have a bound above it.
    """
    table = np.asarray(vectors, np.float64)
    components = table.shape[1]
    # Variables: the weights, then the bound; the values are shifted so that 1e-9 of them is not lost.
    shift = float(table[:, :workloads].min())
    shifted = table.copy()
    shifted[:, :workloads] -= shift
    scale = max(float(np.abs(shifted[:, :workloads]).max()), 1e-12)
    shifted[:, :workloads] /= scale
    found = linprog(
        np.r_[np.zeros(components), -1.0],
        A_ub=np.c_[-shifted, np.ones(len(table))],
        b_ub=np.zeros(len(table)),
        A_eq=np.r_[np.ones(workloads), np.zeros(components - workloads + 1)][None, :],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * workloads
        + [(0.0, _MOST_MULTIPLIER)] * (components - workloads)
        + [(None, None)],
        method="highs-ds",
    )
    if found.x is None:  # numerical trouble: any weights are valid
        return np.r_[np.full(workloads, 1.0 / workloads), np.zeros(components - workloads)], np.inf
    weights = np.maximum(found.x[:-1], 0.0)
    weights[:workloads] /= weights[:workloads].sum()
    weights[workloads:] *= scale
    return weights, float(found.x[-1]) * scale + shift
