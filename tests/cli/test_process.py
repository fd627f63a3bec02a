"""The command line as a process of its own: exit codes, pipes that close, interrupts, odd file names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import TUNE, Run


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONWARNINGS": "error"} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "ladder_opt", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, **options},
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, (out or b"").decode(errors="surrogateescape"), err.decode()


def test_exit_codes_of_the_process(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    running = {
        0: start(["check", "p.json", "--json"]),
        1: start(["check", "p.json", "--max-num-seqs", "16", "--strict"]),
        2: start(["tune", "--steps", "gone.csv"]),
    }
    for code, process in running.items():
        found, _, err = finish(process)
        assert found == code
        assert len(err.splitlines()) == (0 if code == 0 else 1)
        assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "p.json"],
        ["check", "p.json", "--json"],
        ["export", "p.json", "--format", "json"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_a_reader_that_went_away_is_no_failure(folder: Path, run: Run, arguments: list[str]) -> None:
    run(*TUNE, "-o", "p.json")
    reading, writing = os.pipe()
    os.close(reading)
    process = start(arguments, stdout=writing)
    os.close(writing)
    assert finish(process) == (0, "", "")


def test_head_takes_a_line_and_all_is_quiet(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    script = 'set -o pipefail; "$0" -m ladder_opt export p.json --format json | head -1'
    shell = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, check=False)
    assert (shell.returncode, shell.stdout, shell.stderr) == (0, b"{\n", b"")


def test_a_full_disk_is_one_line(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    with Path("/dev/full").open("wb") as full:
        process = start(["export", "p.json", "--format", "json"], stdout=full)
    assert finish(process) == (2, "", "ladder-opt: output: No space left on device\n")


def test_closed_output_is_no_failure(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    for arguments in ("check p.json", "check p.json --json"):
        shell = subprocess.run(
            ["bash", "-c", f'"$0" -m ladder_opt {arguments} >&-', sys.executable],
            capture_output=True,
            check=False,
        )
        assert (shell.returncode, shell.stderr) == (0, b"")


def test_an_interrupt_ends_with_130_and_leaves_no_file(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an ignored one would be inherited
    process = start(["tune", "--steps", "pipe", "-o", "p.json"])
    signal.signal(signal.SIGINT, before)
    with pipe.open("wb"):  # opens once the command has: it then waits for what never comes
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert finish(process) == (130, "", "ladder-opt: interrupted\n")
    assert sorted(entry.name for entry in folder.iterdir()) == ["cost.json", "pipe", "steps.csv", "trace.csv"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_file_names_that_are_no_text(folder: Path, run: Run, encoding: str) -> None:
    name = os.fsdecode(b"plan-\xff.json")
    run(*TUNE, "-o", "p.json")
    Path("p.json").rename(name)
    process = start(
        ["export", name, "--format", "env"], env={"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"}
    )
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    if encoding == "utf-8":
        assert out.endswith(f"export LADDER_OPT_PLAN='{folder.resolve()}/{name}'\n")
    process = start(["check", name], env={"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"})
    assert finish(process)[0] == 0


def test_output_to_dev_stdout(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    code, out, err = finish(start(["export", "p.json", "--format", "json", "-o", "/dev/stdout"]))
    assert (code, json.loads(out), err) == (0, json.loads(Path("p.json").read_text()), "")
