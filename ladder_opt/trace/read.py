"""Reading traces: `read_trace` finds out what a file is and makes a `Trace` of it.

Example:
    >>> trace = read_trace("AzureLLMInferenceTrace_conv.csv.gz")  # doctest: +SKIP
    >>> trace.set_aside  # doctest: +SKIP
    mappingproxy({})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.errors import InputError, did_you_mean, one_of
from ladder_opt.trace import clock as clocks
from ladder_opt.trace.parquet import is_canonical, parse_canonical
from ladder_opt.trace.readers import formats, hash_ids, otel, vllm_bench
from ladder_opt.trace.readers.assemble import Options, assemble, assemble_timed, respread
from ladder_opt.trace.readers.csv_file import CsvFile
from ladder_opt.trace.readers.formats import COLUMN_ROLES, Format
from ladder_opt.trace.readers.json_file import Records, looks_like_json, read_records, records_table
from ladder_opt.trace.readers.parquet_file import ParquetFile
from ladder_opt.trace.readers.stored import Stored, load
from ladder_opt.trace.readers.table import RawTable, shown
from ladder_opt.trace.readers.values import TICKS_PER_SECOND
from ladder_opt.trace.recorded import read_recorded_trace, recorded_parts
from ladder_opt.trace.table import Trace
from ladder_opt.trace.timings import Timings

FORMATS: Mapping[str, str] = {one.name: one.description for one in formats.FORMAT_LIST}

TIMED_FORMATS: Sequence[str] = tuple(one.name for one in formats.FORMAT_LIST if one.timings)
_NAMES_SHOWN = 8
_JSON_FORMATS = frozenset(
    {formats.VLLM_BENCH, formats.OTEL, "mooncake", "qwen_bailian"}
)  # whatever line 1 is


@checked
def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the option's name
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    clock: clocks.ClockChoice = "auto",
    spread_ticks: bool = False,
) -> Trace:
    """Read a request trace of any known format; gzip and zstd are read as they are.

    Arrivals are seconds from the first usable request. What cannot be used is counted in `set_aside`
    by reason (see `formats.REASONS`): source rows = requests + everything set aside. A file without arrivals
    gives a trace whose `arrival_seconds` is None. Exact duplicates are kept. A folder is one of those that a
    server records, `requests-*.parquet` (see `ladder_opt.trace.recorded`).

    Args:
        path: the file, or a folder that a server recorded.
        format: a key of `FORMATS`, or None to find out.
        columns: names of the columns for "arrival", "prompt", "output", "cached", "session" and "priority";
            with a format, they take the place of its own. Without one, any table will do.
        time_unit: "s", "ms", "us" or "ns", what arrivals that are numbers count; None for the
            format's own.
        clock: what to do when arrivals run backwards: "sort", "unwrap", "refuse", or "auto" (see
            `ladder_opt.trace.clock`).
        spread_ticks: spread arrivals that sit on a grid evenly over its steps.

    Raises:
        InputError: the file cannot be read, is of no known format, is mostly unreadable, its clock
            runs backwards and `clock` does not mend that, or an argument has no such value.
    """
    _one_of(format, FORMATS, "--format")
    _one_of(time_unit, TICKS_PER_SECOND, "--time-unit")
    _one_of(clock, clocks.CLOCK_CHOICES, "--clock")
    for role in columns or {}:
        _one_of(role, COLUMN_ROLES, "--columns")
    options = Options(time_unit=time_unit, clock=clock, spread_ticks=spread_ticks)
    if format in {None, formats.LADDER_OPT} and not columns and recorded_parts(path):
        return respread(read_recorded_trace(path), options)
    stored = load(path)
    content = _Content.of(stored, as_json=format in _JSON_FORMATS)
    if content.parquet is not None and format in {None, formats.LADDER_OPT} and is_canonical(content.parquet):
        trace = respread(parse_canonical(stored, content.parquet), options)
        return replace(trace, notes=(*trace.notes, *columns_notes(columns, path)))
    form = _with_columns(_choose(content, format, columns), columns, stored.path)
    return assemble(stored, _table(content, form), form, options)


def columns_notes(columns: Mapping[str, str] | None, path: str | Path) -> tuple[str, ...]:
    """The note of a canonical trace for which columns were named all the same: it has its own."""
    if not columns:
        return ()
    return (f"{path} is a ladder_opt trace, whose columns are its own: --columns was left aside there",)


def read_timed_trace(path: str | Path) -> tuple[Trace, Timings]:
    """Read per-request records: a trace with what the server did to each request and when.

    Formats that have timings: those of `TIMED_FORMATS`.

    Raises:
        InputError: as `read_trace`, or the file is of a format without timings, or lacks the arrivals or
            the tokens' times.
    """
    content = _Content.of(load(path), as_json=False)
    form = _timed_format(content)
    trace, timings = assemble_timed(content.stored, _table(content, form, timed=True), form, Options())
    if timings is None or np.isnan(timings.last_token_seconds).all():
        lacking = "arrivals" if timings is None else "times of the first and last token"
        raise InputError(
            f"{form.name} records without {lacking}",
            f"all of {', '.join([form.columns['arrival'], *form.timings.values()])}",
            path=path,
        )
    return trace, timings


def holds_timings(path: str | Path) -> bool:
    """Whether a file's names are those of per-request records with timings.

    Raises:
        InputError: the file cannot be read.
    """
    content = _Content.of(load(path), as_json=False)
    if content.parquet is not None and is_canonical(content.parquet):
        return False
    try:
        form = _choose(content, None, None)
    except InputError:
        return False
    if form.name == formats.VLLM_BENCH:
        return True
    return bool({*form.timings.values()} & {*content.names()})


def _timed_format(content: _Content) -> Format:
    expected = f"per-request records with timings ({', '.join(TIMED_FORMATS)})"
    if content.parquet is not None and is_canonical(content.parquet):
        raise InputError("a ladder_opt trace, which holds no timings", expected, path=content.stored.path)
    try:
        form = _choose(content, None, None)
    except InputError as error:
        found = error.found.replace("no known format", "no format that calibrate knows")
        raise InputError(found, expected, path=content.stored.path) from None
    if not form.timings:
        found = f"a trace of the format {form.name}, which holds no timings"
        raise InputError(found, expected, path=content.stored.path)
    return form


def detect_format(path: str | Path) -> str:
    """The format a file would be read as, a key of `FORMATS`.

    Raises:
        InputError: the file cannot be read, or is of no known format.
    """
    content = _Content.of(load(path), as_json=False)
    if content.parquet is not None and is_canonical(content.parquet):
        return formats.LADDER_OPT
    return _choose(content, None, None).name


@dataclass(frozen=True)
class _Content:
    """A file opened as the container it is; one of the three is set."""

    stored: Stored
    parquet: ParquetFile | None = None
    records: Records | None = None
    csv: CsvFile | None = None

    @classmethod
    def of(cls, stored: Stored, *, as_json: bool) -> _Content:
        if stored.is_parquet:
            return cls(stored, parquet=ParquetFile(stored))
        text = stored.text()
        if looks_like_json(text) or (as_json and "{" in text):
            return cls(stored, records=read_records(text, stored.path))
        return cls(stored, csv=CsvFile(text, stored.path))

    def names(self) -> Sequence[str]:
        """Column names, or the keys of the first object of a known format (else of the first)."""
        if self.parquet is not None:
            return self.parquet.names
        if self.csv is not None:
            return self.csv.header
        objects = [] if self.records is None else self.records.objects
        known = next((one for one in objects[:100] if formats.match(frozenset(one)) is not None), None)
        return list(known or (objects[0] if objects else {}))


def _one_of(value: object, known: Mapping[str, object] | Sequence[str], option: str) -> None:
    if value is not None and value not in known:
        raise InputError(f"{option} {shown(value)}", one_of(known, value))


def _choose(content: _Content, name: str | None, columns: Mapping[str, str] | None) -> Format:
    if name is not None:
        return formats.BY_NAME[name]
    if columns:
        return formats.BY_NAME[formats.COLUMNS]
    if content.records is not None:
        head = content.records.objects[:100]
        if any(map(vllm_bench.is_result, head)):
            return formats.BY_NAME[formats.VLLM_BENCH]
        if any(map(otel.is_span_record, head)):
            return formats.BY_NAME[formats.OTEL]
    names = content.names()
    found = formats.match(frozenset(names))
    if found is None:
        listed = ", ".join(map(shown, names[:_NAMES_SHOWN])) + (", ..." if len(names) > _NAMES_SHOWN else "")
        raise InputError(
            f"no known format (it has {listed or 'no names'})",
            f"one of {', '.join(FORMATS)}; or --columns arrival=NAME,prompt=NAME,output=NAME",
            path=content.stored.path,
        )
    return found


def _with_columns(form: Format, columns: Mapping[str, str] | None, path: str) -> Format:
    if form.name == formats.LADDER_OPT:
        raise InputError(
            "no ladder_opt trace", "canonical Parquet with its schema in the metadata", path=path
        )
    merged = {**form.columns, **(columns or {})}
    for role in ("prompt", "output"):
        if role not in merged:
            raise InputError(f"no {role} column named", f"--columns with {role}=NAME", path=path)
    return replace(form, columns=merged)


def _table(content: _Content, form: Format, *, timed: bool = False) -> RawTable:
    """The columns a format needs, from whatever container they are in."""
    if form.name == formats.VLLM_BENCH and content.records is not None:
        return vllm_bench.bench_table(content.records, content.stored.path, timed=timed)
    if form.name == formats.OTEL and content.records is not None:
        return otel.span_table(content.records)
    present = set(content.names())
    if content.records is not None:
        present = {name for one in content.records.objects for name in one}
    wanted = dict.fromkeys(form.columns.values())
    optional = {name for role, name in form.columns.items() if role not in {"prompt", "output"}}
    optional -= {form.columns[role] for role in ("prompt", "output")}
    extra = [drop.column for drop in form.drops] + ([form.parent] if form.parent else [])
    extra += [] if form.name == formats.COLUMNS else [formats.PRIORITY, hash_ids.NAME]
    extra += form.timings.values() if timed else []
    for name in wanted:
        if name not in present and (name not in optional or form.name == formats.COLUMNS):
            listed = ", ".join(map(shown, sorted(present)[:_NAMES_SHOWN]))
            raise InputError(
                f"no column {shown(name)} (it has {listed or 'none'})",
                f"the columns of the format {form.name}: {', '.join(wanted)}{did_you_mean(name, present)}",
                path=content.stored.path,
            )
    names = [name for name in dict.fromkeys([*wanted, *extra]) if name in present]
    if content.parquet is not None:
        return content.parquet.table(names)
    if content.csv is not None:
        return content.csv.table(names)
    return records_table(content.records or Records([], []), names)
