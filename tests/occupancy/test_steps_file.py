"""Steps files: what is read, to the line and column of the first fault, and what is written."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy import _table_file, steps_file
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.steps_file import read_steps, write_steps

HEADER = "num_seqs,num_blocks,steps\n"
ENGINE = Engine(max_num_seqs=8, max_model_len=16 * 128)
SIZE = "a whole number of 1 or more"
WEIGHT = "a finite number above 0"


def put(folder: Path, content: str | bytes, name: str = "s.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(folder: Path, **columns: list[Any]) -> Path:
    path = folder / "s.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def cells(steps: StepHistogram) -> list[tuple[int, int, float]]:
    return list(zip(steps.num_seqs.tolist(), steps.num_blocks.tolist(), steps.steps.tolist(), strict=True))


def message(path: Path, engine: Engine | None = ENGINE) -> str:
    with pytest.raises(InputError) as error:
        read_steps(path, engine)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


def test_a_csv_file(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "8,3,100\n2,1,10\n8,3,0.5\n4,16,1e3\n")
    file = read_steps(path, ENGINE)
    assert cells(file.steps) == [(2, 1, 10.0), (4, 16, 1000.0), (8, 3, 100.5)]
    assert file.steps.gathers_real is None
    assert (file.path, file.rows, file.warnings) == (str(path), 4, ())
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + HEADER + "8,3,100\n",
        HEADER.replace("\n", "\r\n") + "8,3,100\r\n",
        HEADER.replace("\n", "\r") + "8,3,100\r",
        HEADER + "\n\n8,3,100",
        " num_seqs , num_blocks,steps \n 8 , 3 , 100 \n",
        "steps,num_blocks,num_seqs\n100,3,8\n",
        '"num_seqs","num_blocks","steps"\n"8","3","100"\n',
        HEADER + "008,+3,100\n".replace("+", "0"),
    ],
    ids=["bom", "crlf", "cr", "blank lines", "spaces", "order", "quotes", "leading zeros"],
)
def test_spellings_of_one_file(tmp_path: Path, content: str) -> None:
    assert cells(read_steps(put(tmp_path, content), ENGINE).steps) == [(8, 3, 100.0)]


def test_a_parquet_file_whatever_its_name(tmp_path: Path) -> None:
    path = parquet(tmp_path, num_seqs=[8, 8], num_blocks=[3, 3], steps=[1.5, 2.0], gathers_real=[4.0, 6.0])
    file = read_steps(path.rename(tmp_path / "s.csv"), ENGINE)
    assert cells(file.steps) == [(8, 3, 3.5)]
    assert file.steps.gathers_real is not None
    assert file.steps.gathers_real.tolist() == [10.0]
    assert file.rows == 2


def test_a_folder_with_an_equals_sign_adds_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "num_seqs=3"
    folder.mkdir()
    assert read_steps(parquet(folder, num_seqs=[8], num_blocks=[3], steps=[1]), ENGINE).warnings == ()


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = HEADER + "8,3,100\n"
    writer = threading.Thread(target=lambda: path.write_text(content))
    writer.start()
    file = read_steps(path, ENGINE)
    writer.join(timeout=10)
    assert cells(file.steps) == [(8, 3, 100.0)]
    assert file.sha256 == hashlib.sha256(content.encode()).hexdigest()


def test_other_columns_are_left_aside_with_a_warning(tmp_path: Path) -> None:
    path = put(tmp_path, "host,num_seqs,num_blocks,steps,note\nh,8,3,100,x\n")
    file = read_steps(path, ENGINE)
    assert cells(file.steps) == [(8, 3, 100.0)]
    assert file.warnings == (
        f"{path}: column 'host' is not one of a steps file and was left aside",
        f"{path}: column 'note' is not one of a steps file and was left aside",
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ": found an empty file, expected the columns num_seqs, num_blocks, steps"),
        ("\n\n", ": found an empty file, expected the columns num_seqs, num_blocks, steps"),
        (HEADER, ": found no row, expected at least one decode step"),
        ("num_seqs,steps\n8,1\n", ":1: found columns num_seqs, steps, expected num_seqs, num_blocks, steps"),
        ("8,3,100\n", ":1: found columns 8, 3, 100, expected num_seqs, num_blocks, steps"),
        ("num_seqs;num_blocks;steps\n", None),
        (
            "num_seqs,num_blocks,steps,steps\n8,3,1,1\n",
            ":1: found column steps twice, expected each column once",
        ),
        (HEADER + "8,3\n", ":2: found 2 cells, expected 3, as in the header"),
        (HEADER + "8,3,1\n8,3,1,\n", ":3: found 4 cells, expected 3, as in the header"),
        (HEADER + '8,3,"1\n', ":2: found unexpected end of data, expected comma-separated values"),
        (HEADER + '"8"x,3,1\n', ":2: found ',' expected after '\"', expected comma-separated values"),
        (b"num_seqs,num_blocks,steps\n8,3,\xff\n", ": found byte 0xff at 30, expected a steps file in UTF-8"),
    ],
)
def test_files_that_are_no_steps(tmp_path: Path, content: str | bytes, text: str | None) -> None:
    path = put(tmp_path, content)
    if text is None:
        text = ":1: found columns num_seqs;num_blocks;steps, expected num_seqs, num_blocks, steps"
    assert message(path) == f"{path}{text}"


@pytest.mark.parametrize("column", ["num_seqs", "num_blocks"])
@pytest.mark.parametrize(
    "cell",
    ["0", "-1", "1.5", "4.0", "1_000", "nan", "inf", "true", "True", "", "eight", "0x8", "\uff18", "\u0668"],
)
def test_cells_that_are_no_size(tmp_path: Path, column: str, cell: str) -> None:
    row = {"num_seqs": "8", "num_blocks": "3", "steps": "1"} | {column: cell}
    path = put(tmp_path, HEADER + "8,3,1\n" + ",".join(row.values()) + "\n")
    assert message(path) == f"{path}:3: {column}: found {cell!r}, expected {SIZE}"


@pytest.mark.parametrize("cell", ["9" * 20, "9" * 5000, "0" * 19 + "1" + "0" * 30])
def test_sizes_of_many_digits(tmp_path: Path, cell: str) -> None:
    path = put(tmp_path, HEADER + f"{cell},3,1\n")
    found = f"{path}:2: num_seqs: found {cell.lstrip('0')[:60]}, expected at most"
    assert message(path) == f"{found} the engine's max_num_seqs = 8"
    assert message(path, None) == f"{found} 1099511627776"


def test_many_zeros_are_no_size(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + f"{'0' * 30},3,1\n")
    assert message(path) == f"{path}:2: num_seqs: found {'0' * 30!r}, expected {SIZE}"


@pytest.mark.parametrize(
    ("column", "cells"), [("steps", "8,3,1e16,1"), ("gathers_real", "8,3,1,2000000000000000")]
)
def test_weights_too_large_to_add_up_are_told_so(tmp_path: Path, column: str, cells: str) -> None:
    path = put(tmp_path, f"num_seqs,num_blocks,steps,gathers_real\n{cells}\n")
    found = repr(cells.split(",")[2 if column == "steps" else 3])
    assert message(path) == (
        f"{path}:2: {column}: found {found}, expected at most 1e+15, past which sums lose whole steps"
    )


def test_no_step_holds_more_blocks_than_its_longest_sequence_allows(tmp_path: Path) -> None:
    head = "num_seqs,num_blocks,steps,gathers_real\n8,3,1,24\n\n"
    path = put(tmp_path, head + "5,2,0.5,5.01\n")
    assert message(path) == (
        f"{path}:4: gathers_real: found 5.01, expected at most steps x num_seqs x num_blocks = 5"
    )
    assert not read_steps(put(tmp_path, head + "5,2,0.5,5.000001\n5,2,1,6\n"), ENGINE).warnings


def test_fewer_blocks_than_sequences_are_told(tmp_path: Path) -> None:
    path = put(tmp_path, "num_seqs,num_blocks,steps,gathers_real\n8,3,1,24\n5,2,2,11\n5,1,2,0\n")
    assert read_steps(path, ENGINE).warnings == (
        (
            f"{path}:3: gathers_real 11 is less than the 12 blocks that such steps hold at least, as in 2 "
            "of 3 rows; taken as it is"
        ),
    )


def test_parquet_cells_that_are_no_numbers_are_not_read(tmp_path: Path) -> None:
    path = parquet(tmp_path, num_seqs=[8], num_blocks=[3], steps=["x" * 100])
    assert message(path) == f"{path}: steps: found steps of type string, expected a column of numbers"
    path = parquet(tmp_path, num_seqs=[8], num_blocks=[3], steps=[1.5], model=["anything"])
    assert read_steps(path, ENGINE).warnings == (
        f"{path}: column 'model' is not one of a steps file and was left aside",
    )


@pytest.mark.parametrize(
    "cell", ["0", "-1", "nan", "inf", "1e400", "1_000", "true", "", "many", "\uff11", "0.0"]
)
def test_cells_that_are_no_weight(tmp_path: Path, cell: str) -> None:
    path = put(tmp_path, HEADER + f"8,3,1\n8,3,{cell}\n")
    assert message(path) == f"{path}:3: steps: found {cell!r}, expected {WEIGHT}"


def test_gathers_real_may_be_zero_and_no_less(tmp_path: Path) -> None:
    path = put(tmp_path, "num_seqs,num_blocks,steps,gathers_real\n8,3,1,0\n")
    real = read_steps(path, ENGINE).steps.gathers_real
    assert real is not None
    assert real.tolist() == [0.0]
    path = put(tmp_path, "num_seqs,num_blocks,steps,gathers_real\n8,3,1,-2\n")
    assert message(path) == f"{path}:2: gathers_real: found '-2', expected a finite number of 0 or more"


def test_rows_beyond_the_engine_are_told_by_line(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "8,3,1\n9,3,1\n")
    assert message(path) == f"{path}:3: num_seqs: found 9, expected at most the engine's max_num_seqs = 8"
    assert cells(read_steps(path).steps) == [(8, 3, 1.0), (9, 3, 1.0)]
    path = put(tmp_path, HEADER + "8,17,1\n")
    assert message(path) == (
        f"{path}:2: num_blocks: found 17, expected at most the engine's ceil(max_model_len / block_size) = 16"
    )


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert message(tmp_path) == f"{tmp_path}: found Is a directory, expected a readable file"
    gone = tmp_path / "gone"
    assert message(gone) == f"{gone}: found No such file or directory, expected a readable file"


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_file, "MAX_TABLE_FILE_BYTES", 20)
    path = put(tmp_path, HEADER)
    assert message(path) == f"{path}: found more than 20 bytes, expected a steps file of at most that"


# Parquet.


def test_parquet_files_cut_off_or_damaged(tmp_path: Path) -> None:
    path = parquet(tmp_path, num_seqs=[8] * 100, num_blocks=[3] * 100, steps=[1.0] * 100)
    whole = path.read_bytes()
    for content in (whole[:4], whole[:-4], whole[: len(whole) // 2], whole[:4] + b"\xff" * 100 + whole[104:]):
        path.write_bytes(content)
        text = message(path)
        assert text.startswith(f"{path}: found ")
        assert text.endswith(", expected a Parquet file")


def test_a_parquet_file_of_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_table_file, "_MAX_ROWS", 99)
    path = parquet(tmp_path, num_seqs=[8] * 100, num_blocks=[3] * 100, steps=[1.0] * 100)
    assert message(path) == f"{path}: found 100 rows, expected at most 99"


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("num_seqs", [8, None], f":2: num_seqs: found 'None', expected {SIZE}"),
        ("num_seqs", [True, False], f":1: num_seqs: found 'True', expected {SIZE}"),
        ("num_seqs", [8.0, 4.0], f":1: num_seqs: found '8.0', expected {SIZE}"),
        ("num_seqs", [8, -1], f":2: num_seqs: found '-1', expected {SIZE}"),
        ("steps", [1.0, float("nan")], f":2: steps: found 'nan', expected {WEIGHT}"),
        ("steps", [1.0, float("inf")], f":2: steps: found 'inf', expected {WEIGHT}"),
        ("steps", [True, True], f":1: steps: found 'True', expected {WEIGHT}"),
        (
            "steps",
            [[1.0], [2.0]],
            ": steps: found steps of type list<element: double>, expected a column of numbers",
        ),
        ("num_seqs", [8, 9], ":2: num_seqs: found 9, expected at most the engine's max_num_seqs = 8"),
    ],
)
def test_parquet_values_that_are_none_of_ours(
    tmp_path: Path, column: str, values: list[Any], text: str
) -> None:
    columns: dict[str, list[Any]] = {"num_seqs": [8, 4], "num_blocks": [3, 3], "steps": [1.0, 1.0]}
    path = parquet(tmp_path, **columns | {column: values})
    assert message(path) == f"{path}{text}"


def test_parquet_columns(tmp_path: Path) -> None:
    path = parquet(tmp_path, num_seqs=[8])
    assert message(path) == f"{path}:1: found columns num_seqs, expected num_seqs, num_blocks, steps"
    path = parquet(tmp_path, num_seqs=[], num_blocks=[], steps=[])
    assert message(path) == f"{path}: found no row, expected at least one decode step"


# Writing.

WEIGHTS = st.one_of(
    st.integers(1, 10**12).map(float), st.floats(min_value=1e-300, max_value=1e12, exclude_min=True)
)


@pytest.mark.parametrize("name", ["s.csv", "s.parquet", "s.txt"])
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), WEIGHTS, st.floats(0, 1)),
        min_size=1,
        max_size=20,
    ),
    real=st.booleans(),
)
def test_what_is_written_is_read_as_equal(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    rows: list[tuple[int, int, float, float]],
    real: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip-{name}"
    columns = list(zip(*rows, strict=True))
    steps = StepHistogram(
        np.array(columns[0]),
        np.array(columns[1]),
        np.array(columns[2]),
        np.minimum(np.prod(np.array(columns), axis=0), 1e13) if real else None,
    )
    write_steps(steps, path)
    again = read_steps(path).steps
    assert cells(again) == cells(steps)
    assert (again.gathers_real is None) == (not real)
    assert again.real_gathers().tolist() == steps.real_gathers().tolist()


def test_whole_weights_are_written_as_such(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    write_steps(StepHistogram(np.array([8, 4]), np.array([3, 1]), np.array([100.0, 0.5])), path)
    assert path.read_text() == HEADER + "4,1,0.5\n8,3,100\n"


@pytest.mark.parametrize("name", ["s.csv", "s.parquet"])
def test_a_missing_folder_is_told(tmp_path: Path, name: str) -> None:
    steps = StepHistogram(np.array([8]), np.array([3]), np.array([1.0]))
    with pytest.raises(InputError) as error:
        write_steps(steps, tmp_path / "gone" / name)
    assert str(error.value) == (
        f"{tmp_path / 'gone'}: found No such file or directory, expected a folder that can be written"
    )
