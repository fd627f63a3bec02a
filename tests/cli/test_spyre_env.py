"""`--target spyre-env` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladder_opt.plan.plan import read_plan
from tests.cli.runs import ENGINE, Run


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
