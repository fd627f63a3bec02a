"""Fit the seconds of named terms to measurements: never negative, robust, on relative residuals.

Problem. Row i took `y_i` seconds and holds `x_ik` units of term k (iterations, pages, 1 for a base). Find
theta >= 0 that minimises

    sum_i  rho(w_i * (y_i - x_i theta) / f_i / scale),       rho(z) = 2 (sqrt(1 + z^2) - 1)      (soft L1)

with f_i the fitted seconds of row i: times of a millisecond and of a second count alike by their relative
error, and dividing by the fitted and not by the measured time keeps noise from pulling the fit down. The
weight w_i = 1 / hypot(spread_i, `MISFIT`) is less for rows that were measured less well; `MISFIT` is what no
repeat of a measurement shows. Solved by `robust_fit`.

Draws are a bootstrap of residuals, the rows staying as designed: each row's noise is some row's residual,
enlarged by leverage (divided by sqrt(1 - h)), of a random sign, and all are stretched by a factor of
sqrt(nu / chi2_nu), nu = rows - terms, which makes their spread Student's t instead of a normal's, so that
intervals hold with few rows too. The fit's terms are the draws' centre. An interval is the 2.5th to 97.5th
percentile of draws that may be negative, cut at 0: draws held at 0 leave the other terms no room on one
side. `TermFit.draws` are never negative.

What is guaranteed: theta >= 0; the same input and seed give the same numbers; with relative noise that is
alike in all rows but for their weights, and a model that holds, intervals cover the truth about as often as
they say (a test counts it; `python -m benchmarks.coverage` over more settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_opt.calibration.doubts import BOOTSTRAPS, NEGLIGIBLE_SHARE, left_by_others
from ladder_opt.calibration.robust_fit import NORMAL_MAD, fitted_floor, robust_free_fits, robust_nnls

MISFIT = 0.02
_NOMINAL_ERROR = 0.05  # of a row, where rows are too few to say
_COLLINEAR_R_SQUARED = 0.98
_SINGULAR = 1e-8  # of the largest singular value: a direction below it is held by no row
_TUNING = 2.0  # see `robust_fit`: of rows that were designed few are wrong

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TermEstimate:
    """One term's estimate.

    Attributes:
        name: as given.
        value: seconds for each unit.
        low: 2.5th percentile of the draws.
        high: 97.5th percentile.
        share: of the fitted seconds of the rows that hold it, on average, 0 to 1.
        explained_by_others: R2 of the term's column on the others', relative residuals; near 1, the
            data cannot tell it from a mix of them.
        units_range: least and most units in a row.
    """

    name: str
    value: float
    low: float
    high: float
    share: float
    explained_by_others: float
    units_range: tuple[float, float]

    @property
    def is_told_from_zero(self) -> bool:
        """Whether the interval leaves zero out, and the term matters to a row at all."""
        return self.low > 0 and self.share >= NEGLIGIBLE_SHARE

    @property
    def moves_with_others(self) -> bool:
        """Whether only its sum with other terms is sure."""
        return self.explained_by_others > _COLLINEAR_R_SQUARED


@dataclass(frozen=True, eq=False)
class TermFit:
    """A fit of seconds to named terms.

    Attributes:
        names: of the terms, (terms,).
        values: seconds for each unit, (terms,).
        draws: of the bootstrap, (draws, terms).
        terms: each with its interval.
        residuals: measured / fitted - 1, (rows,).
        r_squared: of seconds, 1 - squared residuals over squared distances from the mean.
        relative_error: robust standard deviation of the residuals.
    """

    names: tuple[str, ...]
    values: Floats
    draws: Floats
    terms: tuple[TermEstimate, ...]
    residuals: Floats
    r_squared: float
    relative_error: float

    @property
    def rows(self) -> int:
        """How many it was fitted to."""
        return len(self.residuals)

    def value_of(self, name: str) -> float:
        """A term's seconds."""
        return float(self.values[self.names.index(name)])

    def term(self, name: str) -> TermEstimate:
        """A term's estimate."""
        return self.terms[self.names.index(name)]

    def predict(self, columns: Mapping[str, ArrayLike]) -> Floats:
        """Fitted seconds of other rows: units of every term, arrays that broadcast."""
        return np.asarray(self._design(columns) @ self.values)

    def _design(self, columns: Mapping[str, ArrayLike]) -> Floats:
        arrays = [np.asarray(columns[name], np.float64) for name in self.names]
        return np.column_stack([each.ravel() for each in np.broadcast_arrays(*arrays)])


def fit_terms(
    columns: Mapping[str, ArrayLike],
    seconds: ArrayLike,
    *,
    spread: ArrayLike | None = None,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
) -> TermFit:
    """Fit seconds to terms.

    Args:
        columns: for each term the units of it in every row, (rows,) or a scalar, 0 or more; at least one
            unit of something in every row.
        seconds: measured, (rows,), above 0.
        spread: relative standard error of each row; NaN or None where it is not known (those are taken to be
            the median of the others).
        bootstraps: draws.
        seed: of the bootstrap.

    Raises:
        ValueError: no row, no term, or arrays of different lengths.
    """
    y = np.asarray(seconds, np.float64)
    names = tuple(columns)
    if y.ndim != 1 or not len(y) or not names:
        raise ValueError(f"found {y.shape} seconds and {len(names)} terms, expected rows and terms")
    x = np.column_stack([np.broadcast_to(np.asarray(columns[name], np.float64), y.shape) for name in names])
    weights = _weights(spread, len(y))
    theta, robust = _solve(x, y, weights)
    fitted = np.maximum(x @ theta, fitted_floor(y))
    residual = y / fitted - 1
    noise = _noise(residual, weights, _leverage(x, fitted, weights, robust), x.shape[1])
    rng = np.random.default_rng(seed)
    draws = free = theta[None, :].copy()
    if bootstraps >= 1:
        drawn = _drawn_seconds(fitted, weights, noise, free=len(y) - len(names), rng=rng, draws=bootstraps)
        draws, free = _draws(x, drawn, weights)
    # Of B draws the k-th is at k / (B + 1); numpy's own rule would make an interval of 200 one of 94 %.
    low, high = np.maximum(np.percentile(free, (2.5, 97.5), axis=0, method="weibull"), 0.0)
    holding = np.maximum((x > 0).sum(axis=0), 1)
    share = (x * theta / fitted[:, None]).sum(axis=0) / holding
    middle = float(np.sum((y - y.mean()) ** 2))
    return TermFit(
        names=names,
        values=theta,
        draws=draws,
        terms=tuple(
            TermEstimate(
                name=name,
                value=float(theta[k]),
                low=float(min(low[k], theta[k])),
                high=float(max(high[k], theta[k])),
                share=float(share[k]),
                explained_by_others=_explained(x / fitted[:, None], k),
                units_range=(float(x[:, k].min()), float(x[:, k].max())),
            )
            for k, name in enumerate(names)
        ),
        residuals=residual,
        r_squared=1 - float(np.sum((y - x @ theta) ** 2)) / middle if middle else 1.0,
        relative_error=float(NORMAL_MAD * np.median(np.abs(residual))),
    )


def _weights(spread: ArrayLike | None, rows: int) -> Floats:
    if spread is None:
        return np.ones(rows)
    known = np.broadcast_to(np.asarray(spread, np.float64), (rows,)).copy()
    missing = ~np.isfinite(known)
    known[missing] = float(np.median(known[~missing])) if not missing.all() else 0.0
    return np.asarray(MISFIT / np.hypot(known, MISFIT))


def _solve(x: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Theta and the robust weights at it."""
    return robust_nnls(x, y, weights, tuning=_TUNING, relative=True)


def _leverage(x: Floats, fitted: Floats, weights: Floats, robust: Floats) -> Floats:
    """How much of each row's fitted seconds follows its own measured ones, (rows,), 0 to 1."""
    a = x * (np.sqrt(robust) * weights / fitted)[:, None]
    unit = np.sqrt((a**2).sum(axis=0))
    unit[unit == 0] = 1.0
    left, singular, _ = np.linalg.svd(a / unit, full_matrices=False)
    held = singular > _SINGULAR * max(float(singular[0]), 1e-300)
    return np.asarray((left[:, held] ** 2).sum(axis=1))


def _noise(residual: Floats, weights: Floats, leverage: Floats, terms: int) -> Floats:
    """Noise of a row of weight 1, (rows,), as the bootstrap deals it out."""
    rows = len(residual)
    if rows > terms:
        return np.asarray(residual * weights / np.sqrt(np.maximum(1 - leverage, 1 / rows)))
    return np.full(rows, _NOMINAL_ERROR)  # an exact fit says nothing of the noise


def _drawn_seconds(
    fitted: Floats, weights: Floats, noise: Floats, *, free: int, rng: np.random.Generator, draws: int
) -> Floats:
    """Seconds as they might have been measured, (draws, rows)."""
    rows = len(fitted)
    stretch = np.sqrt(free / rng.chisquare(free, draws)) if free > 0 else np.ones(draws)
    signed = rng.choice((-1.0, 1.0), (draws, rows)) * noise[rng.integers(rows, size=(draws, rows))]
    return np.asarray(fitted * (1 + np.clip(signed / weights * stretch[:, None], -0.9, 9.0)))


def _draws(x: Floats, drawn: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Fits of drawn seconds, (draws, terms): never negative ones, and those free to be."""
    free = robust_free_fits(x, drawn, weights, tuning=_TUNING)
    draws = free.copy()
    for at in np.flatnonzero((free < 0).any(axis=1)):  # elsewhere the bound changes nothing
        draws[at], _ = _solve(x, drawn[at], weights)
    return draws, free


def _explained(x: Floats, k: int) -> float:
    """R2 (about zero) of a column on the others."""
    total = float(np.sum(x[:, k] ** 2))
    if total == 0:
        return 1.0
    if x.shape[1] == 1:
        return 0.0
    return 1 - float(np.sum(left_by_others(x, k) ** 2)) / total
