"""Several steps files and folders of them as one histogram; what the record beside a file is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy.record_file import read_recorded_steps

ENGINE = Engine(max_num_seqs=8, max_model_len=2048)


def write(folder: Path, name: str, rows: str, record: dict[str, Any] | None = None) -> str:
    path = folder / f"{name}.csv"
    path.write_text(f"num_seqs,num_blocks,steps,gathers_real\n{rows}\n", encoding="utf-8")
    if record is not None:
        made = {"schema": "ladder_opt/record/1", "seconds": 60.0, "engine": ENGINE.to_dict()} | record
        path.with_suffix(".json").write_text(json.dumps(made), encoding="utf-8")
    return str(path)


def test_files_and_folders_add_up(tmp_path: Path) -> None:
    write(tmp_path, "steps-a", "4,1,2,8", {})
    write(tmp_path, "steps-b", "4,1,3,12", {"seconds": 30})
    (tmp_path / "requests-a.parquet").write_bytes(b"not looked at")
    (tmp_path / "notes.csv").write_text("x", encoding="utf-8")
    other = write(tmp_path, "other", "8,2,1,16")
    together = read_recorded_steps([tmp_path, other], ENGINE)
    assert together.steps.to_frame().to_numpy().tolist() == [[4, 1, 5, 20], [8, 2, 1, 16]]
    assert [Path(file.path).name for file in together.files] == ["steps-a.csv", "steps-b.csv", "other.csv"]
    assert together.seconds is None  # one of them does not say
    assert read_recorded_steps([tmp_path], ENGINE).seconds == 90


def test_a_file_without_pages_is_told(tmp_path: Path) -> None:
    full = write(tmp_path, "steps-a", "4,2,1,5")
    bare = tmp_path / "bare.csv"
    bare.write_text("num_seqs,num_blocks,steps\n4,2,1\n", encoding="utf-8")
    together = read_recorded_steps([full, bare])
    assert together.steps.gathers_real is None
    assert together.warnings == (
        f"{bare} has no gathers_real: of all the files every sequence is taken as long as the longest",
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"schema": "ladder_opt/record/2"},
            "schema: found 'ladder_opt/record/2', expected 'ladder_opt/record/1'",
        ),
        ({"seconds": -1}, "seconds: found -1, expected seconds of 0 or more"),
        ({"seconds": True}, "seconds: found True, expected seconds of 0 or more"),
        ({"engine": 4}, "engine: found 4, expected an engine"),
        (
            {"engine": {"block_size": 64}},
            "found steps recorded with block_size 64, expected 128 (--block-size)",
        ),
    ],
)
def test_a_record_that_is_none_of_ours_is_one_line(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, "steps-a", "4,1,2,8", record)
    with pytest.raises(InputError) as error:
        read_recorded_steps([path], ENGINE)
    assert str(error.value) == f"{path.removesuffix('.csv')}.json: {message}"


def test_a_folder_without_steps_and_a_file_named_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_recorded_steps([tmp_path])
    assert str(error.value) == f"{tmp_path}: found no steps file, expected a folder of steps-*.csv"
    path = write(tmp_path, "steps-a", "4,1,2,8")
    with pytest.raises(
        InputError, match=r"steps-a\.csv: found a steps file named twice, expected each file once"
    ):
        read_recorded_steps([tmp_path, path])
