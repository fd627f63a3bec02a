"""What a fit's terms leave open: how near a column is to a mix of others, and how that is told."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

BOOTSTRAPS: Final = 200
NEGLIGIBLE_SHARE: Final = 1e-3  # of the mean row: less is as good as nothing


def left_by_others(x: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """What is left of column k, (rows,), once the others of (rows, terms), one at least, explain it."""
    others = np.delete(x, k, axis=1)
    scaled = others / np.maximum(np.abs(others).max(axis=0), 1e-300)
    return np.asarray(x[:, k] - scaled @ np.linalg.lstsq(scaled, x[:, k], rcond=None)[0])


def not_told_from_zero(name: str, value: float, low: float, high: float, *, unit: str) -> str:
    """A line for a term whose interval holds zero."""
    interval = f"95% interval {low:.3g} to {high:.3g}"
    return f"{name}: the data cannot tell it from zero ({value:.3g} {unit}, {interval})"


def moves_with_others(name: str, r_squared: float) -> str:
    """A line for a term that other terms could stand for; `r_squared` is its column's on theirs."""
    return f"{name}: moves with the other terms here (R2 {r_squared:.2f}), so that only their sum is sure"
