"""The facts of a trace, on traces small enough to work out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.trace.read import read_trace
from ladder_opt.trace.summary import spearman, summarize
from ladder_opt.trace.table import Trace


def trace_of(arrivals: list[float] | None, prompts: list[int], outputs: list[int]) -> Trace:
    return Trace(
        arrival_seconds=None if arrivals is None else np.array(arrivals),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
    )


def test_facts_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    times = [0, 10, 20, 59, 60, 125]
    rows = "".join(f"{t},{10 * (i + 1)},{i + 1},{i % 2},{5 * i}\n" for i, t in enumerate(times))
    path.write_text(
        "arrival_seconds,prompt_tokens,output_tokens,session,cached_tokens\n" + rows + "130,5,0,0,0\n"
    )
    facts = summarize(read_trace(path))
    assert (facts.requests, facts.rows, facts.span_seconds) == (6, 7, 125.0)
    assert facts.requests_per_second == 6 / 125
    gaps = np.diff(times)
    assert facts.interarrival_cv == pytest.approx(gaps.std() / gaps.mean())
    assert facts.busiest_minute_over_mean == 4 / 2.5  # minutes 0 and 1 hold 4 and 1 requests
    assert facts.prompt_tokens == {
        "p1": 20, "p5": 20, "p10": 20, "p25": 30, "p50": 40, "p75": 50, "p90": 60, "p95": 60, "p99": 60,
        "max": 60, "mean": 35.0,
    }  # fmt: skip
    assert facts.cached_share == 75 / 210
    assert (facts.sessions, facts.formats) == (2, ("table",))
    assert facts.spearman_prompt_output == pytest.approx(1.0)
    assert dict(facts.set_aside) == {"zero_output": 1}
    assert json.loads(json.dumps(facts.to_dict()))["requests"] == 6


def test_what_cannot_be_said_is_none() -> None:
    lengths = summarize(trace_of(None, [5, 6], [1, 1]))
    assert (lengths.span_seconds, lengths.requests_per_second, lengths.interarrival_cv) == (None, None, None)
    assert lengths.spearman_prompt_output is None
    empty = summarize(trace_of([], [], []))
    assert (empty.requests, empty.prompt_tokens, empty.interarrival_cv) == (0, None, None)
    one = summarize(trace_of([0.0], [5], [1]))
    assert (one.requests_per_second, one.interarrival_cv, one.busiest_minute_over_mean) == (None, None, None)


def test_a_span_of_ages_costs_no_memory() -> None:
    assert summarize(trace_of([0.0, 1e11], [5, 6], [1, 2])).busiest_minute_over_mean == pytest.approx(
        1e11 // 60
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=30))
def test_spearman_is_scipys(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    left, right = np.array(pairs).T
    ours = spearman(left, right)
    if ours is not None:
        assert ours == pytest.approx(float(stats.spearmanr(left, right).statistic))
    else:
        assert len(set(left)) == 1 or len(set(right)) == 1
