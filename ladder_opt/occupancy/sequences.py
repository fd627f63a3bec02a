"""The per-sequence table: how often the per-sequence attention path ran for a query over b KV blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.extras import data_frame
from ladder_opt.occupancy._cells import counted_cells, joined, merged_cells

if TYPE_CHECKING:
    import pandas as pd

MAX_TABLE_CELLS = 40_000_000  # of the dense table that a replay counts in: 320 MB


def known_calls(calls: SequenceHistogram | None) -> SequenceHistogram:
    """The calls, which target `spyre-env` cannot do without.

    Raises:
        UsageError: they were not counted.
    """
    if calls is None:
        raise UsageError("--target: found spyre-env without calls of the per-sequence kernel")
    return calls


@dataclass(frozen=True)
class SequenceHistogram:
    """Calls of the per-sequence path counted by (num_blocks, query_len), sorted, each cell once.

    A call is one sequence in one step that does not go through batched decode: every prefill chunk (the
    one-token tail of a chunked prefill too), and each decode of a step with fewer than min_batched_seqs.

    Attributes:
        num_blocks: int64 (cells,), the sequence's own KV blocks after the step:
            ceil((tokens computed before + tokens scheduled) / block_size), >= 1.
        query_len: int64 (cells,), tokens scheduled for it, >= 1; a decode's is 1.
        calls: float64 (cells,), how many calls (a weight, may be fractional), > 0.
    """

    num_blocks: NDArray[np.int64]
    query_len: NDArray[np.int64]
    calls: NDArray[np.float64]

    def __post_init__(self) -> None:
        columns = merged_cells(
            {"num_blocks": self.num_blocks, "query_len": self.query_len},
            {"calls": self.calls},
            above_zero="calls",
        )
        for name, values in columns.items():
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def total_calls(self) -> float:
        """All calls."""
        return float(self.calls.sum())

    def check_limits(self, engine: Engine, *, path: str | None = None) -> None:
        """Refuse cells that the engine can never run.

        Raises:
            InputError: naming the first such cell.
        """
        for name, sizes, limit, source in (
            ("num_blocks", self.num_blocks, engine.max_num_blocks, "ceil(max_model_len / block_size)"),
            ("query_len", self.query_len, engine.max_num_batched_tokens, "max_num_batched_tokens"),
        ):
            beyond = np.flatnonzero(sizes > limit)
            if len(beyond):
                raise InputError(str(sizes[beyond[0]]), f"at most {source} = {limit}", path=path, column=name)
        impossible = impossible_call(self.num_blocks, self.query_len, engine)
        if impossible is not None:
            raise InputError(*impossible[1:], path=path)

    def scaled(self, weight: float) -> SequenceHistogram:
        """Every call counted `weight` times."""
        return SequenceHistogram(self.num_blocks, self.query_len, self.calls * weight)

    def to_frame(self) -> pd.DataFrame:
        """The file's table: num_blocks, query_len, calls."""
        return data_frame({"num_blocks": self.num_blocks, "query_len": self.query_len, "calls": self.calls})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> SequenceHistogram:
        """Read the columns of `to_frame`; equal cells add up."""
        return cls(frame["num_blocks"].to_numpy(), frame["query_len"].to_numpy(), frame["calls"].to_numpy())

    @classmethod
    def from_counts(cls, counts: NDArray[np.int64]) -> SequenceHistogram:
        """From a dense table, (num_blocks, query_len) -> calls."""
        return cls(*counted_cells(counts))

    @classmethod
    def sum_of(cls, parts: Iterable[SequenceHistogram]) -> SequenceHistogram:
        """Tables of independent replays added cell by cell."""
        return joined(cls, parts)


def impossible_call(
    num_blocks: NDArray[np.int64], query_len: NDArray[np.int64], engine: Engine
) -> tuple[int, str, str] | None:
    """The first call that no engine of these limits makes.

    The blocks of a call hold its own tokens, and come from the pool.

    Returns:
        Its row, what was found, what was expected; None where all are possible.
    """
    for wrong, expected in (
        (num_blocks * engine.block_size < query_len, f"blocks of {engine.block_size} tokens that hold them"),
        (num_blocks > engine.usable_kv_blocks, f"at most the {engine.usable_kv_blocks} that the pool has"),
    ):
        rows = np.flatnonzero(wrong)
        if len(rows):
            at = int(rows[0])
            return at, f"num_blocks {num_blocks[at]} for a query_len of {query_len[at]}", expected
    return None


def dense_table_shape(engine: Engine) -> tuple[int, int]:
    """Shape of the table that a replay counts calls in: (max_num_blocks + 1, longest query + 1).

    Raises:
        UsageError: it would have more than MAX_TABLE_CELLS cells.
    """
    longest = min(engine.max_num_batched_tokens, engine.max_model_len)
    blocks = engine.max_num_blocks
    if (blocks + 1) * (longest + 1) > MAX_TABLE_CELLS:
        raise UsageError(
            f"per-sequence table: found {blocks + 1} x {longest + 1} cells (blocks of max_model_len, tokens "
            f"of max_num_batched_tokens), expected at most {MAX_TABLE_CELLS} in all"
        )
    return blocks + 1, longest + 1
