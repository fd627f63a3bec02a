"""Cells to numbers: token counts and clock readings, whole columns at once.

A column whose cells all have one plain shape is turned in one go; only otherwise does each cell get
looked at by itself, to name the offender. Both ways accept the same cells. Clocks stay integers where
the file has integers (100 ns ticks, nanoseconds), so no digit is lost before the origin is subtracted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.trace.readers.table import MISSING, Cells

MAX_TOKENS = 2**31 - 1
MAX_CLOCK_SECONDS = 1e11  # some 3000 years; past that it is not a clock, or not in seconds
TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_NANOSECONDS = 1_000_000_000
_COUNT = f"an integer from 0 to {MAX_TOKENS}"
_TIME = "a time as YYYY-MM-DD HH:MM:SS[.fraction][zone], in 1970..2261"
_FLOAT_CHARACTERS = str.maketrans("", "", "0123456789.+-eE")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_DATETIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s?(?:([Zz]|UTC)|([+-])(\d\d):?(\d\d)?)?",
    re.ASCII,
)


class _CellError(Exception):
    """One cell cannot be read; its argument says what was expected."""


@dataclass(frozen=True)
class Column:
    """A column's numbers.

    Attributes:
        values: int64 or float64, 0 where a cell cannot be read.
        bad: mask of those cells.
        expected: what should have stood there, "" when all can be read.
    """

    values: NDArray[Any]
    bad: NDArray[np.bool_]
    expected: str = ""


@dataclass(frozen=True)
class Clock:
    """A column of clock readings.

    Attributes:
        column: the readings, int64 where the file has integers or dates, else float64.
        ticks_per_second: what one second is in them.
        is_date: they are dates, counted in nanoseconds since 1970.
        without_zone: how many dates carry no zone while others in the column do.
    """

    column: Column
    ticks_per_second: int
    is_date: bool = False
    without_zone: int = 0


def counts(cells: Cells, *, absent_is_zero: bool = False, signed: bool = False) -> Column:
    """Token counts: integers from 0 to `MAX_TOKENS`, floats only where they are whole.

    Args:
        cells: the column.
        absent_is_zero: an empty or missing cell counts as 0 instead of being unreadable.
        signed: integers from -`MAX_TOKENS` on are taken too.
    """
    least = -MAX_TOKENS if signed else 0
    expected = f"an integer from {least} to {MAX_TOKENS}"
    whole = _plain_numbers(cells)
    if whole is not None:
        if whole.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                fits = bool(((whole >= least) & (whole <= MAX_TOKENS) & (whole == np.floor(whole))).all())
        else:
            fits = not len(whole) or bool(whole.min() >= least and whole.max() <= MAX_TOKENS)
        if fits:
            return Column(whole.astype(np.int64), np.zeros(len(whole), dtype=np.bool_))

    def one(cell: object) -> int:
        if absent_is_zero and (cell is MISSING or cell is None or cell == ""):
            return 0
        number = _number(cell, expected)
        if not least <= number <= MAX_TOKENS or number != int(number):
            raise _CellError(expected)
        return int(number)

    return _each(cells, one, np.int64)


def clock(cells: Cells, unit: str | None) -> Clock:
    """Clock readings: numbers in `unit`, or dates where `unit` is None and the column is no number.

    A column is of one kind: the first cell that is there decides which.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        return _parquet_dates(cells)
    if unit is None and _holds_dates(cells):
        return _dates(cells)
    ticks = TICKS_PER_SECOND[unit or "s"]
    limit = min(MAX_CLOCK_SECONDS * ticks, 2.0**62)
    hint = "" if unit else " (or --time-unit ms|us|ns)"
    expected = f"a number of {unit or 's'} within +-{limit:.3g}{hint}"
    whole = _plain_numbers(cells)
    if whole is not None and (not len(whole) or bool(((whole <= limit) & (whole >= -limit)).all())):
        return Clock(Column(whole, np.zeros(len(whole), dtype=np.bool_)), ticks)

    def one(cell: object) -> int | float:
        number = _number(cell, expected)
        if abs(number) > limit:
            raise _CellError(expected)
        return number

    return Clock(_each(cells, one, None), ticks)


def mostly_integers(cells: Cells) -> bool:
    """Whether at least half of the cells that are numbers are integers, as written."""
    if isinstance(cells, np.ndarray) and cells.dtype != np.object_:
        return cells.dtype.kind in "iu"
    integers = sum(
        _INTEGER.fullmatch(cell) is not None if isinstance(cell, str) else type(cell) is int for cell in cells
    )
    fractions = sum(
        _INTEGER.fullmatch(cell) is None and _NUMBER.fullmatch(cell) is not None
        if isinstance(cell, str)
        else isinstance(cell, float) and math.isfinite(cell)
        for cell in cells
    )
    return integers >= fractions


def nanoseconds_of(cell: object) -> int | None:
    """A date cell in nanoseconds since 1970 UTC, or None when it is no such date."""
    try:
        return _date(cell, {})[0]
    except _CellError:
        return None


def _plain_numbers(cells: Cells) -> NDArray[Any] | None:
    """The whole column as int64 or finite float64, when every cell has one plain shape."""
    kinds = {np.generic} if isinstance(cells, np.ndarray) else set(map(type, cells))
    try:
        if kinds == {np.generic}:
            numbers = _from_array(np.asarray(cells))
        elif kinds == {str}:
            numbers = _from_text(cells)  # type: ignore[arg-type]
        elif kinds == {int}:
            numbers = np.array(cells, dtype=np.int64)
        elif kinds and kinds <= {int, float}:
            numbers = np.array(cells, dtype=np.float64)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return None if numbers is None or not np.isfinite(numbers).all() else numbers


def _from_array(array: NDArray[Any]) -> NDArray[Any] | None:
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    fits = array.dtype.kind == "i" or (array.dtype.kind == "u" and not (array >= 2**63).any())
    return array.astype(np.int64) if fits else None


def _from_text(cells: Sequence[str]) -> NDArray[Any] | None:
    joined = "".join(cells)
    if joined.isascii() and joined.isdigit():
        return np.array(list(map(int, cells)), dtype=np.int64)
    if joined.translate(_FLOAT_CHARACTERS):
        return None
    return np.array(list(map(float, cells)), dtype=np.float64)


def _number(cell: object, expected: str) -> int | float:
    """One finite number, from a JSON number or from text.

    Raises:
        _CellError: it is none.
    """
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, str):
        text = cell.strip()
        if _INTEGER.fullmatch(text):
            return int(text)
        if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
    elif type(cell) is int or (type(cell) is float and math.isfinite(cell)):
        return cell
    raise _CellError(expected)


def _each(cells: Cells, one: Callable[[object], int | float], dtype: type[np.int64] | None) -> Column:
    values: list[int | float] = []
    bad = np.zeros(len(cells), dtype=np.bool_)
    expected = ""
    for row, cell in enumerate(cells):
        try:
            values.append(one(cell))
        except (_CellError, OverflowError) as error:
            if not expected:
                expected = str(error) if isinstance(error, _CellError) else _COUNT
            bad[row] = True
            values.append(0)
    whole = dtype is not None or all(isinstance(value, int) for value in values)
    return Column(np.array(values, dtype=np.int64 if whole else np.float64), bad, expected)


def _holds_dates(cells: Cells) -> bool:
    if isinstance(cells, np.ndarray) and cells.dtype != np.object_:
        return False
    first = next((cell for cell in cells if cell is not MISSING and cell is not None and cell != ""), None)
    return isinstance(first, str) and _DATETIME.fullmatch(first.strip()) is not None


def _dates(cells: Sequence[object] | NDArray[Any]) -> Clock:
    days: dict[str, int] = {}
    naive = 0

    def one(cell: object) -> int:
        nonlocal naive
        nanoseconds, has_zone = _date(cell, days)
        naive += not has_zone
        return nanoseconds

    column = _each(cells, one, np.int64)
    mixed = 0 < naive < len(cells) - int(column.bad.sum())
    return Clock(column, _NANOSECONDS, is_date=True, without_zone=naive if mixed else 0)


def _date(cell: object, days: dict[str, int]) -> tuple[int, bool]:
    """Nanoseconds since 1970 and whether a zone was given; `days` remembers dates already turned.

    Raises:
        _CellError: it is no date, or not one that 64 bits of nanoseconds hold.
    """
    match = _DATETIME.fullmatch(cell) or _DATETIME.fullmatch(cell.strip()) if isinstance(cell, str) else None
    if match is None:
        raise _CellError(_TIME)
    day, hour, minute, second, fraction, utc, sign, zone_hour, zone_minute = match.groups()
    if day not in days:
        try:
            days[day] = (date.fromisoformat(day) - date(1970, 1, 1)).days * 86_400
        except ValueError:
            raise _CellError(_TIME) from None
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60 or not "1970" <= day[:4] <= "2261":
        raise _CellError(_TIME)
    seconds = days[day] + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign:
        offset = int(zone_hour) * 3600 + int(zone_minute or 0) * 60
        seconds -= offset if sign == "+" else -offset
    return seconds * _NANOSECONDS + int((fraction or "")[:9].ljust(9, "0")), bool(utc or sign)


def _parquet_dates(cells: NDArray[Any]) -> Clock:
    bad = np.isnat(cells)
    exact = cells.astype("datetime64[ns]")
    bad |= exact.astype(cells.dtype) != cells  # beyond 64 bits of nanoseconds
    values = np.where(bad, 0, exact.astype(np.int64))
    return Clock(Column(values, bad, _TIME), _NANOSECONDS, is_date=True)
