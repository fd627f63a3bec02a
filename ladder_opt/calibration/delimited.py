"""Tables of measurements as text: cells by name, with their place for messages."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ladder_opt.errors import InputError
from ladder_opt.files import decode_text, read_bytes

MAX_FILE_BYTES = 256 << 20
_MAX_ROWS = 2_000_000
_LARGEST_SIZE = 1 << 31
SMALLEST_SECONDS, LARGEST_SECONDS = 1e-12, 1e9  # whose squares and quotients stay finite
_DELIMITERS = "\t,;|"
_SHOWN = 60


@dataclass(frozen=True)
class Row:
    """One line's cells by column name; empty cells are left out.

    Attributes:
        cells: stripped texts.
        path: the file.
        line: in it, from 1.
    """

    cells: dict[str, str]
    path: str
    line: int

    def text(self, name: str, default: str = "") -> str:
        """A cell, or the default where it is empty."""
        return self.cells.get(name, default)

    def size(self, name: str) -> int:
        """A whole number from 1 on.

        Raises:
            InputError: it is something else, or missing.
        """
        number = self._number(name)
        if not number.is_integer() or not 1 <= number <= _LARGEST_SIZE:
            self.refuse(name, "a whole number of 1 or more")
        return int(number)

    def size_or_none(self, name: str) -> int | None:
        """As `size`; None where the cell is empty."""
        return self.size(name) if name in self.cells else None

    def seconds(self, name: str, *, unit_seconds: float = 1.0) -> float:
        """A time from a picosecond on, in seconds.

        Raises:
            InputError: it is something else, or missing.
        """
        number = self._number(name)
        if not SMALLEST_SECONDS <= number * unit_seconds <= LARGEST_SECONDS:
            self.refuse(name, "a time above 0, from 1e-12 s to 1e9 s")
        return number * unit_seconds

    def seconds_or_none(self, name: str, *, unit_seconds: float = 1.0) -> float | None:
        """As `seconds`; None where the cell is empty."""
        return self.seconds(name, unit_seconds=unit_seconds) if name in self.cells else None

    def share(self, name: str) -> float:
        """A relative amount of 0 or more.

        Raises:
            InputError: it is something else, or missing.
        """
        number = self._number(name)
        if number < 0:
            self.refuse(name, "a number of 0 or more")
        return number

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise that a cell is not what was expected."""
        found = self.cells.get(name)
        shown = "nothing" if found is None else repr(found[:_SHOWN])
        raise InputError(shown, expected, path=self.path, line=self.line, column=name)

    def _number(self, name: str) -> float:
        text = self.cells.get(name, "")
        try:
            number = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.refuse(name, "a finite number")
        return number


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        header: column names, outer blanks removed.
        rows: its lines; blank ones are left out.
        path: the file as named.
        sha256: digest of its bytes.
    """

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    path: str
    sha256: str


def read_table(path: str | Path, *, what: str) -> Table:
    """Read a table; the header's first of tab, comma, semicolon and bar divides the cells.

    Raises:
        InputError: with file and line of the first fault.
    """
    data = read_bytes(path, max_bytes=MAX_FILE_BYTES, what=what)
    lines = _lines(decode_text(data, path=path, what=what), path, what)
    _, header = next(lines, (0, []))
    if not header:
        raise InputError("an empty file", f"{what}: a line of column names", path=path)
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"column {twice[:_SHOWN]!r} twice", "each column once", path=path, line=1)
    rows = []
    for line, cells in lines:
        if len(cells) != len(header):
            raise InputError(f"{len(cells)} cells", f"{len(header)}, as in the header", path=path, line=line)
        named = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
        rows.append(Row(named, str(path), line))
        if len(rows) > _MAX_ROWS:
            raise InputError(f"more than {_MAX_ROWS} rows", "at most that", path=path)
    if not rows:
        raise InputError("no row", f"{what}: at least one measurement", path=path)
    return Table(tuple(header), tuple(rows), str(path), hashlib.sha256(data).hexdigest())


def header_of(line: str) -> tuple[str, ...]:
    """The column names in a file's first line; none where it is no line of them."""
    try:
        cells = next(csv.reader([line], delimiter=_delimiter(line)), [])
    except csv.Error:
        return ()
    return tuple(cell.strip() for cell in cells)


def _delimiter(line: str) -> str:
    return next((mark for mark in _DELIMITERS if mark in line), ",")


def _lines(text: str, path: str | Path, what: str) -> Iterator[tuple[int, list[str]]]:
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(first), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise InputError(str(error), f"{what}: rows of cells", path=path, line=reader.line_num) from None
