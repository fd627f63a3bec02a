"""The request trace that a server writes of itself: parts of canonical Parquet, each whole at all times.

A row is a request that has finished: when it arrived, its prompt, output and cached tokens. No text is
kept, and no id unless asked for. A part holds up to `PART_ROWS` requests; it is written anew every so often
until it is full, and then the next one begins. Parts know what moment their arrivals count from
(`ladder_opt.origin`), so a folder of them reads as one trace (`ladder_opt.trace.recorded`).
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ladder_opt.trace.recorded import TRACE_PREFIX, write_part

PART_ROWS = 50_000


@dataclass(frozen=True)
class FinishedRequest:
    """One request.

    Attributes:
        arrival: seconds since the epoch.
        prompt_tokens: tokens of its prompt, cached ones too.
        output_tokens: tokens generated.
        cached_tokens: prompt tokens that the prefix cache supplied.
        request_id: its id; empty where ids are not asked for.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    request_id: str = ""


class RequestTraceWriter:
    """Writes finished requests as they come, from a thread of its own.

    Args:
        folder: where parts go; made where it is missing.
        instance: the server.
        rank: the engine's number among the server's engines.
        every_seconds: time between writes.
        with_ids: whether a part has a column `request_id`.
        warn: called with one line, once, when a write fails.
        part_rows: requests in a part.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        instance: str,
        rank: int,
        every_seconds: float,
        with_ids: bool,
        warn: Callable[[str], None],
        part_rows: int = PART_ROWS,
    ) -> None:
        self._folder = Path(folder)
        self._stem = f"{TRACE_PREFIX}{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{instance}-rank{rank}"
        self._every_seconds = every_seconds
        self._with_ids = with_ids
        self._warn = warn
        self._part_rows = part_rows
        self._rows: list[FinishedRequest] = []
        self._part = 0
        self._written = 0
        self._has_warned = False
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ladder_opt requests", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, request: FinishedRequest) -> None:
        """Take a request; it is written later."""
        with self._adding:
            self._rows.append(request)

    def stop(self) -> None:
        """Write what there is and end."""
        if not self._stopped.is_set():
            self._stopped.set()
            self.write()

    def write(self) -> bool:
        """Write now; whether nothing failed. Rows that cannot be written are kept for the next time."""
        try:
            with self._writing:
                self._write()
        except Exception as error:  # noqa: BLE001 - whatever fails here, serving goes on
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"nothing recorded in {self._folder} for now: {error}; serving goes on")
            return False
        return True

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self.write()

    def _write(self) -> None:
        while len(self._rows) >= self._part_rows:
            self._write_part(self._rows[: self._part_rows])
            with self._adding:
                del self._rows[: self._part_rows]
            self._part += 1
            self._written = 0
        rows = self._rows.copy()
        if len(rows) > self._written:
            self._write_part(rows)
            self._written = len(rows)

    def _write_part(self, rows: list[FinishedRequest]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_part(
            self._folder / f"{self._stem}-{self._part:05d}.parquet",
            arrivals=[row.arrival for row in rows],
            prompt_tokens=[row.prompt_tokens for row in rows],
            output_tokens=[row.output_tokens for row in rows],
            cached_tokens=[row.cached_tokens for row in rows],
            request_ids=[row.request_id for row in rows] if self._with_ids else None,
        )
