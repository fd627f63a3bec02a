"""Seconds between scattered measurements: a formula, and how far the measurements nearby are off it.

Rule. With f the formula and y_i the seconds of the pairs measured, the relative errors log(y_i / f_i) are
interpolated over the logarithms of sequences, iterations and blocks an iteration, each scaled to the range of
the engine's sizes, by linear radial basis functions over a constant (scipy's `RBFInterpolator`; `SMOOTHING`
lets noise of some percent pass by). Beyond the pairs measured the correction stays within theirs. Rows of the
same pair count as their geometric mean.

Unlike `tables._Curve` it needs no full grid, so that the twenty points that `ladder-opt measure` chooses do.
`python -m benchmarks.design_points` says how well it predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.geometry import Kernel
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders

SMOOTHING: Final = 0.2
MOST_PAIRS: Final = 1_000  # an interpolation takes the square of them in memory, the cube in time
FEWEST_PAIRS: Final = 6
MOST_ROWS: Final = 4_000  # of a table, so that plans still hold their prices; more sizes are thinned
_FOLDS: Final = 20

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def log_sizes(kernel: Kernel, num_seqs: Ints, num_blocks: Ints) -> Floats:
    """(pairs, 3): logarithms of sequences, iterations, and blocks of a sequence an iteration."""
    iterations = kernel.iterations(num_seqs, num_blocks)
    blocks = kernel.entries(num_seqs, num_blocks) / num_seqs
    return np.log(np.column_stack([num_seqs, iterations, blocks]))


def spaced(sizes: Ints, count: int) -> Ints:
    """At most `count` of the sizes, spaced evenly in their logarithms, the ends among them."""
    wanted = np.geomspace(sizes[0], sizes[-1], max(count, 2))
    return np.unique(np.append(wanted.round().astype(np.int64), sizes[[0, -1]]))


def table_sizes(engine: Engine, fewest_seqs: int) -> tuple[Ints, Ints]:
    """Sizes of a table: all of the engine's, or spaced ones and the rungs of the default ladders."""
    seqs = np.arange(min(fewest_seqs, engine.max_num_seqs), engine.max_num_seqs + 1)
    blocks = np.arange(1, engine.max_num_blocks + 1)
    if len(seqs) * len(blocks) > MOST_ROWS:
        side = int(np.sqrt(MOST_ROWS * len(seqs) / len(blocks)))
        default = default_ladders(engine)
        seqs = np.union1d(spaced(seqs, max(side - len(default.num_seqs), 2)), default.num_seqs)
        left = MOST_ROWS // len(seqs) - len(default.num_blocks)
        blocks = np.union1d(spaced(blocks, max(left, 2)), default.num_blocks)
    return seqs, blocks


@dataclass(frozen=True, eq=False)
class Interpolation:
    """How far a formula is off, between and beyond some pairs.

    Attributes:
        places: of the distinct pairs measured, `log_sizes` (pairs, 3).
        errors: log(measured / formula) of each, (pairs,).
        scale: by which places are divided, (3,).
    """

    places: Floats
    errors: Floats
    scale: Floats

    @classmethod
    def of(cls, places: Floats, errors: Floats, scale: Floats) -> Interpolation:
        """Of rows, whose pairs may repeat."""
        distinct, group = np.unique(places, axis=0, return_inverse=True)
        group = group.ravel()
        return cls(distinct, np.bincount(group, errors) / np.bincount(group), scale)

    def __len__(self) -> int:
        return len(self.errors)

    def factor(self, places: Floats) -> Floats:
        """What to multiply the formula with elsewhere, (pairs,)."""
        found = self._joined(np.ones(len(self), np.bool_))(places / self.scale)
        return np.asarray(np.exp(np.clip(found, self.errors.min(), self.errors.max())))

    def error_of_the_unseen(self) -> float:
        """Root mean square of relative errors of pairs told by the others, up to `_FOLDS` times left out."""
        fold = np.arange(len(self)) % min(_FOLDS, len(self))
        left = np.empty(len(self))
        for each in range(fold.max() + 1):
            out = fold == each
            left[out] = self.errors[out] - self._joined(~out)(self.places[out] / self.scale)
        return float(np.sqrt(np.mean(np.expm1(left) ** 2)))

    def _joined(self, rows: NDArray[np.bool_]) -> Any:
        from scipy.interpolate import RBFInterpolator  # noqa: PLC0415  (slow to import)

        return RBFInterpolator(
            self.places[rows] / self.scale,
            self.errors[rows],
            kernel="linear",
            smoothing=SMOOTHING,
            degree=0,
        )
