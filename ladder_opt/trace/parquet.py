"""The canonical trace on disk: Parquet, versioned, with its provenance in the file's metadata.

Columns: arrival_seconds (double, absent for a trace of lengths), prompt_tokens and output_tokens
(int64), optional cached_tokens and priority (int64), session (string) and hash_ids (lists of int64, whose
block size stands in the provenance as `hash_block_tokens`). The key-value metadata holds
`ladder_opt.schema` = "ladder_opt/trace/1" and `ladder_opt.provenance`, a JSON object of sources,
set_aside and notes. Reading what was written gives an equal trace.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.errors import InputError
from ladder_opt.files import replace_when_whole
from ladder_opt.trace.readers.parquet_file import ParquetFile
from ladder_opt.trace.readers.stored import Stored, load
from ladder_opt.trace.readers.table import Cells, RawTable, shown
from ladder_opt.trace.table import HashIds, Trace, TraceSource

SCHEMA_KEY = "ladder_opt.schema"
PROVENANCE_KEY = "ladder_opt.provenance"
SCHEMA_NAME = "ladder_opt/trace"
SCHEMA_VERSION = 1
ROW_GROUP_REQUESTS = 1 << 20

_INTEGER_COLUMNS = ("prompt_tokens", "output_tokens", "cached_tokens", "priority")
_NEEDED = ("prompt_tokens", "output_tokens")
_KNOWN = ("arrival_seconds", *_INTEGER_COLUMNS, "session", "hash_ids")


@checked
def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a canonical trace file, whole or not at all.

    Raises:
        InputError: the folder is missing or not ours to write.
    """
    write_chunks([trace], path)


def write_chunks(chunks: Iterable[Trace], path: str | Path) -> None:
    """Write a canonical trace file from chunks of one trace, whole or not at all; one at a time in memory.

    The first chunk says which columns there are; sources, notes and what was set aside are the first
    chunk's too. Row groups hold at most `ROW_GROUP_REQUESTS` requests.

    Raises:
        InputError: the folder is missing or not ours to write, or a chunk arrives before the one before it.
        ValueError: there is no chunk.
    """
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only Parquet needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    coming = iter(chunks)
    first = next(coming, None)
    if first is None:
        raise ValueError("found no chunk, expected at least one")
    provenance: dict[str, Any] = {
        "sources": [asdict(source) for source in first.sources],
        "set_aside": dict(first.set_aside),
        "notes": list(first.notes),
    }
    if first.hash_ids is not None:
        provenance["hash_block_tokens"] = first.hash_ids.block_tokens
    metadata = {SCHEMA_KEY: f"{SCHEMA_NAME}/{SCHEMA_VERSION}", PROVENANCE_KEY: json.dumps(provenance)}
    table = pa.table(_columns(first)).replace_schema_metadata(metadata)
    last = -math.inf
    with (
        replace_when_whole(path) as part,
        pq.ParquetWriter(part, table.schema, compression="zstd") as writer,
    ):
        for chunk in itertools.chain([first], coming):
            if chunk.arrival_seconds is not None and len(chunk):
                check_follows(last, float(chunk.arrival_seconds[0]), path=str(path))
                last = float(chunk.arrival_seconds[-1])
            rows = pa.table(_columns(chunk)).replace_schema_metadata(metadata)
            writer.write_table(rows, row_group_size=ROW_GROUP_REQUESTS)


def _columns(trace: Trace) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415

    columns: dict[str, Any] = {}
    if trace.arrival_seconds is not None:
        columns["arrival_seconds"] = pa.array(trace.arrival_seconds, pa.float64())
    columns["prompt_tokens"] = pa.array(trace.prompt_tokens, pa.int64())
    columns["output_tokens"] = pa.array(trace.output_tokens, pa.int64())
    if trace.cached_tokens is not None:
        columns["cached_tokens"] = pa.array(trace.cached_tokens, pa.int64())
    if trace.priority is not None:
        columns["priority"] = pa.array(trace.priority, pa.int64())
    if trace.session is not None:
        columns["session"] = pa.array(trace.session.tolist(), pa.string())
    if trace.hash_ids is not None:
        columns["hash_ids"] = pa.ListArray.from_arrays(
            pa.array(trace.hash_ids.offsets, pa.int32()), pa.array(trace.hash_ids.values, pa.int64())
        )
    return columns


def check_follows(before: float, arrival: float, *, path: str, line: int | None = None) -> None:
    """Refuse a chunk whose first arrival lies before the last one of the chunk before it.

    Raises:
        InputError: it does.
    """
    if arrival < before:
        raise InputError(
            f"{arrival} after {before}",
            "arrivals in ascending order",
            path=path,
            line=line,
            column="arrival_seconds",
        )


def read_canonical(path: str | Path) -> Trace:
    """Read a file that `write_trace` wrote.

    Raises:
        InputError: it is none, of another major version, or its content breaks the schema.
    """
    stored = load(path)
    if not stored.is_parquet:
        raise InputError("no Parquet", f"{SCHEMA_NAME}/{SCHEMA_VERSION}", path=stored.path)
    return parse_canonical(stored, ParquetFile(stored))


def is_canonical(file: ParquetFile) -> bool:
    """Whether a Parquet file says that it is a ladder_opt trace, of any version."""
    return SCHEMA_KEY in file.metadata


@dataclass(frozen=True)
class Header:
    """What a canonical file says before its rows.

    Attributes:
        columns: the canonical columns that it has.
        sources: the files that it was made from.
        set_aside: requests set aside on the way, by reason.
        notes: remarks of the reader.
        hash_block_tokens: tokens that one of its hash_ids stands for; 0 where it has none.
    """

    columns: tuple[str, ...]
    sources: tuple[TraceSource, ...]
    set_aside: dict[str, int]
    notes: tuple[str, ...]
    hash_block_tokens: int


def parse_canonical(stored: Stored, file: ParquetFile) -> Trace:
    """As `read_canonical`, for a file whose footer has been read."""
    header = parse_header(file, stored.path)
    trace = parse_rows(
        file.table(header.columns), header.columns, stored.path, hash_block_tokens=header.hash_block_tokens
    )
    return replace(trace, sources=header.sources, set_aside=header.set_aside, notes=header.notes)


def parse_header(file: ParquetFile, path: str) -> Header:
    """The footer of a canonical file, checked.

    Raises:
        InputError: another schema or version, a column is missing, or the provenance is none.
    """
    schema = file.metadata.get(SCHEMA_KEY, b"").decode("utf-8", "replace")
    if schema != f"{SCHEMA_NAME}/{SCHEMA_VERSION}":
        raise InputError(
            f"schema {shown(schema)}", f"{SCHEMA_NAME}/{SCHEMA_VERSION}", path=path, column=SCHEMA_KEY
        )
    for name in _NEEDED:
        if name not in file.names:
            raise InputError("no such column", "one, of integers", path=path, column=name)
    names = tuple(name for name in _KNOWN if name in file.names)
    return _header(names, file.metadata.get(PROVENANCE_KEY, b"{}"), path)


def parse_rows(
    table: RawTable, names: Sequence[str], path: str, *, first_row: int = 0, hash_block_tokens: int = 0
) -> Trace:
    """Rows of a canonical file as a trace without sources; `first_row` of the file is their first.

    Raises:
        InputError: a cell breaks the schema.
    """
    columns = {name: _checked(table.columns[name], name, path, first_row) for name in names}
    if "cached_tokens" in columns:
        off = (columns["cached_tokens"] < 0) | (columns["cached_tokens"] > columns["prompt_tokens"])
        if off.any():
            row = int(off.argmax())
            found, expected = shown(columns["cached_tokens"][row]), "from 0 to the row's prompt_tokens"
            raise InputError(found, expected, path=path, line=first_row + row + 1, column="cached_tokens")
    try:
        return Trace(
            arrival_seconds=columns.get("arrival_seconds"),
            prompt_tokens=columns["prompt_tokens"],
            output_tokens=columns["output_tokens"],
            cached_tokens=columns.get("cached_tokens"),
            priority=columns.get("priority"),
            hash_ids=None
            if "hash_ids" not in columns
            else HashIds.of(columns["hash_ids"], hash_block_tokens),
            session=columns.get("session"),
        )
    except InputError as error:
        raise InputError(
            error.found,
            error.expected,
            path=path,
            line=None if error.line is None else first_row + error.line,
            column=error.column,
        ) from None


def _checked(cells: Cells, name: str, path: str, first_row: int) -> Any:
    kinds = {"session": "O", "arrival_seconds": "f"}.get(name, "iu")
    if name == "session" and not isinstance(cells, np.ndarray):
        bad = next((row for row, cell in enumerate(cells) if not isinstance(cell, str)), None)
        if bad is None:
            return np.array(cells, dtype=np.object_)
        raise InputError(shown(cells[bad]), "text", path=path, line=first_row + bad + 1, column=name)
    if name == "hash_ids" and not isinstance(cells, np.ndarray):
        bad = next((row for row, cell in enumerate(cells) if not _is_ids(cell)), None)
        if bad is None:
            return cells
        raise InputError(shown(cells[bad]), "a list of ids", path=path, line=first_row + bad + 1, column=name)
    if not isinstance(cells, np.ndarray):
        bad = next((row for row, cell in enumerate(cells) if cell is None), 0)
        found = shown(cells[bad]) if len(cells) else "another type"
        raise InputError(found, _kind_of(name), path=path, line=first_row + bad + 1, column=name)
    if cells.dtype.kind not in kinds:
        raise InputError(f"values of type {cells.dtype}", _kind_of(name), path=path, column=name)
    if cells.dtype.kind == "u" and len(cells) and int(cells.max()) >= 2**63:
        raise InputError(str(cells.max()), "an integer of 63 bits", path=path, column=name)
    return cells


def _is_ids(cell: object) -> bool:
    return isinstance(cell, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in cell)


def _kind_of(name: str) -> str:
    return {"session": "text", "arrival_seconds": "a number of seconds", "hash_ids": "a list of ids"}.get(
        name, "an integer"
    )


def _header(columns: tuple[str, ...], raw: bytes, path: str) -> Header:
    """The header of a file with these columns and this provenance, JSON."""

    def bad(found: str, expected: str, place: str) -> InputError:
        return InputError(found, expected, path=path, column=f"{PROVENANCE_KEY}.{place}")

    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise bad("no JSON", "a JSON object", "$") from None
    if not isinstance(value, dict):
        raise bad(shown(value), "a JSON object", "$")
    sources = []
    for index, entry in enumerate(_list(value.get("sources", []))):
        match entry:
            case {"path": str(name), "sha256": str(digest), "rows": int(rows), "format": str(form)}:
                sources.append(TraceSource(name, digest, rows, form))
            case _:
                raise bad(shown(entry), "path, sha256, rows and format", f"sources[{index}]")
    set_aside = value.get("set_aside", {})
    if not isinstance(set_aside, dict):
        raise bad(shown(set_aside), "counts by reason", "set_aside")
    for reason, count in set_aside.items():
        if type(count) is not int or count < 0:
            raise bad(shown(count), "a count", f"set_aside.{reason}")
    notes = _list(value.get("notes", []))
    for index, note in enumerate(notes):
        if not isinstance(note, str):
            raise bad(shown(note), "text", f"notes[{index}]")
    size = value.get("hash_block_tokens", 0)
    if type(size) is not int or not 0 <= size < 1 << 31:
        raise bad(shown(size), "tokens of a block", "hash_block_tokens")
    return Header(columns, tuple(sources), set_aside, tuple(map(str, notes)), size)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
