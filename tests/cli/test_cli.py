"""The command line: exit codes, one line for every mistake, results on stdout and nothing else there."""

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

from ladder_opt import __version__
from ladder_opt.cli import app
from ladder_opt.cli.app import main
from ladder_opt.errors import InternalError
from ladder_opt.occupancy.sequences_file import read_sequences
from ladder_opt.occupancy.steps_file import read_steps, write_steps
from ladder_opt.plan.plan import read_plan
from ladder_opt.trace.read import read_trace
from tests.plan.plans import STEPS, make_cost, make_trace

ENGINE = ["--max-num-seqs", "8", "--max-model-len", "2048"]
COMMANDS = ("tune", "evaluate", "simulate", "check", "export", "trace")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with steps.csv, trace.csv and cost.json."""
    monkeypatch.chdir(tmp_path)
    write_steps(STEPS, "steps.csv")
    Path("cost.json").write_text(json.dumps(make_cost().to_dict()), encoding="utf-8")
    trace = make_trace(requests=120)
    assert trace.arrival_seconds is not None
    rows = zip(
        trace.arrival_seconds.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        strict=True,
    )
    lines = ["arrival_seconds,prompt_tokens,output_tokens"]
    Path("trace.csv").write_text("\n".join([*lines, *(f"{a},{p},{o}" for a, p, o in rows)]), encoding="utf-8")
    return tmp_path


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

    def __call__(self, *arguments: str, code: int = 0) -> Ran:
        self.capsys.readouterr()
        found = main(arguments)
        captured = self.capsys.readouterr()
        assert found == code, captured.err
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


TUNE = ["tune", "--steps", "steps.csv", "--cost", "cost.json", *ENGINE, "--span", "24h"]


# Help and version.


def test_help_and_version(run: Run) -> None:
    assert run("--version").out == f"ladder-opt {__version__}\n"
    for arguments in ((), ("--help",)):
        text = run(*arguments).out
        assert all(command in text for command in COMMANDS)
    assert "convert" in run("trace").out
    for command in ("tune", "evaluate", "simulate", "check", "export"):
        assert "--help" in run(command, "--help").out


# Bad usage.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "--steps"], "Option '--steps' requires an argument."),
        (["tune"], "found neither, expected trace files or --steps"),
        (["tune", "trace.csv", "--steps", "steps.csv"], "found both, expected trace files or --steps"),
        (
            ["evaluate"],
            "found no ladders, expected PLAN.json, or --num-seqs and --num-blocks",
        ),
        (["simulate", "trace.csv"], "Missing option '-o' / '--output'."),
        (["simulate", "-o", "x.csv"], "Missing argument 'TRACE...'."),
        (["check"], "found no plan, expected PLAN.json, --engine serve.yaml, or LADDER_OPT_PLAN to be set"),
        (["export", "p.json"], "Missing option '--format'."),
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
        (["tuen"], "No such command 'tuen'."),  # typer may go on with what was meant
        (["tune", "--stpes", "x"], "No such option: --stpes"),
        (["trace", "infos"], "No such command 'infos'."),
        (["tune", "--steps", "steps.csv", "--max-variants", "many"], "Invalid value for '--max-variants'"),
        (["tune", "trace.csv", "--rate-scale", "fast"], "Invalid value for '--rate-scale'"),
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


# Results.


def test_tune_writes_a_plan_and_prints_text(folder: Path, run: Run) -> None:
    ran = run(*TUNE, "-o", "p.json")
    plan = read_plan("p.json")
    assert ran.err == ""
    assert ran.out.startswith("adopt: worth loading; saves ")
    assert "optimal, proven: no ladders cost less" in ran.out
    assert f"num_seqs    {', '.join(map(str, plan.num_seqs))}" in ran.out
    assert ran.out.rstrip().endswith("next: ladder-opt export p.json --format env")
    assert plan.provenance.inputs[0].path == "steps.csv"
    assert plan.provenance.inputs[0].rows == 4


def test_json_is_all_of_stdout_and_equals_the_file(folder: Path, run: Run) -> None:
    ran = run(*TUNE, "--json", "-o", "p.json")
    assert ran.json() == json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert ran.json()["schema"] == "ladder_opt/plan/1"


def test_warnings_go_to_stderr_and_strict_ends_with_1(folder: Path, run: Run) -> None:
    arguments = [*TUNE, "--num-seqs", "8,4", "--json"]
    warning = "num_seqs: [8, 4] was sorted and freed of duplicates"
    ran = run(*arguments)
    assert ran.err == f"warning: {warning}\n"
    assert ran.json()["warnings"] == [warning]
    strict = run(*arguments, "--strict", "-o", "p.json", code=1)
    assert strict.json()["warnings"] == [warning]
    assert read_plan("p.json").warnings == (warning,)  # a strict run still gives its plan
    assert run(*TUNE, "--strict").err == ""


def test_an_extra_column_is_a_warning(folder: Path, run: Run) -> None:
    Path("more.csv").write_text("num_seqs,num_blocks,steps,host\n8,3,100,a\n", encoding="utf-8")
    ran = run("tune", "--steps", "more.csv", *ENGINE, "--span", "24h", "--strict", code=1)
    assert ran.err == "warning: more.csv: column 'host' is not one of a steps file and was left aside\n"


def test_an_engine_file_gives_defaults_that_options_beat(folder: Path, run: Run) -> None:
    Path("serve.yaml").write_text("max-num-seqs: 8\nmax-model-len: 4096\n", encoding="utf-8")
    arguments = [
        "tune",
        "--steps",
        "steps.csv",
        "--engine",
        "serve.yaml",
        "--max-model-len",
        "2048",
        "--json",
    ]
    engine = run(*arguments, "--num-kv-blocks", "50").json()["engine"]
    assert (engine["max_num_seqs"], engine["max_model_len"], engine["num_kv_blocks"]) == (8, 2048, 50)
    assert run(*arguments, "--num-kv-blocks", "auto").json()["engine"]["num_kv_blocks"] is None


def test_evaluate_of_a_tuned_plan_gives_its_numbers(folder: Path, run: Run) -> None:
    tuned = run(*TUNE, "-o", "p.json", "--restarts", "2", "--json").json()
    arguments = ["--steps", "steps.csv", "--cost", "cost.json", "--restarts", "2", "--json"]
    ladders = [
        ["p.json"],
        [
            *ENGINE,
            "--num-seqs",
            ",".join(map(str, tuned["num_seqs"])),
            "--num-blocks",
            ",".join(map(str, tuned["num_blocks"])),
        ],
    ]
    for given in ladders:
        ran = run("evaluate", *given, *arguments)
        result = ran.json()["result"]
        assert ran.err == ""
        assert result["status"] == "evaluated"
        assert ran.json()["engine"] == tuned["engine"]
        for name in (
            "objective_seconds",
            "step_seconds",
            "warmup_seconds",
            "num_variants",
            "gathers",
            "steps",
        ):
            assert result[name] == tuned["result"][name]
        assert result["lower_bound_seconds"] <= result["objective_seconds"]
        assert result["lower_bound_seconds"] <= tuned["result"]["objective_seconds"]
    text = run("evaluate", "p.json", *arguments[:-1]).out
    assert "evaluated as given: the optimum is at most" in text


def test_evaluate_with_one_axis_takes_the_default_for_the_other(folder: Path, run: Run) -> None:
    arguments = ["evaluate", "--steps", "steps.csv", *ENGINE, "--span", "24h", "--json"]
    assert run(*arguments, "--num-seqs", "8").json()["num_blocks"] == [1, 2, 4, 8, 16]
    ran = run(*arguments, "--num-blocks", "3,9,99")
    assert ran.json()["num_seqs"] == [4, 8]
    assert ran.json()["num_blocks"] == [3, 9, 16]
    assert len(ran.err.splitlines()) == 2


def test_simulate_then_tune_steps_equals_tune_of_the_trace(folder: Path, run: Run) -> None:
    common = ["--cost", "cost.json", *ENGINE]
    tuned = run("tune", "trace.csv", *common, "--restarts", "1", "-o", "p.json", "--json").json()
    assert tuned["provenance"]["replay"]["settled"] is True
    assert tuned["provenance"]["inputs"][0]["path"] == "trace.csv"
    for name in ("s.csv", "s.parquet"):
        ran = run("simulate", "trace.csv", *common, "--ladders", "p.json", "-o", name, "--json")
        assert ran.json()["requests"] == 120
        again = run("tune", "--steps", name, *common, "--json").json()
        for key in ("num_seqs", "num_blocks", "result", "baselines", "verdict"):
            assert again[key] == tuned[key]
    assert read_steps("s.csv").steps.total_steps == tuned["result"]["steps"]["total"]
    evaluated = run(
        "evaluate", "trace.csv", "p.json", "--cost", "cost.json", "--restarts", "1", "--json"
    ).json()
    assert evaluated["result"]["objective_seconds"] == tuned["result"]["objective_seconds"]


def test_simulate_prints_totals(folder: Path, run: Run) -> None:
    for ladders in ("default", "8_5"):
        text = run("simulate", "trace.csv", *ENGINE, "-o", "s.csv", "--ladders", ladders).out
        assert "requests replayed" in text
        assert "120" in text


def test_simulate_writes_the_per_sequence_table(folder: Path, run: Run) -> None:
    arguments = ["simulate", "trace.csv", *ENGINE, "-o", "s.csv", "--json"]
    calls = run(*arguments, "--sequences", "calls.parquet").json()["per_sequence_calls"]
    assert read_sequences("calls.parquet").sequences.total_calls == calls
    assert "per_sequence_calls" not in run(*arguments).json()
    assert "per-sequence calls" in run(*arguments[:-1], "--sequences", "calls.csv").out
    err = run(*arguments, "--sequences", "s.csv", code=2).err
    assert err.endswith("--sequences: found s.csv, expected another file than -o names\n")


def test_scheduling_settings_are_part_of_the_provenance(folder: Path, run: Run) -> None:
    Path("serve.yaml").write_text(
        "max-num-seqs: 8\nmax-model-len: 2048\nscheduling-policy: priority\nasync-scheduling: true\n"
    )
    arguments = [
        "tune",
        "trace.csv",
        "--cost",
        "cost.json",
        "--engine",
        "serve.yaml",
        "--sliding-window",
        "512",
    ]
    ran = run(*arguments, "--restarts", "1", "--json")
    plan = ran.json()
    assert plan["provenance"]["asked"]["scheduling"] == {
        "policy": "priority",
        "long_prefill_token_threshold": 0,
        "sliding_window": 512,
        "n": 1,
        "prefix_caching": False,
    }
    (warning,) = plan["warnings"]
    assert warning.startswith("serve.yaml: async-scheduling True is not replayed")
    assert plan["num_blocks"][-1] == 16


def test_simulate_with_prefix_caching(folder: Path, run: Run) -> None:
    rows = [
        {"timestamp": 900_000 * turn, "input_length": 600, "output_length": 4, "hash_ids": [1, 2 + turn % 2]}
        for turn in range(4)
    ]
    Path("turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["simulate", "turns.jsonl", *ENGINE, "-o", "s.csv"]
    assert run(*arguments, "--json").json()["cached_tokens"] == 0
    # the first 512 tokens of the second turn, of the others all 512 and no full block more
    assert run(*arguments, "--prefix-caching", "--json").json()["cached_tokens"] == 3 * 512
    assert "tokens from the prefix cache" in run(*arguments, "--prefix-caching").out
    err = run("simulate", "trace.csv", *ENGINE, "-o", "s.csv", "--prefix-caching", code=2).err
    assert "--prefix-caching: found a trace without hash_ids or cached_tokens" in err


def test_prefix_caching_by_what_a_server_had_cached(folder: Path, run: Run) -> None:
    Path("hits.csv").write_text(
        "arrival_seconds,prompt_tokens,output_tokens,cached_tokens\n0,600,4,0\n900,600,4,300\n1800,600,4,\n"
    )
    arguments = ["simulate", "hits.csv", *ENGINE, "-o", "s.csv"]
    assert run(*arguments, "--json").json()["cached_tokens"] == 0
    ran = run(*arguments, "--prefix-caching", "--strict", "--json")
    assert ran.json()["cached_tokens"] == 256  # two blocks of 128; the last row says nothing
    assert ran.json()["prefill_tokens"] == 1800 - 256
    assert "note: prefix-caching: 1 of 1 traces say by cached_tokens alone" in ran.err
    tuned = run("tune", "hits.csv", *ENGINE, "--prefix-caching", "--restarts", "1", "--json")
    assert "note: prefix-caching: 1 of 1 traces say by cached_tokens alone" in tuned.err
    assert tuned.json()["provenance"]["asked"]["scheduling"]["prefix_caching"] is True


def test_scheduling_mistakes_are_one_line(folder: Path, run: Run) -> None:
    arguments = ["simulate", "trace.csv", *ENGINE, "-o", "s.csv"]
    err = run(*arguments, "--num-speculative-tokens", "2", code=2).err
    assert "--num-speculative-tokens: found 2, expected none: a verify step" in err
    err = run(*arguments, "--scheduling-policy", "lifo", code=2).err
    assert "--scheduling-policy: found 'lifo', expected fcfs or priority" in err
    err = run("tune", "--steps", "steps.csv", *ENGINE, "--n", "2", code=2).err
    assert "--n: found with --steps, expected with traces alone" in err


def test_requests_set_aside_are_warned_of(folder: Path, run: Run) -> None:
    arguments = ["--max-num-seqs", "8", "--max-model-len", "1024", "-o", "s.csv", "--strict"]
    ran = run("simulate", "trace.csv", *arguments, code=1)
    line, behind = ran.err.splitlines()
    assert line.startswith("warning: ")
    told = "41 of 120 requests (34.17%) set aside: prompt and output together are longer than max_model_len"
    assert line == f"warning: {told}"
    assert behind.startswith("warning: the engine falls behind: the last request ends ")


def test_progress_is_shown_on_a_terminal_alone(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["tune", "trace.csv", "--cost", "cost.json", *ENGINE, "--json"]
    quiet = run(*arguments)
    assert quiet.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = run(*arguments)
    assert shown.json()["result"] == quiet.json()["result"]
    assert "solving, gap " in shown.err
    assert "Traceback" not in shown.err


def test_check_says_what_the_bucketer_uses(folder: Path, run: Run) -> None:
    plan = run(*TUNE, "-o", "p.json", "--json").json()
    report = run("check", "p.json", "--json").json()
    assert report["source"] == "p.json"
    assert report["engine"] == plan["engine"]
    assert (report["num_seqs"], report["num_blocks"]) == (plan["num_seqs"], plan["num_blocks"])
    assert report["num_variants"] == plan["result"]["num_variants"]
    assert report["warnings"] == []
    ran = run("check", "p.json", "--max-num-seqs", "16", "--strict", "--json", code=1)
    warning = "num_seqs: max_num_seqs = 16 was missing and was added as the top rung"
    assert ran.json()["num_seqs"] == [*plan["num_seqs"], 16]
    assert ran.json()["warnings"] == [warning]
    assert ran.err == f"warning: {warning}\n"
    assert "variants" in run("check", "p.json").out
    assert run.fails("check", "p.json", "--block-size", "256") == (
        "p.json: engine.block_size: found a plan for block_size 128, expected the engine's 256"
    )


def test_a_plan_of_an_engine_that_batches_nothing_is_checked_and_exported(folder: Path, run: Run) -> None:
    Path("few.csv").write_text("num_seqs,num_blocks,steps\n2,3,100\n", encoding="utf-8")
    ran = run("tune", "--steps", "few.csv", "--max-num-seqs", "3", "-o", "p.json")
    assert ran.out.startswith("not used: this traffic never reaches the batched kernel")
    assert ran.out.rstrip().endswith("next: nothing to load")
    assert run("check", "p.json", "--json").json()["num_variants"] == 0
    assert run("export", "p.json", "--format", "env").out.endswith("# nothing to load\n")
    assert run("evaluate", "--steps", "few.csv", "p.json", "--json").json()["verdict"] == "not-used"


def test_export_prints_or_writes(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    text = run("export", "p.json", "--format", "env").out
    assert text.endswith(f"export LADDER_OPT_PLAN={folder.resolve()}/p.json\n")
    assert run("export", "p.json", "--format", "env", "-o", "p.env").out == ""
    assert Path("p.env").read_text(encoding="utf-8") == text
    assert run("export", "p.json", "--format", "json").json() == json.loads(Path("p.json").read_text())
    assert "additional-config" in run("export", "p.json", "--format", "vllm-yaml").out
    assert run.fails("export", "p.json", "--format", "toml") == (
        "--format: found 'toml', expected one of env, vllm-yaml, json, vllm-capture-sizes, gaudi-file"
    )


def test_export_for_engines_that_pad_otherwise(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    sizes = run("export", "p.json", "--format", "vllm-capture-sizes").out
    assert sizes == run("export", "p.json", "--format", "vllm-capture-sizes", "--steps", "steps.csv").out
    # Steps of 2, 5 and 8 sequences: three sizes, as vLLM's own list (1, 2, 4, 8) has enough of.
    assert '"{\\"cudagraph_capture_sizes\\":[2,5,8]}"' in sizes
    priced = ["--row-seconds", "1e-3", "--graph-seconds", "100", "--restarts", "1"]
    text = run("export", "p.json", "--format", "vllm-capture-sizes", *priced, "-o", "s.yaml").out
    assert text == ""
    assert "[8]" in Path("s.yaml").read_text(encoding="utf-8")
    run("simulate", "trace.csv", *ENGINE, "-o", "s.csv", "--total-blocks", "t.csv")
    assert Path("t.csv").read_text(encoding="utf-8").startswith("num_seqs,total_blocks,steps\n1,")
    gaudi = ["export", "p.json", "--format", "gaudi-file", "--total-blocks", "t.csv"]
    text = run(*gaudi, "--row-seconds", "1e-4", "--page-seconds", "1e-5", "--max-graphs", "9").out
    assert text.startswith("# 9 decode buckets by ladder_opt: optimal, proven")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["env", "--row-seconds", "1"],
            ("--row-seconds: found with --format env, expected vllm-capture-sizes or gaudi-file"),
        ),
        (
            ["vllm-capture-sizes", "--page-grain", "2"],
            ("--page-grain: found with --format vllm-capture-sizes, expected gaudi-file"),
        ),
        (
            ["gaudi-file", "--steps", "s.csv"],
            ("--steps: found with --format gaudi-file, expected vllm-capture-sizes"),
        ),
        (
            ["gaudi-file"],
            (
                "--total-blocks: found none, expected the decode steps by the blocks of all sequences, "
                "which simulate --total-blocks writes (--format gaudi-file)"
            ),
        ),
        (
            ["gaudi-file", "--total-blocks", "steps.csv"],
            "--row-seconds: found none, expected seconds, for --format gaudi-file weighs both",
        ),
        (
            ["gaudi-file", "--total-blocks", "steps.csv", "--row-seconds", "1", "--page-seconds", "1"],
            "--graph-seconds: found none, nor --max-graphs, expected what holds buckets back",
        ),
        (
            [
                "gaudi-file",
                "--total-blocks",
                "steps.csv",
                "--row-seconds",
                "1",
                "--page-seconds",
                "1",
                "--max-graphs",
                "3",
            ],
            "steps.csv:1: found columns num_seqs, num_blocks, steps, expected num_seqs, total_blocks, steps",
        ),
        (
            ["vllm-capture-sizes", "--row-seconds", "nan"],
            "--row-seconds: found nan, expected a number of 0 or more",
        ),
        (
            ["vllm-capture-sizes", "--steps", "steps.csv", "--max-graphs", "0"],
            "--max-graphs: found 0, expected 1 or more",
        ),
        (
            ["vllm-capture-sizes", "-o", "p.json"],
            ("p.json: found an input of this very run, expected another file for the output"),
        ),
    ],
)
def test_export_refuses_what_a_format_cannot_use(
    folder: Path, run: Run, arguments: list[str], line: str
) -> None:
    run(*TUNE, "-o", "p.json")
    assert run.fails("export", "p.json", "--format", *arguments) == line


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


def test_trace_info_convert_and_synth(folder: Path, run: Run) -> None:
    facts = run("trace", "info", "trace.csv", "--json").json()
    assert (facts["requests"], facts["rows"]) == (120, 120)
    assert "requests" in run("trace", "info", "trace.csv").out
    converted = run("trace", "convert", "trace.csv", "-o", "t.parquet", "--json").json()
    own = run("trace", "info", "t.parquet", "--columns", "prompt=x,output=y", "--json").json()["notes"][-1]
    assert own == "t.parquet is a ladder_opt trace, whose columns are its own: --columns was left aside there"
    assert converted["requests"] == 120
    trace, source = read_trace("t.parquet"), read_trace("trace.csv")
    assert trace.prompt_tokens.tolist() == source.prompt_tokens.tolist()
    common = ["--cost", "cost.json", *ENGINE, "--json"]
    first = run("tune", "t.parquet", *common).json()
    assert first["result"] == run("tune", "trace.csv", *common).json()["result"]
    run("trace", "synth", "-o", "a.parquet", "--requests", "50", "--seed", "3")
    run("trace", "synth", "-o", "b.parquet", "--requests", "50", "--seed", "3")
    assert Path("a.parquet").read_bytes() == Path("b.parquet").read_bytes()
    assert len(read_trace("a.parquet")) == 50
    ran = run("trace", "info", "trace.csv", "--max-model-len", "1000", "--strict", code=1)
    assert "44 of 120 requests (36.67%) set aside: prompt and output together are longer" in ran.err


# A process of its own.


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


def test_spyre_env_from_trace_to_variables(folder: Path, run: Run) -> None:
    spyre = ["--target", "spyre-env", "--cost", "cost.json"]
    assert run("tune", "trace.csv", *ENGINE, *spyre, "--restarts", "1", "-o", "plan.json").code == 0
    plan = read_plan("plan.json")
    assert plan.query_lens == (1, 512)  # the cost model has no price for query padding
    exported = run("export", "plan.json", "--format", "env").out
    assert "export SPYRE_ATTN_KV_BUCKETS=" in exported
    assert "LADDER_OPT_PLAN" not in exported
    evaluated = run("evaluate", "trace.csv", "plan.json", "--cost", "cost.json", "--restarts", "1", "--json")
    assert evaluated.json()["result"]["objective_seconds"] == pytest.approx(plan.result.objective_seconds)
    text = run("tune", "trace.csv", *ENGINE, *spyre, "--query-lens", "solve").out
    assert "query_lens" in text
    assert "per-sequence calls" in text


def test_spyre_env_from_a_histogram(folder: Path, run: Run) -> None:
    files = ["-o", "steps2.csv", "--sequences", "calls.csv"]
    assert run("simulate", "trace.csv", *ENGINE, "--cost", "cost.json", *files).code == 0
    steps = ["--steps", "steps2.csv", *ENGINE, "--cost", "cost.json", "--target", "spyre-env"]
    known = run("tune", *steps, "--sequences", "calls.csv", "--json")
    assert known.code == 0
    assert [item["format"] for item in known.json()["provenance"]["inputs"]] == ["steps", "sequences"]
    guessed = run("tune", *steps, "--json")
    assert guessed.code == 0
    assert "prefill is left out" in guessed.err
    sequences = known.json()["result"]["sequences"], guessed.json()["result"]["sequences"]
    assert sequences[0]["calls"] > sequences[1]["calls"] > 0
    given = run(
        "evaluate", *steps[:-2], "--sequences", "calls.csv", "--num-seqs", "4,8", "--query-lens", "1,512"
    )
    assert given.code == 0
    assert "per-sequence calls" in given.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "steps.csv", "--sequences", "calls.csv"], "--sequences: found with --target plugin"),
        (["trace.csv", "--sequences", "calls.csv"], "--sequences: found with traces"),
        (["trace.csv", "--query-lens", "1,512"], "--query-lens: found with --target plugin"),
        (["trace.csv", "--target", "spyre"], "--target: found 'spyre', expected plugin or spyre-env"),
        (
            ["trace.csv", "--target", "spyre-env", "--num-seqs", "2,8"],
            "--num-seqs: found 2, expected 4 or more",
        ),
    ],
)
def test_spyre_env_mistakes_are_one_line(folder: Path, run: Run, arguments: list[str], message: str) -> None:
    assert message in run.fails("tune", *arguments, *ENGINE, "--cost", "cost.json")


def test_robust_plans_of_two_traces(folder: Path, run: Run) -> None:
    second = "\n".join(
        [
            "arrival_seconds,prompt_tokens,output_tokens",
            *(f"{4 * i},1200,{200 + 7 * i % 90}" for i in range(90)),
        ]
    )
    Path("second.csv").write_text(second, encoding="utf-8")
    traces = ["trace.csv", "second.csv"]
    ran = run("tune", *traces, *ENGINE, "--cost", "cost.json", "--robust", "-o", "plan.json", "--json")
    robust = ran.json()["result"]["robust"]
    assert [each["path"] for each in robust["workloads"]] == traces
    assert robust["status"] == "optimal"
    assert robust["worst_regret"] <= robust["mix"]["worst_regret"] + 1e-8
    assert read_plan("plan.json").result.robust is not None
    ran = run("tune", *traces, *ENGINE, "--cost", "cost.json", "--robust")
    assert "the worst of 2 workloads pays" in ran.out
    line = run.fails("tune", *traces, *ENGINE, "--robust", "--weights", "1,2")
    assert "--weights: found with --robust, expected none" in line
    assert folder.is_dir()
