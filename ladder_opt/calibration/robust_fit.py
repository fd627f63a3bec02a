"""The fit that steps of a server and rows of measurements share: soft L1, terms never negative.

    minimise over theta >= 0   sum_i  rho(w_i * (y_i - x_i theta) / d_i / (tuning * scale)),
                               rho(z) = 2 (sqrt(1 + z^2) - 1)

with d_i the fitted seconds of row i (relative residuals) or one number for all rows (absolute ones), and
scale 1.4826 times the median absolute residual, a normal's standard deviation. Solved by reweighted
non-negative least squares (`scipy.optimize.nnls` on the triangular factor of the weighted columns), which
gives exact zeros where a bound holds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

NORMAL_MAD: Final = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
_REWEIGHTINGS: Final = 50
_LEAST_SCALE: Final = 1e-9  # of relative residuals: an exact fit leaves none to take a scale from
_CELLS_AT_ONCE: Final = 2_000_000  # of draws x rows x terms: some tens of megabytes
_FLOOR: Final = 1e-3  # of the least time measured: a row whose terms are all zero is fitted by none

Floats = NDArray[np.float64]


def robust_nnls(
    x: Floats, y: Floats, weights: Floats, *, tuning: float, relative: bool
) -> tuple[Floats, Floats]:
    """Theta, (terms,), and the robust weights at it, (rows,).

    Args:
        x: units of each term, (rows, terms), 0 or more.
        y: seconds, (rows,), above 0.
        weights: of the rows, (rows,).
        tuning: in scales: rows nearer than this count nearly in full.
        relative: residuals are divided by the fitted seconds.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (slow to import)

    unit = np.abs(x).max(axis=0)
    unit[unit == 0] = 1.0
    scaled = x / unit
    divisor = y if relative else np.full(len(y), float(np.median(y)))
    robust, theta = np.ones(len(y)), np.zeros(x.shape[1])
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(robust) * weights / divisor
        before = theta
        orthogonal, triangle = np.linalg.qr(scaled * root[:, None])
        theta = nnls(triangle, orthogonal.T @ (y * root))[0]
        if relative:
            divisor = np.maximum(scaled @ theta, fitted_floor(y))
        robust = _robust_weights((y - scaled @ theta) / divisor * weights, tuning)
        if np.allclose(theta, before, rtol=1e-6, atol=1e-15):
            break
    return np.asarray(theta / unit), np.asarray(robust)


def robust_free_fits(x: Floats, y: Floats, weights: Floats, *, tuning: float) -> Floats:
    """As `robust_nnls` with relative residuals, of seconds (draws, rows), some at once, without the bound."""
    at_once = max(1, _CELLS_AT_ONCE // (len(weights) * x.shape[1]))
    if len(y) > at_once:
        parts = [y[at : at + at_once] for at in range(0, len(y), at_once)]
        return np.concatenate([robust_free_fits(x, part, weights, tuning=tuning) for part in parts])
    unit = np.abs(x).max(axis=0)
    unit[unit == 0] = 1.0
    scaled, divisor, floor = x / unit, y, fitted_floor(y)
    robust, theta = np.ones_like(y), np.zeros((len(y), x.shape[1]))
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(robust) * weights / divisor
        before = theta
        orthogonal, triangle = np.linalg.qr(scaled * root[:, :, None])
        right = orthogonal.transpose(0, 2, 1) @ (y * root)[:, :, None]
        theta = (np.linalg.pinv(triangle) @ right)[:, :, 0]  # columns may be mixes of others
        divisor = np.maximum(theta @ scaled.T, floor)
        robust = _robust_weights((y - theta @ scaled.T) / divisor * weights, tuning)
        if np.allclose(theta, before, rtol=1e-6, atol=1e-15):
            break
    return np.asarray(theta / unit)


def fitted_floor(y: Floats) -> Floats:
    """Below this a fitted time is not divided by, (..., 1)."""
    return np.asarray(_FLOOR * y.min(axis=-1, keepdims=True))


def _robust_weights(residual: Floats, tuning: float) -> Floats:
    """Of soft L1, of residuals (..., rows)."""
    middle = np.median(np.abs(residual), axis=-1, keepdims=True)
    scale = np.maximum(NORMAL_MAD * middle, _LEAST_SCALE)
    return np.asarray(1 / np.sqrt(1 + (residual / (tuning * scale)) ** 2))
