"""Traces larger than memory: a canonical file read in chunks, each a `Trace`, as often as it is asked for.

Only a canonical Parquet file (`trace convert` and `trace synth` write it) can be streamed: its arrivals are
seconds from 0 and ascend, which is checked within chunks and across their borders. What any other format
needs before its first row can be used (the clock's dips, its ticks, the first usable arrival) is known at its
last row, so it is read whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError
from ladder_opt.files import is_file, open_to_read
from ladder_opt.trace.parquet import check_follows, is_canonical, parse_header, parse_rows, read_canonical
from ladder_opt.trace.readers.parquet_file import ParquetFile
from ladder_opt.trace.table import Trace, TraceSource

CHUNK_REQUESTS = 1 << 20

_MAGIC = b"PAR1"
_STREAMED = ("arrival_seconds", "prompt_tokens", "output_tokens")
_MOST_ROWS_AT_ONCE = 1 << 16  # a row group may hold a whole file


@dataclass(frozen=True, kw_only=True)
class TraceStream:
    """A trace on disk, or some successive rows of one; `open_trace` makes one.

    The chunks hold arrivals, lengths and priorities, where asked for cached tokens, no sessions or ids of
    blocks. The file has to stay as it is.

    Attributes:
        path: the canonical file.
        first_row: its first row that counts.
        stop_row: the row after the last.
        origin_seconds: the arrival that arrivals count from.
        span_seconds: seconds from there to the last arrival; 0 without arrivals.
        has_arrivals: whether it says when requests came.
        has_priority: whether it says how they are ranked.
        has_hash_ids: whether it says what prompts hold.
        has_cached_tokens: whether it says how much of each prompt was cached.
        sources: files that it was made from.
        set_aside: requests set aside on the way, by reason.
        notes: remarks of the reader.
        chunk_requests: most requests in a chunk.
        stamp: size and time of the file, by which a change is noticed.
    """

    path: str
    first_row: int
    stop_row: int
    origin_seconds: float = 0.0
    span_seconds: float
    has_arrivals: bool
    has_priority: bool = False
    has_hash_ids: bool = False
    has_cached_tokens: bool = False
    sources: tuple[TraceSource, ...] = ()
    set_aside: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    chunk_requests: int = CHUNK_REQUESTS
    stamp: tuple[int, int]

    def __len__(self) -> int:
        return self.stop_row - self.first_row

    def chunks(self, *, with_cached_tokens: bool = False) -> Iterator[Trace]:
        """The rows in order, at most `chunk_requests` at a time; what was set aside comes with the first.

        Raises:
            InputError: a cell breaks the schema, arrivals fall, or the file is another one by now.
        """
        names = list(_STREAMED if self.has_arrivals else _STREAMED[1:])
        names += ["priority"] if self.has_priority else []
        names += ["cached_tokens"] if with_cached_tokens and self.has_cached_tokens else []
        yield from self._chunks(tuple(names))

    def whole(self) -> Trace:
        """All of it in memory, with every column: what a replay of prefix caching needs."""
        self._check_stamp()
        trace = read_canonical(self.path).take(np.arange(self.first_row, self.stop_row))
        arrivals = trace.arrival_seconds
        return replace(
            trace,
            arrival_seconds=None if arrivals is None else arrivals - self.origin_seconds,
            set_aside=self.set_aside,
        )

    def _chunks(self, names: tuple[str, ...]) -> Iterator[Trace]:
        self._check_stamp()
        file = ParquetFile(Path(self.path))
        last, set_aside = -math.inf, dict(self.set_aside)
        pieces: list[Trace] = []
        loaded = 0
        rows = file.tables(
            names,
            first=self.first_row,
            stop=self.stop_row,
            most_rows=min(_MOST_ROWS_AT_ONCE, self.chunk_requests),
        )
        for row, table in rows:
            piece = parse_rows(table, names, self.path, first_row=row)
            if piece.arrival_seconds is not None:
                check_follows(last, float(piece.arrival_seconds[0]), path=self.path, line=row + 1)
                last = float(piece.arrival_seconds[-1])
            if loaded + len(piece) > self.chunk_requests:
                yield self._joined(pieces, set_aside)
                pieces, loaded, set_aside = [], 0, {}
            pieces.append(piece)
            loaded += len(piece)
        if pieces or set_aside:
            yield self._joined(pieces, set_aside)

    def _joined(self, pieces: list[Trace], set_aside: dict[str, int]) -> Trace:
        arrivals = [piece.arrival_seconds for piece in pieces if piece.arrival_seconds is not None]
        none = np.zeros(0, np.int64)
        return Trace(
            arrival_seconds=np.concatenate([np.zeros(0), *arrivals]) - self.origin_seconds
            if self.has_arrivals
            else None,
            prompt_tokens=np.concatenate([none, *(piece.prompt_tokens for piece in pieces)]),
            output_tokens=np.concatenate([none, *(piece.output_tokens for piece in pieces)]),
            priority=np.concatenate([piece.priority for piece in pieces if piece.priority is not None])
            if self.has_priority and pieces
            else None,
            cached_tokens=_cached_tokens(pieces),
            set_aside=set_aside,
        )

    def _check_stamp(self) -> None:
        if _stamp(self.path) != self.stamp:
            raise InputError(
                "a file that has changed since it was opened", "the same content", path=self.path
            )

    def split_by_time(self, share: float) -> tuple[TraceStream, TraceStream]:
        """As `Trace.split_by_time`; the arrivals are read once, to find the row."""
        if not self.has_arrivals:
            cut, origin, end = len(self) - round(len(self) * share), 0.0, 0.0
        else:
            cut, origin, end = self._where(self.span_seconds * (1 - share))
        before = replace(self, stop_row=self.first_row + cut, span_seconds=end)
        after = replace(
            self,
            first_row=self.first_row + cut,
            origin_seconds=self.origin_seconds + origin,
            span_seconds=self.span_seconds - origin if cut < len(self) else 0.0,
            set_aside={},
        )
        return before, after

    def _where(self, seconds: float) -> tuple[int, float, float]:
        """How many arrive before a time; the first arrival from it on, and the last one before it."""
        rows, end = 0, 0.0
        for chunk in self.chunks():
            arrivals = chunk.arrival_seconds
            if arrivals is None or not len(arrivals):
                continue
            below = int(np.searchsorted(arrivals, seconds))
            end = float(arrivals[below - 1]) if below else end
            rows += below
            if below < len(arrivals):
                return rows, float(arrivals[below]), end
        return rows, 0.0, end


def _cached_tokens(pieces: list[Trace]) -> NDArray[np.int64] | None:
    read = [piece.cached_tokens for piece in pieces if piece.cached_tokens is not None]
    return np.concatenate(read) if read else None


AnyTrace = Trace | TraceStream


def traces_of(traces: AnyTrace | Sequence[AnyTrace]) -> list[AnyTrace]:
    """One trace or several, as a list."""
    return [traces] if isinstance(traces, Trace | TraceStream) else list(traces)


"""Requests in memory, or on disk; both have a length, a span, notes, and `chunks()`."""


def stream_of(
    path: str | Path, *, stream_from: int = 0, chunk_requests: int = CHUNK_REQUESTS
) -> TraceStream | None:
    """A canonical file of at least `stream_from` requests as a stream; None for any other file.

    Raises:
        InputError: its footer is damaged.
    """
    if not is_file(path):
        return None  # whoever reads it says what is wrong with it
    with open_to_read(path) as stored:
        if stored.read(len(_MAGIC)) != _MAGIC:
            return None
    stamp = _stamp(path)
    file = ParquetFile(Path(path))
    if file.rows < stream_from or not is_canonical(file):
        return None
    header = parse_header(file, str(path))
    has_arrivals = "arrival_seconds" in header.columns
    end = 0.0
    if has_arrivals and file.rows:
        last_row = file.tables(("arrival_seconds",), first=file.rows - 1, stop=file.rows, most_rows=1 << 16)
        for _, table in last_row:
            cell = table.columns["arrival_seconds"][0]
            end = float(cell) if isinstance(cell, float | np.floating) else 0.0  # else `chunks` refuses it
    return TraceStream(
        path=str(path),
        first_row=0,
        stop_row=file.rows,
        span_seconds=end,
        has_arrivals=has_arrivals,
        has_priority="priority" in header.columns,
        has_hash_ids="hash_ids" in header.columns,
        has_cached_tokens="cached_tokens" in header.columns,
        sources=header.sources,
        set_aside=header.set_aside,
        notes=header.notes,
        chunk_requests=max(1, chunk_requests),
        stamp=stamp,
    )


def _stamp(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116  (a path as it was named)
    except OSError as error:
        raise InputError(error.strerror or str(error), "a readable file", path=path) from None
    return found.st_size, found.st_mtime_ns
