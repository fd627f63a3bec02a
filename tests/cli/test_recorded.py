"""The way back from a server: what it recorded, as `--steps` and as traces; and `check` with its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder, StepsWriter
from ladder_opt.engine import Engine
from ladder_opt.plan.plan import read_plan
from ladder_opt.vllm_plugin.request_trace import FinishedRequest, RequestTraceWriter
from tests.cli.runs import ENGINE, Run

TUNE = ["tune", *ENGINE, "--cost", "cost.json"]


def record_steps(where: Path, *, rank: int, steps: int, engine: Engine | None = None) -> Path:
    """What a server leaves behind."""
    recorder = StepRecorder()
    recorder.start()
    recorder._started -= 3600
    for step in range(steps):
        recorder.decode([128 * (1 + (step + each) % 9) for each in range(6)], 128)
    made = engine or Engine(max_num_seqs=8, max_model_len=2048)
    writer = StepsWriter(
        recorder,
        Bucketer.from_engine(made),
        where,
        instance="i",
        rank=rank,
        every_seconds=3600,
        warn=pytest.fail,
    )
    writer.stop()
    return writer.path


def test_a_recorded_folder_is_all_that_tune_needs(folder: Path, run: Run) -> None:
    record_steps(folder / "rec", rank=0, steps=200)
    record_steps(folder / "rec", rank=1, steps=100)
    ran = run(*TUNE, "--steps", "rec", "-o", "p.json", "--json")
    plan = read_plan("p.json")
    assert plan.result.steps.batched == 300
    assert [Path(each.path).name[-9:] for each in plan.provenance.inputs] == ["rank0.csv", "rank1.csv"]
    assert plan.result.restarts == pytest.approx(2 / 24, rel=1e-3)  # two servers, an hour each
    assert "note: the steps cover 2 h 00 min of a server, as their records say" in ran.err


def test_what_is_given_wins_over_the_records(folder: Path, run: Run) -> None:
    record_steps(folder / "rec", rank=0, steps=50)
    for options, restarts in ((["--restarts", "7"], 7), (["--span", "12h"], 0.5)):
        ran = run(*TUNE, "--steps", "rec", *options, "--json")
        assert ran.json()["result"]["restarts"] == restarts
        assert "cover" not in ran.err


def test_several_steps_add_up_for_every_command(folder: Path, run: Run) -> None:
    path = str(record_steps(folder / "rec", rank=0, steps=50))
    more = ["--steps", path, "--steps", "steps.csv"]
    total = run(
        "evaluate", *ENGINE, "--cost", "cost.json", *more, "--num-seqs", "8", "--num-blocks", "16", "--json"
    )
    assert total.json()["result"]["steps"]["total"] == 50 + 4570
    assert "one server start is charged" in total.err  # not every file says how long it took
    assert run("frontier", *ENGINE, "--cost", "cost.json", *more, "--json").json()["points"]
    assert run.fails(*TUNE, "--steps", path, "--steps", "rec") == (
        f"rec/{Path(path).name}: found a steps file named twice, expected each file once"
    )


def test_a_record_says_what_engine_it_is_of(folder: Path, run: Run) -> None:
    path = record_steps(folder / "rec", rank=0, steps=50)
    beside = str(path.with_suffix(".json").relative_to(folder))
    plan = run("tune", "--engine", beside, "--cost", "cost.json", "--steps", "rec", "--json").json()
    assert plan["engine"]["max_num_seqs"] == 8
    other = run("tune", "--cost", "cost.json", "--steps", "rec", "--json")
    assert f"warning: {beside}: recorded with max_num_seqs 8, the engine's is 32" in other.err
    assert run.fails(*TUNE, "--block-size", "256", "--steps", "rec") == (
        f"{beside}: found steps recorded with block_size 128, expected 256 (--block-size)"
    )


def test_recorded_requests_are_a_trace(folder: Path, run: Run) -> None:
    writer = RequestTraceWriter(
        "rec", instance="i", rank=0, every_seconds=3600, with_ids=False, warn=pytest.fail, part_rows=40
    )
    for number in range(100):
        writer.add(FinishedRequest(1.7e9 + number, 300, 60, 0))
    writer.stop()
    plan = run(*TUNE, "rec", "--json").json()
    assert [each["rows"] for each in plan["provenance"]["inputs"]] == [40, 40, 20]
    assert run("trace", "info", "rec", "--json").json()["requests"] == 100


def check(run: Run, *arguments: str, code: int = 0) -> Any:
    ran = run("check", "p.json", *arguments, "--json", code=code)
    return ran.json(), ran.err


def test_check_counts_the_servers_own_lists_in(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*TUNE, "--steps", "steps.csv", "--num-seqs", "5,8", "-o", "p.json")
    report, told = check(run)
    assert report["num_seqs"] == [5, 8]
    assert report["kv_tokens"] == [128, 256, 512, 1024, 2048]
    assert report["query_tokens"] == [1, 512]
    assert report["environment"] == {}
    assert told == ""
    monkeypatch.setenv("SPYRE_ATTN_NUM_SEQS_BUCKETS", "4,8")
    monkeypatch.setenv("SPYRE_ATTN_KV_BUCKETS", "1024,2048")
    report, told = check(run, "--strict", code=1)
    assert report["num_seqs"] == [4, 8]
    assert report["kv_tokens"] == [1024, 2048]
    assert report["environment"] == {
        "SPYRE_ATTN_NUM_SEQS_BUCKETS": "4,8",
        "SPYRE_ATTN_KV_BUCKETS": "1024,2048",
    }
    assert report["num_blocks"] == json.loads(Path("p.json").read_text(encoding="utf-8"))["num_blocks"]
    assert told == (
        "warning: SPYRE_ATTN_NUM_SEQS_BUCKETS asks for num_seqs 4,8, p.json for 5,8: the variable wins\n"
    )
    text = run("check", "p.json").out
    assert "1024, 2048  (per sequence; SPYRE_ATTN_KV_BUCKETS)" in text
    monkeypatch.setenv("SPYRE_ATTN_QUERY_BUCKETS", "x")
    assert run.fails("check", "p.json") == (
        "SPYRE_ATTN_QUERY_BUCKETS: found 'x' in 'x', expected whole numbers of 1 or more"
    )
