"""The paged kernels equal dense attention, whatever is padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.caches import make_cache
from tests.reference.dense import attend

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")

TOLERANCE = 1e-5
SHAPES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([8, 16, 64]),
        "num_kv_heads": st.integers(1, 3),
        "head_size": st.sampled_from([4, 16, 64]),
        "seed": st.integers(0, 2**31),
    }
)
SCORES = st.fixed_dictionaries(
    {
        "logits_soft_cap": st.none() | st.floats(0.5, 60),
        "sliding_window": st.none() | st.integers(1, 150),
    }
)
PADDING = st.fixed_dictionaries(
    {"rows": st.integers(0, 3), "chunk": st.integers(1, 5), "chunks": st.integers(0, 2)}
)


def batch(cache: Any, queries: Any, *, rows: int, blocks: int, window: int | None) -> tuple[Any, ...]:
    """Arguments padded by hand: rubbish queries in padded rows, page 0 in blocks that a sequence has not."""
    count, block_size = len(cache.seq_lens), cache.pages.shape[2]
    query = torch.full((rows, *queries.shape[1:]), 7.0)
    query[:count] = queries
    page_ids = torch.zeros((rows, blocks), dtype=torch.int32)
    for row, tokens in enumerate(cache.seq_lens):
        own = -(-tokens // block_size)
        page_ids[row, :own] = cache.block_table[row, :own]
    end = torch.zeros(rows, dtype=torch.int32)
    end[:count] = torch.tensor(cache.seq_lens)
    first = torch.zeros_like(end) if window is None else (end - window).clamp(min=0)
    return query, cache.pages, page_ids, first, end


@given(
    shape=SHAPES,
    seq_lens=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    group=st.integers(1, 4),
    padding=PADDING,
    how=SCORES,
)
def test_batched_decode_equals_dense_attention(
    shape: dict[str, int], seq_lens: list[int], group: int, padding: dict[str, int], how: dict[str, Any]
) -> None:
    from ladder_opt.reference.kernels import batched_decode

    cache = make_cache(seq_lens, **shape)
    chunk, needed = padding["chunk"], -(-max(seq_lens) // shape["block_size"])
    blocks = (-(-needed // chunk) + padding["chunks"]) * chunk
    rows = len(seq_lens) + padding["rows"]
    rng = np.random.default_rng(shape["seed"])
    queries = rng.normal(size=(len(seq_lens), group * shape["num_kv_heads"], shape["head_size"]))
    queries = torch.tensor(queries, dtype=torch.float32)
    arguments = batch(cache, queries, rows=rows, blocks=blocks, window=how["sliding_window"])
    scale = shape["head_size"] ** -0.5

    out = batched_decode(
        *arguments, scale=scale, logits_soft_cap=how["logits_soft_cap"], blocks_per_chunk=chunk
    )

    assert out.shape == arguments[0].shape
    assert bool(torch.isfinite(out).all())  # padded rows too: a NaN there would hide one that matters
    for row in range(len(seq_lens)):
        expected = attend(
            queries[row].double().numpy(), cache.keys[row], cache.values[row], scale=scale, **how
        )
        np.testing.assert_allclose(out[row].numpy(), expected, atol=TOLERANCE, rtol=TOLERANCE)


@given(shape=SHAPES, seq_len=st.integers(1, 150), data=st.data(), group=st.integers(1, 4), how=SCORES)
def test_sequence_attention_equals_dense_attention(
    shape: dict[str, int], seq_len: int, data: st.DataObject, group: int, how: dict[str, Any]
) -> None:
    from ladder_opt.reference.kernels import sequence_attention

    tokens = data.draw(st.integers(1, min(seq_len, 20)))
    cache = make_cache([seq_len], **shape, width=30)
    rng = np.random.default_rng(shape["seed"])
    queries = rng.normal(size=(tokens, group * shape["num_kv_heads"], shape["head_size"])).astype(np.float32)
    scale = shape["head_size"] ** -0.5

    out = sequence_attention(
        torch.tensor(queries), cache.pages, cache.block_table[0], seq_len, scale=scale, **how
    )

    for token in range(tokens):
        known = seq_len - tokens + token + 1
        expected = attend(
            queries[token].astype(np.float64),
            cache.keys[0][:known],
            cache.values[0][:known],
            scale=scale,
            **how,
        )
        np.testing.assert_allclose(out[token].numpy(), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_small_case_by_hand() -> None:
    """Two tokens, scores 0 and ln 3: shares 1/4 and 3/4."""
    from ladder_opt.reference.kernels import batched_decode

    pages = torch.zeros((2, 1, 2, 2))
    pages[1, 0, :, 0] = torch.tensor([0.0, np.log(3.0)])  # keys
    pages[1, 0, :, 1] = torch.tensor([4.0, 8.0])  # values
    query = torch.ones((1, 1, 1))
    ids, end = torch.tensor([[1, 0]]), torch.tensor([2])

    def decoded(first: int, chunk: int) -> float:
        return float(
            batched_decode(
                query,
                pages,
                ids,
                torch.tensor([first]),
                end,
                scale=1.0,
                logits_soft_cap=None,
                blocks_per_chunk=chunk,
            )
        )

    assert decoded(0, 1) == pytest.approx(7.0)
    assert decoded(0, 2) == pytest.approx(7.0)
    assert decoded(1, 1) == pytest.approx(8.0)


def test_half_precision_pages_are_summed_in_float32() -> None:
    from ladder_opt.reference.kernels import batched_decode

    cache = make_cache([90, 40], block_size=16, num_kv_heads=2, head_size=16, seed=5)
    queries = torch.tensor(np.random.default_rng(1).normal(size=(2, 4, 16)), dtype=torch.bfloat16)
    query, pages, *rest = batch(cache, queries, rows=2, blocks=6, window=None)
    how: dict[str, Any] = {"scale": 0.25, "logits_soft_cap": None, "blocks_per_chunk": 3}
    exact = batched_decode(query, pages.bfloat16().float(), *rest, **how)
    out = batched_decode(query.bfloat16(), pages.bfloat16(), *rest, **how)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact.bfloat16())
