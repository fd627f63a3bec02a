"""Per-sequence tables as CSV or Parquet (`num_blocks,query_len,calls`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy._table_file import (
    Column,
    FileRead,
    num_blocks_column,
    read_table_file,
    write_table_file,
)
from ladder_opt.occupancy.sequences import SequenceHistogram, impossible_call


@dataclass(frozen=True, kw_only=True)
class SequencesFile(FileRead):
    """A per-sequence table as read, with where it came from.

    Attributes:
        sequences: the table.
    """

    sequences: SequenceHistogram


@checked
def read_sequences(path: str | Path, engine: Engine | None = None) -> SequencesFile:
    """Read a per-sequence table; with an engine, refuse rows beyond its limits.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    file = read_table_file(
        path,
        [
            num_blocks_column(engine),
            Column(
                name="query_len",
                kind="size",
                limit=None if engine is None else engine.max_num_batched_tokens,
                limit_name="max_num_batched_tokens",
            ),
            Column(name="calls", kind="weight"),
        ],
        what="a per-sequence table",
        row="call",
    )
    sequences = SequenceHistogram(**file.columns)
    if engine is not None:
        impossible = impossible_call(file.columns["num_blocks"], file.columns["query_len"], engine)
        if impossible is not None:
            at, found, expected = impossible
            raise InputError(found, expected, path=path, line=file.lines[at])
    return SequencesFile(sequences=sequences, **file.origin())


@checked
def write_sequences(sequences: SequenceHistogram, path: str | Path) -> None:
    """Write a table, as Parquet where the name ends so and as CSV elsewhere; whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    names = ("num_blocks", "query_len", "calls")
    write_table_file({name: getattr(sequences, name) for name in names}, path)
