"""CSV to raw columns: by header name, with exact line numbers, and no row lost unseen."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.table import Problem, RawTable, shown

if TYPE_CHECKING:
    from _csv import Reader as _CsvReader  # the csv module does not export its reader's class

_CHUNK_ROWS = 4096
_CELL_CHARACTERS = 1 << 26  # logs keep whole prompts in a cell; csv's own limit is 1 << 17
_DELIMITERS = ",;\t|"


class CsvFile:
    """A CSV text whose header has been read.

    Attributes:
        header: column names, outer blanks removed.
    """

    def __init__(self, text: str, path: str) -> None:
        """Read the header.

        Raises:
            InputError: there is none.
        """
        self._text = text
        self._path = path
        first = next((line for line in io.StringIO(text) if line.strip()), "")
        self._delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
        reader = self._reader()
        try:
            with _long_cells():
                self.header = [name.strip() for name in next(filter(None, reader))]
        except (csv.Error, StopIteration) as error:
            reason = f"no CSV header ({error})" if str(error) else "no CSV header"
            raise InputError(
                reason, "a line of column names", path=path, line=max(reader.line_num, 1)
            ) from None

    def table(self, names: Sequence[str]) -> RawTable:
        """The named columns, which the header has to hold once each.

        A row with more or fewer cells than the header is broken: its cells cannot be told apart. A
        broken row that spans several lines (a quote never closed) counts as that many rows.

        Raises:
            InputError: a column is named twice in the header.
        """
        positions = [self._position(name) for name in names]
        with _long_cells():
            return self._regular(names, positions) or self._irregular(names, positions)

    def _regular(self, names: Sequence[str], positions: list[int]) -> RawTable | None:
        """The table when every line is one row of the header's width, else None; ten times as fast."""
        width = len(self.header)
        reader = self._reader()
        columns: list[list[str]] = [[] for _ in positions]
        rows = 0
        try:
            if len(next(reader)) != width or reader.line_num != 1:
                return None
            while chunk := list(islice(reader, _CHUNK_ROWS)):
                rows += len(chunk)
                if reader.line_num != rows + 1 or set(map(len, chunk)) != {width}:
                    return None
                for column, position in zip(columns, positions, strict=True):
                    column.extend(map(itemgetter(position), chunk))
        except csv.Error:
            return None
        return RawTable(dict(zip(names, columns, strict=True)), rows, lines=range(2, rows + 2))

    def _irregular(self, names: Sequence[str], positions: list[int]) -> RawTable:
        """The table row by row, blank lines left out and every other misfit counted."""
        width = len(self.header)
        reader = self._reader()
        columns: list[list[str]] = [[] for _ in positions]
        lines: list[int] = []
        broken = 0
        first: Problem | None = None
        header_seen = False
        while True:
            line = reader.line_num + 1
            row: list[str] | None = None
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                problem = Problem(f"a row that is no CSV ({error})", f"{width} cells", line=line)
            if row is None or (row and header_seen and len(row) != width):
                first = first or (problem if row is None else self._misfit(row, line))
                broken += max(1, reader.line_num + 1 - line)
            elif row and header_seen:
                lines.append(line)
                for column, position in zip(columns, positions, strict=True):
                    column.append(row[position])
            header_seen = header_seen or bool(row)
        table = dict(zip(names, columns, strict=True))
        return RawTable(table, len(lines), lines=lines, broken=broken, first_broken=first)

    def _misfit(self, row: list[str], line: int) -> Problem:
        cells = f"{len(row)} cell{'s' * (len(row) != 1)}"
        return Problem(f"{cells} ({shown(row[0])}, ...)", f"{len(self.header)} as in the header", line=line)

    def _position(self, name: str) -> int:
        if self.header.count(name) > 1:
            first = self.header.index(name)
            again = self.header.index(name, first + 1)
            raise InputError(
                f"column {shown(name)} twice (columns {first + 1} and {again + 1})",
                "each column once",
                path=self._path,
                line=1,
                column=name,
            )
        return self.header.index(name)

    def _reader(self) -> _CsvReader:
        return csv.reader(io.StringIO(self._text, newline=""), delimiter=self._delimiter)


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Lift the csv module's limit on a cell, which holds for the whole process, for a while."""
    before = csv.field_size_limit(_CELL_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)
