"""The steps histogram: how often a decode step had n sequences, the longest of b blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.extras import data_frame
from ladder_opt.markup import facts as fact_table
from ladder_opt.occupancy._cells import merged_cells
from ladder_opt.occupancy.sequences import SequenceHistogram

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StepHistogram:
    """Decode steps counted by (num_seqs, num_blocks), sorted, each cell once.

    Rows with num_seqs below the engine's min_batched_seqs are the per-sequence path.

    Attributes:
        num_seqs: int64 (cells,), decoding sequences in the step, >= 1.
        num_blocks: int64 (cells,), blocks of the longest of them, >= 1.
        steps: float64 (cells,), how many steps (a weight, may be fractional), > 0.
        gathers_real: float64 (cells,) or None; sum over the cell's steps of every sequence's own blocks.
        sequences: calls of the per-sequence path in all steps, where they were counted.
    """

    num_seqs: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    steps: NDArray[np.float64]
    gathers_real: NDArray[np.float64] | None = None
    sequences: SequenceHistogram | None = None

    def __post_init__(self) -> None:
        columns = merged_cells(
            {"num_seqs": self.num_seqs, "num_blocks": self.num_blocks},
            {"steps": self.steps, "gathers_real": self.gathers_real},
            above_zero="steps",
        )
        for name, values in columns.items():
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def total_steps(self) -> float:
        """All decode steps."""
        return float(self.steps.sum())

    def batched(self, engine: Engine) -> NDArray[np.bool_]:
        """Mask of the cells that reach the ladders."""
        return self.num_seqs >= engine.min_batched_seqs

    def real_gathers(self) -> NDArray[np.float64]:
        """KV pages really needed in each cell; num_seqs * num_blocks for each step where not recorded."""
        return self.ragged_floor() if self.gathers_real is None else self.gathers_real

    def ragged_floor(self) -> NDArray[np.float64]:
        """Pages no ladder can go below: the batch is as long as its longest sequence."""
        return self.steps * self.num_seqs * self.num_blocks

    def to_grid(self, engine: Engine) -> NDArray[np.float64]:
        """Weights of the batched cells as float64 (max_num_seqs + 1, max_num_blocks + 1).

        Raises:
            InputError: a cell is beyond the engine's limits.
        """
        self.check_limits(engine)
        grid = np.zeros((engine.max_num_seqs + 1, engine.max_num_blocks + 1))
        batched = self.batched(engine)
        grid[self.num_seqs[batched], self.num_blocks[batched]] = self.steps[batched]
        return grid

    def check_limits(self, engine: Engine, *, path: str | None = None) -> None:
        """Refuse cells that the engine can never run.

        Raises:
            InputError: naming the first such cell.
        """
        for name, sizes, limit, source in (
            ("num_seqs", self.num_seqs, engine.max_num_seqs, "max_num_seqs"),
            ("num_blocks", self.num_blocks, engine.max_num_blocks, "ceil(max_model_len / block_size)"),
        ):
            beyond = np.flatnonzero(sizes > limit)
            if len(beyond):
                raise InputError(str(sizes[beyond[0]]), f"at most {source} = {limit}", path=path, column=name)
        self.check_pool(engine, path=path)

    def check_pool(self, engine: Engine, *, path: str | None = None) -> None:
        """Refuse cells that the KV pool can never hold: n - 1 sequences of one block and one of b.

        Raises:
            InputError: naming the first such cell.
        """
        needed = self.num_seqs - 1 + self.num_blocks
        beyond = np.flatnonzero(needed > engine.usable_kv_blocks)
        if len(beyond):
            at = beyond[0]
            batch = f"num_seqs {self.num_seqs[at]}, num_blocks {self.num_blocks[at]}"
            raise InputError(
                f"{batch}, which need {needed[at]} KV blocks",
                f"at most the {engine.usable_kv_blocks} that the pool has",
                path=path,
            )

    def scaled(self, weight: float) -> StepHistogram:
        """Every step counted `weight` times."""
        real = None if self.gathers_real is None else self.gathers_real * weight
        calls = None if self.sequences is None else self.sequences.scaled(weight)
        return StepHistogram(self.num_seqs, self.num_blocks, self.steps * weight, real, calls)

    def decode_calls(self, engine: Engine) -> SequenceHistogram:
        """What the steps below min_batched_seqs ask of the per-sequence path, for want of a count.

        Every sequence is taken to be as long as the longest, and prefill is not there at all.
        """
        small = ~self.batched(engine)
        calls = self.steps[small] * self.num_seqs[small]
        return SequenceHistogram(self.num_blocks[small], np.ones(len(calls), np.int64), calls)

    def _repr_html_(self) -> str:
        total = self.total_steps
        facts: list[tuple[str, object]] = [("decode steps", f"{total:,.6g}"), ("cells", f"{len(self):,}")]
        if len(self):
            for name, sizes in (("num_seqs", self.num_seqs), ("num_blocks", self.num_blocks)):
                mean = float((sizes * self.steps).sum()) / total
                facts.append((name, f"{sizes.min()} to {sizes.max()}, mean {mean:.1f}"))
        if self.sequences is not None:
            facts.append(("per-sequence calls", f"{self.sequences.total_calls:,.6g}"))
        return fact_table(facts, caption="StepHistogram")

    def to_frame(self) -> pd.DataFrame:
        """The file's table: num_seqs, num_blocks, steps and, where known, gathers_real."""
        frame = data_frame({"num_seqs": self.num_seqs, "num_blocks": self.num_blocks, "steps": self.steps})
        if self.gathers_real is not None:
            frame["gathers_real"] = self.gathers_real
        return frame

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> StepHistogram:
        """Read the columns of `to_frame`; equal cells add up."""
        real = frame["gathers_real"].to_numpy() if "gathers_real" in frame else None
        return cls(
            frame["num_seqs"].to_numpy(), frame["num_blocks"].to_numpy(), frame["steps"].to_numpy(), real
        )

    @classmethod
    def sum_of(cls, parts: Iterable[StepHistogram]) -> StepHistogram:
        """Histograms of independent replays added cell by cell."""
        histograms = list(parts)
        if len(histograms) == 1:
            return histograms[0]
        know_real = all(part.gathers_real is not None for part in histograms)
        real = np.concatenate([part.real_gathers() for part in histograms]) if know_real else None
        return cls(
            np.concatenate([part.num_seqs for part in histograms]),
            np.concatenate([part.num_blocks for part in histograms]),
            np.concatenate([part.steps for part in histograms]),
            real,
            SequenceHistogram.sum_of(calls) if len(calls := _known_calls(histograms)) else None,
        )


def _known_calls(histograms: list[StepHistogram]) -> list[SequenceHistogram]:
    """The calls of each histogram; none unless all know theirs."""
    calls = [part.sequences for part in histograms if part.sequences is not None]
    return calls if len(calls) == len(histograms) else []
