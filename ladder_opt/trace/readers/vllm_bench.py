"""vLLM `bench serve --save-detailed` results: parallel arrays, one entry a request, to rows.

`start_times` are the client's `time.perf_counter()` when each request was sent: a monotonic clock
with no meaning but its differences, and 0.0 for a request that never got that far. Results from before
`start_times` was saved give lengths without arrivals. With `--append-result` a file holds one result a
line; their arrays are joined.
"""

from __future__ import annotations

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.json_file import Record, Records
from ladder_opt.trace.readers.table import RawTable, shown

_NEEDED = ("input_lens", "output_lens")
_OPTIONAL = ("start_times", "errors")
_TIMINGS = ("ttfts", "itls")
_UNDETAILED = frozenset({"total_input_tokens", "total_output_tokens", "completed"})


def is_result(record: Record) -> bool:
    """Whether a JSON object is such a result, with its details or without."""
    return set(_NEEDED) <= record.keys() or record.keys() >= _UNDETAILED


def bench_table(records: Records, path: str, *, timed: bool = False) -> RawTable:
    """All results' arrays end to end, with the tokens' timings where they are asked for.

    Raises:
        InputError: an array is missing, no list, or of another length than `input_lens`.
    """
    optional = _OPTIONAL + (_TIMINGS if timed else ())
    columns: dict[str, list[object]] = {name: [] for name in _NEEDED + optional}
    lines: list[int] = []
    elements: list[int] = []
    for record, line in zip(records.objects, records.lines, strict=True):
        requests = len(_array(record, "input_lens", path, line))
        for name, cells in columns.items():
            if name in optional and name not in record:
                continue
            values = _array(record, name, path, line)
            if len(values) != requests:
                raise InputError(
                    f"{len(values)} {name}",
                    f"{requests}, one for each input_lens",
                    path=path,
                    line=line,
                    column=name,
                )
            cells.extend(values)
        lines.extend([line] * requests)
        elements.extend(range(requests))
    for name in optional:
        if columns[name] and len(columns[name]) != len(lines):
            raise InputError(
                f"{name} in some results and not in others", "it in all or none", path=path, column=name
            )
    kept = {name: cells for name, cells in columns.items() if name in _NEEDED or cells}
    return RawTable(
        kept,
        len(lines),
        lines=lines,
        elements=elements,
        column_first=True,
        broken=records.broken,
        first_broken=records.first_broken,
    )


def _array(record: Record, name: str, path: str, line: int) -> list[object]:
    values = record.get(name)
    if isinstance(values, list):
        return values
    found = f"no {name}" if name not in record else shown(values)
    hint = " (was the result saved with --save-detailed?)" if name not in record else ""
    raise InputError(found, f"a list of one {name[:-1]} a request{hint}", path=path, line=line, column=name)
