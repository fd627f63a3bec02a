"""A published run of vLLM, where it lies beside the repository: how far the replay is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import real_run


def test_the_pool_is_found_from_percentages() -> None:
    held = np.random.default_rng(0).integers(0, 2588, 150)
    assert real_run.pool_blocks(np.round(held / 2587 * 100, 2)) == 2587


def test_without_the_run_nothing_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert real_run.main(["--shared", str(tmp_path)]) == 1
    assert "nothing to compare with" in capsys.readouterr().out


@pytest.mark.shared
def test_the_replay_does_what_the_server_did(shared_dir: Path, tmp_path: Path) -> None:
    found = real_run.find_run(shared_dir)
    if found is None:
        pytest.skip(f"no {real_run.REQUESTS} under {shared_dir}")
    run = real_run.read_run(*found)
    assert len(run.records) == 300
    assert run.seconds_that_agree == 1.0
    results = real_run.compare(run)
    assert results["pool_blocks_from_kv_cache_pct"] == real_run.SERVER.usable_kv_blocks == 2587
    for name, running, waiting, first_token in (
        ("all", 2.0, 3.5, 2.5),
        ("first_half_predicts_rest", 3.0, 4.5, 3.5),
        ("without_prefix_caching", 2.5, 4.0, 3.0),
    ):
        occupancy, latency = results[name]["occupancy"], results[name]["latency"]
        assert occupancy["running_mean_absolute_error"] < running  # of some 30
        assert occupancy["running_correlation"] > 0.93
        assert occupancy["waiting_mean_absolute_error"] < waiting  # of some 100
        assert occupancy["waiting_correlation"] > 0.99
        assert occupancy["batch_size_wasserstein"] < 1.5  # sequences
        assert occupancy["batch_size_total_variation"] < 0.15
        assert latency["time_to_first_token"]["mean_absolute_error"] < first_token  # seconds, of some 65
        per_token = latency["time_per_output_token"]
        assert per_token["mean_absolute_error"] < 0.1 * per_token["measured_mean"]
    # Physics: a step reads 16 GB of weights at about 1 TB/s, and 2048 tokens of prompts take 0.2 s.
    parameters = results["all"]["parameters"]
    assert 0.012 < parameters["base"]["value"] < 0.025
    assert 5e-5 < parameters["per_prefill_token"]["value"] < 1.2e-4
    # One price covers a full step of prompts, now that recomputing costs what it cost the server.
    one = results["all"]["parameters"]["per_prefill_token"]
    full = (
        results["full_step_seconds"] - parameters["base"]["value"]
    ) / real_run.SERVER.max_num_batched_tokens
    assert one["low"] < full < one["high"]
    split = results["prefill_split"]
    assert split["per_recomputed_token"]["high"] < split["per_first_time_token"]["value"]
    real_run.figure(run, results, tmp_path / "run.svg")
    assert (tmp_path / "run.svg").stat().st_size < 100_000
