"""The canonical file: an equal trace comes back, and nothing else passes for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ladder_opt.errors import InputError
from ladder_opt.trace.parquet import PROVENANCE_KEY, SCHEMA_KEY, read_canonical, write_trace
from ladder_opt.trace.read import detect_format, read_trace
from ladder_opt.trace.table import HashIds, Trace, TraceSource

FULL = Trace(
    arrival_seconds=np.array([0.0, 0.1 + 0.2, 1e9]),
    prompt_tokens=np.array([3, 2, 2**31 - 1]),
    output_tokens=np.array([1, 2, 3]),
    cached_tokens=np.array([0, 2, 0]),
    priority=np.array([0, -3, 7]),
    session=np.array(["a", "", "=ü"], dtype=object),
    sources=(TraceSource("a.csv", "0f", 9, "azure"), TraceSource("b.csv", "1f", 3, "columns")),
    set_aside={"zero_output": 6, "failed": 3},
    notes=("a note", "another"),
)
LENGTHS = Trace(arrival_seconds=None, prompt_tokens=np.array([3]), output_tokens=np.array([1]))
EMPTY = Trace(
    arrival_seconds=np.zeros(0),
    prompt_tokens=np.zeros(0, dtype=np.int64),
    output_tokens=np.zeros(0, dtype=np.int64),
    session=np.zeros(0, dtype=object),
    set_aside={"zero_output": 2},
)


@pytest.mark.parametrize("trace", [FULL, LENGTHS, EMPTY])
def test_round_trip_is_equal(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.parquet"
    write_trace(trace, path)
    assert detect_format(path) == "ladder_opt"
    for again in (read_trace(path), read_trace(path, format="ladder_opt"), read_canonical(path)):
        for name in (
            "arrival_seconds",
            "prompt_tokens",
            "output_tokens",
            "cached_tokens",
            "priority",
            "session",
        ):
            one, other = getattr(trace, name), getattr(again, name)
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.tolist(), one.dtype) == (other.tolist(), other.dtype)
        assert (again.sources, dict(again.set_aside), again.notes) == (
            trace.sources,
            dict(trace.set_aside),
            trace.notes,
        )


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(FULL, path)
    before = path.read_bytes()
    bad = Trace(**{**FULL.__dict__, "session": np.array(["a", 1, None], dtype=object)})
    with pytest.raises(pa.ArrowException):
        write_trace(bad, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError) as error:
        write_trace(FULL, tmp_path / "gone" / "t.parquet")
    assert str(error.value) == (
        f"{tmp_path / 'gone'}: found No such file or directory, expected a folder that can be written"
    )


GOOD: dict[str, Any] = {"arrival_seconds": [0.0, 1.0], "prompt_tokens": [5, 6], "output_tokens": [1, 2]}
V1 = {SCHEMA_KEY: "ladder_opt/trace/1"}


def put(folder: Path, columns: dict[str, Any], metadata: dict[str, str]) -> Path:
    path = folder / "t.parquet"
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize(
    ("columns", "metadata", "expected"),
    [
        ({}, {SCHEMA_KEY: "ladder_opt/trace/2"},
         f"{SCHEMA_KEY}: found schema 'ladder_opt/trace/2', expected ladder_opt/trace/1"),
        ({"prompt_tokens": None}, V1, "prompt_tokens: found no such column, expected one, of integers"),
        ({"prompt_tokens": [5, None]}, V1,
         ":2: prompt_tokens: found nothing, expected an integer"),
        ({"prompt_tokens": [5.0, 6.0]}, V1,
         "prompt_tokens: found values of type float64, expected an integer"),
        ({"prompt_tokens": ["5", "6"]}, V1,
         ":1: prompt_tokens: found '5', expected an integer"),
        ({"prompt_tokens": [5, 0]}, V1,
         ":2: prompt_tokens: found 0, expected at least 1 token"),
        ({"arrival_seconds": [1.0, 0.0]}, V1,
         ":2: arrival_seconds: found 0.0 after 1.0, expected arrivals in ascending order"),
        ({"arrival_seconds": [0.0, float("nan")]}, V1,
         ":2: arrival_seconds: found nan, expected a finite number of seconds"),
        ({"arrival_seconds": [-1.0, 0.0]}, V1,
         ":1: arrival_seconds: found -1.0, expected arrivals from 0 on"),
        ({"cached_tokens": [0, 7]}, V1,
         ":2: cached_tokens: found 7, expected from 0 to the row's prompt_tokens"),
        ({"session": ["a", None]}, V1,
         ":2: session: found nothing, expected text"),
        ({}, V1 | {PROVENANCE_KEY: "["}, f"{PROVENANCE_KEY}.$: found no JSON, expected a JSON object"),
        ({}, V1 | {PROVENANCE_KEY: "[]"}, f"{PROVENANCE_KEY}.$: found a list, expected a JSON object"),
        ({}, V1 | {PROVENANCE_KEY: json.dumps({"sources": [{"path": "a"}]})},
         f"{PROVENANCE_KEY}.sources[0]: found an object, expected path, sha256, rows and format"),
        ({}, V1 | {PROVENANCE_KEY: json.dumps({"set_aside": {"failed": True}})},
         f"{PROVENANCE_KEY}.set_aside.failed: found true, expected a count"),
        ({}, V1 | {PROVENANCE_KEY: json.dumps({"notes": [1]})},
         f"{PROVENANCE_KEY}.notes[0]: found 1, expected text"),
    ],
)  # fmt: skip
def test_what_breaks_the_schema(
    tmp_path: Path, columns: dict[str, Any], metadata: dict[str, str], expected: str
) -> None:
    merged = {name: cells for name, cells in {**GOOD, **columns}.items() if cells is not None}
    path = put(tmp_path, merged, metadata)
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert str(error.value) == f"{path}{expected if expected.startswith(':') else ': ' + expected}"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"prompt_tokens": np.array([5, 0])}, 2),
        ({"arrival_seconds": np.array([-1.0, 0.0])}, 1),
        ({"arrival_seconds": np.array([0.0, np.nan])}, 2),
        ({"arrival_seconds": np.array([1.0, 0.0])}, 2),  # the row that comes too early
        ({"hash_ids": HashIds.of([[1], []], 16)}, 2),
    ],
)
def test_a_traces_lines_count_from_1(columns: dict[str, Any], line: int) -> None:
    with pytest.raises(InputError) as error:
        Trace(**{name: np.array(cells) for name, cells in GOOD.items()} | columns)
    assert error.value.line == line


def test_parquet_without_our_schema_is_read_by_its_column_names(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD, {})
    assert detect_format(path) == "table"
    assert read_trace(path).prompt_tokens.tolist() == [5, 6]


def test_ticks_of_a_canonical_trace_may_be_spread_later(tmp_path: Path) -> None:
    ticking = Trace(
        arrival_seconds=np.repeat(np.arange(10.0), 2),
        prompt_tokens=np.arange(1, 21),
        output_tokens=np.ones(20, dtype=np.int64),
        notes=("a note",),
    )
    write_trace(ticking, tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet", spread_ticks=True)
    assert trace.arrival_seconds is not None
    assert trace.arrival_seconds.tolist() == [row / 2 for row in range(20)]
    assert trace.prompt_tokens.tolist() == list(range(1, 21))
    assert trace.notes == (
        "a note",
        "arrivals sit on a 1 s grid (100.0% of them); spread evenly over each tick",
    )


def test_hash_ids_come_back(tmp_path: Path) -> None:
    ids = HashIds.of([[0, 5], [2**63 - 1], [0, 7, 8]], 16)
    trace = Trace(None, np.array([17, 3, 48]), np.array([1, 1, 1]), hash_ids=ids)
    write_trace(trace, tmp_path / "t.parquet")
    again = read_trace(tmp_path / "t.parquet").hash_ids
    assert again is not None
    assert again.block_tokens == 16
    assert again.offsets.tolist() == [0, 2, 3, 6]
    assert again.values.tolist() == ids.values.tolist()
    part = again.take(np.array([0, 2]))
    assert part.offsets.tolist() == [0, 2, 5]
    assert part.values.tolist() == [0, 5, 0, 7, 8]


def test_hash_ids_of_another_number_are_refused(tmp_path: Path) -> None:
    table = pa.table({"prompt_tokens": [17], "output_tokens": [1], "hash_ids": [[1, 2, 3]]})
    metadata = {SCHEMA_KEY: "ladder_opt/trace/1", PROVENANCE_KEY: json.dumps({"hash_block_tokens": 16})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "t.parquet")
    with pytest.raises(InputError) as error:
        read_trace(tmp_path / "t.parquet")
    assert str(error.value).endswith(
        "t.parquet:1: hash_ids: found 3 hash_ids, expected ceil(17 / 16), one for each block of the prompt"
    )
