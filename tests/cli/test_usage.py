"""Help, bad usage and failures: one line each, and the exit code that goes with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ladder_opt import __version__
from ladder_opt.cli import app
from ladder_opt.cli.app import main
from ladder_opt.errors import InternalError
from tests.cli.runs import ENGINE, TUNE, Run

COMMANDS = ("tune", "evaluate", "simulate", "check", "export", "trace")


def test_help_and_version(run: Run) -> None:
    assert run("--version").out == f"ladder-opt {__version__}\n"
    for arguments in ((), ("--help",)):
        text = run(*arguments).out
        assert all(command in text for command in COMMANDS)
    assert "convert" in run("trace").out
    for command in ("tune", "evaluate", "simulate", "check", "export"):
        assert "--help" in run(command, "--help").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tune", "--steps"],
            (
                "--steps: found nothing after it, expected a value (A steps histogram (CSV or Parquet) in "
                "place of traces, or a folder that a server recorded; several add up)"
            ),
        ),
        (["tune"], "found neither, expected trace files or --steps"),
        (["tune", "trace.csv", "--steps", "steps.csv"], "found both, expected trace files or --steps"),
        (
            ["evaluate"],
            "found no ladders, expected PLAN.json, or --num-seqs and --num-blocks",
        ),
        (
            ["simulate", "trace.csv"],
            "found no --output, expected a value (The histogram: STEPS.csv or STEPS.parquet)",
        ),
        (["simulate", "-o", "x.csv"], "found no TRACE..., expected a value (Request traces)"),
        (["check"], "found no plan, expected PLAN.json, --engine serve.yaml, or LADDER_OPT_PLAN to be set"),
        (
            ["export", "p.json"],
            (
                "found no --format, expected a value (One of env, vllm-yaml, json, vllm-capture-sizes, "
                "gaudi-file)"
            ),
        ),
        (
            [*TUNE, "--uptime", "soon"],
            "--uptime: found 'soon', expected a duration such as 600s, 10m or 24h",
        ),
        ([*TUNE, "--uptime", "0s"], "--uptime: found 0.0, expected more than 0 s"),
        (
            [*TUNE, "--uptime", "24h", "--restarts", "1"],
            "--restarts: found --uptime as well, expected one of the two",
        ),
        ([*TUNE, "--span", "-5s"], "--span: found '-5s', expected a duration such as 600s, 10m or 24h"),
        ([*TUNE, "--restarts", "-1"], "--restarts: found -1.0, expected a number of 0 or more"),
        ([*TUNE, "--restarts", "nan"], "--restarts: found nan, expected a number of 0 or more"),
        (
            [*TUNE, "--time-limit", "1 minute"],
            "--time-limit: found '1 minute', expected a duration such as 600s, 10m or 24h",
        ),
        ([*TUNE, "--min-gain", "most"], "--min-gain: found 'most', expected a share such as 1% or 0.01"),
        ([*TUNE, "--max-variants", "0"], "--max-variants: found 0, expected 1 or more"),
        ([*TUNE, "--guard", "0.5"], "--guard: found 0.5, expected a factor of 1 or more"),
        ([*TUNE, "--guard", "nan"], "--guard: found nan, expected a factor of 1 or more"),
        (
            [*TUNE, "--num-blocks", "1,16", "--guard", "2"],
            "--num-blocks: found 16 after 1, expected rungs that keep --guard 2",
        ),
        ([*TUNE, "--num-seqs", ""], "--num-seqs: found '' in '', expected integers such as 4,8,32"),
        ([*TUNE, "--num-seqs", "4;8"], "--num-seqs: found '4;8' in '4;8', expected integers such as 4,8,32"),
        ([*TUNE, "--num-blocks", "0,16"], "num_blocks: found 0, expected integers of 1 or more"),
        (
            [*TUNE, "--num-blocks", "1,2,4,16", "--max-variants", "2"],
            "--max-variants: found 2, expected at least 4",
        ),
        (
            [*TUNE, "--warmup-budget", "10s"],
            "--warmup-budget: found 10 s, expected more than the start-up's 30 s",
        ),
        ([*TUNE, "--kernel", "flash"], "kernel: found 'flash', expected one of per_block, chunked"),
        (
            ["tune", "--steps", "steps.csv", "--block-size", "100"],
            "block_size: found 100, expected a multiple of 64",
        ),
        (
            ["tune", "--steps", "steps.csv", "--num-kv-blocks", "many"],
            "--num-kv-blocks: found 'many', expected a whole number or auto",
        ),
        (
            ["tune", "--steps", "steps.csv", "--num-kv-blocks", "1"],
            "num_kv_blocks: found 1, expected 2 or more (one is vLLM's null block)",
        ),
        (
            ["tune", "--steps", "steps.csv", "--max-num-seqs", "6"],
            "steps.csv:5: num_seqs: found 8, expected at most the engine's max_num_seqs = 6",
        ),
        (
            ["tune", "--steps", "gone.csv"],
            "gone.csv: found No such file or directory, expected a readable file",
        ),
        (["tune", "--steps", "."], ".: found no steps file, expected a folder of steps-*.csv"),
        (["tune", "gone.csv"], "gone.csv: found No such file or directory, expected a readable file"),
        (["tune", "."], ".: found a directory, expected a readable file"),
        (["check", "gone.json"], "gone.json: found No such file or directory, expected a readable file"),
        (
            ["tune", "trace.csv", "--columns", "prompt"],
            "--columns: found 'prompt', expected arrival=NAME,prompt=NAME,output=NAME",
        ),
        (
            ["tune", "trace.csv", "--columns", "prompt=a,prompt=b"],
            "--columns: found 'prompt' twice, expected each role once",
        ),
        (["trace", "info", "."], ".: found a directory, expected a readable file"),
        ([*TUNE, "--engine", "gone"], "gone: found No such file or directory, expected a readable file"),
        (
            ["simulate", "trace.csv", "-o", "x.csv", "--ladders", "even"],
            "--ladders: found 'even', expected one of default, pow2, 8_5, 4_3, 9_8, uniform, or a plan file",
        ),
        (
            ["evaluate", "--steps", "steps.csv", "--num-seqs", "four"],
            "--num-seqs: found 'four' in 'four', expected integers such as 4,8,32",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line(folder: Path, run: Run, arguments: list[str], message: str) -> None:
    assert run.fails(*arguments) == message


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["tuen"], "found no command 'tuen'"),
        (["tune", "--stpes", "x"], "found no option '--stpes'"),
        (["trace", "infos"], "found no command 'infos'"),
        (
            ["tune", "--steps", "steps.csv", "--max-variants", "many"],
            "--max-variants: found 'many', expected a whole number of at least 1",
        ),
        (["tune", "trace.csv", "--rate-scale", "fast"], "--rate-scale: found 'fast', expected a number"),
        (["tune", "trace.csv", "--rate-scale", "0"], ""),
        (["tune", "trace.csv", "--rate-scale", "nan"], ""),
        (["tune", "trace.csv", "--replicas", "0"], ""),
        (["tune", "trace.csv", "--concurrency", "0"], ""),
        (["tune", "trace.csv", "--format", "pigeon"], ""),
        (["tune", "trace.csv", "--clock", "sundial"], ""),
        (["tune", "trace.csv", "--time-unit", "fortnight"], ""),
        (["tune", "cost.json"], "cost.json: found"),
        (["tune", "--steps", "cost.json"], "cost.json:1: found columns "),
        (["check", "cost.json"], "cost.json: schema: found 'ladder_opt/cost/1'"),
        (["check", "steps.csv"], "steps.csv:1: column 1: found 'num_seqs,num_blocks,"),
        (["tune", "--steps", "steps.csv", "--cost", "steps.csv"], "steps.csv:1: column 1: found "),
        (["tune", "--steps", "steps.csv", "--cost", "free"], "free: found no such file, expected a cost"),
        (["trace", "synth", "-o", "t.parquet", "--profile", "noon"], ""),
        (["trace", "synth", "-o", "t.parquet", "--requests", "0"], ""),
        (["trace", "synth", "-o", "t.parquet", "--rate", "-1"], ""),
        (["evaluate", "--steps", "steps.csv", "trace.csv"], "trace.csv:1: column 1: found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_mistakes_are_one_line_too(folder: Path, run: Run, arguments: list[str], start: str) -> None:
    assert run.fails(*arguments).startswith(start)


@pytest.mark.parametrize(
    "arguments",
    [
        [*TUNE, "-o", "gone/p.json"],
        ["simulate", "trace.csv", *ENGINE, "-o", "gone/s.csv"],
        ["simulate", "trace.csv", *ENGINE, "-o", "gone/s.parquet"],
        ["trace", "convert", "trace.csv", "-o", "gone/t.parquet"],
        ["trace", "synth", "--requests", "10", "-o", "gone/t.parquet"],
    ],
    ids=" ".join,
)
def test_a_missing_output_folder(folder: Path, run: Run, arguments: list[str]) -> None:
    assert run.fails(*arguments) == (
        "gone: found No such file or directory, expected a folder that can be written"
    )


def test_the_output_folder_is_looked_at_before_the_work(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*arguments: object, **options: object) -> None:
        raise AssertionError("an hour of work, lost")

    for name in ("tune.tune", "simulate.simulate", "trace.write_trace"):
        monkeypatch.setattr(f"ladder_opt.cli.{name}", worked)
    for arguments in (TUNE, ["simulate", "trace.csv"], ["trace", "convert", "trace.csv"], ["trace", "synth"]):
        assert run.fails(*arguments, "-o", "gone/x").startswith("gone: found No such file or directory")
    assert sorted(entry.name for entry in folder.iterdir()) == ["cost.json", "steps.csv", "trace.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_is_not_ours(folder: Path, run: Run) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o500)
    assert run.fails(*TUNE, "-o", "locked/p.json") == (
        "locked: found Permission denied, expected a folder that can be written"
    )


def test_an_output_that_is_a_folder(folder: Path, run: Run) -> None:
    (folder / "taken").mkdir()
    assert (
        run.fails(*TUNE, "-o", "taken") == "taken: found Is a directory, expected a path that can be written"
    )
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "cost.json",
        "steps.csv",
        "taken",
        "trace.csv",
    ]


def test_our_own_bugs_end_with_3(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise InternalError("two parts\ndisagree")

    monkeypatch.setattr("ladder_opt.cli.tune.tune", broken)
    assert run.fails(*TUNE, code=app.EXIT_OUR_BUG) == (
        "two parts disagree (a bug of ladder-opt: please report it)"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(28, "No space left on device", "/disk/p.json"),
            (2, "/disk/p.json: No space left on device"),
        ),
        (OSError(5, "Input/output error"), (2, "output: Input/output error")),
        (MemoryError(), (2, "out of memory")),
        (KeyboardInterrupt(), (130, "interrupted")),
    ],
)
def test_failures_of_the_machine(
    folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    expected: tuple[int, str],
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("ladder_opt.cli.tune.tune", broken)
    code, message = expected
    assert run.fails(*TUNE, code=code) == message


def test_what_nobody_foresaw_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("ladder_opt.cli.tune.tune", broken)
    with pytest.raises(ZeroDivisionError):
        main(TUNE)


def test_a_plan_that_is_torn_is_refused_by_every_command(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    Path("torn.json").write_text(Path("p.json").read_text()[:200], encoding="utf-8")
    for arguments in (
        ["check", "torn.json"],
        ["export", "torn.json", "--format", "env"],
        ["evaluate", "--steps", "steps.csv", "torn.json"],
        ["simulate", "trace.csv", "-o", "s.csv", "--ladders", "torn.json"],
    ):
        line = run.fails(*arguments)
        assert line.startswith("torn.json:")
        named_last = arguments[0] == "evaluate"
        hint = " (of the files named, the last is the plan)" if named_last else ""
        assert line.endswith(f"expected a plan in JSON{hint}")
