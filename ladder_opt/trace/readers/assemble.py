"""Raw columns to a `Trace`: one place where every format's values are judged, counted and timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError
from ladder_opt.trace import clock
from ladder_opt.trace.readers import values
from ladder_opt.trace.readers.formats import PRIORITY, UNREADABLE, ZERO_OUTPUT, ZERO_PROMPT, Format
from ladder_opt.trace.readers.hash_ids import NAME, hash_ids_of
from ladder_opt.trace.readers.stored import Stored
from ladder_opt.trace.readers.table import MISSING, Problem, RawTable, shown
from ladder_opt.trace.table import Trace, TraceSource
from ladder_opt.trace.timings import Timings, timings_of

_MOST_UNREADABLE = 0.5  # above this share the file is taken for another format


@dataclass(frozen=True)
class Options:
    """What the user asked of the reader.

    Attributes:
        time_unit: "s", "ms", "us", "ns", or None for the format's own.
        clock: see `ladder_opt.trace.clock`.
        spread_ticks: spread the arrivals of a tick over it.
    """

    time_unit: str | None = None
    clock: clock.ClockChoice = "auto"
    spread_ticks: bool = False


class _Build:
    """One file on its way to a Trace: masks over its rows, and what has been noted so far."""

    def __init__(self, stored: Stored, table: RawTable, form: Format, options: Options) -> None:
        self.stored = stored
        self.table = table
        self.form = form
        self.options = options
        self.notes = list(table.notes)
        self.unreadable = np.zeros(table.rows, dtype=np.bool_)
        self.first = table.first_broken
        self.set_aside: dict[str, int] = {}

    def judge(self, column: values.Column, name: str, ignored: NDArray[np.bool_]) -> None:
        """Add a column's unreadable cells, but for rows that are set aside anyway."""
        bad = column.bad & ~ignored
        if not bad.any():
            return
        row = int(bad.argmax())
        line, place = self.table.place(row, name)
        if self.first is None or self.first.line is None or line < self.first.line:
            self.first = Problem(
                shown(self.table.columns[name][row]), column.expected, line=line, column=place
            )
        self.unreadable |= bad

    def readings(self) -> values.Clock | None:
        """The arrival column as numbers; None when the file has none."""
        name = self.form.columns.get("arrival")
        if name is None or name not in self.table.columns:
            return None
        cells = self.table.columns[name]
        unit = self.options.time_unit or self.form.unit
        if self.options.time_unit is None and self.form.integers_are is not None:
            whole = values.mostly_integers(cells)
            unit = self.form.integers_are if whole else self.form.unit
            kind = "integers" if whole else "numbers with fractions"
            self.notes.append(f"{name} holds {kind}: read as {unit} (--time-unit to change)")
        found = values.clock(cells, unit)
        if found.is_date and self.options.time_unit is not None:  # Parquet timestamps carry their unit
            raise InputError(
                f"--time-unit {unit}", "none, for arrivals that are dates", path=self.stored.path, column=name
            )
        if unit is None and not found.is_date and not found.column.bad.all():
            self.notes.append(f"{name} holds numbers without a unit: read as s (--time-unit to change)")
        if found.without_zone:
            self.notes.append(f"{found.without_zone} of the dates in {name} carry no zone; read as UTC")
        return found

    def count(self, reason: str, rows: int) -> None:
        """Note rows set aside."""
        if rows:
            self.set_aside[reason] = self.set_aside.get(reason, 0) + rows


def assemble(stored: Stored, table: RawTable, form: Format, options: Options) -> Trace:
    """Judge every row once and make the Trace; see `assemble_timed`."""
    return assemble_timed(stored, table, form, options)[0]


def assemble_timed(
    stored: Stored, table: RawTable, form: Format, options: Options
) -> tuple[Trace, Timings | None]:
    """Judge every row once and make the Trace, and what the rows say of the server's timing.

    A row is set aside for the first of: what the format drops (failed, ...), unreadable, zero output,
    zero prompt. Arrivals count from the first usable request. The clocks of rows set aside are not
    looked at. The timings are None without arrivals.

    Raises:
        InputError: no rows, more than half of them unreadable, or a clock that cannot be settled.
    """
    build = _Build(stored, table, form, options)
    total = table.rows + table.broken
    if not total:
        raise InputError("no data rows", "at least one request", path=stored.path)
    gone = np.zeros(table.rows, dtype=np.bool_)
    for drop in form.drops:
        if drop.column in table.columns:
            hit = (
                np.fromiter(map(drop.when, table.columns[drop.column]), dtype=np.bool_, count=table.rows)
                & ~gone
            )
            build.count(drop.reason, int(hit.sum()))
            gone |= hit
    prompt, output = (values.counts(table.columns[form.columns[role]]) for role in ("prompt", "output"))
    build.judge(prompt, form.columns["prompt"], gone)
    build.judge(output, form.columns["output"], gone)
    cached = _cached(build, prompt, gone)
    priority = _priority(build, gone)
    readings = build.readings()
    if readings is not None:
        build.judge(readings.column, form.columns["arrival"], gone)
    _refuse_if_unreadable(build, total)
    build.count(UNREADABLE, table.broken + int(build.unreadable.sum()))
    gone |= build.unreadable
    for reason, column in ((ZERO_OUTPUT, output), (ZERO_PROMPT, prompt)):
        hit = (column.values == 0) & ~gone
        build.count(reason, int(hit.sum()))
        gone |= hit
    rows = np.flatnonzero(~gone)
    arrivals = None
    if readings is not None:
        arrivals, rows = _arrivals(build, readings, rows)
    session = _session(table, form)
    hash_ids = None
    if NAME in table.columns:
        hash_ids, note = hash_ids_of(table.columns[NAME], prompt.values[rows], rows)
        build.notes += [] if note is None else [note]
    timings = None
    if readings is not None and arrivals is not None:
        timings = timings_of(
            table,
            dict(form.timings),
            rows,
            readings=readings.column.values[rows] / readings.ticks_per_second,
            arrival_seconds=arrivals,
        )
    trace = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=prompt.values[rows],
        output_tokens=output.values[rows],
        cached_tokens=None if cached is None else cached[rows],
        priority=None if priority is None else priority[rows],
        hash_ids=hash_ids,
        session=None if session is None else session[rows],
        sources=(TraceSource(stored.path, stored.sha256, total, form.name),),
        set_aside=build.set_aside,
        notes=tuple(build.notes),
    )
    return trace, timings


def _cached(build: _Build, prompt: values.Column, gone: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    name = build.form.columns.get("cached")
    if name is None or name not in build.table.columns:
        return None
    cells = build.table.columns[name]
    if all(cell is MISSING or cell is None for cell in cells):
        return None
    cached = values.counts(cells, absent_is_zero=True)
    build.judge(cached, name, gone)
    over = (cached.values > prompt.values) & ~prompt.bad & ~cached.bad
    expected = f"at most {build.form.columns['prompt']} of the row"
    build.judge(values.Column(cached.values, over, expected), name, gone)
    return cached.values


def _priority(build: _Build, gone: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The request priority; 0, vLLM's default, where a row has none."""
    name = build.form.columns.get("priority", PRIORITY)
    if name not in build.table.columns:
        return None
    cells = build.table.columns[name]
    if all(cell is MISSING or cell is None for cell in cells):
        return None
    priority = values.counts(cells, absent_is_zero=True, signed=True)
    build.judge(priority, name, gone)
    return priority.values


def _refuse_if_unreadable(build: _Build, total: int) -> None:
    bad = build.table.broken + int(build.unreadable.sum())
    if not bad or build.first is None:
        return
    error = build.first.error(build.stored.path)
    if bad > _MOST_UNREADABLE * total:
        raise InputError(
            f"{error.found}, as in {bad} of {total} rows" if total > 1 else error.found,
            f"{error.expected}, for the format {build.form.name}",
            path=error.path,
            line=error.line,
            column=error.column,
        )
    build.notes.append(f"{bad} unreadable row{'s' * (bad > 1)} set aside; first at {error}")


def _arrivals(
    build: _Build, readings: values.Clock, rows: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    name = build.form.columns["arrival"]
    cells = build.table.columns[name]

    def dip_at(position: int) -> clock.Dip:
        row, before = int(rows[position]), int(rows[position - 1])
        line, place = build.table.place(row, name)
        return clock.Dip(build.stored.path, line, place, shown(cells[row]), shown(cells[before]))

    settled, order, note = clock.settle(
        readings.column.values[rows],
        choice=build.options.clock,
        launch_order=build.form.launch_order,
        dip_at=dip_at,
    )
    if note is not None:
        build.notes.append(note)
    if order is not None:
        rows = rows[order]
    seconds = (settled - settled[:1]) / readings.ticks_per_second
    return _settle_ticks(build, np.asarray(seconds, dtype=np.float64), rows)


def _settle_ticks(
    build: _Build, seconds: NDArray[np.float64], rows: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    ticks = clock.find_ticks(seconds)
    if build.options.spread_ticks:
        note, seconds, order = _spread(seconds, ticks)
        build.notes.append(note)
        return seconds, rows[order]
    if ticks is not None and clock.ticks_matter(seconds, ticks):
        build.notes.append(f"{_grid(ticks)}, so its bursts are the recorder's; --spread-ticks spreads them")
    return seconds, rows


def _grid(ticks: clock.Ticks) -> str:
    return f"arrivals sit on a {ticks.seconds:g} s grid ({ticks.share:.1%} of them)"


def _spread(
    seconds: NDArray[np.float64], ticks: clock.Ticks | None
) -> tuple[str, NDArray[np.float64], NDArray[np.intp]]:
    if ticks is None:
        return "arrivals sit on no grid; nothing to spread", seconds, np.arange(len(seconds))
    moved, order = clock.spread(seconds, ticks)
    return f"{_grid(ticks)}; spread evenly over each tick", moved, order


def respread(trace: Trace, options: Options) -> Trace:
    """A canonical trace, with its ticks spread where that is asked for."""
    if not options.spread_ticks or trace.arrival_seconds is None:
        return trace
    ticks = clock.find_ticks(trace.arrival_seconds)
    note, seconds, order = _spread(trace.arrival_seconds, ticks)
    moved = trace.take(order)
    return replace(moved, arrival_seconds=seconds, notes=(*trace.notes, note))


def _session(table: RawTable, form: Format) -> NDArray[np.object_] | None:
    name = form.columns.get("session")
    if name is None or name not in table.columns:
        return None
    texts = [_name(cell) for cell in table.columns[name]]
    if not any(texts):
        return None
    if form.parent is not None and form.parent in table.columns:
        texts = _roots(texts, [_name(cell) for cell in table.columns[form.parent]])
    return np.array(texts, dtype=np.object_)


def _name(cell: object) -> str:
    if cell is MISSING or cell is None:
        return ""
    text = cell if isinstance(cell, str) else shown(cell)
    return text.encode("utf-8", "replace").decode("utf-8")  # what Parquet can hold


def _roots(ids: list[str], parents: list[str]) -> list[str]:
    """The first id of each chain of parents; a chain that loops, or leaves the file, ends there."""
    root: dict[str, str] = {}
    parent_of: Mapping[str, str] = dict(zip(ids, parents, strict=True))
    for start in parent_of:
        chain: list[str] = []
        here = start
        while here not in root and parent_of.get(here, here) in parent_of and len(chain) <= len(parent_of):
            chain.append(here)
            here = parent_of[here]
            if here in chain[:1]:
                break
        top = root.get(here, here)
        for one in (*chain, here):
            root[one] = top
    return [root.get(one, one) for one in ids]
