"""Long traces: drawn in blocks, written by row group, summed up in two passes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cli import main
from ladder_opt.errors import InputError, UsageError
from ladder_opt.trace import open as opening
from ladder_opt.trace import parquet, synth
from ladder_opt.trace._profiles import FIGURES
from ladder_opt.trace.open import open_trace
from ladder_opt.trace.parquet import read_canonical, write_chunks, write_trace
from ladder_opt.trace.stream import TraceStream, stream_of
from ladder_opt.trace.summary import summarize
from ladder_opt.trace.synth import PROFILES, synthesize, synthesize_blocks
from ladder_opt.trace.table import Trace


def arrivals_of(trace: Trace) -> np.ndarray:
    assert trace.arrival_seconds is not None
    return trace.arrival_seconds


class TestBlocks:
    def test_one_block_is_the_trace(self) -> None:
        (block,) = synthesize_blocks(requests=500, rate=3.0, seed=2)
        whole = synthesize(requests=500, rate=3.0, seed=2)
        assert arrivals_of(block).tolist() == arrivals_of(whole).tolist()
        assert block.output_tokens.tolist() == whole.output_tokens.tolist()
        assert block.notes == whole.notes

    @pytest.mark.parametrize("profile", sorted(PROFILES))
    @pytest.mark.parametrize("rate", [None, 3.0, 80.0])
    def test_blocks_follow_each_other_and_differ(
        self, profile: str, rate: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(synth, "BLOCK_REQUESTS", 700)
        blocks = list(synthesize_blocks(profile, requests=3000, rate=rate, seed=1))
        assert [len(block) for block in blocks] == [700, 700, 700, 700, 200]
        assert [bool(block.notes) for block in blocks] == [True, False, False, False, False]
        arrivals = np.concatenate([arrivals_of(block) for block in blocks])
        assert (np.diff(arrivals) >= 0).all()
        served = FIGURES[profile].rate_per_second if rate is None else rate
        assert 3000 / arrivals[-1] == pytest.approx(served, rel=0.03)
        assert blocks[0].prompt_tokens.tolist() != blocks[1].prompt_tokens.tolist()

    def test_mooncake_stays_on_its_grid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(synth, "BLOCK_REQUESTS", 700)
        for block in synthesize_blocks("mooncake_conversation", requests=2000):
            ticks = arrivals_of(block) / 3.0
            assert (ticks == np.round(ticks)).all()

    def test_refusals(self) -> None:
        with pytest.raises(UsageError, match="found requests 0, expected an integer from 1 to 1000000000"):
            synthesize_blocks(requests=0)


class TestWriteChunks:
    def test_row_groups_are_bounded_and_the_trace_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet, "ROW_GROUP_REQUESTS", 300)
        trace = synthesize(requests=1000)
        rows = np.arange(1000)
        write_chunks([trace.take(rows[:450]), trace.take(rows[450:])], tmp_path / "t.parquet")
        footer = pq.ParquetFile(tmp_path / "t.parquet").metadata
        assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [
            300, 150, 300, 250,
        ]  # fmt: skip
        again = read_canonical(tmp_path / "t.parquet")
        assert arrivals_of(again).tolist() == arrivals_of(trace).tolist()
        assert again.notes == trace.notes

    def test_chunks_out_of_order_leave_no_file(self, tmp_path: Path) -> None:
        trace = synthesize(requests=10)
        rows = np.arange(10)
        with pytest.raises(InputError, match="expected arrivals in ascending order"):
            write_chunks([trace.take(rows[5:]), trace.take(rows[:5])], tmp_path / "t.parquet")
        assert list(tmp_path.iterdir()) == []

    def test_no_chunk_is_a_mistake_of_ours(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="found no chunk"):
            write_chunks([], tmp_path / "t.parquet")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 60))
    tokens = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.25, 3.0, 47.0]), min_size=count, max_size=count))
    arrivals = None if draw(st.booleans()) else np.cumsum(gaps) - gaps[0]
    return Trace(arrivals, np.array(draw(tokens)), np.array(draw(tokens)), set_aside={"failed": 2})


@given(trace=traces(), chunk_requests=st.integers(1, 70))
def test_a_streams_facts_are_the_traces(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, chunk_requests: int
) -> None:
    path = tmp_path_factory.mktemp("facts") / "t.parquet"
    write_trace(trace, path)
    stream = stream_of(path, chunk_requests=chunk_requests)
    assert stream is not None
    one, other = summarize(trace).to_dict(), summarize(stream).to_dict()
    for name in ("tick_seconds", "tick_share"):
        one.pop(name), other.pop(name)  # looked for in the first chunk alone
    for name in ("interarrival_cv", "spearman_prompt_output", "prompt_tokens", "output_tokens"):
        expected, found = one.pop(name), other.pop(name)
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))
    assert one == other


class TestCommands:
    @pytest.fixture
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(synth, "BLOCK_REQUESTS", 400)
        monkeypatch.setattr(opening, "STREAM_FROM_REQUESTS", 1000)

    def test_synth_info_tune_evaluate_simulate_and_frontier_take_streams(
        self,
        tmp_path: Path,
        small_blocks: None,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path, copy = tmp_path / "t.parquet", tmp_path / "small.parquet"
        assert main(["trace", "synth", "--requests", "1500", "--rate", "9", "-o", str(path)]) == 0
        assert isinstance(open_trace(path), TraceStream)
        whole = read_canonical(path)
        assert len(whole) == 1500
        write_trace(whole, copy)
        capsys.readouterr()
        assert main(["trace", "info", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requests"] == 1500
        plan = tmp_path / "plan.json"
        for command in (
            ["tune", str(path), "--holdout", "30%", "-o", str(plan), "--json"],
            ["evaluate", str(path), str(plan), "--json"],
            ["simulate", str(path), "-o", str(tmp_path / "steps.csv"), "--json"],
            ["frontier", str(path), "--json"],
        ):
            outputs = []
            for stream_from in (1000, 10_000):  # as a stream, and in memory
                monkeypatch.setattr(opening, "STREAM_FROM_REQUESTS", stream_from)
                assert main([*command, "--replicas", "5"]) == 0
                outputs.append(json.loads(capsys.readouterr().out))
                outputs[-1].get("provenance", {}).pop("created", None)
            assert outputs[0] == outputs[1]

    def test_a_pipe_gets_the_trace_and_nothing_else(
        self, tmp_path: Path, small_blocks: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(pipe.read_bytes)
            assert main(["trace", "synth", "--requests", "900", "-o", str(pipe)]) == 0
            sent = read.result(timeout=60)
        assert sent[:4] == sent[-4:] == b"PAR1"
        assert capsys.readouterr().out == ""


def test_a_large_file_that_cannot_be_streamed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_LARGE_BYTES", 10)
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,5,6\n1,5,6\n")
    trace = open_trace(path)
    assert trace.notes[-1] == (
        f"{path} was read whole: ladder-opt trace convert makes a Parquet trace of it that can be streamed"
    )
