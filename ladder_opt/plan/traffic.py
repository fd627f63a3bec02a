"""A plan's traffic in a few numbers, kept in its file: new traffic is held against it without the old trace.

Lengths are kept as quantiles at `SHARES`, dense at the ends, where ladders are decided: the least length that
so large a share of the requests does not exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.plan.options import ReplayOptions
from ladder_opt.plan.rounds import Task
from ladder_opt.trace.stream import AnyTrace, traces_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHARES: Final = (
    *(0.0, 0.001, 0.005, 0.01, 0.02),
    *(round(at / 20, 2) for at in range(1, 20)),
    *(0.98, 0.99, 0.995, 0.999, 1.0),
)


def traffic_dict(task: Task) -> dict[str, Any] | None:
    """The plan file's `provenance.traffic`; None for a histogram or a replay, which hold no requests."""
    if not task.replays_traces:
        return None
    traces = traces_of(task.source)  # type: ignore[arg-type]  # traces are what replays
    return summarize_traffic(traces, task.engine, task.replay_options)


def summarize_traffic(
    traces: Sequence[AnyTrace], engine: Engine, options: ReplayOptions
) -> dict[str, Any] | None:
    """Rate and lengths of the requests that an engine takes; None where it takes none.

    Several traces count by their weights, as their replays do; the rate is that of one of the replicas.
    """
    weights = options.weights or (1.0,) * len(traces)
    prompt = np.zeros(engine.max_model_len + 1)
    output = np.zeros(engine.max_model_len + 1)
    span_seconds = 0.0
    for trace, weight in zip(traces, weights, strict=True):
        span_seconds += weight * trace.span_seconds
        for chunk in trace.chunks():
            fits = chunk.prompt_tokens + chunk.output_tokens <= engine.max_model_len
            prompt += weight * np.bincount(chunk.prompt_tokens[fits], minlength=len(prompt))
            output += weight * np.bincount(chunk.output_tokens[fits], minlength=len(output))
    if not prompt.sum():
        return None
    has_rate = span_seconds > 0 and options.concurrency is None
    rate = options.rate_scale / options.replicas
    return {
        "requests": float(prompt.sum()),
        "requests_per_second": float(prompt.sum()) / span_seconds * rate if has_rate else None,
        "shares": list(SHARES),
        "prompt_tokens": quantiles(prompt),
        "output_tokens": quantiles(output),
    }


def quantiles(counts: Floats) -> list[int]:
    """Of lengths counted by length, the quantiles at `SHARES`."""
    reached = np.cumsum(counts) / counts.sum()
    first = int(np.flatnonzero(counts)[0])
    found = np.searchsorted(reached, np.array(SHARES) - 1e-12)  # sums of shares round
    return [int(length) for length in np.maximum(found, first)]


def length_at(share: Floats, shares: Sequence[float], lengths: Sequence[int]) -> Floats:
    """The length at each share of the requests, between quantiles by a straight line."""
    return np.interp(share, shares, lengths)
