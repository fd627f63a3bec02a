"""Measured seconds of rung pairs, whatever file they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

STEP: Final = "step"  # a whole decode step, base included
ATTENTION: Final = "attention"  # the batched kernel's calls of all layers in a step, and nothing else of it
COMPILE: Final = "compile"  # one graph of a variant
QUANTITIES: Final = (STEP, ATTENTION, COMPILE)


@dataclass(frozen=True, eq=False)
class Samples:
    """Measured seconds, one row a measurement; all arrays are (rows,).

    Attributes:
        quantity: `STEP`, `ATTENTION` or `COMPILE`.
        kernel: whose geometry the pair has, see `ladder_opt.cost.geometry`.
        num_seqs: padded sequences, the rung.
        num_blocks: padded KV blocks of each, the rung.
        seconds: measured, above 0.
        spread: relative standard error of `seconds`; NaN where the file does not say.
        source: the file.
    """

    quantity: NDArray[np.str_]
    kernel: NDArray[np.str_]
    num_seqs: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.str_]

    @classmethod
    def of(
        cls,
        *,
        quantity: str,
        kernel: ArrayLike,
        num_seqs: ArrayLike,
        num_blocks: ArrayLike,
        seconds: ArrayLike,
        spread: ArrayLike = np.nan,
        source: str = "",
    ) -> Self:
        """Samples of one quantity and one source; scalars stand for every row."""
        rows = np.shape(np.asarray(seconds, np.float64))
        return cls(
            quantity=np.full(rows, quantity),
            kernel=np.broadcast_to(np.asarray(kernel, np.str_), rows).copy(),
            num_seqs=np.broadcast_to(np.asarray(num_seqs, np.int64), rows).copy(),
            num_blocks=np.broadcast_to(np.asarray(num_blocks, np.int64), rows).copy(),
            seconds=np.array(seconds, np.float64),
            spread=np.broadcast_to(np.asarray(spread, np.float64), rows).copy(),
            source=np.full(rows, source),
        )

    @classmethod
    def empty(cls) -> Self:
        """No row."""
        return cls.of(quantity="", kernel="", num_seqs=1, num_blocks=1, seconds=[])

    @classmethod
    def concat(cls, parts: Iterable[Samples]) -> Self:
        """The rows of all parts, in order."""
        parts = [cls.empty(), *parts]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _names()))

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp] | Sequence[int]) -> Samples:
        """The given rows."""
        return Samples(*(getattr(self, name)[rows] for name in _names()))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels measured."""
        return tuple(np.unique(self.kernel).tolist())

    @property
    def sources(self) -> tuple[str, ...]:
        """The files, in order of first appearance."""
        return tuple(dict.fromkeys(self.source.tolist()))


def _names() -> list[str]:
    return [field.name for field in fields(Samples)]
