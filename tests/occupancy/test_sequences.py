"""Per-sequence tables: the value type and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy.sequences import SequenceHistogram
from ladder_opt.occupancy.sequences_file import read_sequences, write_sequences

HEADER = "num_blocks,query_len,calls\n"
ENGINE = Engine(max_model_len=16 * 128)


def table(*rows: tuple[int, int, float]) -> SequenceHistogram:
    columns = list(zip(*rows, strict=True))
    return SequenceHistogram(
        np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], float)
    )


def cells(sequences: SequenceHistogram) -> list[tuple[int, int, float]]:
    return list(
        zip(
            sequences.num_blocks.tolist(), sequences.query_len.tolist(), sequences.calls.tolist(), strict=True
        )
    )


def test_cells_are_sorted_and_each_there_once() -> None:
    assert cells(table((4, 512, 1), (2, 1, 3), (4, 12, 2), (2, 1, 0.5))) == [
        (2, 1, 3.5),
        (4, 12, 2),
        (4, 512, 1),
    ]


def test_sums_and_weights() -> None:
    first, second = table((1, 2, 3)), table((1, 2, 4), (1, 1, 1))
    total = SequenceHistogram.sum_of([first, second.scaled(0.5)])
    assert cells(total) == [(1, 1, 0.5), (1, 2, 5)]
    assert total.total_calls == 5.5
    assert len(total) == 2
    assert SequenceHistogram.sum_of([first]) is first


def test_no_call_at_all() -> None:
    empty = SequenceHistogram.from_counts(np.zeros((3, 3), np.int64))
    assert (len(empty), empty.total_calls) == (0, 0.0)


@pytest.mark.parametrize("name", ["s.csv", "s.parquet"])
def test_reading_what_was_written_gives_an_equal_table(tmp_path: Path, name: str) -> None:
    written = table((4, 512, 3), (2, 1, 0.25))
    write_sequences(written, tmp_path / name)
    file = read_sequences(tmp_path / name, ENGINE)
    assert cells(file.sequences) == cells(written)
    assert (file.path, file.rows, file.warnings) == (str(tmp_path / name), 2, ())
    assert cells(SequenceHistogram.from_frame(written.to_frame())) == cells(written)


def test_what_a_csv_file_holds(tmp_path: Path) -> None:
    write_sequences(table((1, 512, 3), (2, 1, 0.25)), tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text() == HEADER + "1,512,3\n2,1,0.25\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "num_blocks,calls\n1,2\n",
            ":1: found columns num_blocks, calls, expected num_blocks, query_len, calls",
        ),
        (HEADER, ": found no row, expected at least one call"),
        (HEADER + "1,1,1\n17,1,1\n", "at most the engine's ceil(max_model_len / block_size) = 16"),
        (HEADER + "1,513,1\n", "found 513, expected at most the engine's max_num_batched_tokens = 512"),
        (HEADER + "1,0,1\n", "found '0', expected a whole number of 1 or more"),
        (HEADER + "1,1,0\n", "found '0', expected a finite number above 0"),
        (
            HEADER + "4,512,1\n\n3,385,1\n",
            ":4: found num_blocks 3 for a query_len of 385, expected blocks of 128 tokens that hold them",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_sequences(path, ENGINE)
    assert message in str(error.value)


def test_blocks_come_from_the_pool(tmp_path: Path) -> None:
    small = Engine(max_model_len=16 * 128, num_kv_blocks=10)
    write_sequences(table((9, 1, 3), (10, 1, 3)), tmp_path / "s.csv")
    with pytest.raises(InputError) as error:
        read_sequences(tmp_path / "s.csv", small)
    message = "found num_blocks 10 for a query_len of 1, expected at most the 9 that the pool has"
    assert str(error.value) == f"{tmp_path / 's.csv'}:3: {message}"
    with pytest.raises(InputError, match=message):
        table((10, 1, 3)).check_limits(small)


def test_values_out_of_range() -> None:
    with pytest.raises(InputError, match="found 2 query_len, expected 1, one for each cell"):
        SequenceHistogram(np.array([1]), np.array([1, 2]), np.array([1.0]))
    with pytest.raises(InputError, match="found 0, expected 1 or more"):
        table((0, 1, 1))
    with pytest.raises(InputError, match=r"found nan, expected a finite weight above 0"):
        table((1, 1, float("nan")))
    with pytest.raises(InputError, match="found 17, expected at most"):
        table((17, 1, 1)).check_limits(ENGINE)
    with pytest.raises(InputError, match="found 600, expected at most max_num_batched_tokens = 512"):
        table((1, 600, 1)).check_limits(ENGINE)
