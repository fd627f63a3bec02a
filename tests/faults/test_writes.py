"""A full disk and kill -9: the file that was there stays, or the new one is whole."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.occupancy.record_file import read_recorded_steps
from tests.faults.commands import RECORDER, WRITES, make_inputs, make_old, recorded, run

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_inputs(tmp_path)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_leaves_the_old_file(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk turns out to be full as the file is synced, after all has been written."""
    output = folder / "out" / f"o{WRITES[name].suffix}"
    old = make_old(name, output)
    monkeypatch.setattr(os, "fsync", _full)
    capsys.readouterr()
    assert run(name, str(output)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ladder-opt: ")]
    kept = "; the history was left as it is" if name == "drift" else ""
    assert told == [f"ladder-opt: {output}: No space left on device{kept}"]
    assert output.read_bytes() == old
    assert [each.name for each in output.parent.iterdir()] == [output.name]


_NO_LARGE_FILES = """
import resource, sys
from tests.faults.commands import run
code = run(sys.argv[1], sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
open(sys.argv[2], "w").write("old")
sys.exit(run(sys.argv[1], sys.argv[2]) if code == 0 else 99)
"""


@pytest.mark.parametrize("name", ["tune", "simulate_parquet"])
def test_a_write_that_fails_half_way_leaves_the_old_file(folder: Path, name: str) -> None:
    output = folder / "out" / f"o{WRITES[name].suffix}"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # its data is a large file as well
    command = [sys.executable, "-c", _NO_LARGE_FILES, name, str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"ladder-opt: {output}: ")
    assert output.read_text(encoding="utf-8") == "old"
    assert [each.name for each in output.parent.iterdir()] == [output.name]


def states_after_kills(name: str, output: Path) -> list[str]:
    """What the output holds after a kill at each touch of its folder in turn."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.killed", name, str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    states: list[str] = json.loads(done.stdout.splitlines()[-1])
    assert states == sorted(states, reverse=True)  # old, then new from some point on
    return states


@pytest.mark.parametrize("name", [*WRITES, RECORDER])
def test_kill_9_leaves_the_old_file_or_the_new_one_whole(folder: Path, name: str) -> None:
    states = states_after_kills(
        name, folder / "out" / (f"o{WRITES[name].suffix}" if name in WRITES else "o.csv")
    )
    assert states.count("old") >= 3  # a file beside it, its sync, the move


@pytest.mark.vllm
def test_kill_9_leaves_whole_rows_and_measure_goes_on(folder: Path) -> None:
    states = states_after_kills("measure", folder / "out" / "o.csv")
    assert states.count("new") >= 2  # from its first row on


def _refuse(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize(("what", "fault"), [("fsync", _full), ("mkdir", _refuse), ("replace", _refuse)])
def test_a_recorder_that_cannot_write_says_so_once_and_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fault: Any
) -> None:
    told: list[str] = []
    recorder, writer = recorded(tmp_path / "rec", told)
    with monkeypatch.context() as patched:
        patched.setattr(os if what == "fsync" else Path, what, fault)
        for _ in range(3):
            assert not writer.write()
            recorder.decode([128] * 5, 128)
    assert len(told) == 1
    assert told[0].endswith("; serving goes on")
    assert writer.write()
    assert read_recorded_steps([tmp_path / "rec"]).steps.total_steps == 4
    assert len(told) == 1


def test_a_folder_that_is_removed_while_recording_is_made_again(tmp_path: Path) -> None:
    told: list[str] = []
    recorder, writer = recorded(tmp_path / "rec", told)
    assert writer.write()
    for file in (tmp_path / "rec").iterdir():
        file.unlink()
    (tmp_path / "rec").rmdir()
    recorder.decode([128] * 5, 128)
    assert writer.write()
    assert read_recorded_steps([tmp_path / "rec"]).steps.total_steps == 2
    (tmp_path / "rec2").write_text("a file where the folder should be", encoding="utf-8")
    _, other = recorded(tmp_path / "rec2", told)
    assert not other.write()
    assert len(told) == 1
