"""Numbers behind the figure of a trace: nothing is lost in the bins, in memory or streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ladder_opt.occupancy.replay import simulate
from ladder_opt.plot.trace_data import timeline_interval, trace_data
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.stream import stream_of
from ladder_opt.trace.table import Trace
from tests.plan.plans import ENGINE, make_cost, make_trace


def test_arrivals_and_lengths_are_counted() -> None:
    trace = Trace(np.array([0.0, 0.5, 3.0, 9.0]), np.array([1, 7, 7, 100]), np.array([2, 2, 2, 3]))
    data = trace_data(trace)
    assert (data.requests, data.bin_seconds) == (4, 1.0)
    assert data.seconds.tolist() == list(range(10))
    assert data.arrivals_per_second.tolist() == [2, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert data.prompts.sum() == data.outputs.sum() == 4
    at = np.searchsorted(data.length_edges, 7, side="right") - 1
    assert data.prompts[at] == 2


def test_several_traces_add_up_and_one_without_arrivals_has_none() -> None:
    trace = make_trace(requests=50)
    both = trace_data([trace, trace])
    one = trace_data(trace)
    assert both.requests == 100
    np.testing.assert_allclose(both.arrivals_per_second, 2 * one.arrivals_per_second)
    bare = trace_data(Trace(None, trace.prompt_tokens, trace.output_tokens))
    assert (len(bare.seconds), bare.bin_seconds) == (0, 0.0)
    np.testing.assert_equal(bare.prompts, one.prompts)


def test_an_empty_trace_has_empty_columns() -> None:
    none = np.zeros(0, np.int64)
    data = trace_data(Trace(np.zeros(0), none, none))
    assert (data.requests, len(data.length_edges), len(data.prompts)) == (0, 0, 0)


def test_a_stream_gives_what_the_trace_in_memory_gives(tmp_path: Path) -> None:
    trace = make_trace(requests=300)
    write_trace(trace, tmp_path / "t.parquet")
    stream = stream_of(tmp_path / "t.parquet", chunk_requests=37)
    assert stream is not None
    streamed, whole = trace_data(stream), trace_data(trace)
    for name in ("seconds", "arrivals_per_second", "length_edges", "prompts", "outputs"):
        np.testing.assert_array_equal(getattr(streamed, name), getattr(whole, name))


def test_bins_are_few_and_of_nice_widths() -> None:
    for span in (0.0, 3.0, 199.0, 3600.0, 86400.0, 7 * 86400.0, 3e9):
        width = timeline_interval(span)
        assert span / width <= 200
        assert width == int(width)
    assert timeline_interval(3600.0) == 30.0


def test_a_timeline_is_an_average_over_engines() -> None:
    replay = simulate(make_trace(), ENGINE, make_cost(), replicas=2, timeline_seconds=30.0)
    data = trace_data(make_trace(), replay.timeline, engines=2)
    assert replay.timeline is not None
    np.testing.assert_allclose(data.running_per_engine * 2, replay.timeline.running)
    np.testing.assert_allclose(data.waiting_per_engine * 2, replay.timeline.waiting)
    assert len(trace_data(make_trace()).running_per_engine) == 0
