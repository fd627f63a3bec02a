"""Where a fit says little, or nothing of compiles: told by `calibrate` and by plans alike."""

from __future__ import annotations

from typing import Any, Final

LEAST_R_SQUARED: Final = 0.8
"""Below it, what the formula misses has more than sqrt(0.2) = 45 % of the measurements' own spread: the
difference between two sizes, which is what rungs are chosen by, is then about as much chance as size."""
NO_COMPILES: Final = "no compile is priced: rungs look free to a plan, and its warm-up is not told"
NEAR: Final = 0.1
"""Rows this near to the formula, 9 of 10 of them, are fitted well whatever R2 says: they hardly differ."""


def poor_fit(part: str, residuals: Any) -> str | None:
    """A line where a formula misses its measurements; None where it does not, or the file does not say.

    Args:
        part: "step" or "compile".
        residuals: of it, the entry of a cost file's `fit.residuals`: `r_squared`, and `relative` with `p5`
            and `p95`.
    """
    if not isinstance(residuals, dict):
        return None
    r_squared, relative = residuals.get("r_squared"), residuals.get("relative")
    ends: list[Any] = [relative.get(name) for name in ("p5", "p95")] if isinstance(relative, dict) else []
    if not isinstance(r_squared, int | float) or not all(isinstance(end, int | float) for end in ends):
        return None
    if r_squared >= LEAST_R_SQUARED or (ends and max(abs(end) for end in ends) <= NEAR):
        return None
    return (
        f"{part}_seconds: the formula misses what was measured (R2 {r_squared:.2f}, below "
        f"{LEAST_R_SQUARED}): differences between sizes are as much chance as size; measure again on a calm "
        "machine, or more sizes, or take a measured table (calibrate --table always)"
    )
