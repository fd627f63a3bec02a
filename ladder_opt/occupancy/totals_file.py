"""Totals files: decode steps by the blocks of all their sequences (`num_seqs,total_blocks,steps`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy._table_file import (
    Column,
    FileRead,
    num_seqs_column,
    read_table_file,
    write_table_file,
)
from ladder_opt.occupancy.totals import TotalsHistogram


@dataclass(frozen=True, kw_only=True)
class TotalsFile(FileRead):
    """A totals table as read, with where it came from.

    Attributes:
        totals: the table.
    """

    totals: TotalsHistogram


@checked
def read_totals(path: str | Path, engine: Engine | None = None) -> TotalsFile:
    """Read a totals file, CSV or Parquet; with an engine, refuse rows beyond its limits.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    file = read_table_file(
        path,
        [
            num_seqs_column(engine),
            Column(name="total_blocks", kind="size"),
            Column(name="steps", kind="weight"),
        ],
        what="a totals file (of simulate --total-blocks)",
        row="decode step",
    )
    try:
        totals = TotalsHistogram(**file.columns)
    except InputError as error:
        raise InputError(error.found, error.expected, path=path, column=error.column) from None
    if engine is not None:
        totals.check_limits(engine, path=str(path))
    return TotalsFile(totals=totals, **file.origin())


@checked
def write_totals(totals: TotalsHistogram, path: str | Path) -> None:
    """Write a table, as Parquet where the name ends so and as CSV elsewhere; whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    names = ("num_seqs", "total_blocks", "steps")
    write_table_file({name: getattr(totals, name) for name in names}, path)
