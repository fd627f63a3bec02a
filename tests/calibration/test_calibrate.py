"""`calibrate` and its command: files in, a cost model out, one line for every mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.calibration.api import calibrate
from ladder_opt.calibration.request_records import read_request_records, with_distinct_prompts
from ladder_opt.calibration.server_records import NO_PLANS
from ladder_opt.calibration.server_steps import server_cost
from ladder_opt.cli.app import main
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.read import TIMED_FORMATS, read_timed_trace, read_trace
from tests.calibration.runs import SERVER, TRUTH, made_trace, server_run, write_records

LIMITS = ["--block-size", "16", "--max-num-seqs", "32", "--max-model-len", "4096"]
LIMITS += ["--max-num-batched-tokens", "512", "--num-kv-blocks", "1200"]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's records, in the working folder."""
    monkeypatch.chdir(tmp_path)
    write_records(server_run(made_trace(1)), tmp_path / "requests.jsonl")
    return Path("requests.jsonl")


def test_two_clocks_become_one(records: Path) -> None:
    run = server_run(made_trace(1))
    read = read_request_records(records)
    assert len(read) == 200
    # The quickest request's way to the engine took no time; the others' up to 4 ms.
    for name in ("queued", "scheduled", "first_token", "last_token"):
        mine, theirs = (getattr(one.timings, f"{name}_seconds") for one in (read, run))
        assert np.ptp(mine - theirs) < 1e-5
        assert abs(mine[0] - theirs[0]) < 0.005
    assert read.trace.sources[0].format == "vllm_requests"
    assert read_trace(records).arrival_seconds is not None  # the same file is a trace, too


def test_calibrate_finds_the_server(records: Path) -> None:
    found = calibrate(records, SERVER, name="mine")
    assert found.cost.replay_seconds.per_prefill_token == pytest.approx(TRUTH["per_prefill_token"], rel=0.02)
    assert found.cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.02)
    assert found.warnings == (NO_PLANS,)
    fit = found.cost.fit
    assert fit is not None
    assert fit["source"][0]["path"] == "requests.jsonl"
    assert fit["source"][0]["rows"] == 200
    assert fit["engine"]["num_kv_blocks"] == 1200
    assert set(fit["parameters"]) == {
        "step_seconds.base",
        "replay_seconds.per_seq",
        "replay_seconds.per_sequence_gather",
        "replay_seconds.per_prefill_token",
    }
    for one in fit["parameters"].values():
        assert one["low"] <= one["value"] * 1.01
        assert one["high"] >= one["value"] * 0.99
    assert set(fit["ranges"]) == {"decodes_per_step", "decode_blocks_per_step", "prefill_tokens_per_step"}


def test_the_command_writes_a_cost_model(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(records), "-o", "cost.json", "--name", "mine", *LIMITS]) == 0
    captured = capsys.readouterr()
    assert "replay_seconds.per_prefill_token" in captured.out
    assert "95% interval" in captured.out
    assert captured.err.splitlines() == [f"warning: {NO_PLANS}"]
    cost = read_cost_model("cost.json")
    assert cost.name == "mine"
    assert cost.replay_seconds.per_seq == pytest.approx(TRUTH["per_seq"], rel=0.02)
    assert main(["calibrate", str(records), "-o", "again.json", "--json", "--strict", *LIMITS]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(Path("again.json").read_text(encoding="utf-8"))


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["calibrate", *arguments, "-o", "cost.json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not Path("cost.json").exists()
    (line,) = captured.err.splitlines()
    return line


def test_mistakes_are_one_line(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accepted = (
        "expected rows of ladder-opt measure; tab-separated rows of the Spyre plugin's attention "
        "microbenchmark; a table with num_seqs, num_blocks and seconds or compile_seconds; a server's "
        "log with the Spyre plugin's warm-up lines or vLLM's lines of iterations; "
        f"per-request records with the times of first and last tokens ({', '.join(TIMED_FORMATS)})"
    )
    Path("trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,3,4\n", "utf-8"
    )
    Path("notes.csv").write_text("a,b\n1,2\n", "utf-8")
    for name in ("trace.csv", "notes.csv"):
        assert (
            refusal([name], capsys)
            == f"ladder-opt: {name}: found no measurements that calibrate knows, {accepted}"
        )
    assert refusal(["no.jsonl"], capsys).startswith("ladder-opt: no.jsonl: found No such file")
    line = refusal([str(records), "--min-batched-seqs", "4"], capsys)
    assert line.startswith("ladder-opt: --min-batched-seqs: found with calibrate, expected none")
    line = refusal([str(records), "--max-model-len", "600"], capsys)
    assert "requests beyond the engine's limits" in line
    assert "these are max_model_len 600 and 160 KV blocks of 128" in line


def test_limits_that_were_not_the_servers_are_told(records: Path) -> None:
    write_records(server_run(made_trace(2, gap_seconds=0.05)), records)
    found = calibrate(records, Engine(max_num_seqs=4, max_model_len=4096))
    assert any(
        "these are not the server's limits (num_kv_blocks is not given" in one for one in found.warnings
    )


def test_calibrate_wants_a_file() -> None:
    with pytest.raises(UsageError, match="found no file, expected measurements of a server"):
        calibrate([], SERVER)


def test_a_benchmark_result_gives_the_same_spans(tmp_path: Path) -> None:
    run = server_run(made_trace(1))
    timings = run.timings
    gaps = (timings.last_token_seconds - timings.first_token_seconds) / np.maximum(
        run.trace.output_tokens - 1, 1
    )
    result = {
        "input_lens": run.trace.prompt_tokens.tolist(),
        "output_lens": run.trace.output_tokens.tolist(),
        "start_times": (timings.queued_seconds + 77.0).tolist(),
        "errors": [""] * 199 + ["refused"],
        "ttfts": (timings.first_token_seconds - timings.queued_seconds).tolist(),
        "itls": [
            [gap] * (n - 1) for gap, n in zip(gaps.tolist(), run.trace.output_tokens.tolist(), strict=True)
        ],
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    read = read_request_records(path)
    assert len(read) == 199
    assert read.trace.set_aside == {"failed": 1}
    np.testing.assert_allclose(read.timings.last_token_seconds, timings.last_token_seconds[:199], atol=1e-6)
    assert np.isnan(read.timings.scheduled_seconds).all()
    found = calibrate(path, SERVER)
    assert found.cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.02)
    del result["ttfts"]
    path.write_text(json.dumps(result), encoding="utf-8")
    with pytest.raises(
        InputError, match="found vllm_bench records without times of the first and last token"
    ):
        read_timed_trace(path)


def test_a_table_with_token_times_will_do(tmp_path: Path) -> None:
    run = server_run(made_trace(1))
    rows = zip(
        run.timings.queued_seconds.tolist(),
        run.trace.prompt_tokens.tolist(),
        run.trace.output_tokens.tolist(),
        run.timings.first_token_seconds.tolist(),
        run.timings.last_token_seconds.tolist(),
        strict=True,
    )
    path = tmp_path / "table.csv"
    header = "arrival_seconds,prompt_tokens,output_tokens,first_token_seconds,last_token_seconds"
    path.write_text("\n".join([header, *(",".join(map(repr, row)) for row in rows)]), encoding="utf-8")
    assert calibrate(path, SERVER).cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.02)


def test_a_server_with_a_prefix_cache_is_replayed_with_one(records: Path) -> None:
    """The pool is short: preempted requests come back to some of their own blocks."""
    trace = made_trace(9, gap_seconds=0.05)
    caching = Scheduling(prefix_caching=True)
    small = replace(SERVER, num_kv_blocks=600)
    run = with_distinct_prompts(server_run(trace), block_tokens=16)
    times = simulate(
        run.trace, small, server_cost("truth", **TRUTH), scheduling=caching, request_times=True
    ).request_times
    assert times is not None
    timings = replace(
        run.timings,
        scheduled_seconds=times.scheduled_seconds,
        first_token_seconds=times.first_token_seconds,
        last_token_seconds=times.finish_seconds,
    )
    write_records(replace(run, timings=timings), records)
    cached, uncached = (calibrate(records, small, prefix_caching=caches) for caches in (True, False))
    assert cached.cost.fit is not None
    assert uncached.cost.fit is not None
    assert cached.cost.fit["scheduling"]["prefix_caching"] is True
    error = "last_token_mean_absolute_error_seconds"
    assert cached.cost.fit["residuals"][error] < uncached.cost.fit["residuals"][error]
    assert cached.cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.1)
