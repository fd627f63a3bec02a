"""Running the command line in a test's own process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ladder_opt.cli.app import main

ENGINE = ["--max-num-seqs", "8", "--max-model-len", "2048"]

TUNE = ["tune", "--steps", "steps.csv", "--cost", "cost.json", *ENGINE, "--span", "24h"]


class Ran:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> dict[str, Any]:
        """Its stdout, which holds JSON and nothing else."""
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data


class Run:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str, code: int | None = 0) -> Ran:
        self.capsys.readouterr()
        found = main(arguments)
        captured = self.capsys.readouterr()
        assert code is None or found == code, captured.err
        assert [line for line in captured.out.splitlines() if line != line.rstrip()] == []
        return Ran(found, captured.out, captured.err)

    def fails(self, *arguments: str, code: int = 2) -> str:
        """The one line that a failing command says."""
        ran = self(*arguments, code=code)
        assert ran.out == ""
        assert ran.err.endswith("\n")
        (line,) = ran.err.splitlines()
        assert line.startswith("ladder-opt: ")
        return line.removeprefix("ladder-opt: ")
