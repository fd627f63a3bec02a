"""Steps files: the histogram as CSV or Parquet (`num_seqs,num_blocks,steps[,gathers_real]`)."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.files import decode_text, read_bytes, replace_when_whole, write_text
from ladder_opt.occupancy.histogram import StepHistogram

MAX_STEPS_FILE_BYTES = 256 << 20
REQUIRED = ("num_seqs", "num_blocks", "steps")
OPTIONAL = ("gathers_real",)
_MAX_ROWS = 2_000_000  # a histogram has a row for each size; no engine has so many
_LARGEST_SIZE = 1 << 40
_LARGEST_WEIGHT = 1e15  # sums of larger weights lose whole steps


@dataclass(frozen=True)
class StepsFile:
    """A histogram as read, with where it came from.

    Attributes:
        steps: the histogram.
        path: the file as named.
        sha256: digest of its bytes.
        rows: data rows read (equal cells count once each).
        warnings: what a person should know, such as columns that are not ours.
    """

    steps: StepHistogram
    path: str
    sha256: str
    rows: int
    warnings: tuple[str, ...] = ()


def read_steps(path: str | Path, engine: Engine | None = None) -> StepsFile:
    """Read a steps file; with an engine, refuse rows beyond its limits.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    data = read_bytes(path, max_bytes=MAX_STEPS_FILE_BYTES, what="a steps file")
    header, table = _parquet_rows(data, path) if data.startswith(b"PAR1") else _csv_rows(data, path)
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise InputError(
            f"columns {', '.join(header)[:200] or 'none'}", f"{', '.join(REQUIRED)}", path=path, line=1
        )
    twice = {name for name in header if name in REQUIRED + OPTIONAL and header.count(name) > 1}
    if twice:
        raise InputError(f"column {min(twice)} twice", "each column once", path=path, line=1)
    warnings = [
        f"{path}: column {name!r} is not one of a steps file and was left aside"
        for name in header
        if name not in REQUIRED + OPTIONAL
    ]
    if not table:
        raise InputError("no row", "at least one decode step", path=path)
    at = {name: header.index(name) for name in header}
    max_seqs = None if engine is None else engine.max_num_seqs
    max_blocks = None if engine is None else engine.max_num_blocks
    seqs, blocks, weights, real = [], [], [], []
    for line, row in table:
        if len(row) != len(header):
            raise InputError(f"{len(row)} cells", f"{len(header)}, as in the header", path=path, line=line)
        seqs.append(_size(row[at["num_seqs"]], path, line, "num_seqs", max_seqs))
        blocks.append(_size(row[at["num_blocks"]], path, line, "num_blocks", max_blocks))
        weights.append(_weight(row[at["steps"]], path, line, "steps", above_zero=True))
        if "gathers_real" in at:
            real.append(_weight(row[at["gathers_real"]], path, line, "gathers_real", above_zero=False))
    steps = StepHistogram(
        np.array(seqs, np.int64),
        np.array(blocks, np.int64),
        np.array(weights),
        np.array(real) if real else None,
    )
    if engine is not None:
        steps.check_pool(engine, path=str(path))
    return StepsFile(steps, str(path), hashlib.sha256(data).hexdigest(), len(table), tuple(warnings))


def write_steps(steps: StepHistogram, path: str | Path) -> None:
    """Write a histogram, as Parquet where the name ends so and as CSV elsewhere; whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    if str(path).endswith(".parquet"):
        with replace_when_whole(path) as part:
            steps.to_frame().to_parquet(part, index=False)
        return
    names = list(REQUIRED) + (list(OPTIONAL) if steps.gathers_real is not None else [])
    columns = [getattr(steps, name).tolist() for name in names]
    lines = [",".join(names)]
    lines += [",".join(_number(value) for value in row) for row in zip(*columns, strict=True)]
    write_text(path, "\n".join(lines) + "\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _csv_rows(data: bytes, path: str | Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    text = decode_text(data, path=path, what="a steps file")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    header: list[str] = []
    try:
        for row in reader:
            if not row or row == [""]:
                continue
            if not header:
                header = [cell.strip() for cell in row]
            else:
                rows.append((reader.line_num, row))
                if len(rows) > _MAX_ROWS:
                    raise InputError(f"more than {_MAX_ROWS} rows", "at most that", path=path)
    except csv.Error as error:
        raise InputError(str(error), "comma-separated values", path=path, line=reader.line_num) from None
    if not header:
        raise InputError("an empty file", f"the columns {', '.join(REQUIRED)}", path=path)
    return header, rows


def _parquet_rows(data: bytes, path: str | Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        rows_stored = file.metadata.num_rows
        table = file.read() if rows_stored <= _MAX_ROWS else None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(str(error).split("\n", maxsplit=1)[0], "a Parquet file", path=path) from None
    if table is None:  # run lengths make a small file of billions of rows
        raise InputError(f"{rows_stored} rows", f"at most {_MAX_ROWS}", path=path)
    columns = [[str(value) for value in column.to_pylist()] for column in table.columns]
    rows = [(line, list(row)) for line, row in enumerate(zip(*columns, strict=True), start=1)]
    return list(table.column_names), rows


def _size(cell: str, path: str | Path, line: int, column: str, limit: int | None) -> int:
    text = cell.strip()
    # int() would also take 1_000 and digits of other scripts.
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit()) or not 1 <= int(digits[:20] or "0") <= _LARGEST_SIZE:
        raise InputError(repr(cell[:60]), "a whole number of 1 or more", path=path, line=line, column=column)
    size = int(digits)
    if limit is not None and size > limit:
        name = "max_num_seqs" if column == "num_seqs" else "ceil(max_model_len / block_size)"
        raise InputError(
            str(size), f"at most the engine's {name} = {limit}", path=path, line=line, column=column
        )
    return size


def _weight(cell: str, path: str | Path, line: int, column: str, *, above_zero: bool) -> float:
    expected = "a finite number above 0" if above_zero else "a finite number of 0 or more"
    try:
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value <= _LARGEST_WEIGHT) or (above_zero and value == 0):
        raise InputError(repr(cell[:60]), expected, path=path, line=line, column=column)
    return value
