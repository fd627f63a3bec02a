"""CSV to raw columns: by header name, with exact line numbers, and no row lost unseen."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from operator import itemgetter

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.table import Problem, RawTable, shown

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
            self.header = [name.strip() for name in next(filter(None, reader))]
        except (csv.Error, StopIteration) as error:
            reason = f"no CSV header ({error})" if str(error) else "no CSV header"
            raise InputError(reason, "a line of column names", path=path, line=max(reader.line_num, 1)) from None

    def table(self, names: Sequence[str]) -> RawTable:
        """The named columns, which the header has to hold once each.

        A row with more or fewer cells than the header is broken: its cells cannot be told apart. A
        broken row that spans several lines (a quote never closed) counts as that many rows.

        Raises:
            InputError: a column is named twice in the header.
        """
        positions = [self._position(name) for name in names]
        pick = itemgetter(*positions) if len(positions) > 1 else None
        width = len(self.header)
        reader = self._reader()
        picked: list[tuple[str, ...]] = []
        lines: list[int] = []
        broken = 0
        first: Problem | None = None
        header_seen = False
        previous = 0
        while True:
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                problem = Problem(f"a row that is no CSV ({error})", f"{width} cells", line=previous + 1)
                first = first or problem
                broken += 1
                previous = reader.line_num
                continue
            if len(row) == width and header_seen:
                picked.append(pick(row) if pick else (row[positions[0]],))
                lines.append(previous + 1)
            elif row and header_seen:
                first = first or self._misfit(row, previous + 1)
                broken += reader.line_num - previous
            elif row:
                header_seen = True
            previous = reader.line_num
        columns = dict(zip(names, zip(*picked, strict=True), strict=True)) if picked else {n: () for n in names}
        return RawTable(columns, len(picked), lines=lines, broken=broken, first_broken=first)

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

    def _reader(self) -> _csv_reader:
        return csv.reader(io.StringIO(self._text, newline=""), delimiter=self._delimiter)


if False:  # typing only: the csv module does not export its reader's class
    from _csv import _reader as _csv_reader
