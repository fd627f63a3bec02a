"""JSON to records: one object a line (JSONL), a list, or documents one after another.

Only the shape is settled here; `records_table` lays objects out as columns by key.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.table import MISSING, Problem, RawTable, shown

Record = dict[str, object]

_BEGINS = re.compile(r"\s*[{\[]")
_BETWEEN = re.compile(r"[ \t\r\n,]*")  # what may stand between two documents
_BATCH_LINES = 500
_TRIED_LINES = 20  # looked through for one that is an object, when the first is not


@dataclass(frozen=True)
class Records:
    """The objects of a JSON file.

    Attributes:
        objects: in file order.
        lines: 1-based line at which each begins (a list's entries: where the list does).
        indices: place of each within its list; None for JSONL.
        broken: entries that are no objects, counted.
        first_broken: the first of them.
    """

    objects: list[Record]
    lines: list[int]
    broken: int = 0
    first_broken: Problem | None = None
    indices: list[int] | None = None


def looks_like_json(text: str) -> bool:
    """Whether the text begins as a JSON object or list does."""
    return _BEGINS.match(text) is not None


def read_records(text: str, path: str) -> Records:
    """The objects in a JSON text, whichever of the three shapes it has.

    In JSONL a line that is no object is counted as broken; a fault within a document is fatal, for
    there is no next line to go on from.

    Raises:
        InputError: the text is no JSON.
    """
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    if isinstance(_value(first)[0], dict):
        return _by_line(text)
    try:
        return _by_document(text, path)
    except InputError:
        head = [line for line, _ in zip(io.StringIO(text), range(_TRIED_LINES), strict=False)]
        if any(isinstance(_value(line)[0], dict) for line in head):
            return _by_line(text)
        raise


def records_table(records: Records, names: Sequence[str]) -> RawTable:
    """The named keys as columns; an object without a key has `MISSING` there."""
    columns = {name: [record.get(name, MISSING) for record in records.objects] for name in names}
    return RawTable(
        columns,
        len(records.objects),
        lines=records.lines,
        elements=records.indices,
        broken=records.broken,
        first_broken=records.first_broken,
    )


def _value(text: str) -> tuple[object, str]:
    """The one JSON value in a text, or MISSING and what is wrong with it."""
    try:
        return json.loads(text), ""
    except json.JSONDecodeError as error:
        return MISSING, f"no JSON ({error.msg} at character {error.pos + 1})"
    except RecursionError:
        return MISSING, "JSON nested too deeply"
    except ValueError:  # an integer of more digits than Python will turn into one
        return MISSING, "JSON with a number too long to read"


def _by_line(text: str) -> Records:
    objects: list[Record] = []
    lines: list[int] = []
    broken = 0
    first: Problem | None = None
    source = io.StringIO(text)
    number = 0
    while batch := list(islice(source, _BATCH_LINES)):
        whole = _batch(batch)
        if whole is not None:
            objects.extend(whole)
            lines.extend(range(number + 1, number + 1 + len(batch)))
            number += len(batch)
            continue
        for line in batch:
            number += 1
            value, fault = _value(line)
            if isinstance(value, dict):
                objects.append(value)
                lines.append(number)
            elif line.strip():
                broken += 1
                first = first or Problem(fault or shown(value), "one JSON object a line", line=number)
    return Records(objects, lines, broken, first)


def _batch(batch: list[str]) -> list[Record] | None:
    """A batch of lines parsed in one go, twice as fast, when each is plainly one object; else None."""
    trimmed = [line.strip() for line in batch]
    if not all(line[:1] == "{" and line[-1:] == "}" for line in trimmed):
        return None
    values = _value(f"[{','.join(trimmed)}]")[0]
    if isinstance(values, list) and len(values) == len(batch) and set(map(type, values)) == {dict}:
        return values
    return None


def _by_document(text: str, path: str) -> Records:
    decoder = json.JSONDecoder()
    objects: list[Record] = []
    lines: list[int] = []
    indices: list[int] = []
    broken = 0
    first: Problem | None = None
    position = 0
    line = 1
    while True:
        blank = _BETWEEN.match(text, position)
        start = position if blank is None else blank.end()
        line += text.count("\n", position, start)
        if start >= len(text):
            return Records(objects, lines, broken, first, indices)
        try:
            value, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise InputError(
                f"no JSON ({error.msg})",
                "a JSON value",
                path=path,
                line=error.lineno,
                column=f"character {error.colno}",
            ) from None
        except RecursionError:
            raise InputError("JSON nested too deeply", "a trace", path=path, line=line) from None
        except ValueError:
            raise InputError("JSON with a number too long to read", "a trace", path=path, line=line) from None
        entries = value if isinstance(value, list) else [value]
        for index, entry in enumerate(entries, start=0 if isinstance(value, list) else len(objects)):
            if isinstance(entry, dict):
                objects.append(entry)
                lines.append(line)
                indices.append(index)
            else:
                broken += 1
                first = first or Problem(shown(entry), "a JSON object", line=line, column=f"[{index}]")
        line += text.count("\n", start, position)
