"""`ladder-opt simulate`, and the scheduling options of every replay."""

from __future__ import annotations

import json
from pathlib import Path

from ladder_opt.occupancy.sequences_file import read_sequences
from ladder_opt.occupancy.steps_file import read_steps
from tests.cli.runs import ENGINE, Run


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
