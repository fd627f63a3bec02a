"""Opening a trace, however large: in memory, or as a stream of chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ladder_opt.arguments import checked
from ladder_opt.trace.read import columns_notes, read_trace
from ladder_opt.trace.stream import CHUNK_REQUESTS, AnyTrace, stream_of

STREAM_FROM_REQUESTS = 2_000_000  # below, a trace takes less memory than the libraries that read it

_LARGE_BYTES = 256 << 20


@checked
def open_trace(
    path: str | Path,
    *,
    stream_from: int | None = None,
    chunk_requests: int = CHUNK_REQUESTS,
    **reading: Any,
) -> AnyTrace:
    """Open a trace: to stream it where it is large and can be streamed, in memory otherwise.

    Args:
        path: the file, of any format that `read_trace` knows.
        stream_from: canonical files of at least as many requests are streamed, others are read whole;
            default: `STREAM_FROM_REQUESTS`.
        chunk_requests: most requests in a chunk of a stream.
        reading: options of `read_trace`. Ticks are spread in memory, so that option reads the file whole.

    Raises:
        InputError: as `read_trace`; faults in the rows of a stream come as they are read.
    """
    if stream_from is None:
        stream_from = STREAM_FROM_REQUESTS
    if not reading.get("spread_ticks") and reading.get("format") in {None, "ladder_opt"}:
        stream = stream_of(path, stream_from=stream_from, chunk_requests=chunk_requests)
        if stream is not None:
            return replace(stream, notes=(*stream.notes, *columns_notes(reading.get("columns"), path)))
    trace = read_trace(path, **reading)
    if Path(path).stat().st_size < _LARGE_BYTES:
        return trace
    note = f"{path} was read whole: ladder-opt trace convert makes a Parquet trace of it that can be streamed"
    return replace(trace, notes=(*trace.notes, note))
