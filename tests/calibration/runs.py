"""Runs of a server that we know everything about: a replay with known parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.request_records import RequestRecords
from ladder_opt.calibration.server_steps import server_cost
from ladder_opt.engine import ServerEngine
from ladder_opt.occupancy.replay import simulate
from ladder_opt.trace.table import Trace
from ladder_opt.trace.timings import Timings

SERVER = ServerEngine(
    block_size=16, max_num_seqs=32, max_model_len=4096, max_num_batched_tokens=512, num_kv_blocks=1200
)
TRUTH = {"base": 0.02, "per_seq": 2e-4, "per_block": 4e-6, "per_prefill_token": 6e-5}


def made_trace(seed: int, *, requests: int = 200, gap_seconds: float = 0.4) -> Trace:
    """Requests with random lengths and gaps."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_seconds, requests))
    return Trace(arrivals - arrivals[0], rng.integers(10, 1500, requests), rng.integers(1, 200, requests))


def server_run(trace: Trace, truth: dict[str, float] | None = None) -> RequestRecords:
    """What a server with these parameters would have recorded."""
    cost = server_cost("truth", **(TRUTH if truth is None else truth))
    times = simulate(trace, SERVER, cost, request_times=True).request_times
    assert times is not None
    assert trace.arrival_seconds is not None
    return RequestRecords(
        trace,
        Timings(
            queued_seconds=trace.arrival_seconds,
            scheduled_seconds=times.scheduled_seconds,
            first_token_seconds=times.first_token_seconds,
            last_token_seconds=times.finish_seconds,
        ),
    )


def write_records(
    run: RequestRecords, path: Path, *, epoch: float = 1.7e9, monotonic: float = 4321.0
) -> None:
    """As a vLLM server's records: arrivals in Unix seconds, the engine's events on a clock of their own."""
    timings = run.timings
    rows = []
    for index in range(len(run)):
        engine_times = {
            f"{name}_ts": monotonic + float(column[index])
            for name, column in (
                ("queued", timings.queued_seconds),
                ("scheduled", timings.scheduled_seconds),
                ("first_token", timings.first_token_seconds),
                ("last_token", timings.last_token_seconds),
            )
        }
        rows.append(
            {
                "input_toks": int(run.trace.prompt_tokens[index]),
                "output_toks": int(run.trace.output_tokens[index]),
                "arrival_time": epoch + float(timings.queued_seconds[index]) - 0.002 * (index % 3),
                **engine_times,
            }
        )
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def step_seconds(parameters: dict[str, float], decodes: float, blocks: float, prefill: float) -> float:
    """A step's seconds, written out."""
    return (
        parameters["base"]
        + parameters["per_seq"] * decodes
        + parameters["per_block"] * blocks
        + parameters["per_prefill_token"] * prefill
    )


def within(values: NDArray[np.float64], expected: NDArray[np.float64], tolerance: float) -> bool:
    """Whether all values are within a relative tolerance."""
    return bool((np.abs(values - expected) <= tolerance * np.abs(expected)).all())
