"""Steps files: the histogram as CSV or Parquet (`num_seqs,num_blocks,steps[,gathers_real]`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy._table_file import (
    MAX_TABLE_FILE_BYTES,
    Column,
    FileRead,
    TableFile,
    num_blocks_column,
    num_seqs_column,
    read_table_file,
    write_table_file,
)
from ladder_opt.occupancy.histogram import StepHistogram

_SLACK = 1e-6  # weights that were scaled, and sums of them, are off by some last digits


@dataclass(frozen=True, kw_only=True)
class StepsFile(FileRead):
    """A histogram as read, with where it came from.

    Attributes:
        steps: the histogram.
    """

    steps: StepHistogram


@checked
def read_steps(path: str | Path, engine: Engine | None = None) -> StepsFile:
    """Read a steps file; with an engine, refuse rows beyond its limits.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    file = read_table_file(
        path,
        [
            num_seqs_column(engine),
            num_blocks_column(engine),
            Column(name="steps", kind="weight"),
            Column(name="gathers_real", kind="amount", optional=True),
        ],
        what="a steps file",
        row="decode step",
        max_bytes=MAX_TABLE_FILE_BYTES,
    )
    columns = file.columns
    warnings = [*file.warnings, *_check_real_gathers(file)]
    steps = StepHistogram(
        columns["num_seqs"], columns["num_blocks"], columns["steps"], columns.get("gathers_real")
    )
    if engine is not None:
        steps.check_pool(engine, path=str(path))
    return StepsFile(steps=steps, **(file.origin() | {"warnings": tuple(warnings)}))


def _check_real_gathers(file: TableFile) -> list[str]:
    """No sequence holds more blocks than the longest (an error), and each holds one or more (a warning)."""
    real = file.columns.get("gathers_real")
    if real is None:
        return []
    num_seqs, num_blocks, steps = (file.columns[name] for name in ("num_seqs", "num_blocks", "steps"))
    most = steps * num_seqs * num_blocks
    over = np.flatnonzero(real > most * (1 + _SLACK))
    if len(over):
        at = int(over[0])
        raise InputError(
            f"{real[at]:g}",
            f"at most steps x num_seqs x num_blocks = {most[at]:g}",
            path=file.path,
            line=file.lines[at],
            column="gathers_real",
        )
    least = steps * (num_seqs - 1 + num_blocks)
    under = np.flatnonzero(real < least * (1 - _SLACK))
    if not len(under):
        return []
    at = int(under[0])
    return [
        (
            f"{file.path}:{file.lines[at]}: gathers_real {real[at]:g} is less than the {least[at]:g} blocks "
            f"that such steps hold at least, as in {len(under)} of {file.rows} rows; taken as it is"
        )
    ]


@checked
def write_steps(steps: StepHistogram, path: str | Path) -> None:
    """Write a histogram, as Parquet where the name ends so and as CSV elsewhere; whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    columns = {"num_seqs": steps.num_seqs, "num_blocks": steps.num_blocks, "steps": steps.steps}
    if steps.gathers_real is not None:
        columns["gathers_real"] = steps.gathers_real
    write_table_file(columns, path)
