"""Help, examples, completion, and names that are nearly right."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ladder_opt.cli.app import app, main
from ladder_opt.cli.examples import EXAMPLES, epilog_of
from ladder_opt.errors import did_you_mean, one_of
from tests.cli.runs import TUNE, Run


def commands(group: Any = None, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command by the words that call it."""
    group = typer.main.get_command(app) if group is None else group
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            found |= commands(one, (*words, name))
        else:
            found[" ".join((*words, name))] = one
    return found


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert set(EXAMPLES) == set(commands())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_end_the_help_line_by_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    shown = text[text.index("  Examples:") :]
    wanted = "\n".join(f"  {line}".rstrip() for line in (epilog_of(name) or "").splitlines()[1:])
    assert shown.rstrip("\n") == wanted
    joined = shown.replace("\\\n", " ")
    lines = [shlex.split(line) for line in joined.splitlines() if line.strip().startswith("ladder-opt ")]
    assert lines == [["ladder-opt", *name.split(), *shlex.split(rest)] for _, rest in EXAMPLES[name]]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["tun"],
            (
                "found no command 'tun', expected one of tune, evaluate, simulate, frontier, sweep, "
                "calibrate, measure, check, export, verify, drift, report, trace; did you mean tune?"
            ),
        ),
        (
            ["trace", "cnvert"],
            "found no command 'cnvert', expected one of info, convert, synth; did you mean convert?",
        ),
        (
            ["tune", "--restarts", "1", "--guardd", "3"],
            "found no option '--guardd', expected one that --help lists; did you mean --guard?",
        ),
        (
            [*TUNE, "--structure", "raged"],
            ("--structure: found 'raged', expected product or ragged; did you mean ragged?"),
        ),
        (
            [*TUNE, "--kernel", "chunk"],
            ("kernel: found 'chunk', expected one of per_block, chunked; did you mean chunked?"),
        ),
        (
            ["tune", "--steps", "steps.csv", "--cost", "spyre-granite"],
            (
                "spyre-granite: found no such file, expected a cost model file or a built-in name "
                "(spyre-granite-3.3-8b); did you mean spyre-granite-3.3-8b?"
            ),
        ),
        (
            ["simulate", "trace.csv", "-o", "s.csv", "--ladders", "uniforn"],
            (
                "--ladders: found 'uniforn', expected one of default, pow2, 8_5, 4_3, 9_8, uniform, "
                "or a plan file; did "
                "you mean uniform?"
            ),
        ),
        (
            ["trace", "info", "trace.csv", "--columns", "prompt=promt_tokens,output=output_tokens"],
            (
                "trace.csv: found no column 'promt_tokens' (it has 'arrival_seconds', 'output_tokens', "
                "'prompt_tokens'), expected the columns of the format columns: promt_tokens, "
                "output_tokens; did you "
                "mean prompt_tokens?"
            ),
        ),
        (
            ["trace", "synth", "-o", "t.parquet", "--profile", "mooncake"],
            (
                "found profile 'mooncake', expected one of azure2023_conv, azure2023_code, "
                "mooncake_conversation; "
                "did you mean mooncake_conversation?"
            ),
        ),
    ],
)
def test_the_nearest_name_is_suggested(
    folder: Path,
    run: Run,
    arguments: list[str],
    line: str,
) -> None:
    assert run.fails(*arguments) == line


def test_only_near_names_are_suggested() -> None:
    assert did_you_mean("ENV", ["env", "json"]) == "; did you mean env?"
    assert did_you_mean("tarball", ["env", "json"]) == ""
    assert did_you_mean(3, ["env"]) == ""
    options = ["--steps", "--time-limit", "--time-unit", "--uptime", "--num-seqs", "--kernel"]
    for found, wanted in (
        ("--seed", ""),  # alike by its dashes, and by two letters
        ("--output-file", ""),
        ("--time", "; did you mean --time-limit or --time-unit?"),
        ("--stesp", "; did you mean --steps?"),
        ("--numseqs", "; did you mean --num-seqs?"),
    ):
        assert did_you_mean(found, options, ignoring="--") == wanted
    assert did_you_mean("par", [f"part{at}" for at in range(9)]) == ""  # the start of too many
    assert one_of(["env", "json"], "jsn", other=", or a file") == (
        "one of env, json, or a file; did you mean json?"
    )


def complete_bash(*words: str) -> list[str]:
    """What bash offers after these words."""
    script = Path(sys.executable).with_name("ladder-opt")
    environment = os.environ | {
        "_LADDER_OPT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, check=True, text=True
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ladder-opt", "f"], ["frontier"]),
        (["ladder-opt", "trace", "s"], ["synth"]),
        (["ladder-opt", "tune", "--restarts", "1", "--num-se"], ["--num-seqs"]),
        (["ladder-opt", "export", "--format", "v"], ["vllm-yaml", "vllm-capture-sizes"]),
        (["ladder-opt", "tune", "--kernel", ""], ["per_block", "chunked"]),
        (["ladder-opt", "tune", "--cost", "s"], ["spyre-granite-3.3-8b"]),
        (["ladder-opt", "simulate", "--ladders", "p"], ["pow2"]),
    ],
)
def test_bash_completes_commands_options_and_names(words: list[str], offered: list[str]) -> None:
    assert complete_bash(*words) == offered


def test_bash_is_told_how_to_complete(tmp_path: Path) -> None:
    """What --show-completion prints is a script that bash takes, and it completes."""
    script = Path(sys.executable).with_name("ladder-opt")
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [sys.executable, str(script), "--show-completion", "bash"],
        env=environment, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    (tmp_path / "complete.sh").write_text(shown, encoding="utf-8")
    # As bash would: the words so far, the one that the cursor is in, then the function.
    asked = subprocess.run(
        [
            "bash",
            "-euc",
            (
                '. "$1"; complete -p ladder-opt; COMP_WORDS=(ladder-opt ch); COMP_CWORD=1; '
                '_ladder_opt_completion "$2"; printf "%s\\n" "${COMPREPLY[@]}"'
            ),
            "bash",
            str(tmp_path / "complete.sh"),
            str(script),
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    assert asked.stdout.splitlines()[0].endswith("-F _ladder_opt_completion ladder-opt")
    assert asked.stdout.splitlines()[1:] == ["check"]


def test_completion_is_installed_for_bash_in_the_home_folder(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("ladder-opt")
    environment = os.environ | {
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    subprocess.run(
        [sys.executable, str(script), "--install-completion", "bash"],
        env=environment,
        capture_output=True,
        check=True,
    )
    written = (tmp_path / ".bash_completions" / "ladder-opt.sh").read_text(encoding="utf-8")
    assert "complete -o default -F _ladder_opt_completion ladder-opt" in written
    assert str(tmp_path / ".bash_completions" / "ladder-opt.sh") in (tmp_path / ".bashrc").read_text(
        encoding="utf-8"
    )
