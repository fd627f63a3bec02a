"""Raw columns: what every container (CSV, JSON, Parquet) turns into before any value is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError

Cells = Sequence[object] | NDArray[Any]

_SHOWN_CHARACTERS = 40


class _Missing:
    """A cell that is not there: an absent JSON key."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def shown(cell: object) -> str:
    """A cell as a message quotes it: one line, printable, cut when long."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    match cell:
        case str():
            cut = cell[:_SHOWN_CHARACTERS]
            text = (repr(cut) + "..." * (len(cell) > len(cut))) if cell else "an empty cell"
        case bool():
            text = "true" if cell else "false"
        case int():
            short = abs(cell) < 10**_SHOWN_CHARACTERS
            text = str(cell) if short else f"an integer of {cell.bit_length()} bits"
        case dict():
            text = "an object"
        case list():
            text = "a list"
        case _:
            text = "nothing" if cell is None or cell is MISSING else repr(cell)[:_SHOWN_CHARACTERS]
    return text


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be read.

    Attributes:
        found: what stood there, as `shown` puts it.
        expected: what should have.
        line: 1-based line (Parquet: row), where known.
        column: the column or key path, where it is one cell's fault.
    """

    found: str
    expected: str
    line: int | None = None
    column: str | None = None

    def error(self, path: str) -> InputError:
        """The same as an error."""
        return InputError(self.found, self.expected, path=path, line=self.line, column=self.column)


@dataclass(frozen=True)
class RawTable:
    """Columns as they stand in a file, in file order.

    Attributes:
        columns: cells by column name, each of `rows` length.
        rows: number of rows that have cells.
        lines: 1-based line of each row, or None where lines mean nothing (then rows are counted).
        elements: index of each row within its line, where one line holds many rows.
        column_first: such a row is `column[index]` (arrays side by side), not `[index].column` (a list).
        broken: rows that have no cells at all, counted.
        first_broken: the first of them.
        notes: remarks for the reader, one line each.
    """

    columns: Mapping[str, Cells]
    rows: int
    lines: Sequence[int] | None = None
    elements: Sequence[int] | None = None
    column_first: bool = False
    broken: int = 0
    first_broken: Problem | None = None
    notes: tuple[str, ...] = ()

    def place(self, row: int, column: str) -> tuple[int, str]:
        """Line and column (key path) of a cell, for a message."""
        line = row + 1 if self.lines is None else self.lines[row]
        if self.elements is None:
            return line, column
        index = self.elements[row]
        return line, f"{column}[{index}]" if self.column_first else f"[{index}].{column}"
