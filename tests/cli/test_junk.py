"""Every option of every command with values that nobody means: one line of ours, and none of a library's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import Run
from tests.cli.test_help import commands

JUNK = ("abc", "", "-1", "nan", "99999999999999999999999")
OF_LIBRARIES = (
    "Invalid value",
    "is not a valid",
    "should be a valid",
    "Traceback",
    "Option '",
    "No such option",
)

ARGUMENTS = {
    "tune": ["--steps", "steps.csv", "--cost", "cost.json"],
    "evaluate": ["--steps", "steps.csv", "--num-seqs", "4,32"],
    "simulate": ["none.csv", "-o", "out.csv"],
    "frontier": ["--steps", "none.csv"],
    "sweep": ["none.csv"],
    "calibrate": ["none.csv", "-o", "cost.json"],
    "measure": ["--model", "none.json", "-o", "rows.csv"],
    "check": ["none.json"],
    "export": ["none.json", "--format", "env"],
    "verify": ["none.json"],
    "drift": ["none.json", "--steps", "steps.csv"],
    "report": ["none.json", "-o", "report.html"],
    "trace info": ["none.csv"],
    "trace convert": ["none.csv", "-o", "out.parquet"],
    "trace synth": ["-o", "out.parquet", "--requests", "5"],
}


def options() -> Iterator[tuple[str, Any]]:
    for words, command in commands().items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False):
                yield words, parameter


CASES = [pytest.param(words, each, id=f"{words} {max(each.opts, key=len)}") for words, each in options()]


@pytest.mark.parametrize(("words", "option"), CASES)
def test_junk_is_one_line_of_ours(folder: Path, run: Run, words: str, option: Any) -> None:
    for value in JUNK:
        name = max(option.opts, key=len)
        run.capsys.readouterr()
        ran = run(*words.split(), *ARGUMENTS[words], name, value, code=None)
        assert ran.code in (0, 1, 2), (value, ran.err)
        if ran.code == 2:
            lines = [line for line in ran.err.splitlines() if not line.startswith(("warning: ", "note: "))]
            (line,) = lines
            assert line.startswith("ladder-opt: ")
            assert "found" in line
            assert "expected" in line
        assert not any(phrase in ran.err for phrase in OF_LIBRARIES), (value, ran.err)


@pytest.mark.parametrize("words", sorted(ARGUMENTS))
def test_an_option_without_its_value_is_told(run: Run, words: str) -> None:
    for name in (max(option.opts, key=len) for of, option in options() if of == words):
        line = run.fails(*words.split(), *ARGUMENTS[words], name)
        assert line.startswith(f"{name}: found nothing after it, expected ")


def test_typed_options_say_what_they_take(folder: Path, run: Run) -> None:
    tune = ["tune", "--steps", "steps.csv"]
    assert run.fails(*tune, "--replicas=abc") == (
        "--replicas: found 'abc', expected a whole number of at least 1"
    )
    assert run.fails(*tune, "--guard", "abc") == "--guard: found 'abc', expected a number"
    assert run.fails("trace", "synth", "-o", "x.parquet", "--seed", "x") == (
        "--seed: found 'x', expected a whole number of at least 0"
    )
    assert run.fails(*tune, "--uncertainty") == (
        "--uncertainty: found nothing after it, expected how many cost models to draw, such as "
        "--uncertainty 40"
    )
    assert run.fails(*tune, "--uncertainty", "--json") == (
        "--uncertainty: found '--json', expected how many cost models to draw, such as --uncertainty 40"
    )
    assert run.fails(*tune, "--json=yes") == "--json: found a value, expected none: it is a switch"
    assert run.fails("check", "a.json", "b.json") == (
        "found 'b.json', expected no further argument of ladder-opt check"
    )
    assert run.fails("--jsn") == "found no option '--jsn', expected one that --help lists"
