"""Whatever a scheduler puts into a step, whatever engine a plan was for: the right numbers, or no batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.tune import tune
from tests.plan.plans import STEPS, make_cost
from tests.reference.caches import make_cache
from tests.reference.dense import attend

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")

BLOCK = 64
HEADS, SIZE = 2, 4
TOLERANCE = 1e-5


def plan_of(**options: str) -> Plan:
    made_for = Engine(block_size=BLOCK, max_num_seqs=8, max_model_len=16 * BLOCK)
    return tune(STEPS, make_cost(), engine=made_for, options=SolveOptions(**options))  # type: ignore[arg-type]


PLANS = (None, plan_of(), plan_of(structure="ragged"))


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """1 to 10 sequences, 1 to 18 blocks, pools from next to nothing: smaller and larger than the plan's."""
    seqs, blocks = draw(st.integers(1, 10)), draw(st.integers(1, 18))
    pool = draw(st.sampled_from([None, 2, seqs + 1, seqs + blocks, 2 * seqs + blocks]))
    return Engine(block_size=BLOCK, max_num_seqs=seqs, max_model_len=blocks * BLOCK - 1, num_kv_blocks=pool)


@given(
    engine=engines(),
    plan=st.sampled_from(PLANS),
    seq_lens=st.lists(st.integers(1, 19 * BLOCK), min_size=1, max_size=12),
    seed=st.integers(0, 2**31),
)
def test_odd_batches_are_right_or_left_to_the_other_path(
    engine: Engine, plan: Plan | None, seq_lens: list[int], seed: int
) -> None:
    from ladder_opt.reference.batch import BatchPadder
    from ladder_opt.reference.kernels import batched_decode

    bucketer = Bucketer.from_engine(engine, plan=plan, environ={})
    cache = make_cache(seq_lens, block_size=BLOCK, num_kv_heads=1, head_size=SIZE, seed=seed)
    batch = BatchPadder(bucketer).pad(cache.block_table, torch.tensor(seq_lens))
    longest = -(-max(seq_lens) // BLOCK)
    if batch is None:
        assert (
            len(seq_lens) < engine.min_batched_seqs
            or len(seq_lens) > engine.max_num_seqs
            or longest > engine.max_num_blocks
            or bucketer.dispatch(len(seq_lens), longest) is None  # it would read more pages than there are
        )
        return
    in_pool = len(seq_lens) - 1 + longest <= engine.usable_kv_blocks
    assert batch.variant in bucketer.batched_variants() or not in_pool
    rng = np.random.default_rng(seed)
    queries = torch.full((batch.variant.num_seqs, HEADS, SIZE), 7.0)
    queries[: len(seq_lens)] = torch.tensor(rng.normal(size=(len(seq_lens), HEADS, SIZE)))
    out = batched_decode(
        queries,
        cache.pages,
        batch.page_ids,
        batch.first_tokens(None),
        batch.end_tokens,
        scale=0.5,
        logits_soft_cap=None,
        blocks_per_chunk=batch.variant.blocks_per_chunk,
    )
    for row, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
        expected = attend(queries[row].double().numpy(), keys, values, scale=0.5)
        assert np.abs(out[row].numpy() - expected).max() < TOLERANCE
