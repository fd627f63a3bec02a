"""`ladder-opt evaluate`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.runs import ENGINE, TUNE, Run


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


def test_evaluate_does_not_end_on_what_is_done_already(folder: Path, run: Run) -> None:
    run(*TUNE, "-o", "p.json")
    common = ["evaluate", "--steps", "steps.csv", "--cost", "cost.json", *ENGINE]
    for ladders in (["p.json"], ["--num-seqs", "4,8"]):
        text = run(*common, *ladders).out
        assert "next:" not in text
        assert "-o PLAN.json" not in text
