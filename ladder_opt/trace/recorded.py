"""Parts of a request trace that a server writes of itself, and a folder of them as one trace.

A part is a canonical trace (`ladder_opt.trace.parquet`) and reads as one. Its metadata also holds
`ladder_opt.origin`, the seconds since the epoch that its arrivals count from, and it may have a column
`request_id`, which nothing here reads. Requests are written as they finish, so parts overlap in time:
joined, they are sorted by arrival.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ladder_opt.errors import InputError
from ladder_opt.files import is_folder, replace_when_whole
from ladder_opt.trace.parquet import (
    PROVENANCE_KEY,
    SCHEMA_KEY,
    SCHEMA_NAME,
    SCHEMA_VERSION,
    is_canonical,
    parse_canonical,
)
from ladder_opt.trace.readers.formats import ZERO_OUTPUT, ZERO_PROMPT
from ladder_opt.trace.readers.parquet_file import ParquetFile
from ladder_opt.trace.readers.stored import load
from ladder_opt.trace.table import Trace, TraceSource

TRACE_PREFIX = "requests-"
ORIGIN_KEY = "ladder_opt.origin"


def write_part(
    path: str | Path,
    *,
    arrivals: Sequence[float],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    cached_tokens: Sequence[int],
    request_ids: Sequence[str] | None = None,
) -> None:
    """Write a part, whole or not at all. Rows without a prompt or output token are counted, not kept.

    Args:
        path: the file.
        arrivals: seconds since the epoch, in any order.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens generated for it.
        cached_tokens: prompt tokens that the prefix cache supplied.
        request_ids: a name for each request; None for no such column.

    Raises:
        InputError: the folder is missing or not ours to write.
    """
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only Parquet needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    when = np.asarray(arrivals, np.float64)
    prompt, output = np.asarray(prompt_tokens, np.int64), np.asarray(output_tokens, np.int64)
    cached = np.clip(np.asarray(cached_tokens, np.int64), 0, prompt)
    usable = (prompt >= 1) & (output >= 1)
    order = np.flatnonzero(usable)[np.argsort(when[usable], kind="stable")]
    origin = float(when[order[0]]) if len(order) else 0.0
    columns = {
        "arrival_seconds": pa.array(when[order] - origin, pa.float64()),
        "prompt_tokens": pa.array(prompt[order], pa.int64()),
        "output_tokens": pa.array(output[order], pa.int64()),
        "cached_tokens": pa.array(cached[order], pa.int64()),
    }
    if request_ids is not None:
        columns["request_id"] = pa.array([request_ids[row] for row in order], pa.string())
    set_aside = {
        reason: int(count)
        for reason, count in (
            (ZERO_PROMPT, (prompt < 1).sum()),
            (ZERO_OUTPUT, ((output < 1) & (prompt >= 1)).sum()),
        )
        if count
    }
    metadata = {
        SCHEMA_KEY: f"{SCHEMA_NAME}/{SCHEMA_VERSION}",
        PROVENANCE_KEY: json.dumps({"sources": [], "set_aside": set_aside, "notes": []}),
        ORIGIN_KEY: repr(origin),
    }
    with replace_when_whole(path) as part:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), part, compression="zstd")


def recorded_parts(folder: str | Path) -> list[Path]:
    """The parts in a folder, by name; none where it is no folder, or holds none."""
    return sorted(Path(folder).glob(f"{TRACE_PREFIX}*.parquet")) if is_folder(folder) else []


def read_recorded_trace(folder: str | Path) -> Trace:
    """Read all parts in a folder as one trace, arrivals from its first request on.

    Raises:
        InputError: there is no part, or one of them is not what a server wrote.
    """
    paths = recorded_parts(folder)
    if not paths:
        raise InputError("no request trace", f"a folder of {TRACE_PREFIX}*.parquet", path=folder)
    parts: list[Trace] = []
    origins: list[float] = []
    for path in paths:
        stored = load(path)
        if not stored.is_parquet:
            raise InputError("no Parquet", f"{SCHEMA_NAME}/{SCHEMA_VERSION}", path=path)
        file = ParquetFile(stored)
        if not is_canonical(file) or ORIGIN_KEY not in file.metadata:
            raise InputError("a table that no server recorded", f"metadata {ORIGIN_KEY}", path=path)
        part = parse_canonical(stored, file)
        rows = len(part) + sum(part.set_aside.values())
        source = TraceSource(path=str(path), sha256=stored.sha256, rows=rows, format="ladder_opt")
        parts.append(replace(part, sources=(source,)))
        origins.append(_origin(file.metadata[ORIGIN_KEY], path))
    return _joined(parts, origins)


def _origin(raw: bytes, path: Path) -> float:
    try:
        origin = float(raw)
    except ValueError:
        origin = float("nan")
    if not np.isfinite(origin):
        raise InputError(repr(raw[:40]), "seconds since the epoch", path=path, column=ORIGIN_KEY)
    return origin


def _joined(parts: list[Trace], origins: list[float]) -> Trace:
    when = np.concatenate(
        [
            origin + (np.zeros(len(part)) if part.arrival_seconds is None else part.arrival_seconds)
            for part, origin in zip(parts, origins, strict=True)
        ]
    )
    order = np.argsort(when, kind="stable")
    cached = [
        np.zeros(len(part), np.int64) if part.cached_tokens is None else part.cached_tokens for part in parts
    ]
    set_aside: dict[str, int] = {}
    for part in parts:
        for reason, count in part.set_aside.items():
            set_aside[reason] = set_aside.get(reason, 0) + count
    return Trace(
        arrival_seconds=when[order] - (when[order[0]] if len(order) else 0.0),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts])[order],
        output_tokens=np.concatenate([part.output_tokens for part in parts])[order],
        cached_tokens=np.concatenate(cached)[order],
        sources=tuple(source for part in parts for source in part.sources),
        set_aside=set_aside,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
