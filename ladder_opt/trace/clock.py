"""Arrival clocks: what to do when one runs backwards, and the grid that arrivals may sit on.

Rows are taken in file order. A *dip* is a row whose reading is below the one before it. Dips are of
two kinds that look alike in one row and mean opposite things:

- *out of order*: the log was written in another order than the requests came. Sorting mends it.
- *restart*: the clock began again (a process-relative clock). Sorting would lay the runs on top of
  each other and double the load.

With `--clock auto` rows count as simply out of order, and are sorted, when one of these holds:

1. the format is known to be written at completion, not at launch;
2. every dip is shallow: no reading lies below the highest one so far by more than 1/20 of the span;
3. the file is a shuffle: at least a quarter of its steps are dips, and not all of them fall to
   the lowest tenth of the readings.

Anything else is refused, with the row and the choices. `docs/design/0002-trace-clock.md` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError

ClockChoice = Literal["auto", "sort", "unwrap", "refuse"]
CLOCK_CHOICES: tuple[str, ...] = get_args(ClockChoice)

SHALLOW = 1 / 20  # of the span
SHUFFLED = 1 / 4  # of the steps
NEAR_START = 1 / 10  # of the readings
SHARED_TICK = 1 / 10  # of the requests

_MICROSECONDS = 1_000_000
_LEAST_TICK_SECONDS = 0.001
_LEAST_DISTINCT = 8  # fewer arrivals lie on some grid by chance
_LONGEST_SECONDS = 1e12  # of which 64 bits hold the microseconds
_GRID_TOLERANCE = 1 / 200  # of the spacing
_ON_GRID = 0.95  # share of arrivals that makes it a grid


@dataclass(frozen=True)
class Dip:
    """The first row at which the clock fell, in the file's own words.

    Attributes:
        path: the file.
        line: its 1-based line.
        column: the arrival column.
        reading: the cell there.
        before: the cell of the usable row before it.
    """

    path: str
    line: int
    column: str
    reading: str
    before: str


@dataclass(frozen=True)
class Ticks:
    """A grid that arrivals sit on.

    Attributes:
        seconds: its spacing.
        share: share of the arrivals on it, 0 to 1.
        phase_seconds: where it begins, 0 <= phase < spacing.
    """

    seconds: float
    share: float
    phase_seconds: float = 0.0


def settle(
    readings: NDArray[Any],
    *,
    choice: ClockChoice,
    launch_order: bool,
    dip_at: Callable[[int], Dip],
) -> tuple[NDArray[Any], NDArray[np.intp] | None, str | None]:
    """Make readings ascend.

    Args:
        readings: int64 or float64, in file order.
        choice: the user's; see the module's rule for "auto".
        launch_order: the format promises rows in order of arrival.
        dip_at: describes a row for a message; called at most once.

    Returns:
        Readings that do not fall, in their final order; the permutation that sorted them, or None
        when rows stay where they are; a note, or None when nothing had to be mended.

    Raises:
        InputError: the clock runs backwards and `choice` does not mend that.
    """
    dips = np.flatnonzero(readings[1:] < readings[:-1]) + 1
    if not len(dips):
        return readings, None, None
    dip = dip_at(int(dips[0]))
    rows = f"{len(dips)} row{'s' * (len(dips) > 1)}"
    first = f"first at {dip.path}:{dip.line}: {dip.reading} after {dip.before}"
    if choice == "unwrap":
        return (
            _unwrapped(readings),
            None,
            f"the clock ran backwards at {rows} ({first}); unwrapped, each run on from the last",
        )
    if choice == "sort" or (choice == "auto" and (not launch_order or simply_out_of_order(readings))):
        order = np.argsort(readings, kind="stable")
        return readings[order], order, f"arrivals were out of order at {rows} ({first}); sorted"
    raise InputError(
        f"a clock that runs backwards at {rows}, here {dip.reading} after {dip.before}",
        "arrivals that do not fall, or --clock sort|unwrap to mend them"
        + (" (the default sorts rows that are simply out of order; here the clock may have restarted)")
        * (choice == "auto"),
        path=dip.path,
        line=dip.line,
        column=dip.column,
    )


def _unwrapped(readings: NDArray[Any]) -> NDArray[Any]:
    """Readings whose falls are taken out: the row at a dip arrives with the row before it."""
    far = np.maximum(np.diff(readings.astype(np.float64)), 0).sum() > 2.0**61
    kept = readings.astype(np.float64) if far else readings  # integers as long as their sum fits
    climbs = np.maximum(np.diff(kept), 0)
    return np.concatenate([kept[:1], kept[0] + np.cumsum(climbs)])


def simply_out_of_order(readings: NDArray[Any]) -> bool:
    """Rule 2 or 3 of the module: the dips come from the order of the rows, not from a restart."""
    values = readings.astype(np.float64)
    highest = np.maximum.accumulate(values)
    if (highest - values).max() <= SHALLOW * np.ptp(values):
        return True
    dips = np.flatnonzero(np.diff(values) < 0) + 1
    start = np.quantile(values, NEAR_START)
    return bool(len(dips) >= SHUFFLED * (len(values) - 1) and (values[dips] > start).any())


def find_ticks(arrival_seconds: NDArray[np.float64]) -> Ticks | None:
    """The grid that at least 95 % of the arrivals sit on, or None.

    Looked for at whole microseconds from 1 ms up, among the most common gap and the greatest common
    divisor of the gaps. An arrival within 1/200 of a step from the grid is on it (a recorder that
    wakes every 3 s stamps 2.999 and 3.001 too); fewer than 8 distinct arrivals show no grid.
    """
    if not len(arrival_seconds) or arrival_seconds[-1] > _LONGEST_SECONDS:
        return None
    micros = _micros(arrival_seconds)
    steps = np.diff(micros)
    gaps = steps[steps > 0]
    if len(gaps) < _LEAST_DISTINCT - 1:
        return None
    values, seen = np.unique(gaps, return_counts=True)
    for grid in (int(values[seen.argmax()]), int(np.gcd.reduce(values))):
        if grid < _LEAST_TICK_SECONDS * _MICROSECONDS:
            continue
        phases, rows = np.unique(micros % grid, return_counts=True)
        phase = int(phases[rows.argmax()])
        share = float(_on_grid(micros, grid, phase).mean())
        if share >= _ON_GRID:
            return Ticks(grid / _MICROSECONDS, share, phase / _MICROSECONDS)
    return None


def _micros(arrival_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(arrival_seconds * _MICROSECONDS).astype(np.int64)


def _on_grid(micros: NDArray[np.int64], grid: int, phase: int) -> NDArray[np.bool_]:
    off = (micros - phase) % grid
    near: NDArray[np.bool_] = np.minimum(off, grid - off) <= _GRID_TOLERANCE * grid
    return near


def ticks_matter(arrival_seconds: NDArray[np.float64], ticks: Ticks) -> bool:
    """Whether a tick is coarse: a tenth of the requests or more share theirs, so bursts are made up."""
    tick = np.floor((arrival_seconds - ticks.phase_seconds) / ticks.seconds + 0.5)
    _, requests = np.unique(tick, return_counts=True)
    return bool(requests[requests > 1].sum() >= SHARED_TICK * len(arrival_seconds))


def spread(
    arrival_seconds: NDArray[np.float64], ticks: Ticks
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Spread the requests of each tick evenly over it, in the order they have.

    k requests at tick t move to t, t + g/k, t + 2g/k, ...; arrivals off the grid stay.

    Returns:
        Arrivals that do not fall, from 0, and the permutation of the rows that goes with them.
    """
    micros = _micros(arrival_seconds)
    grid = round(ticks.seconds * _MICROSECONDS)
    phase = round(ticks.phase_seconds * _MICROSECONDS)
    on_grid = np.flatnonzero(_on_grid(micros, grid, phase))
    tick = (micros[on_grid] - phase + grid // 2) // grid
    _, start, inverse, sizes = np.unique(tick, return_index=True, return_inverse=True, return_counts=True)
    place = (np.arange(len(tick)) - start[inverse]) / sizes[inverse]
    moved = arrival_seconds.copy()
    moved[on_grid] += place * ticks.seconds
    order = np.argsort(moved, kind="stable")
    moved = moved[order]
    return moved - moved[:1], order
