"""The same inputs make the same files, to the byte but for `created`, whatever runs around them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.commands import make_inputs

ENGINE = ["--max-num-seqs", "8", "--max-model-len", "2048", "--cost", "cost.json"]
COMMANDS = {
    "tune": [
        "tune",
        "trace.csv",
        "steps.parquet",
        *ENGINE,
        "--weights",
        "1,2",
        "--uptime",
        "12h",
        "-o",
        "out",
    ],
    "robust": ["tune", "trace.csv", "steps.parquet", *ENGINE, "--robust", "-o", "out"],
    "spyre": ["tune", "--steps", "steps.csv", *ENGINE, "--target", "spyre-env", "-o", "out"],
    "simulate": ["simulate", "trace.csv", *ENGINE, "-o", "out"],
    "frontier": ["frontier", "--steps", "steps.csv", *ENGINE, "-o", "out"],
    "synth": ["trace", "synth", "--requests", "200", "--rate", "3", "--seed", "5", "-o", "out.parquet"],
}
JOBS = {"tune", "robust", "simulate"}
PLAIN = {
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
OTHER = {
    "PYTHONHASHSEED": "12345",
    "TZ": "Asia/Kathmandu",
    "LC_ALL": "C",
    "NUMBA_NUM_THREADS": "2",
    "OMP_NUM_THREADS": "2",
    "COLUMNS": "40",
}


def output(folder: Path, command: list[str], environment: dict[str, str]) -> list[str]:
    """What a run leaves in a folder of its own, less the line that says when."""
    folder.mkdir()
    make_inputs(folder)
    synth = ["trace", "synth", "--requests", "60", "--rate", "1", "-o", "steps.parquet"]
    for arguments in (synth, command):
        done = subprocess.run(
            [sys.executable, "-m", "ladder_opt", *arguments],
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = folder / command[-1]
    text = found.read_bytes().decode("latin-1")
    return [line for line in text.splitlines() if '"created":' not in line]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_to_the_byte(tmp_path: Path, name: str) -> None:
    command = COMMANDS[name]
    jobs = (["--jobs", "1"], ["--jobs", "2"]) if name in JOBS else ([], [])
    here = output(tmp_path / "a", [command[0], *jobs[0], *command[1:]], PLAIN)
    there = output(tmp_path / "elsewhere with blanks", [command[0], *jobs[1], *command[1:]], OTHER)
    assert here == there
