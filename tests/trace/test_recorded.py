"""A server's own request trace: its parts, and a folder of them as one trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.errors import InputError
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.read import read_trace
from ladder_opt.trace.recorded import read_recorded_trace, write_part
from tests.plan.plans import make_trace

requests = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 500), st.integers(0, 500), st.integers(0, 600)),
    min_size=1,
    max_size=60,
)


def write(folder: Path, name: str, rows: list[tuple[int, int, int, int]], origin: float = 1.7e9) -> Path:
    path = folder / f"requests-{name}.parquet"
    write_part(
        path,
        arrivals=[origin + row[0] / 1000 for row in rows],
        prompt_tokens=[row[1] for row in rows],
        output_tokens=[row[2] for row in rows],
        cached_tokens=[row[3] for row in rows],
    )
    return path


@given(requests, st.integers(1, 60))
def test_parts_join_to_the_trace_that_was_served(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, int]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("record")
    write(folder, "a", rows[:cut])
    if rows[cut:]:
        write(folder, "b", rows[cut:])
    usable = sorted((row for row in rows if row[1] and row[2]), key=lambda row: row[0])
    trace = read_recorded_trace(folder)
    assert len(trace) == len(usable)
    assert sum(trace.set_aside.values()) == len(rows) - len(usable)
    assert sum(source.rows for source in trace.sources) == len(rows)
    if usable:
        assert trace.arrival_seconds is not None
        expected = np.array([(row[0] - usable[0][0]) / 1000 for row in usable])
        assert np.allclose(trace.arrival_seconds, expected, atol=1e-5)
        assert sorted(trace.prompt_tokens) == sorted(row[1] for row in usable)
    assert trace.cached_tokens is not None
    assert (trace.cached_tokens <= trace.prompt_tokens).all()


def test_a_part_is_a_canonical_trace_by_itself(tmp_path: Path) -> None:
    path = write(tmp_path, "a", [(2000, 10, 5, 4), (500, 20, 6, 0), (900, 3, 0, 0), (950, 0, 3, 0)])
    trace = read_trace(path)
    assert trace.arrival_seconds is not None
    assert trace.arrival_seconds.tolist() == pytest.approx([0, 1.5])
    assert trace.prompt_tokens.tolist() == [20, 10]
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [0, 4]
    assert dict(trace.set_aside) == {"zero_prompt": 1, "zero_output": 1}


def test_read_trace_takes_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "a", [(0, 10, 5, 0)])
    write(tmp_path, "b", [(1000, 11, 5, 0)])
    (tmp_path / "steps-a.csv").write_text("not looked at", encoding="utf-8")
    trace = read_trace(tmp_path)
    assert trace.prompt_tokens.tolist() == [10, 11]
    assert [Path(source.path).name for source in trace.sources] == [
        "requests-a.parquet",
        "requests-b.parquet",
    ]


def test_ids_are_there_when_asked_for_and_no_reader_minds(tmp_path: Path) -> None:
    path = tmp_path / "requests-a.parquet"
    write_part(
        path,
        arrivals=[2.0, 1.0],
        prompt_tokens=[1, 2],
        output_tokens=[1, 1],
        cached_tokens=[0, 0],
        request_ids=["b", "a"],
    )
    assert pq.read_table(path).column("request_id").to_pylist() == ["a", "b"]
    assert read_trace(path).prompt_tokens.tolist() == [2, 1]
    assert "request_id" not in pq.read_table(write(tmp_path, "b", [(0, 1, 1, 0)])).column_names


def test_a_folder_of_something_else_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_recorded_trace(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: found no request trace, expected a folder of requests-*.parquet"
    )
    path = tmp_path / "requests-x.parquet"
    write_trace(make_trace(requests=3), path)
    with pytest.raises(InputError) as error:
        read_trace(tmp_path)
    assert str(error.value) == (
        f"{path}: found a table that no server recorded, expected metadata ladder_opt.origin"
    )
    path.write_text("arrival,prompt\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"requests-x\.parquet: found no Parquet"):
        read_trace(tmp_path)
