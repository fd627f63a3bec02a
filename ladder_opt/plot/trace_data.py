"""Numbers of the figure about traffic: arrivals, lengths, and the batch over time. No drawing here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.trace.stream import AnyTrace, traces_of
from ladder_opt.trace.table import Trace

_TIME_BINS = 200
_LENGTH_BINS = 60
_NICE_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(frozen=True, kw_only=True)
class TraceData:
    """A trace at a glance.

    Attributes:
        requests: how many.
        bin_seconds: width of the bins of `arrivals_per_second`; 0 where the trace has no arrivals.
        seconds: float64 (bins,), where each bin begins, from the first arrival.
        arrivals_per_second: float64 (bins,); several traces' are added up.
        length_edges: float64 (length bins + 1,), tokens.
        prompts: int64 (length bins,), requests with a prompt so long.
        outputs: int64 (length bins,), requests with an output so long.
        timeline: a replay's samples, or None.
        engines: engines that the timeline adds up.
    """

    requests: int
    bin_seconds: float
    seconds: NDArray[np.float64]
    arrivals_per_second: NDArray[np.float64]
    length_edges: NDArray[np.float64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    timeline: Timeline | None = None
    engines: int = 1

    @property
    def running_per_engine(self) -> NDArray[np.float64]:
        """Requests running on an engine at each sample of the timeline, on average: float64 (samples,)."""
        if self.timeline is None:
            return np.zeros(0)
        return self.timeline.running / self.engines

    @property
    def waiting_per_engine(self) -> NDArray[np.float64]:
        """Requests waiting for an engine, likewise."""
        if self.timeline is None:
            return np.zeros(0)
        return self.timeline.waiting / self.engines


def trace_data(
    traces: AnyTrace | Sequence[AnyTrace], timeline: Timeline | None = None, *, engines: int = 1
) -> TraceData:
    """Count arrivals and lengths; a stream is read twice."""
    inputs = traces_of(traces)
    spans = [trace.span_seconds for trace in inputs if trace.has_arrivals]
    width = _bin_seconds(max(spans)) if spans else 0.0
    bins = int(max(spans) // width) + 1 if spans else 0
    arrivals = np.zeros(bins)
    edges = _length_edges(inputs)
    prompts, outputs = (np.zeros(max(0, len(edges) - 1), np.int64) for _ in range(2))
    for chunk in _chunks(inputs):
        if chunk.arrival_seconds is not None:
            at = np.minimum((chunk.arrival_seconds // width).astype(np.int64), bins - 1)
            arrivals += np.bincount(at, minlength=bins)
        if len(chunk):
            prompts += np.histogram(chunk.prompt_tokens, edges)[0]
            outputs += np.histogram(chunk.output_tokens, edges)[0]
    return TraceData(
        requests=sum(len(trace) for trace in inputs),
        bin_seconds=width,
        seconds=np.arange(bins, dtype=np.float64) * width,
        arrivals_per_second=arrivals / width if width else arrivals,
        length_edges=edges,
        prompts=prompts,
        outputs=outputs,
        timeline=timeline,
        engines=engines,
    )


def timeline_interval(span_seconds: float) -> float:
    """Seconds between samples that give a readable number of them."""
    return _bin_seconds(span_seconds)


def _chunks(inputs: Sequence[AnyTrace]) -> Iterator[Trace]:
    for trace in inputs:
        if isinstance(trace, Trace):
            yield trace
        else:
            yield from trace.chunks()


def _bin_seconds(span: float) -> float:
    """The least nice width with at most _TIME_BINS bins."""
    for width in _NICE_SECONDS:
        if span / width < _TIME_BINS:
            return float(width)
    days = -(-span // (_TIME_BINS * 86400))
    return float(days * 86400)


def _length_edges(inputs: Sequence[AnyTrace]) -> NDArray[np.float64]:
    """Edges of equal ratios from 1 token on, whole numbers, past the longest."""
    longest = 0
    for chunk in _chunks(inputs):
        if len(chunk):
            longest = max(longest, int(chunk.prompt_tokens.max()), int(chunk.output_tokens.max()))
    if not longest:
        return np.zeros(0)
    return np.unique(np.geomspace(1, longest + 1, _LENGTH_BINS + 1).round())
