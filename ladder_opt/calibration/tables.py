"""Measured tables in place of formulas, where the formulas do not fit.

When a table. With `auto`, a table replaces a formula where both hold:

* the formula misses: the 90th percentile of its relative residuals is above `MISSES` and above three times
  the measurements' own noise (the median spread of the rows, or `ASSUMED_NOISE` where they have none);
* a curve does better: the residuals of the monotone curve below have less than half the formula's root mean
  square.

With `always` it does whenever one can be made, with `never` not at all. Where the measurements are no full
grid up to the engine's limits, `auto` takes an interpolated table (`interpolation.py`) in its place, if that
tells each pair from the others with less than half of the formula's error; `interpolated` always does.

Which table. Seconds grow with the work, so each curve is an isotonic regression of the measured means,
joined by monotone cubic pieces (PCHIP), and is never continued beyond its measured ends.

* Compiles: one curve over iterations for all num_seqs where that explains the rows as well as a curve for
  each num_seqs measured does (a compile's seconds are those of its unrolled iterations); else one for each.
* Steps: one curve over gathered pages for each num_seqs measured. Nothing is made up for other num_seqs,
  which are then no candidates for rungs.

A cost model's table is a full grid that holds the engine's limits: all num_blocks that every curve covers.
Without the engine's own top sizes among them no measured table can be made; `always` then is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.interpolation import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    Interpolation,
    log_sizes,
    table_sizes,
)
from ladder_opt.calibration.samples import Samples
from ladder_opt.cost.geometry import Kernel, get_kernel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError

TableMode = Literal["auto", "always", "never", "interpolated"]
Formula = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Seconds of pairs (num_seqs, num_blocks)."""
MISSES: Final = 0.2
ASSUMED_NOISE: Final = 0.05
SMALLEST_NUM_SEQS: Final = 4  # below, no step is batched on Spyre; the table may hold more than is asked for
_TIMES_NOISE: Final = 3.0
_FEWEST_POINTS: Final = 2
_SAME_ERROR: Final = 1.25  # curves this close explain alike

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A table, or why there is none.

    Attributes:
        rows: (num_seqs, num_blocks, seconds), a full grid; None where the formula stays.
        reason: in words.
        formula_error: root mean square of the formula's relative residuals.
        table_error: of the curves'; NaN where there is none.
        is_refused: a table was wanted and could not be made.
        is_interpolated: it goes between and beyond the pairs measured.
    """

    rows: tuple[tuple[int, int, float], ...] | None
    reason: str
    formula_error: float
    table_error: float
    is_refused: bool = False
    is_interpolated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For the cost file's `fit`."""
        return {
            "used": self.rows is not None,
            "interpolated": self.is_interpolated,
            "reason": self.reason,
            "formula_relative_error": self.formula_error,
            "relative_error": None if np.isnan(self.table_error) else self.table_error,
        }


class _Curve:
    """Monotone seconds over work, within the measured range."""

    def __init__(self, work: NDArray[np.int64], seconds: Floats) -> None:
        from scipy.interpolate import PchipInterpolator  # noqa: PLC0415  (slow to import)
        from scipy.optimize import isotonic_regression  # noqa: PLC0415

        self.work, group = np.unique(work, return_inverse=True)
        counts = np.bincount(group)
        means = np.exp(np.bincount(group, np.log(seconds)) / counts)
        self.seconds = isotonic_regression(means, weights=counts.astype(np.float64)).x
        self._join = PchipInterpolator(self.work, self.seconds) if len(self.work) > 1 else None

    def __call__(self, work: NDArray[np.int64]) -> Floats:
        """Seconds; NaN outside the range."""
        inside = (work >= self.work[0]) & (work <= self.work[-1])
        found = np.full(work.shape, self.seconds[0]) if self._join is None else self._join(work)
        return np.where(inside, found, np.nan)


def choose_table(
    samples: Samples,
    formula: Formula,
    engine: Engine,
    *,
    what: Literal["step", "compile"],
    mode: TableMode,
) -> Table:
    """A table in the formula's place, if there is to be one.

    Args:
        samples: of pairs of one kernel.
        formula: what a table would take the place of.
        engine: whose limits the table has to hold.
        what: "step" seconds of whole steps, or "compile" seconds.
        mode: when there is one.

    Raises:
        InputError: `always` or `interpolated`, and none can be made.
    """
    if mode == "never" or not len(samples):
        return Table(None, "a formula, as asked" if mode == "never" else "nothing measured", np.nan, np.nan)
    residual = samples.seconds / np.maximum(formula(samples.num_seqs, samples.num_blocks), 1e-300) - 1
    formula_error = _root_mean_square(residual)
    if mode == "interpolated":
        return _interpolated(samples, formula, engine, formula_error, what=what)
    if mode == "auto" and not _misses(samples, residual):
        return Table(None, _residuals(residual), formula_error, np.nan)
    found = _measured(samples, engine, formula_error, what=what)
    if mode == "always":
        if found.is_refused:
            top = f"num_seqs {engine.max_num_seqs}, num_blocks {engine.max_num_blocks}"
            raise InputError(found.reason.partition(": ")[2], f"pairs up to {top}")
        return found
    tables = [found]
    if found.is_refused:
        with contextlib.suppress(InputError):
            tables.insert(0, _interpolated(samples, formula, engine, formula_error, what=what))
    for each in tables:
        if each.table_error < formula_error / 2:
            return each
    return Table(None, _residuals(residual), formula_error, found.table_error)


def _misses(samples: Samples, residual: Floats) -> bool:
    spread = samples.spread[np.isfinite(samples.spread)]
    noise = float(np.median(spread)) if len(spread) else ASSUMED_NOISE
    return float(np.percentile(np.abs(residual), 90)) > max(MISSES, _TIMES_NOISE * noise)


def _residuals(residual: Floats) -> str:
    high = float(np.percentile(np.abs(residual), 90))
    return f"the formula's residuals are {_root_mean_square(residual):.0%} (90th percentile {high:.0%})"


def _measured(samples: Samples, engine: Engine, formula_error: float, *, what: str) -> Table:
    """A table along curves through the measurements; refused where these do not reach the engine's limits."""
    kernel = get_kernel(samples.kernels[0])
    curves = _curves(samples, kernel, what)
    fitted = np.full(len(samples), np.nan)
    work = _work(kernel, samples.num_seqs, samples.num_blocks, what)
    for at, seqs in enumerate(samples.num_seqs.tolist()):
        curve = curves.get(seqs, curves.get(0))
        if curve is not None:
            fitted[at] = curve(work[at : at + 1])[0]
    known = np.isfinite(fitted)
    table_error = _root_mean_square(samples.seconds[known] / fitted[known] - 1) if known.any() else np.nan
    sizes = _sizes(curves, kernel, engine, what)
    top = (engine.max_num_seqs, engine.max_num_blocks)
    if top[0] not in sizes[0] or top[1] not in sizes[1]:
        lacks = (
            f"the measurements do not reach the engine's limits (num_seqs {top[0]}, num_blocks {top[1]}): "
            f"they cover {_span(sizes[0])} by {_span(sizes[1])}"
        )
        return Table(None, lacks, formula_error, table_error, is_refused=True)
    rows = []
    blocks = np.array(sizes[1])
    for seqs in sizes[0]:
        curve = curves.get(seqs) or curves[0]
        seconds = curve(_work(kernel, np.full(len(blocks), seqs), blocks, what))
        rows += [(seqs, int(m), float(f"{s:.6g}")) for m, s in zip(blocks, seconds, strict=True)]
    by = "for each num_seqs measured" if 0 not in curves else "over iterations"
    reason = (
        f"the formula's residuals are {formula_error:.0%}, those of a monotone curve {by} {table_error:.0%}"
    )
    return Table(tuple(rows), reason, formula_error, table_error)


def _interpolated(
    samples: Samples, formula: Formula, engine: Engine, formula_error: float, *, what: str
) -> Table:
    kernel = get_kernel(samples.kernels[0])
    measured = formula(samples.num_seqs, samples.num_blocks)
    places = log_sizes(kernel, samples.num_seqs, samples.num_blocks)
    pairs = len(np.unique(places, axis=0))
    if not FEWEST_PAIRS <= pairs <= MOST_PAIRS:
        raise InputError(
            f"{what} seconds of {pairs} variants", f"{FEWEST_PAIRS} to {MOST_PAIRS} to interpolate between"
        )
    if not (measured > 0).all():
        raise InputError(f"a formula of {what} seconds that is 0", "one above 0 to interpolate by")
    sizes = table_sizes(engine, SMALLEST_NUM_SEQS)
    seqs, blocks = (axis.ravel() for axis in np.meshgrid(*sizes, indexing="ij"))
    wanted = log_sizes(kernel, seqs, blocks)
    scale = np.maximum(np.ptp(wanted, axis=0), 1e-9)
    between = Interpolation.of(places, np.log(samples.seconds / measured), scale)
    seconds = formula(seqs, blocks) * between.factor(wanted)
    table_error = between.error_of_the_unseen()
    reason = (
        f"the formula's residuals are {formula_error:.0%}; interpolated between {len(between)} variants "
        f"measured, each told by the others, pairs are off by {table_error:.0%}"
    )
    rows = zip(seqs.tolist(), blocks.tolist(), (float(f"{each:.6g}") for each in seconds), strict=True)
    return Table(tuple(rows), reason, formula_error, table_error, is_interpolated=True)


def _curves(samples: Samples, kernel: Kernel, what: str) -> Mapping[int, _Curve]:
    """By num_seqs; 0 stands for all of them."""
    work = _work(kernel, samples.num_seqs, samples.num_blocks, what)
    apart = {}
    for seqs in np.unique(samples.num_seqs).tolist():
        own = samples.num_seqs == seqs
        if len(np.unique(work[own])) >= _FEWEST_POINTS:
            apart[seqs] = _Curve(work[own], samples.seconds[own])
    if what == "step":
        return apart
    together = _Curve(work, samples.seconds)
    of_together, of_apart = [], []  # residuals of the same rows
    for seqs, curve in apart.items():
        own = samples.num_seqs == seqs
        of_together += (samples.seconds[own] / together(work[own]) - 1).tolist()
        of_apart += (samples.seconds[own] / curve(work[own]) - 1).tolist()
    error, own_error = _root_mean_square(np.array(of_together)), _root_mean_square(np.array(of_apart))
    return {0: together} if error <= max(_SAME_ERROR * own_error, ASSUMED_NOISE) else apart


def _work(kernel: Kernel, seqs: NDArray[np.int64], blocks: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    return kernel.gathers(seqs, blocks) if what == "step" else kernel.iterations(seqs, blocks)


def _sizes(
    curves: Mapping[int, _Curve], kernel: Kernel, engine: Engine, what: str
) -> tuple[Sequence[int], Sequence[int]]:
    """Sizes of the largest full grid of all num_blocks that every curve covers."""
    every = list(range(SMALLEST_NUM_SEQS, engine.max_num_seqs + 1))
    seqs = every if 0 in curves else [each for each in sorted(curves) if each <= engine.max_num_seqs]
    blocks = np.arange(1, engine.max_num_blocks + 1)
    covered = np.ones(len(blocks), np.bool_)
    for each in seqs:
        work = _work(kernel, np.full(len(blocks), each), blocks, what)
        covered &= np.isfinite((curves.get(each) or curves[0])(work))
    return seqs, blocks[covered].tolist()


def _span(sizes: Sequence[int]) -> str:
    if not sizes:
        return "no size"
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"


def _root_mean_square(residual: Floats) -> float:
    return float(np.sqrt(np.mean(residual**2))) if len(residual) else 0.0
