"""The totals table: how often a decode step had n sequences that hold t KV blocks together.

Batched decode on Spyre pads every sequence to the longest and never looks at this sum; a kernel that reads a
flat list of all pages, such as that of vllm-gaudi, pads the length of the list and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy._cells import counted_cells, joined, merged_cells

MAX_TABLE_CELLS = 40_000_000  # of the dense table that a replay counts in: 320 MB


@dataclass(frozen=True)
class TotalsHistogram:
    """Decode steps counted by (num_seqs, total_blocks), sorted, each cell once.

    Attributes:
        num_seqs: int64 (cells,), decoding sequences in the step, >= 1.
        total_blocks: int64 (cells,), KV blocks of all of them added up, >= num_seqs.
        steps: float64 (cells,), how many steps (a weight, may be fractional), > 0.
    """

    num_seqs: NDArray[np.int64]
    total_blocks: NDArray[np.int64]
    steps: NDArray[np.float64]

    def __post_init__(self) -> None:
        columns = merged_cells(
            {"num_seqs": self.num_seqs, "total_blocks": self.total_blocks},
            {"steps": self.steps},
            above_zero="steps",
        )
        for name, values in columns.items():
            object.__setattr__(self, name, values)
        short = np.flatnonzero(self.total_blocks < self.num_seqs)
        if len(short):
            at = short[0]
            raise InputError(
                f"{self.total_blocks[at]} for num_seqs {self.num_seqs[at]}",
                "a block or more for each sequence",
                column="total_blocks",
            )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def total_steps(self) -> float:
        """All decode steps."""
        return float(self.steps.sum())

    def check_limits(self, engine: Engine, *, path: str | None = None) -> None:
        """Refuse cells that the engine can never run.

        Raises:
            InputError: naming the first such cell.
        """
        beyond = np.flatnonzero(self.num_seqs > engine.max_num_seqs)
        if len(beyond):
            raise InputError(
                str(self.num_seqs[beyond[0]]),
                f"at most max_num_seqs = {engine.max_num_seqs}",
                path=path,
                column="num_seqs",
            )
        beyond = np.flatnonzero(self.total_blocks > self.num_seqs * engine.max_num_blocks)
        if len(beyond):
            at = beyond[0]
            raise InputError(
                f"{self.total_blocks[at]} for num_seqs {self.num_seqs[at]}",
                f"at most {engine.max_num_blocks} (ceil(max_model_len / block_size)) a sequence",
                path=path,
                column="total_blocks",
            )

    def scaled(self, weight: float) -> TotalsHistogram:
        """Every step counted `weight` times."""
        return TotalsHistogram(self.num_seqs, self.total_blocks, self.steps * weight)

    @classmethod
    def from_counts(cls, counts: NDArray[np.int64]) -> TotalsHistogram:
        """From a dense table, (num_seqs, total_blocks) -> steps."""
        return cls(*counted_cells(counts))

    @classmethod
    def sum_of(cls, parts: Iterable[TotalsHistogram]) -> TotalsHistogram:
        """Tables of independent replays added cell by cell."""
        return joined(cls, parts)


def totals_table_shape(engine: Engine) -> tuple[int, int]:
    """Shape of the table that a replay counts in: (max_num_seqs + 1, max_num_seqs * max_num_blocks + 1).

    Raises:
        UsageError: it would have more than MAX_TABLE_CELLS cells.
    """
    shape = engine.max_num_seqs + 1, engine.max_num_seqs * engine.max_num_blocks + 1
    if shape[0] * shape[1] > MAX_TABLE_CELLS:
        raise UsageError(
            f"total blocks: found {shape[0]} x {shape[1]} cells (sequences, blocks of them all), expected at "
            f"most {MAX_TABLE_CELLS} in all"
        )
    return shape
