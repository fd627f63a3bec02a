"""Engines of vLLM with the reference backend, each in a process of its own, beside dense attention."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.plan import read_plan, write_plan
from ladder_opt.reference.plugin import CPU_WORKER, WORKER
from ladder_opt.trace.table import Trace
from tests.plan.plans import make_cost
from tests.serving.environment import ENGINE_ARGUMENTS, environment, python
from tests.serving.server import Request
from tests.serving.test_serve import ENGINE, make_plan
from tests.serving.traffic import dense_tokens, draw

pytestmark = [pytest.mark.vllm, pytest.mark.serving]

# A pool that 8 sequences outgrow as they reach their fifth block: one is preempted and computed again.
SMALL_POOL = 34
BUDGET = 64
SETTINGS = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
for config in json.load(sys.stdin):
    made = EngineArgs(**config).create_engine_config()
    print("worker:", made.parallel_config.worker_cls)
"""


def run(
    model: Path,
    cache: Path,
    requests: Sequence[Request],
    config: dict[str, Any],
    aborts: dict[int, list[int]] | None = None,
    **variables: str,
) -> dict[str, Any]:
    """Run requests on an engine; what `in_process` tells."""
    engine = {
        **ENGINE_ARGUMENTS,
        "model": str(model),
        "block_size": ENGINE.block_size,
        "max_num_seqs": ENGINE.max_num_seqs,
        "max_model_len": ENGINE.max_model_len,
        "max_num_batched_tokens": BUDGET,
        "num_gpu_blocks_override": SMALL_POOL,
        "additional_config": config,
    }
    asked = [[list(request.prompt), request.output_tokens] for request in requests]
    done = subprocess.run(
        python("tests.serving.in_process"),
        input=json.dumps({"engine": engine, "requests": asked, "aborts": aborts or {}}).encode(),
        env=environment(cache, VLLM_ENABLE_V1_MULTIPROCESSING="0", **variables),
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_tokens_and_compiles_with_kv_buckets_and_a_plan(
    tiny_model: Path, inductor_cache: Path, tmp_path: Path
) -> None:
    """KV buckets of the per-sequence path leave the plan's ladders alone."""
    requests = draw([500] * 8 + [126] * 4, [90] * 8 + [30] * 4, seed=5)
    write_plan(make_plan(), tmp_path / "plan.json")
    found = run(
        tiny_model,
        inductor_cache,
        requests,
        {"ladder_opt_backend": "reference", "ladder_opt": str(tmp_path / "plan.json")},
        SPYRE_ATTN_KV_BUCKETS="384,1024",
    )
    trace = Trace(
        np.zeros(len(requests)),
        np.array([len(request.prompt) for request in requests]),
        np.array([request.output_tokens for request in requests]),
    )
    engine = replace(ENGINE, max_num_batched_tokens=BUDGET, num_kv_blocks=SMALL_POOL)
    assert simulate(trace, engine, make_cost(), concurrency=len(trace)).preemptions > 0
    report, plan = found["report"], read_plan(tmp_path / "plan.json")
    assert tuple(report["num_seqs"]) == plan.num_seqs
    assert tuple(report["num_blocks"]) == plan.num_blocks
    assert report["recorded"] == report["enumerated"] != []
    assert report["compiles_since"] == report["late_compiles"] == report["unrecorded"] == 0
    assert sum(report["dispatched"].values()) > 20
    assert found["tokens"] == dense_tokens(tiny_model, requests, inductor_cache)


def test_requests_that_are_aborted_in_a_short_pool_change_no_other_tokens(
    tiny_model: Path, inductor_cache: Path, tmp_path: Path
) -> None:
    """Aborted while they wait, prefill, decode, or have been preempted."""
    requests = draw([500] * 8 + [126] * 4, [90] * 8 + [30] * 4, seed=7)
    write_plan(make_plan(), tmp_path / "plan.json")
    aborts = {3: [1, 11], 80: [0], 95: [2, 5], 120: [9]}
    config = {"ladder_opt_backend": "reference", "ladder_opt": str(tmp_path / "plan.json")}
    found = run(tiny_model, inductor_cache, requests, config, aborts=aborts)
    gone = {index for some in aborts.values() for index in some}
    expected = dense_tokens(tiny_model, requests, inductor_cache)
    for index, (tokens, whole) in enumerate(zip(found["tokens"], expected, strict=True)):
        assert tokens == (whole[: len(tokens)] if index in gone else whole)
    assert any(0 < len(found["tokens"][index]) < len(expected[index]) for index in gone)
    report = found["report"]
    assert report["compiles_since"] == report["late_compiles"] == report["unrecorded"] == 0
    assert sum(report["dispatched"].values()) > 20


def test_tokens_under_a_sliding_window(
    sliding_model: Path, tiny_model: Path, inductor_cache: Path, tmp_path: Path
) -> None:
    """Blocks that the window has left are given back, and what stands in for them is never seen."""
    requests = draw([300, 420, 40, 149, 150, 151], [40] * 6, seed=6)
    write_plan(make_plan(), tmp_path / "plan.json")
    config = {"ladder_opt_backend": "reference", "ladder_opt": str(tmp_path / "plan.json")}
    found = run(sliding_model, inductor_cache, requests, config)
    report = found["report"]
    assert report["recorded"] == report["enumerated"] != []
    assert report["compiles_since"] == report["late_compiles"] == report["unrecorded"] == 0
    assert sum(report["dispatched"].values()) > 20
    assert found["tokens"] == dense_tokens(sliding_model, requests, inductor_cache)
    assert found["tokens"] != dense_tokens(tiny_model, requests, inductor_cache)  # the window matters


def test_worker_is_named_only_where_asked_for(tiny_model: Path, inductor_cache: Path) -> None:
    """With the entry points as they are installed."""
    common = {**ENGINE_ARGUMENTS, "model": str(tiny_model), "block_size": 128}
    asked: list[dict[str, Any]] = [{}, {"ladder_opt_backend": "reference"}]
    done = subprocess.run(
        [python("x")[0], "-c", SETTINGS],
        input=json.dumps([{**common, "additional_config": config} for config in asked]).encode(),
        env=environment(inductor_cache),
        check=True,
        capture_output=True,
    )
    workers = [line for line in done.stdout.decode().splitlines() if line.startswith("worker: ")]
    assert workers == [f"worker: {CPU_WORKER}", f"worker: {WORKER}"]
