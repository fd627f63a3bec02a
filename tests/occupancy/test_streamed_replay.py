"""A replay in chunks, in shares and in parallel is the replay in one go, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.executor import Executor
from ladder_opt.occupancy import shares
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.open import open_trace
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.stream import AnyTrace, TraceStream, stream_of
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import BEYOND_MAX_MODEL_LEN, HashIds, Trace
from tests.occupancy.test_replay import COST, assert_same, cases

SCHEDULINGS = (
    Scheduling(),
    Scheduling(policy="priority"),
    Scheduling(long_prefill_token_threshold=40),
    Scheduling(sliding_window=100),
    Scheduling(n=2),
    Scheduling(policy="priority", long_prefill_token_threshold=7, sliding_window=200, n=3),
)


def streamed(trace: Trace, folder: Path, *, chunk_requests: int) -> TraceStream:
    path = folder / "t.parquet"
    write_trace(trace, path)
    stream = stream_of(path, chunk_requests=chunk_requests)
    assert stream is not None
    return stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@given(
    case=cases(),
    chunk_requests=st.integers(1, 30),
    load=st.tuples(st.integers(1, 4), st.sampled_from([1.0, 0.3, 7.0])),
    loop=st.tuples(st.booleans(), st.booleans(), st.sampled_from(SCHEDULINGS)),
)
def test_chunks_change_nothing(
    folder: Path,
    case: tuple[Trace, Engine, int | None],
    chunk_requests: int,
    load: tuple[int, float],
    loop: tuple[bool, bool, Scheduling],
) -> None:
    trace, engine, concurrency = case
    trace = replace(trace, priority=trace.prompt_tokens % 3 - 1)
    threshold = loop[2].long_prefill_token_threshold
    assume(threshold <= engine.max_model_len)
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "replicas": load[0],
        "rate_scale": load[1],
        "per_sequence": loop[0],
        "stepwise": loop[1],
        "scheduling": loop[2],
    }
    stream = streamed(trace, folder, chunk_requests=chunk_requests)
    assert_same(simulate(stream, engine, COST, **options), simulate(trace, engine, COST, **options))


@given(case=cases(), jobs=st.integers(2, 5), replicas=st.integers(1, 6), as_stream=st.booleans())
@settings(max_examples=50)
@example(  # more jobs than engines, more engines than requests
    case=(Trace(np.zeros(2), np.array([70, 9]), np.array([3, 1])), Engine(), None),
    jobs=5,
    replicas=6,
    as_stream=False,
)
def test_jobs_change_nothing(
    folder: Path, case: tuple[Trace, Engine, int | None], jobs: int, replicas: int, as_stream: bool
) -> None:
    trace, engine, concurrency = case
    source: AnyTrace = streamed(trace, folder, chunk_requests=3) if as_stream else trace
    options: dict[str, Any] = {"concurrency": concurrency, "replicas": replicas, "per_sequence": True}
    alone = simulate([trace, trace], engine, COST, weights=[1, 0.3], **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "PARALLEL_FROM_REQUESTS", 0)
        together = simulate(
            [source, source], engine, COST, weights=[1, 0.3], executor=Executor(jobs), **options
        )
    assert_same(alone, together)


def test_prefix_caching_is_the_same_from_a_stream_and_in_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    prompt = rng.integers(1, 2000, 300)
    ids = [[int(rng.integers(0, 3)), *range(9, 9 + -(-int(tokens) // 512) - 1)] for tokens in prompt]
    arrivals = np.array(np.cumsum(rng.exponential(0.3, 300)), np.float64)
    trace = Trace(arrivals, prompt, rng.integers(1, 99, 300), hash_ids=HashIds.of(ids, 512))
    options: dict[str, Any] = {"scheduling": Scheduling(prefix_caching=True), "replicas": 3}
    whole = simulate(trace, Engine(), COST, **options)
    assert whole.cached_tokens > 0
    monkeypatch.setattr(shares, "PARALLEL_FROM_REQUESTS", 0)
    for source in (trace, streamed(trace, tmp_path, chunk_requests=50)):
        assert_same(simulate(source, Engine(), COST, executor=Executor(2), **options), whole)
    bare = streamed(replace(trace, hash_ids=None), tmp_path, chunk_requests=50)
    with pytest.raises(ValueError, match="found a trace without hash_ids"):
        simulate(bare, Engine(), COST, **options)


@pytest.mark.parametrize(
    ("engine", "scheduling"),
    [
        (Engine(), Scheduling(prefix_caching=True)),
        (Engine(), Scheduling(prefix_caching=True, policy="priority")),
        (Engine(), Scheduling(prefix_caching=True, n=2)),
        (Engine(num_kv_blocks=40), Scheduling(prefix_caching=True)),
    ],
    ids=["ample", "priority", "n", "preempts"],
)
def test_recorded_hits_are_the_same_from_a_stream_and_in_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, scheduling: Scheduling
) -> None:
    rng = np.random.default_rng(4)
    prompt = rng.integers(1, 2000, 300)
    trace = Trace(
        np.array(np.cumsum(rng.exponential(0.05, 300)), np.float64),
        prompt,
        rng.integers(1, 99, 300),
        cached_tokens=rng.integers(0, prompt + 1),
        priority=rng.integers(0, 3, 300),
    )
    options: dict[str, Any] = {"scheduling": scheduling, "replicas": 3}
    whole = simulate(trace, engine, COST, stepwise=True, **options)
    assert whole.cached_tokens > 0
    assert bool(whole.preemptions) == (engine.num_kv_blocks is not None)
    monkeypatch.setattr(shares, "PARALLEL_FROM_REQUESTS", 0)
    for source in (trace, streamed(trace, tmp_path, chunk_requests=37)):
        for executor in (Executor(1), Executor(2)):
            assert_same(simulate(source, engine, COST, executor=executor, **options), whole)


def test_a_chunk_border_in_the_thick_of_preemption(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    engine = Engine(max_num_seqs=16, max_model_len=1024, num_kv_blocks=24, max_num_batched_tokens=256)
    count = 4000
    prompt = rng.integers(1, 600, count)
    arrivals = np.array(np.cumsum(rng.exponential(0.02, count)), np.float64)
    trace = Trace(arrivals, prompt, rng.integers(1, 400, count))
    whole = simulate(trace, engine, COST)
    assert whole.preemptions > 1000
    for chunk_requests in (1, 37, 1000):
        stream = streamed(trace, tmp_path, chunk_requests=chunk_requests)
        assert_same(simulate(stream, engine, COST), whole)


def test_what_is_set_aside_is_counted_once(tmp_path: Path) -> None:
    tokens = np.tile([100, 5000], 20)
    trace = Trace(np.arange(40, dtype=np.float64), tokens, tokens, set_aside={"failed": 3})
    stream = streamed(trace, tmp_path, chunk_requests=7)
    for source in (trace, stream):
        replay = simulate(source, Engine(), COST, replicas=3)
        assert dict(replay.set_aside) == {"failed": 3, BEYOND_MAX_MODEL_LEN: 20}
        assert replay.requests == 20
        assert replay.span_seconds == 38.0  # the last arrival that is replayed


def test_progress_ends_at_one_and_never_falls(tmp_path: Path) -> None:
    trace = synthesize(requests=3000)
    told: list[float] = []
    simulate(streamed(trace, tmp_path, chunk_requests=500), Engine(), COST, replicas=2, progress=told.append)
    assert told == sorted(told)
    assert len(told) > 5
    assert told[-1] == 1.0


class TestStream:
    def test_chunks_are_the_trace(self, tmp_path: Path) -> None:
        trace = synthesize(requests=1000)
        stream = streamed(trace, tmp_path, chunk_requests=300)
        chunks = list(stream.chunks())
        assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]
        assert len(stream) == 1000
        assert stream.span_seconds == trace.span_seconds
        assert stream.notes == trace.notes
        for name in ("arrival_seconds", "prompt_tokens", "output_tokens"):
            read = np.concatenate([getattr(chunk, name) for chunk in chunks])
            assert read.tolist() == getattr(trace, name).tolist()

    def test_chunks_hold_cached_tokens_where_asked_for(self, tmp_path: Path) -> None:
        trace = Trace(None, np.arange(1, 10), np.ones(9, np.int64), cached_tokens=np.arange(9))
        stream = streamed(trace, tmp_path, chunk_requests=4)
        assert stream.has_cached_tokens
        assert all(chunk.cached_tokens is None for chunk in stream.chunks())
        read = [chunk.cached_tokens for chunk in stream.chunks(with_cached_tokens=True)]
        assert [part.tolist() for part in read if part is not None] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
        bare = streamed(replace(trace, cached_tokens=None), tmp_path, chunk_requests=4)
        assert not bare.has_cached_tokens
        assert all(chunk.cached_tokens is None for chunk in bare.chunks(with_cached_tokens=True))

    @given(case=cases(), share=st.floats(0.01, 0.99), chunk_requests=st.integers(1, 30))
    def test_splits_as_a_trace_does(
        self, folder: Path, case: tuple[Trace, Engine, int | None], share: float, chunk_requests: int
    ) -> None:
        trace = case[0]
        stream = streamed(trace, folder, chunk_requests=chunk_requests)
        for whole, part in zip(trace.split_by_time(share), stream.split_by_time(share), strict=True):
            assert len(part) == len(whole)
            assert part.span_seconds == whole.span_seconds
            for name in ("arrival_seconds", "prompt_tokens", "output_tokens"):
                read = [value for chunk in part.chunks() for value in getattr(chunk, name).tolist()]
                assert read == getattr(whole, name).tolist()

    def test_arrivals_that_fall_between_chunks_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        _write_raw(path, arrivals=[0.0, 5.0, 4.0, 6.0])
        stream = stream_of(path, chunk_requests=2)
        assert stream is not None
        with pytest.raises(InputError) as error:
            simulate(stream, Engine(), COST)
        assert str(error.value) == (
            f"{path}:3: arrival_seconds: found 4.0 after 5.0, expected arrivals in ascending order"
        )

    def test_a_fault_names_its_row_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        _write_raw(path, arrivals=[0.0, 1.0, 2.0, 3.0], output=[1, 1, 1, 0])
        stream = stream_of(path, chunk_requests=2)
        assert stream is not None
        with pytest.raises(InputError) as error:
            list(stream.chunks())
        assert str(error.value) == f"{path}:4: output_tokens: found 0, expected at least 1 token"

    def test_a_file_that_changed_is_refused(self, tmp_path: Path) -> None:
        trace = synthesize(requests=100)
        stream = streamed(trace, tmp_path, chunk_requests=10)
        write_trace(synthesize(requests=101), Path(stream.path))
        with pytest.raises(InputError, match="found a file that has changed since it was opened"):
            simulate(stream, Engine(), COST)

    def test_lengths_alone_need_a_concurrency(self, tmp_path: Path) -> None:
        lengths = Trace(None, np.full(20, 100), np.full(20, 9))
        stream = streamed(lengths, tmp_path, chunk_requests=3)
        assert not stream.has_arrivals
        with pytest.raises(ValueError, match="concurrency: found none"):
            simulate(stream, Engine(), COST)
        assert_same(
            simulate(stream, Engine(), COST, concurrency=4), simulate(lengths, Engine(), COST, concurrency=4)
        )


def _write_raw(path: Path, *, arrivals: list[float], output: list[int] | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "arrival_seconds": arrivals,
        "prompt_tokens": [10] * len(arrivals),
        "output_tokens": output or [1] * len(arrivals),
    }
    table = pa.table(columns).replace_schema_metadata({"ladder_opt.schema": "ladder_opt/trace/1"})
    pq.write_table(table, path)


class TestOpenTrace:
    def test_only_large_canonical_files_are_streamed(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        write_trace(synthesize(requests=100), path)
        assert isinstance(open_trace(path), Trace)
        assert isinstance(open_trace(path, stream_from=100), TraceStream)
        assert isinstance(open_trace(path, stream_from=100, spread_ticks=True), Trace)
        csv = tmp_path / "t.csv"
        csv.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,5,6\n")
        assert isinstance(open_trace(csv, stream_from=0), Trace)

    def test_what_is_no_file_is_told_as_ever(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="found a directory, expected a readable file"):
            open_trace(tmp_path)
        with pytest.raises(InputError, match="found No such file or directory"):
            open_trace(tmp_path / "gone.parquet")
