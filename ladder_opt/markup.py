"""Small pieces of HTML: text that is escaped, tables, and the quantities in them.

Whatever comes from a file or a file's name goes through `text`, which leaves nothing that a browser would
take for markup, whichever element or attribute it stands in.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hover:
    """A cell that shows something short, and all of it to those who hover."""

    shown: object
    whole: object


_NUMBER_STYLE = ' style="text-align:right"'


def text(value: object) -> str:
    """A value as HTML text, good in attributes too; control characters are shown escaped."""
    return html.escape(printable(str(value)), quote=True)


def printable(value: str) -> str:
    """Text on one line, control and bidirectional characters and lone surrogates escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str | None = None,
    first_is_header: bool = True,
    css_class: str | None = None,
) -> str:
    """A table; each row's first cell is its header, the other cells are numbers, to the right.

    Args:
        columns: headings.
        rows: cells, as `text` takes them, or `Hover`.
        caption: what the table is of.
        first_is_header: whether the first cell of a row names it.
        css_class: of the table.
    """
    tag = "table" if css_class is None else f'table class="{text(css_class)}"'
    lines = [f"<{tag}>"]
    if caption is not None:
        lines.append(f"<caption>{text(caption)}</caption>")
    heads = "".join(
        f'<th scope="col"{"" if not index else _NUMBER_STYLE}>{text(name)}</th>'
        for index, name in enumerate(columns)
    )
    lines.append(f"<thead><tr>{heads}</tr></thead>")
    lines.append("<tbody>")
    for row in rows:
        cells = []
        for index, value in enumerate(row):
            if not index and first_is_header:
                cells.append(f'<th scope="row">{_cell(value)}</th>')
            else:
                cells.append(f"<td{_NUMBER_STYLE if index else ''}>{_cell(value)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</tbody></table>")
    return "\n".join(lines)


def facts(rows: Iterable[tuple[str, object]], *, caption: str | None = None) -> str:
    """A table of two columns, name and value, both to the left."""
    lines = ["<table>"]
    if caption is not None:
        lines.append(f"<caption>{text(caption)}</caption>")
    lines.append("<tbody>")
    lines += [
        f'<tr><th scope="row" style="text-align:left">{text(name)}</th>'
        f'<td style="text-align:left">{_cell(value)}</td></tr>'
        for name, value in rows
    ]
    lines.append("</tbody></table>")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, Hover):
        return f'<span title="{text(value.whole)}">{text(value.shown)}</span>'
    return text(value)


def joined(rungs: Sequence[int], *, most: int | None = None) -> str:
    """Rungs for people; with `most`, the middle of a long ladder is left out and counted."""
    if not rungs:
        return "none"
    if most is None or len(rungs) <= most:
        return ", ".join(map(str, rungs))
    head, tail = rungs[: most - 2], rungs[-1:]
    left_out = len(rungs) - len(head) - len(tail)
    return f"{', '.join(map(str, head))}, ... {left_out} more ..., {tail[0]}"
