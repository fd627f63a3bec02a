"""The history of a plan's drift: one JSON object a line, one line a run, to be plotted.

A run takes the lock of the file's folder, reads what is there, and puts the file with its line at the end in
its place. So the file is whole whenever it is read, a run that is killed leaves it as it was, and of two runs
at once none loses its line. Other writers may tear a line: it is kept, told of, and left out of the table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ladder_opt.arguments import checked
from ladder_opt.errors import InputError, UsageError
from ladder_opt.extras import brought_by
from ladder_opt.files import read_text, write_text
from ladder_opt.monitor.result import Drift
from ladder_opt.validation import check_schema, load_json_object

if TYPE_CHECKING:
    import pandas as pd

HISTORY_SCHEMA: Final = "ladder_opt/drift-history/1"
MAX_HISTORY_BYTES: Final = 64 << 20
_BEGINNING: Final = '{"schema": "ladder_opt/drift-history/'
_PARTS: Final = ("rate", "length", "mix", "cost")


@checked
def history_record(drift: Drift, *, time: dt.datetime | None = None) -> dict[str, Any]:
    """The line of one run.

    Args:
        drift: its result.
        time: when it was; default: now.
    """
    worst = drift.worst
    when = (time or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    return {
        "schema": HISTORY_SCHEMA,
        "time": when.isoformat(timespec="seconds"),
        "plan_sha256": drift.plan_digest,
        "plan_created": drift.plan_created,
        "inputs": [each.path for each in drift.inputs],
        "workload": worst.name,
        "cost_name": drift.cost_name,
        "cost_changed": drift.cost_changed,
        "regret": drift.regret,
        "regret_seconds": drift.regret_seconds,
        "max_regret": drift.max_regret,
        "is_over": drift.is_over,
        "objective_seconds": worst.objective_seconds,
        "optimum_seconds": worst.optimum_seconds,
        "default_seconds": worst.default_seconds,
        "restarts": worst.restarts,
        "steps": worst.steps,
        "batched_steps": worst.batched_steps,
        "requests": worst.requests,
        "overpay": worst.overpay,
        "dead_rungs": len(drift.dead_rungs),
        "dead_variants": len(drift.dead_variants),
        **{f"part_{name}": None if drift.parts is None else getattr(drift.parts, name) for name in _PARTS},
    }


@checked
def append_history(path: str | Path, record: dict[str, Any]) -> list[str]:
    """Add a line to a history, or begin one.

    Lines that are no whole JSON object, as a writer leaves that dies in the middle of one, stay as they are,
    and the new line begins after them.

    Returns:
        What to know of the lines that stand there: one line of text for all that are torn, or none.

    Raises:
        InputError: the file is no history, or cannot be read or written.
        UsageError: the record is no JSON.
    """
    try:
        line = json.dumps(record, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"append_history: found {error}, expected a record of history_record") from None
    if record.get("schema") != HISTORY_SCHEMA:
        raise UsageError(
            f"append_history: found schema {record.get('schema')!r}, expected a record of history_record"
        )
    if Path(path).exists() and not Path(path).is_file():
        raise InputError("a folder, pipe, socket or device", "a history of drift, a file", path=path)
    folder = Path(os.path.realpath(path)).parent
    with _locked(folder):
        before, told = "", []
        if Path(path).is_file():
            before = read_text(path, max_bytes=MAX_HISTORY_BYTES, what="a history of drift")
            records, torn = _records(before, path)
            told = _told(torn, len(records), path)
        if before and not before.endswith("\n"):
            before += "\n"
        write_text(path, before + line)
    return told


@checked
def read_drift_history(path: str | Path) -> pd.DataFrame:
    """A history as a table, a row a run, indexed by `time` (UTC), oldest first.

    Lines that are no whole JSON object, as a writer leaves that dies in the middle of one, are left out with
    a `UserWarning` that counts them.

    Raises:
        InputError: the file cannot be read, or a line is whole and no run.
    """
    with brought_by("frames"):
        import pandas as pd  # noqa: PLC0415

    records, torn = _records(read_text(path, max_bytes=MAX_HISTORY_BYTES, what="a history of drift"), path)
    for line in _told(torn, len(records), path):
        warnings.warn(line, stacklevel=2)
    frame = pd.DataFrame(
        [{name: value for name, value in each.items() if name != "schema"} for each in records]
    )
    if frame.empty:
        return frame
    frame["time"] = pd.to_datetime(frame["time"], utc=True)
    return frame.set_index("time").sort_index(kind="stable")


def _records(text: str, path: str | Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The runs, and the numbers of the lines that are torn."""
    records, torn = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if _is_torn(line):
            torn.append(number)
            continue
        try:
            record = load_json_object(line, path=path, what="a run")
            check_schema(record, family="ladder_opt/drift-history", major=1, path=path)
            _check(record, path)
        except InputError as error:
            raise InputError(
                error.found, error.expected, path=path, line=number, column=error.column
            ) from None
        records.append(record)
    return records, torn


def _is_torn(line: str) -> bool:
    """Whether a line begins as ours do and is not JSON to its end; or holds a lost block's zeros alone."""
    line = line.strip("\0 \r")
    if not line:
        return True
    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _told(torn: Sequence[int], whole: int, path: str | Path) -> list[str]:
    """What to say of torn lines."""
    if not torn:
        return []
    lines = f"line {torn[0]} is" if len(torn) == 1 else f"lines {', '.join(map(str, torn))} are"
    return [f"{path}: {lines} torn and left as found; {whole} whole ones count"]


def _check(record: dict[str, Any], path: str | Path) -> None:
    try:
        dt.datetime.fromisoformat(record["time"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            repr(record.get("time")), "a time such as 2026-09-30T04:00:00+00:00", path=path, column="time"
        ) from None
    regret = record.get("regret")
    if isinstance(regret, bool) or not isinstance(regret, int | float):
        raise InputError(repr(regret), "a number", path=path, column="regret")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which outlives no process and leaves no file behind."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(error.strerror or str(error), "a folder that can be written", path=folder) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
