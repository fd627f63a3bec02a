"""The console that results are printed on: readable in a pipe, and no line ends in blanks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

MIN_WIDTH = 100


class _Trimmed:
    """A renderable without the blanks that tables pad their last column with."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._renderable, options)):
            yield from reversed(list(_without_last_blanks(line)))
            yield Segment.line()


class _TrimmingConsole(Console):
    """Prints renderables trimmed."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(each if isinstance(each, str) else _Trimmed(each) for each in objects), **options)


def console(*, stderr: bool = False) -> Console:
    """A console that never wraps tables below a readable width, also in a pipe."""
    # Progress bars go to stderr, and paint over what they padded.
    kind = Console if stderr else _TrimmingConsole
    made = kind(stderr=stderr, highlight=False, soft_wrap=False)
    if made.width < MIN_WIDTH and not made.is_terminal:
        made.width = MIN_WIDTH
    return made


def _without_last_blanks(line: list[Segment]) -> Iterator[Segment]:
    """A line's segments, last first."""
    seen = False
    for segment in reversed(line):
        if seen or segment.control:
            yield segment
            continue
        text = segment.text.rstrip(" ")
        if text:
            seen = True
            yield Segment(text, segment.style)
