"""Histograms as files: rows of sizes and weights in CSV or Parquet, read with the place of any fault."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.files import decode_text, read_bytes, replace_when_whole, write_text

MAX_TABLE_FILE_BYTES = 256 << 20
_MAX_ROWS = 2_000_000  # a histogram has a row for each size; no engine has so many
_LARGEST_SIZE = 1 << 40
_LARGEST_WEIGHT = 1e15  # sums of larger weights lose whole steps


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: its header.
        kind: "size": whole numbers of 1 or more; "weight": above 0; "amount": 0 or more.
        optional: whether it may be missing.
        limit: the largest size, with an engine.
        limit_name: what sets it.
    """

    name: str
    kind: Literal["size", "weight", "amount"]
    optional: bool = False
    limit: int | None = None
    limit_name: str = ""


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """Where a histogram came from.

    Attributes:
        path: the file as named.
        sha256: digest of its bytes.
        rows: data rows read (equal cells count once each).
        warnings: what a person should know, such as columns that are not ours.
    """

    path: str
    sha256: str
    rows: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableFile(FileRead):
    """A table as read.

    Attributes:
        columns: numbers by column name, int64 for sizes and float64 for the others; optional ones as found.
        lines: where each row stands, from 1 (of Parquet: the row).
    """

    columns: dict[str, NDArray[Any]]
    lines: tuple[int, ...]

    def origin(self) -> dict[str, Any]:
        """What a `FileRead` is made of."""
        return {field.name: getattr(self, field.name) for field in fields(FileRead)}


def num_seqs_column(engine: Engine | None) -> Column:
    """Sequences of a step, within an engine's limit."""
    limit = None if engine is None else engine.max_num_seqs
    return Column(name="num_seqs", kind="size", limit=limit, limit_name="max_num_seqs")


def num_blocks_column(engine: Engine | None) -> Column:
    """KV blocks of a sequence, within an engine's limit."""
    limit = None if engine is None else engine.max_num_blocks
    return Column(name="num_blocks", kind="size", limit=limit, limit_name="ceil(max_model_len / block_size)")


def read_table_file(
    path: str | Path, columns: Sequence[Column], *, what: str, row: str, max_bytes: int = MAX_TABLE_FILE_BYTES
) -> TableFile:
    """Read a table, CSV or Parquet (told by its first bytes).

    Args:
        path: the file.
        columns: what it holds; others are left aside with a warning.
        what: the kind of file with its article, for messages ("a steps file").
        row: what a row of it stands for ("decode step").
        max_bytes: largest size of the file.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    data = read_bytes(path, max_bytes=max_bytes, what=what)
    required = [column.name for column in columns if not column.optional]
    ours = [column.name for column in columns]
    is_parquet = data.startswith(b"PAR1")
    header, table = _parquet_rows(data, path, ours) if is_parquet else _csv_rows(data, path, what, required)
    if any(name not in header for name in required):
        raise InputError(
            f"columns {', '.join(header)[:200] or 'none'}", ", ".join(required), path=path, line=1
        )
    twice = {name for name in header if name in ours and header.count(name) > 1}
    if twice:
        raise InputError(f"column {min(twice)} twice", "each column once", path=path, line=1)
    if not table:
        raise InputError("no row", f"at least one {row}", path=path)
    read = [name for name in header if name in ours] if is_parquet else header
    found = [(column, read.index(column.name)) for column in columns if column.name in read]
    values: dict[str, list[float]] = {column.name: [] for column, _ in found}
    for line, cells in table:
        if len(cells) != len(read):
            raise InputError(f"{len(cells)} cells", f"{len(read)}, as in the header", path=path, line=line)
        for column, at in found:
            number = _size if column.kind == "size" else _weight
            values[column.name].append(number(cells[at], path, line, column))
    return TableFile(
        columns={
            column.name: np.array(values[column.name], np.int64 if column.kind == "size" else np.float64)
            for column, _ in found
        },
        path=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        rows=len(table),
        lines=tuple(line for line, _ in table),
        warnings=tuple(
            f"{path}: column {name!r} is not one of {what} and was left aside"
            for name in header
            if name not in ours
        ),
    )


def write_table_file(columns: Mapping[str, NDArray[Any]], path: str | Path) -> None:
    """Write a table, as Parquet where the name ends so and as CSV elsewhere; whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    if str(path).endswith(".parquet"):
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        with replace_when_whole(path) as part:
            pq.write_table(pa.table(dict(columns)), part)
        return
    lines = [",".join(columns)]
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    lines += [",".join(_number(value) for value in row) for row in rows]
    write_text(path, "\n".join(lines) + "\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _csv_rows(
    data: bytes, path: str | Path, what: str, required: Sequence[str]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    text = decode_text(data, path=path, what=what)
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
        raise InputError("an empty file", f"the columns {', '.join(required)}", path=path)
    return header, rows


def _parquet_rows(
    data: bytes, path: str | Path, ours: Sequence[str]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """All columns' names, and the cells of our columns as text."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        rows_stored = file.metadata.num_rows
        names = [str(name) for name in file.schema_arrow.names]
        types = {name: file.schema_arrow.types[names.index(name)] for name in ours if name in names}
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(error, path) from None
    if rows_stored > _MAX_ROWS:  # run lengths make a small file of billions of rows
        raise InputError(f"{rows_stored} rows", f"at most {_MAX_ROWS}", path=path)
    for name, kind in types.items():  # and dictionaries one of terabytes of text
        checks = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null
        if not any(check(kind) for check in checks):
            raise InputError(
                f"{name} of type {str(kind)[:40]}", "a column of numbers", path=path, column=name
            )
    if any(names.count(name) > 1 for name in types):
        return names, [(1, [])]  # refused by its header
    try:
        table = file.read(columns=[name for name in names if name in types])
        columns = [[str(value) for value in column.to_pylist()] for column in table.columns]
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(error, path) from None
    return names, [(line, list(row)) for line, row in enumerate(zip(*columns, strict=True), start=1)]


def _damaged(error: Exception, path: str | Path) -> InputError:
    return InputError(str(error).split("\n", maxsplit=1)[0], "a Parquet file", path=path)


def _size(cell: str, path: str | Path, line: int, column: Column) -> int:
    text = cell.strip()
    # int() would also take 1_000 and digits of other scripts.
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit()) or not digits:
        raise InputError(
            repr(cell[:60]), "a whole number of 1 or more", path=path, line=line, column=column.name
        )
    size = int(digits[:20])  # more digits are past any limit
    if column.limit is not None and size > column.limit:
        expected = f"at most the engine's {column.limit_name} = {column.limit}"
        raise InputError(digits[:60], expected, path=path, line=line, column=column.name)
    if size > _LARGEST_SIZE:
        raise InputError(digits[:60], f"at most {_LARGEST_SIZE}", path=path, line=line, column=column.name)
    return size


def _weight(cell: str, path: str | Path, line: int, column: Column) -> float:
    above_zero = column.kind == "weight"
    expected = "a finite number above 0" if above_zero else "a finite number of 0 or more"
    try:
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > _LARGEST_WEIGHT:
        expected = f"at most {_LARGEST_WEIGHT:g}, past which sums lose whole steps"
    elif math.isfinite(value) and (value > 0 if above_zero else value >= 0):
        return value
    raise InputError(repr(cell[:60]), expected, path=path, line=line, column=column.name)
