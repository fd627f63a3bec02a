"""Runs that once went wrong: short pools, closed streams, absurd numbers, outputs that are inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ladder_opt.cli import main
from ladder_opt.errors import InputError
from ladder_opt.plan.plan import read_plan
from ladder_opt.report.html import write_report
from tests.cli.runs import Run

STEPS = "num_seqs,num_blocks,steps\n4,1,10\n5,3,100\n9,17,40.5\n20,40,3\n2,5,7\n"
ENGINE = ["--max-num-seqs", "5", "--max-model-len", "640"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("structure", ["product", "ragged"])
def test_a_short_pool_and_a_budget_at_no_restarts(
    folder: Path, capsys: pytest.CaptureFixture[str], structure: str
) -> None:
    # Without rung 2 the dearer (5, 5) would be a variant that occurs; no price sees it at restarts 0.
    cost = {
        "schema": "ladder_opt/cost/1",
        "name": "x",
        "kernel": "per_block",
        "step_seconds": {"base": 0.5},
        "compile_seconds": {"base": 19.06399330163961, "per_iteration": 1.2990487059493865},
    }
    (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
    (folder / "one.csv").write_text("num_seqs,num_blocks,steps\n4,1,1\n", encoding="utf-8")
    arguments = ["tune", "--steps", "one.csv", "--cost", "cost.json", *ENGINE, "--num-kv-blocks", "6"]
    limits = ["--warmup-budget", "25", "--restarts", "0", "--structure", structure, "--json"]
    assert main([*arguments, *limits]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["result"]["warmup_seconds"] <= 25
    assert plan["result"]["status"] == "optimal"


def test_steps_that_the_pool_never_holds_are_refused(folder: Path, run: Run) -> None:
    assert run.fails("tune", "--steps", "steps.csv", "--num-kv-blocks", "41") == (
        "steps.csv: found num_seqs 20, num_blocks 40, which need 59 KV blocks, "
        "expected at most the 40 that the pool has"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--restarts", "1e305"], "--restarts: found 1e+305, expected at most 1e+12"),
        (
            ["--span", "1e300", "--uptime", "1s"],
            "--uptime: found 1e+300 server starts in it, expected at most 1e+12",
        ),
        (
            ["--max-num-seqs", "1000000"],
            "max_num_seqs x blocks of max_model_len: found 1000000 x 64, expected at most 20000000 in all",
        ),
        (
            ["-o", "steps.csv"],
            "steps.csv: found an input of this very run, expected another file for the output",
        ),
    ],
)
def test_absurd_numbers_and_outputs(folder: Path, run: Run, arguments: list[str], message: str) -> None:
    assert run.fails("tune", "--steps", "steps.csv", *arguments) == message
    assert (folder / "steps.csv").read_text(encoding="utf-8") == STEPS


@pytest.mark.parametrize("text", ["a: !!timestamp abc", "a: !!bool abc", 'a: !!int ""', "a: !!float abc"])
def test_yaml_tags_that_cannot_be_read(folder: Path, run: Run, text: str) -> None:
    (folder / "serve.yaml").write_text(text + "\n", encoding="utf-8")
    told = run.fails("tune", "--steps", "steps.csv", "--engine", "serve.yaml")
    assert told.startswith("serve.yaml")
    assert told.endswith("expected a vLLM serve YAML")


def test_a_limit_in_two_spellings_is_refused(folder: Path, run: Run) -> None:
    (folder / "serve.yaml").write_text("max_num_seqs: 40\nmax-num-seqs: 64\n", encoding="utf-8")
    assert run.fails("tune", "--steps", "steps.csv", "--engine", "serve.yaml") == (
        "serve.yaml: found 'max-num-seqs' besides another spelling of max_num_seqs, expected each limit once"
    )


def test_deep_brackets_in_a_free_part_of_a_cost_file(folder: Path, run: Run) -> None:
    deep = "[" * 400 + "]" * 400
    (folder / "cost.json").write_text(
        '{"schema": "ladder_opt/cost/1", "name": "x", "step_seconds": {}, "compile_seconds": {}, '
        f'"fit": {{"a": {deep}}}}}',
        encoding="utf-8",
    )
    assert run.fails("tune", "--steps", "steps.csv", "--cost", "cost.json") == (
        "cost.json: found brackets nested too deeply, expected a cost model in JSON"
    )


def test_a_table_of_zeros_is_proven_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = {
        "schema": "ladder_opt/cost/1",
        "name": "free",
        "step_seconds": {},
        "compile_seconds": {"base": 3.0, "per_iteration": 0.7},
    }
    (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
    arguments = ["tune", "--steps", "steps.csv", "--cost", "cost.json", "--restarts", "0", "--json"]
    assert main([*arguments, "--guard", "2", "--warmup-budget", "300"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["status"] == "optimal"


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("steps", "code"), [("steps.csv", 0), ("nope.csv", 2)])
def test_a_closed_or_full_stderr_changes_nothing(
    folder: Path, redirection: str, steps: str, code: int
) -> None:
    command = f"exec {sys.executable} -m ladder_opt tune --steps {steps} -o p.json {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, check=False)
    assert done.returncode == code
    assert (folder / "p.json").exists() == (code == 0)


def test_a_plan_whose_bound_is_above_its_objective_is_refused(folder: Path, run: Run) -> None:
    assert main(["tune", "--steps", "steps.csv", "-o", "p.json"]) == 0
    plan = json.loads((folder / "p.json").read_text(encoding="utf-8"))
    plan["result"]["lower_bound_seconds"] = 1e9
    (folder / "p.json").write_text(json.dumps(plan), encoding="utf-8")
    assert run.fails("check", "p.json").startswith("p.json: result.lower_bound_seconds: found 1e+09")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--replicas", "2"),
        ("--rate-scale", "2"),
        ("--weights", "1"),
        ("--concurrency", "4"),
        ("--format", "azure"),
    ],
)
def test_options_of_traces_do_not_go_with_a_histogram(
    folder: Path, run: Run, option: str, value: str
) -> None:
    assert run.fails("tune", "--steps", "steps.csv", option, value) == (
        f"{option}: found with --steps, expected with traces alone"
    )


def test_a_report_never_replaces_what_its_plan_was_made_from(folder: Path, run: Run) -> None:
    assert main(["tune", "--steps", "steps.csv", "-o", "p.json"]) == 0
    refused = "found a file that the plan was made from, expected another file for the output"
    assert run.fails("report", "p.json", "-o", "steps.csv") == f"steps.csv: {refused}"
    (folder / "link.csv").symlink_to("steps.csv")
    assert run.fails("report", "p.json", "-o", "./link.csv") == f"link.csv: {refused}"
    (folder / "copy.csv").write_text(STEPS, encoding="utf-8")  # the same bytes elsewhere
    assert run.fails("report", "p.json", "-o", "copy.csv") == f"copy.csv: {refused}"
    (folder / "steps.csv").write_text("changed since", encoding="utf-8")  # the same path, other bytes
    assert run.fails("report", "p.json", "-o", "steps.csv") == f"steps.csv: {refused}"
    arguments = ["export", "p.json", "--format", "env", "-o", "copy.csv"]
    assert run.fails(*arguments) == f"copy.csv: {refused}"
    (folder / "figures").mkdir()
    (folder / "figures/occupancy.svg").write_text(STEPS, encoding="utf-8")
    arguments = ["report", "p.json", "--figures", "figures", "--frontier-time", "0s"]
    assert run.fails(*arguments) == f"figures/occupancy.svg: {refused}"
    with pytest.raises(InputError, match="made from"):
        write_report(read_plan("p.json"), "copy.csv", frontier_seconds=0)
    assert (folder / "steps.csv").read_text(encoding="utf-8") == "changed since"
    assert (folder / "copy.csv").read_text(encoding="utf-8") == STEPS
    (folder / "old.html").write_text("an old report", encoding="utf-8")
    assert main(["report", "p.json", "-o", "old.html", "--frontier-time", "0s"]) == 0


def test_paths_of_a_hostile_plan_do_no_harm_to_the_output(folder: Path) -> None:
    assert main(["tune", "--steps", "steps.csv", "-o", "p.json"]) == 0
    plan = json.loads((folder / "p.json").read_text(encoding="utf-8"))
    plan["provenance"]["inputs"] = [
        {"path": path, "sha256": "x", "rows": 1} for path in ("a\0b", "", "/", "x" * 5000, "\udcff")
    ]
    (folder / "p.json").write_text(json.dumps(plan), encoding="utf-8")
    (folder / "r.html").write_text("an old report", encoding="utf-8")
    assert main(["report", "p.json", "-o", "r.html", "--frontier-time", "0s"]) == 0
