"""What a server records beside its steps file: how long it counted, and what its ladders did meanwhile.

`steps-*.csv` is a steps histogram like any other. The `steps-*.json` beside it holds what a histogram cannot:

    {"schema": "ladder_opt/record/1", "instance": "...", "rank": 0, "started": "...", "seconds": f,
     "engine": {...}, "kernel": "chunked", "source": "plan.json",
     "ladders": {"num_seqs": [...], "num_blocks": [...], "ragged": null},
     "steps": {"batched": i, "per_sequence": i}, "gathers": {"real": i, "ragged_floor": i, "padded": i},
     "late_compiles": i, "version": "..."}

A folder of them reads as one histogram, the sum of its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.files import is_folder, read_text
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.steps_file import StepsFile, read_steps
from ladder_opt.validation import check_schema, load_json_object, shown

RECORD_SCHEMA = "ladder_opt/record/1"
_PREFIX = "steps-"
STEPS_GLOB = f"{_PREFIX}*"
_SUFFIXES = (".csv", ".parquet")
_MAX_RECORD_BYTES = 1 << 20


def record_stem(*, started: str, instance: str, rank: int) -> str:
    """Name, without suffix, of what an engine of a server records.

    Args:
        started: when, such that names sort by it; `*` for a pattern of all of them.
        instance: the server, the same for all its processes.
        rank: the engine's number among the server's engines.
    """
    return f"{_PREFIX}{started}-{instance}-rank{rank}"


@dataclass(frozen=True)
class RecordedSteps:
    """Steps files read together.

    Attributes:
        steps: their sum.
        files: each of them as read.
        seconds: server time that they cover in all; None unless every one of them says so.
        warnings: what a person should know.
    """

    steps: StepHistogram
    files: tuple[StepsFile, ...]
    seconds: float | None
    warnings: tuple[str, ...]


@checked
def read_recorded_steps(paths: Sequence[str | Path], engine: Engine | None = None) -> RecordedSteps:
    """Read steps files, and all of those in folders, as one histogram.

    Raises:
        InputError: a file cannot be used, a folder holds none, or a record was made by an engine of another
            block_size or min_batched_seqs.
    """
    found = [file for path in paths for file in steps_files(path)]
    known_files: set[Path] = set()
    for file in found:
        if Path(file).resolve() in known_files:
            raise InputError("a steps file named twice", "each file once", path=file)
        known_files.add(Path(file).resolve())
    files: list[StepsFile] = []
    seconds: list[float | None] = []
    warnings: list[str] = []
    for file in found:
        record = _record_of(file)
        if record is not None:
            warnings += _check_engine(record, engine, file)
        read = read_steps(file, engine)
        files.append(read)
        seconds.append(None if record is None else record["seconds"])
        warnings += read.warnings
    know_real = [read.steps.gathers_real is not None for read in files]
    if any(know_real) and not all(know_real):
        missing = files[know_real.index(False)].path
        warnings.append(
            f"{missing} has no gathers_real: of all the files every sequence is taken as long as the longest"
        )
    known = [each for each in seconds if each is not None]
    return RecordedSteps(
        StepHistogram.sum_of(read.steps for read in files),
        tuple(files),
        sum(known) if len(known) == len(files) else None,
        tuple(warnings),
    )


def steps_files(path: str | Path) -> list[str]:
    """The path itself, or where it is a folder, the steps files in it.

    Raises:
        InputError: a folder without any.
    """
    if not is_folder(path):
        return [str(path)]
    files = sorted(str(file) for file in Path(path).glob(STEPS_GLOB) if file.suffix in _SUFFIXES)
    if not files:
        raise InputError("no steps file", f"a folder of {STEPS_GLOB}.csv", path=path)
    return files


def _record_of(path: str) -> dict[str, Any] | None:
    """The record beside a steps file, or None where there is none."""
    beside = Path(path).with_suffix(".json")
    if not beside.is_file() or not beside.name.startswith(_PREFIX):
        return None
    text = read_text(beside, max_bytes=_MAX_RECORD_BYTES, what="a record")
    data = load_json_object(text, path=beside, what="a record")
    check_schema(data, family="ladder_opt/record", major=1, path=beside)
    seconds = data.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InputError(shown(seconds), "seconds of 0 or more", path=beside, column="seconds")
    if not isinstance(data.get("engine"), dict):
        raise InputError(shown(data.get("engine")), "an engine", path=beside, column="engine")
    return data


def _check_engine(record: dict[str, Any], engine: Engine | None, path: str) -> list[str]:
    """Refuse blocks of another size, which count other pages; tell of limits that differ."""
    if engine is None:
        return []
    beside = Path(path).with_suffix(".json")
    recorded = Engine.from_dict(record["engine"], path=beside)
    for name in ("block_size", "min_batched_seqs"):
        found, expected = getattr(recorded, name), getattr(engine, name)
        if found != expected:
            raise InputError(
                f"steps recorded with {name} {found}", f"{expected} (--{name.replace('_', '-')})", path=beside
            )
    return [
        f"{beside}: recorded with {name} {getattr(recorded, name)}, the engine's is {getattr(engine, name)}"
        for name in ("max_num_seqs", "max_model_len", "max_num_batched_tokens")
        if getattr(recorded, name) != getattr(engine, name)
    ]
