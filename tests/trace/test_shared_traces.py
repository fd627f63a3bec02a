"""The public traces, where they lie beside the repository: the figures published with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.trace.read import read_trace
from ladder_opt.trace.summary import PERCENTILES, summarize

pytestmark = pytest.mark.shared

Shared = Callable[[str], Path]


@pytest.fixture
def shared(shared_dir: Path) -> Shared:
    """A trace's path by its name."""

    def path_of(name: str) -> Path:
        path = shared_dir / "traces" / name
        if not path.exists():
            pytest.skip(f"{path} is not there; set LADDER_OPT_SHARED to the folder that holds traces/")
        return path

    return path_of


def figures(text: str) -> dict[str, float]:
    """A row of the published table: mean p1 .. p99 max."""
    mean, *points, most = map(float, text.split())
    return {**{f"p{p}": v for p, v in zip(PERCENTILES, points, strict=True)}, "max": most, "mean": mean}


def rounded(quantiles: object) -> dict[str, float]:
    assert isinstance(quantiles, dict)
    return {name: round(value, 1) for name, value in quantiles.items()}


def test_azure_conversation_as_published(shared: Shared) -> None:
    facts = summarize(read_trace(shared("AzureLLMInferenceTrace_conv.csv.gz")))
    assert (facts.requests, facts.rows, dict(facts.set_aside), facts.notes) == (19366, 19366, {}, ())
    assert rounded(facts.prompt_tokens) == figures("1154.7 29 181 207 396 1020 1189 2735 4083 4142 14050")
    assert rounded(facts.output_tokens) == figures("211.1 16 41 54 85 129 395 424 451 601 1000")
    assert facts.span_seconds == pytest.approx(3501.721937, abs=1e-9)
    assert round(facts.requests_per_second or 0, 2) == 5.53
    assert round(facts.interarrival_cv or 0, 2) == 1.09
    assert round(facts.busiest_minute_over_mean or 0, 2) == 1.52
    assert round(facts.spearman_prompt_output or 0, 2) == 0.07
    assert facts.tick_seconds is None


def test_mooncake_conversation_as_published(shared: Shared) -> None:
    trace = read_trace(shared("mooncake_conversation_trace.jsonl.gz"))
    facts = summarize(trace)
    assert (facts.requests, dict(facts.set_aside), facts.formats) == (12031, {}, ("mooncake",))
    assert rounded(facts.prompt_tokens) == figures(
        "12035.1 894 901 964 2307 6909 15368 27367 39552 85401 126195"
    )
    assert rounded(facts.output_tokens) == figures("342.6 3 10 24 157 350 472 597 698 1120 2000")
    assert round(facts.requests_per_second or 0, 2) == 3.40
    assert round(facts.spearman_prompt_output or 0, 2) == 0.07
    assert (facts.tick_seconds, facts.tick_share) == (3.0, 1.0)
    assert "arrivals sit on a 3 s grid" in facts.notes[1]


def test_spreading_mooncakes_ticks_takes_the_bursts_out(shared: Shared) -> None:
    path = shared("mooncake_conversation_trace.jsonl.gz")
    together, apart = read_trace(path), read_trace(path, spread_ticks=True)
    assert len(together) == len(apart)
    assert together.prompt_tokens.sum() == apart.prompt_tokens.sum()
    assert (summarize(together).interarrival_cv or 0) > 3
    assert (summarize(apart).interarrival_cv or 9) < 1


def test_the_vllm_run_uses_the_wall_clock(shared: Shared) -> None:
    trace = read_trace(shared("vllm_run_RTX4090_Llama-3.1-8B.requests.jsonl.gz"))
    assert (len(trace), trace.sources[0].format) == (300, "vllm_requests")
    assert 20 < trace.span_seconds < 40


def test_multi_round_qa_is_put_in_launch_order(shared: Shared) -> None:
    trace = read_trace(shared("multi_round_qa_naive_output_4.1.csv.gz"))
    assert (len(trace), trace.sources[0].format, dict(trace.set_aside)) == (404, "multi_round_qa", {})
    assert trace.arrival_seconds is not None
    assert (np.diff(trace.arrival_seconds) >= 0).all()
    assert "arrivals were out of order at 48 rows" in trace.notes[0]


def test_the_derived_trace_needs_only_its_columns_named(shared: Shared) -> None:
    trace = read_trace(
        shared("derived_servegen_m-large_peak10min_partial.csv.gz"),
        columns={
            "arrival": "timestamp",
            "prompt": "input_tokens",
            "output": "output_tokens",
            "session": "client_id",
        },
        time_unit="s",
    )
    assert len(trace) + sum(trace.set_aside.values()) == trace.sources[0].rows == 318_589
    assert 595 < trace.span_seconds < 601


@pytest.mark.parametrize(
    ("name", "rows", "form"),
    [
        ("burstgpt_1_head.csv", 3, "burstgpt"),
        ("burstgpt_3_head.csv", 4, "burstgpt"),
        ("qwen_bailian_thinking_row1.jsonl", 1, "qwen_bailian"),
    ],
)
def test_the_samples_are_told_apart(shared: Shared, name: str, rows: int, form: str) -> None:
    trace = read_trace(shared(name))
    assert (len(trace), trace.sources[0].format) == (rows, form)
