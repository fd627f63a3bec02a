"""What a server did with each request of a trace, where its record says so: clock readings.

Records come with two clocks: arrivals are often Unix seconds (`time.time()`), the engine's own events
`time.monotonic()`. A request cannot be queued before it arrives, so the offset between the two is at least
the largest arrival - queued; it is taken to be just that, which makes the quickest request's way to the
engine 0 seconds and is off by as much as that way really took (milliseconds).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.trace.readers import values
from ladder_opt.trace.readers.table import Cells, RawTable

QUEUED, SCHEDULED, FIRST_TOKEN, LAST_TOKEN = "queued", "scheduled", "first_token", "last_token"
TO_FIRST_TOKEN, BETWEEN_TOKENS = "to_first_token", "between_tokens"  # durations, counted from the arrival
TIMING_ROLES = (QUEUED, SCHEDULED, FIRST_TOKEN, LAST_TOKEN, TO_FIRST_TOKEN, BETWEEN_TOKENS)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """One row a request, float64 (requests,), seconds on the trace's clock; NaN where a record does not say.

    Attributes:
        queued_seconds: when it reached the engine (the arrival, where the record knows no better).
        scheduled_seconds: when it was first scheduled.
        first_token_seconds: when its first token was there.
        last_token_seconds: when its last one was.
    """

    queued_seconds: NDArray[np.float64]
    scheduled_seconds: NDArray[np.float64]
    first_token_seconds: NDArray[np.float64]
    last_token_seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.queued_seconds)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Timings:
        """The given rows, in their order."""
        return Timings(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def timings_of(
    table: RawTable,
    columns: dict[str, str],
    rows: NDArray[np.intp],
    *,
    readings: NDArray[np.float64],
    arrival_seconds: NDArray[np.float64],
) -> Timings:
    """The timings of a raw table's rows.

    Args:
        table: as read; columns that it lacks give NaN.
        columns: column of each of `TIMING_ROLES`, where the format has one.
        rows: the rows to take, in the trace's order.
        readings: float64 (rows,), the arrivals of those rows as the file's clock has them, in seconds.
        arrival_seconds: the same on the trace's clock.
    """

    def seconds(role: str) -> NDArray[np.float64]:
        name = columns.get(role)
        if name is None or name not in table.columns:
            return np.full(len(rows), np.nan)
        cells = table.columns[name]
        if role == BETWEEN_TOKENS and any(isinstance(cell, list) for cell in cells):
            return _sums(cells, rows)
        column = values.clock(cells, "s").column
        return np.where(column.bad, np.nan, column.values.astype(np.float64))[rows]

    queued, scheduled, first, last = (seconds(role) for role in TIMING_ROLES[:4])
    if np.isfinite(queued).any():
        shift = arrival_seconds - readings + np.nanmax(readings - queued)
        queued, scheduled, first, last = (one + shift for one in (queued, scheduled, first, last))
    else:
        shift = arrival_seconds - readings
        scheduled, first, last = (one + shift for one in (scheduled, first, last))
    first = np.where(np.isnan(first), arrival_seconds + seconds(TO_FIRST_TOKEN), first)
    last = np.where(np.isnan(last), first + seconds(BETWEEN_TOKENS), last)
    return Timings(
        queued_seconds=np.where(np.isnan(queued), arrival_seconds, queued),
        scheduled_seconds=scheduled,
        first_token_seconds=first,
        last_token_seconds=last,
    )


def _sums(cells: Cells, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Lists of gaps between tokens, added up; NaN for what is no list of numbers."""
    total = np.full(len(rows), np.nan)
    for index, row in enumerate(rows):
        cell = cells[row]
        if isinstance(cell, list) and all(type(gap) in {int, float} for gap in cell):
            total[index] = sum(cell)
    return total
