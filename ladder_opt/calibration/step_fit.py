"""Fit seconds of a step from rows of totals: robust, never negative, with what the data can and cannot tell.

Problem. Row i covers `steps[i]` engine steps that took `seconds[i]` together, in which they did `work[i, k]`
of term k. With y = seconds / steps and x = work / steps, find theta >= 0 that minimises

    sum_i  rho(sqrt(steps_i) * (y_i - theta_0 - sum_k theta_k x_ik) / scale),   rho(z) = 2 (sqrt(1 + z^2) - 1)

(soft L1: rows whose steps were counted wrongly, as those of a request that was preempted in the server and
not in the replay, weigh little), by `robust_fit`. Intervals are percentiles of a bootstrap over rows, one a
request: rows of requests that ran side by side are not independent, so that the intervals are, if anything,
too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.doubts import (
    BOOTSTRAPS,
    NEGLIGIBLE_SHARE,
    left_by_others,
    moves_with_others,
    not_told_from_zero,
)
from ladder_opt.calibration.robust_fit import robust_nnls

_COLLINEAR_R_SQUARED = 0.9
_TUNING = 1.0  # a fifth of the rows may be wrong


@dataclass(frozen=True)
class Term:
    """One term's estimate.

    Attributes:
        name: of the work it prices ("base" for the step itself).
        seconds: for each unit of it.
        low: 2.5th percentile of the bootstrap.
        high: 97.5th percentile.
        share: of the mean step's time, 0 to 1.
        work_range: the 5th and 95th percentile of the work a step, over rows.
        explained_by_others: R2 of this term's work on the others'; near 1, the data cannot tell them apart.
    """

    name: str
    seconds: float
    low: float
    high: float
    share: float
    work_range: tuple[float, float]
    explained_by_others: float

    @property
    def is_told_from_zero(self) -> bool:
        """Whether the interval leaves zero out, and the term matters to a step at all."""
        return self.low > 0 and self.share >= NEGLIGIBLE_SHARE


@dataclass(frozen=True)
class StepFit:
    """A fit of step seconds.

    Attributes:
        terms: "base" first.
        rows: rows it was fitted to.
        r_squared: of seconds a step, over all rows (can be negative where outliers rule).
        robust_r_squared: 1 - (median |residual| / median |y - median y|)^2, which outliers do not reach.
        residual_seconds: 5th, 25th, 50th, 75th and 95th percentile of measured - fitted seconds a step.
        mean_step_seconds: mean of seconds a step over rows.
        draws: of the bootstrap, (draws, terms).
    """

    terms: tuple[Term, ...]
    rows: int
    r_squared: float
    robust_r_squared: float
    residual_seconds: tuple[float, ...]
    mean_step_seconds: float
    draws: NDArray[np.float64]

    def warnings(self) -> tuple[str, ...]:
        """What nobody should read out of the numbers, one line each."""
        lines = []
        for term in self.terms:
            low, high = term.work_range
            if not term.is_told_from_zero:
                lines.append(not_told_from_zero(term.name, term.seconds, term.low, term.high, unit="s"))
            elif term.explained_by_others > _COLLINEAR_R_SQUARED:
                lines.append(moves_with_others(term.name, term.explained_by_others))
            if term.name != "base" and high <= low:
                lines.append(f"{term.name}: the same {low:.4g} in every row; the base may hold its time")
        return tuple(lines)


def fit_steps(
    seconds: NDArray[np.float64],
    steps: NDArray[np.float64],
    work: NDArray[np.float64],
    names: tuple[str, ...],
    *,
    seed: int = 0,
    bootstraps: int = BOOTSTRAPS,
) -> StepFit:
    """Fit base and the seconds of each kind of work.

    Args:
        seconds: (rows,), above 0.
        steps: (rows,), at least 1.
        work: (rows, kinds), the totals over those steps.
        names: (kinds,).
        seed: of the bootstrap.
        bootstraps: draws of it; 0 leaves the intervals at the estimates.
    """
    y = seconds / steps
    x = np.column_stack([np.ones(len(y)), work / steps[:, None]])
    weights = np.sqrt(steps / steps.max())
    theta = _solve(x, y, weights)
    rng = np.random.default_rng(seed)
    draws = np.tile(theta, (max(bootstraps, 1), 1))
    for draw in draws[:bootstraps]:
        rows = rng.integers(len(y), size=len(y))
        draw[:] = _solve(x[rows], y[rows], weights[rows])
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    residual = y - x @ theta
    spread = float(np.sum((y - y.mean()) ** 2))
    middle = float(np.median(np.abs(y - np.median(y))))
    terms = tuple(
        Term(
            name=name,
            seconds=float(theta[k]),
            low=float(low[k]),
            high=float(high[k]),
            share=float(theta[k] * x[:, k].mean() / y.mean()),
            work_range=(float(np.percentile(x[:, k], 5)), float(np.percentile(x[:, k], 95))),
            explained_by_others=_explained(x, k),
        )
        for k, name in enumerate(("base", *names))
    )
    return StepFit(
        terms=terms,
        rows=len(y),
        r_squared=1 - float(np.sum(residual**2)) / spread if spread else 1.0,
        robust_r_squared=1 - (float(np.median(np.abs(residual))) / middle) ** 2 if middle else 1.0,
        residual_seconds=tuple(float(q) for q in np.percentile(residual, (5, 25, 50, 75, 95))),
        mean_step_seconds=float(y.mean()),
        draws=draws,
    )


def _solve(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    return robust_nnls(x, y, weights, tuning=_TUNING, relative=False)[0]


def _explained(x: NDArray[np.float64], k: int) -> float:
    if k == 0:
        return 0.0  # the base is there in every row
    column = x[:, k]
    spread = float(np.sum((column - column.mean()) ** 2))
    if spread <= 1e-18 * float(np.sum(column**2)):
        return 1.0
    return 1 - float(np.sum(left_by_others(x, k) ** 2)) / spread
