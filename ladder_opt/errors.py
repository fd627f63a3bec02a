"""Errors a caller can tell apart: a user's mistake, and a bug of ours.

`InputError` and `UsageError` are the user's to mend and print as one line that says what was
found, what was expected and where. `InternalError` means that one of our own checks failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_SHORTEST_START = 3  # letters of a name that tell which one is meant
_MOST_NAMED = 3
_ALIKE = 0.75  # difflib's ratio from which on a name may have been meant: one slip in four letters


class LadderOptError(Exception):
    """Base class of everything this package raises on purpose."""


class UsageError(LadderOptError, ValueError):
    """An option or argument is out of range or contradicts another one."""


class InputError(LadderOptError, ValueError):
    """A file's content is not what its format promises.

    Attributes:
        found: what stood there.
        expected: what should have stood there.
        path: the file, where there is one.
        line: 1-based line number, where there is one.
        column: name or number of the column (or key path), where there is one.
    """

    def __init__(
        self,
        found: str,
        expected: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        column: str | int | None = None,
    ) -> None:
        self.found = found
        self.expected = expected
        self.path = None if path is None else str(path)
        self.line = line
        self.column = column
        super().__init__(found, expected)

    @property
    def where(self) -> str:
        """`FILE:LINE: column C`, as much of it as is known."""
        place = self.path or ""
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
        if self.column is not None:
            place += f"{': ' if place else ''}{self.column}"
        return place

    def __str__(self) -> str:
        place = self.where
        text = f"{place + ': ' if place else ''}found {self.found}, expected {self.expected}"
        return " ".join(text.split())  # one line, whatever the file held


def one_of(names: Iterable[str], found: object, *, other: str = "") -> str:
    """What a message expects where `found` is none of some names: all of them, and the nearest one.

    Args:
        names: what would have done.
        found: what stood there.
        other: something else that would have done, such as a file.
    """
    names = list(names)
    return f"one of {', '.join(names)}{other}{did_you_mean(found, names)}"


def did_you_mean(found: object, names: Iterable[str], *, ignoring: str = "") -> str:
    """`; did you mean NAME?` where one is near, or some begin so; else nothing.

    Args:
        found: what stood there.
        names: what would have done.
        ignoring: what all names begin with, which makes none of them alike.
    """
    import difflib  # noqa: PLC0415  (only for a message)

    by_folded = {name.removeprefix(ignoring).lower(): name for name in names}
    folded = str(found)[:100].removeprefix(ignoring).lower()
    near = []
    if len(folded) >= _SHORTEST_START:
        near = [name for name in by_folded if name.startswith(folded)]
    near = near or difflib.get_close_matches(folded, by_folded, n=1, cutoff=_ALIKE)
    if not 0 < len(near) <= _MOST_NAMED:
        return ""
    return f"; did you mean {' or '.join(by_folded[name] for name in near)}?"


class SolveError(LadderOptError, ValueError):
    """The limits asked for leave no ladder at all, or none was found in the time given."""


class InternalError(LadderOptError, RuntimeError):
    """Two parts of this package disagree: a bug to report, never the user's mistake."""
