"""`ladder-opt tune`: results on stdout and nothing else there, warnings on stderr, plans in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladder_opt.plan.plan import read_plan
from tests.cli.runs import ENGINE, TUNE, Run


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
