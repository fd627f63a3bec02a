"""`ladder-opt export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runs import ENGINE, TUNE, Run


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
