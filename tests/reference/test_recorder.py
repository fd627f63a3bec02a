"""What serving dispatches, warm-up has recorded: nothing compiles afterwards, and nothing is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError
from ladder_opt.ladder import Ladders
from tests.reference.caches import make_cache

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")

ENGINE = Engine(block_size=64, max_num_seqs=12, max_model_len=768, max_num_batched_tokens=64)
SMALL = Engine(block_size=64, max_num_seqs=4, max_model_len=256, max_num_batched_tokens=64)  # three variants
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 8


def bucketer_of(*, kernel: str = "chunked", engine: Engine = ENGINE, **environ: str) -> Bucketer:
    return Bucketer.from_engine(engine, environ=environ, kernel=kernel)


def layer_of(**changes: Any) -> Any:
    from ladder_opt.reference.compiled import AttentionLayer

    return AttentionLayer(**{"num_heads": HEADS, "head_size": HEAD_SIZE, "scale": 0.3} | changes)


def empty_pages(engine: Engine = ENGINE, pages: int = 40) -> Any:
    return torch.zeros((pages, KV_HEADS, engine.block_size, 2 * HEAD_SIZE))


class Warm:
    """A bucketer that was warmed up, with Dynamo's graphs run as they were traced."""

    def __init__(self, bucketer: Bucketer, pages: Any, *, compiler: str = "eager", layers: Any = ()) -> None:
        from ladder_opt.reference.batch import BatchPadder
        from ladder_opt.reference.compiled import CompiledKernels
        from ladder_opt.reference.recorder import LayerCache, record

        self.padder = BatchPadder(bucketer)
        self.told: list[str] = []
        self.kernels = CompiledKernels(compiler=compiler, warn=self.told.append)
        self.pages = pages
        self.layers = layers or (layer_of(),)
        caches = {layer: LayerCache(pages, torch.float32) for layer in self.layers}
        self.recording = record(self.padder, self.kernels, caches)

    def step(self, seq_lens: list[int], rng: np.random.Generator) -> Any:
        """Pad and run one decode step; returns the batch, None on the per-sequence path."""
        table = torch.tensor(rng.integers(0, len(self.pages), (len(seq_lens), 12)).astype(np.int32))
        batch = self.padder.pad(table, torch.tensor(seq_lens, dtype=torch.int32))
        if batch is not None:
            for layer in self.layers:
                query = torch.ones((len(seq_lens), layer.num_heads, layer.head_size))
                self.kernels.run(batch, layer, query, self.pages)
        return batch


def graphs() -> int:
    from ladder_opt.reference.compiled import graphs_compiled

    return graphs_compiled()


def test_thousands_of_random_batches_meet_recorded_variants_only() -> None:
    before = graphs()
    warm = Warm(bucketer_of(), empty_pages())
    variants = warm.padder.bucketer.batched_variants()
    assert graphs() - before == len(variants) == warm.recording.compiles == 15
    recorded = {variant.key for variant in variants}
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        seqs = int(rng.integers(1, ENGINE.max_num_seqs + 1))
        longest = int(rng.integers(1, ENGINE.max_model_len + 1))
        batch = warm.step([longest, *rng.integers(1, longest + 1, seqs - 1).tolist()], rng)
        assert (batch is None) == (seqs < ENGINE.min_batched_seqs)
        if batch is not None:
            assert batch.variant.key in recorded
            seen.add(batch.variant.key)
    assert seen == recorded
    assert graphs() - before == len(variants)
    assert not warm.kernels.late_compiles
    assert not warm.kernels.unrecorded


@given(
    num_seqs=st.sets(st.integers(4, 12), max_size=4),
    num_blocks=st.sets(st.integers(1, 12), max_size=4),
    kernel=st.sampled_from(["chunked", "per_block"]),
    pool=st.integers(14, 145),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_every_batch_of_any_ladders_was_recorded(
    num_seqs: set[int], num_blocks: set[int], kernel: str, pool: int, seed: int
) -> None:
    from ladder_opt.reference.batch import BatchPadder

    engine = replace(ENGINE, num_kv_blocks=pool)
    ladders = Ladders(tuple(sorted(num_seqs | {12})), tuple(sorted(num_blocks | {12})))
    bucketer = Bucketer(engine, ladders, kv_tokens=(768,), query_tokens=(1, 64), kernel=kernel)
    padder = BatchPadder(bucketer)
    recorded = {variant.key for variant in bucketer.batched_variants()}
    rng = np.random.default_rng(seed)
    for _ in range(100):
        seqs = int(rng.integers(1, 13))
        left = engine.usable_kv_blocks
        blocks = []
        for row in range(seqs):
            blocks.append(int(rng.integers(1, min(12, left - (seqs - row - 1)) + 1)))
            left -= blocks[-1]
        seq_lens = torch.tensor([int(rng.integers((b - 1) * 64 + 1, b * 64 + 1)) for b in blocks])
        table = torch.ones((seqs, 12), dtype=torch.int32)
        batch = padder.pad(table, seq_lens)
        if batch is None:
            continue
        s, m = batch.rungs
        assert s == min(rung for rung in ladders.num_seqs if rung >= seqs)
        assert m == min(rung for rung in ladders.num_blocks if rung >= max(blocks))
        assert batch.variant.key in recorded
        assert batch.page_ids.shape[0] == s
        assert batch.page_ids.shape[1] >= m
        assert int(batch.page_ids.sum()) == sum(blocks)  # a page for each own block, 0 elsewhere


@pytest.mark.parametrize("kernel", ["chunked", "per_block"])
def test_padded_and_compiled_equals_the_per_sequence_path(kernel: str) -> None:
    """With the code that Inductor writes, windows and caps as layers of their own."""
    from ladder_opt.reference.compiled import run_sequences

    engine = Engine(block_size=64, max_num_seqs=6, max_model_len=256)
    bucketer = Bucketer(engine, Ladders((6,), (1, 4)), kv_tokens=(256,), query_tokens=(1, 512), kernel=kernel)
    seq_lens = [200, 64, 65, 1, 130]
    cache = make_cache(seq_lens, block_size=64, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, seed=3, width=4)
    layers = (layer_of(), layer_of(logits_soft_cap=5.0))
    before = graphs()
    warm = Warm(bucketer, cache.pages, compiler="inductor", layers=layers)
    assert graphs() - before == 2 * 2
    query = torch.tensor(np.random.default_rng(0).normal(size=(5, HEADS, HEAD_SIZE)), dtype=torch.float32)
    batch = warm.padder.pad(cache.block_table, torch.tensor(seq_lens))
    assert batch is not None
    for layer in layers:
        for window in (None, 1, 70):
            out = warm.kernels.run(batch, layer, query, cache.pages, sliding_window=window)
            expected = run_sequences(
                layer,
                query,
                cache.pages,
                cache.block_table,
                query_starts=[0, 1, 2, 3, 4, 5],
                seq_lens=seq_lens,
                sliding_window=window,
            )
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert graphs() - before == 2 * 2
    assert not warm.kernels.late_compiles


def test_kv_buckets_do_not_move_the_block_ladder() -> None:
    plain = bucketer_of(engine=SMALL)
    moved = bucketer_of(engine=SMALL, SPYRE_ATTN_KV_BUCKETS="192,256")
    assert moved.kv_tokens.rungs == (192, 256)
    assert moved.ladders == plain.ladders
    warm = Warm(moved, empty_pages())
    batch = warm.step([4 * 64, 10, 20, 30], np.random.default_rng(0))
    assert batch.rungs == (4, 4)
    assert batch.rungs[1] in moved.ladders.num_blocks
    assert not warm.kernels.unrecorded


def test_what_was_not_recorded_is_counted() -> None:
    warm = Warm(bucketer_of(engine=SMALL), empty_pages())
    other = layer_of(scale=0.5)
    warm.layers = (layer_of(), other)
    batch = warm.step([5, 5, 5, 5], np.random.default_rng(0))
    assert dict(warm.kernels.unrecorded) == {(batch.variant.key, other): 1}
    assert dict(warm.kernels.late_compiles) == {(batch.variant.key, other): 1}


def test_an_unsealed_shape_of_a_recorded_region_is_a_late_compile() -> None:
    warm = Warm(bucketer_of(engine=SMALL), empty_pages())
    warm.pages = empty_pages(pages=41)  # another cache than the one that was warmed up
    batch = warm.step([5, 5, 5, 5], np.random.default_rng(0))
    assert not warm.kernels.unrecorded
    assert dict(warm.kernels.late_compiles) == {(batch.variant.key, layer_of()): 1}
    assert warm.told == ["compiled after warm-up: num_seqs 4, blocks_per_chunk 1, num_chunks 1"]


def test_a_witness_that_goes_astray_stops_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bucketer = bucketer_of(engine=SMALL)
    monkeypatch.setattr(Bucketer, "dispatch", lambda self, num_seqs, num_blocks: None)
    with pytest.raises(InternalError, match=r"the witness of BatchedVariant.* is padded to None"):
        Warm(bucketer, empty_pages())
