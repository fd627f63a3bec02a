"""What a person should know about a trace before tuning on it: the facts `trace info` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.trace.clock import find_ticks
from ladder_opt.trace.stream import AnyTrace, TraceStream
from ladder_opt.trace.stream_summary import Counts, facts_of

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_MINUTE_SECONDS = 60.0


@dataclass(frozen=True)
class TraceSummary:
    """Facts about a trace. What cannot be said (no arrivals, too few requests) is None.

    Attributes:
        requests: usable requests.
        rows: data rows in the sources, usable or not.
        span_seconds: first arrival to last; None without arrivals.
        requests_per_second: requests over the span.
        interarrival_cv: coefficient of variation of the gaps between arrivals; 1 for a Poisson process.
        busiest_minute_over_mean: most requests in one minute over their mean, among the whole minutes
            from the first arrival on; None for spans below a minute.
        prompt_tokens: p1, p5, p10, p25, p50, p75, p90, p95, p99, max, mean. A percentile is a value
            that occurs: the first at or above position percent * (requests - 1) of the sorted ones.
        output_tokens: the same.
        cached_share: cached tokens over prompt tokens; None where the trace does not say.
        sessions: distinct sessions; None where the trace does not say.
        spearman_prompt_output: rank correlation of prompt and output tokens.
        tick_seconds: spacing of the grid that arrivals sit on, or None.
        tick_share: share of the arrivals on it.
        set_aside: requests that cannot be used, by reason.
        notes: remarks of the reader.
        formats: formats of the sources.
    """

    requests: int
    rows: int
    span_seconds: float | None
    requests_per_second: float | None
    interarrival_cv: float | None
    busiest_minute_over_mean: float | None
    prompt_tokens: Mapping[str, float] | None
    output_tokens: Mapping[str, float] | None
    cached_share: float | None
    sessions: int | None
    spearman_prompt_output: float | None
    tick_seconds: float | None
    tick_share: float | None
    set_aside: Mapping[str, int]
    notes: tuple[str, ...]
    formats: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "notes": list(self.notes), "formats": list(self.formats)}


@checked
def summarize(trace: AnyTrace) -> TraceSummary:
    """The facts of a trace; of a stream, in two passes (`trace.stream_summary` says what they leave out)."""
    if isinstance(trace, TraceStream):
        return _summarize_stream(trace)
    arrivals = trace.arrival_seconds
    span = None if arrivals is None else trace.span_seconds
    ticks = None if arrivals is None else find_ticks(arrivals)
    told = None if trace.session is None else {one for one in trace.session if one}
    cached = None if trace.cached_tokens is None else float(trace.cached_tokens.sum())
    return TraceSummary(
        requests=len(trace),
        rows=sum(source.rows for source in trace.sources) or len(trace) + sum(trace.set_aside.values()),
        span_seconds=span,
        requests_per_second=len(trace) / span if span else None,
        interarrival_cv=None if arrivals is None else _variation(np.diff(arrivals)),
        busiest_minute_over_mean=None if arrivals is None else _busiest_minute(arrivals),
        prompt_tokens=_quantiles(trace.prompt_tokens),
        output_tokens=_quantiles(trace.output_tokens),
        cached_share=None if cached is None or not len(trace) else cached / float(trace.prompt_tokens.sum()),
        sessions=None if told is None else len(told),
        spearman_prompt_output=spearman(trace.prompt_tokens, trace.output_tokens),
        tick_seconds=None if ticks is None else ticks.seconds,
        tick_share=None if ticks is None else ticks.share,
        set_aside=dict(trace.set_aside),
        notes=trace.notes,
        formats=tuple(dict.fromkeys(source.format for source in trace.sources)),
    )


def _summarize_stream(stream: TraceStream) -> TraceSummary:
    facts = facts_of(stream)
    span = stream.span_seconds if stream.has_arrivals else None
    ticks = facts.ticks
    return TraceSummary(
        requests=len(stream),
        rows=sum(source.rows for source in stream.sources) or len(stream) + sum(stream.set_aside.values()),
        span_seconds=span,
        requests_per_second=len(stream) / span if span else None,
        interarrival_cv=facts.gaps.variation(),
        busiest_minute_over_mean=facts.busiest_minute(),
        prompt_tokens=_quantiles_of(facts.prompt),
        output_tokens=_quantiles_of(facts.output),
        cached_share=None,
        sessions=None,
        spearman_prompt_output=facts.spearman,
        tick_seconds=None if ticks is None else ticks.seconds,
        tick_share=None if ticks is None else ticks.share,
        set_aside=dict(stream.set_aside),
        notes=stream.notes,
        formats=tuple(dict.fromkeys(source.format for source in stream.sources)),
    )


def _quantiles_of(tokens: Counts) -> dict[str, float] | None:
    if not tokens.total:
        return None
    named = {f"p{percent}": tokens.at(percent / 100) for percent in PERCENTILES}
    return {**named, "max": float(tokens.values[-1]), "mean": tokens.mean()}


def spearman(left: NDArray[np.int64], right: NDArray[np.int64]) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than 2 rows or a constant side."""
    if len(left) < 2:
        return None
    ranks = [_ranks(left), _ranks(right)]
    spreads = [float(one.std()) for one in ranks]
    if min(spreads) == 0:
        return None
    return float(
        ((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (spreads[0] * spreads[1])
    )


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    ranks: NDArray[np.float64] = (ends - (sizes - 1) / 2)[inverse]
    return ranks


def _variation(gaps: NDArray[np.float64]) -> float | None:
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.std()) / mean if mean > 0 else None


def _busiest_minute(arrivals: NDArray[np.float64]) -> float | None:
    minutes = np.floor(arrivals / _MINUTE_SECONDS)
    whole = float(minutes[-1]) if len(minutes) else 0.0  # how many; the last one is cut short
    if not whole:
        return None
    _, requests = np.unique(minutes[minutes < whole], return_counts=True)
    return float(requests.max()) * whole / float(requests.sum())


def _quantiles(tokens: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(tokens):
        return None
    points = np.quantile(tokens, [percent / 100 for percent in PERCENTILES], method="higher")
    named = {f"p{percent}": float(point) for percent, point in zip(PERCENTILES, points, strict=True)}
    return {**named, "max": float(tokens.max()), "mean": float(tokens.mean())}
