"""The bucketer against a plain account of the rules: look-ups, what it enumerates, and that the two agree."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ladder_opt.bucketer import BatchedVariant, Bucketer, SequenceVariant
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import tune
from ladder_opt.solve.price import distinct_variants
from ladder_opt.solve.sequence_price import compiled_sequence_variants
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan


def engine_of(**changes: Any) -> Engine:
    return Engine(**({"block_size": 64, "max_num_seqs": 8, "max_model_len": 2048} | changes))


def chunked(seqs: int, blocks: int) -> tuple[int, int, int]:
    """DESIGN's rule, in plain Python: (s, c, k)."""
    chunk = max(1, min(32 // seqs, blocks))
    return seqs, chunk, -(-blocks // chunk)


def bucketer_of(ladders: Ladders, engine: Engine, kernel: str = "chunked") -> Bucketer:
    plain = Bucketer.from_engine(engine)
    return Bucketer(
        engine,
        ladders,
        kv_tokens=plain.kv_tokens.rungs,
        query_tokens=plain.query_tokens.rungs,
        kernel=kernel,
    )


@pytest.mark.parametrize(
    ("max_num_seqs", "rungs"), [(8, (4, 8)), (6, (4, 6)), (4, (4,)), (3, ()), (32, (4, 8, 16, 32))]
)
def test_the_default_num_seqs_ladder(max_num_seqs: int, rungs: tuple[int, ...]) -> None:
    assert Bucketer.from_engine(engine_of(max_num_seqs=max_num_seqs)).ladders.num_seqs == rungs


def test_the_block_ladder_does_not_move_with_the_kv_ladder() -> None:
    bucketer = Bucketer.from_engine(engine_of(), environ={"SPYRE_ATTN_KV_BUCKETS": "512,1024,2048"})
    assert bucketer.ladders.num_blocks == (1, 2, 4, 8, 16, 32)
    assert bucketer.kv_tokens.rungs == (512, 1024, 2048)
    assert bucketer.dispatch(4, 1) == (4, 1)  # one block gathered, and not the 8 of the first KV rung
    assert bucketer.sequence_blocks_rung(1) == 8
    assert bucketer.warnings == ()


def test_look_ups_round_up_and_end_past_the_last_rung() -> None:
    bucketer = Bucketer.from_engine(engine_of())
    assert [bucketer.num_seqs_rung(n) for n in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, None]
    assert [bucketer.num_blocks_rung(b) for b in (1, 3, 32, 33)] == [1, 4, 32, None]
    assert [bucketer.kv_rung(tokens) for tokens in (1, 64, 65, 2048, 2049)] == [64, 64, 128, 2048, None]
    assert [bucketer.query_rung(tokens) for tokens in (1, 2, 512, 513)] == [1, 512, 512, None]
    assert bucketer.dispatch(3, 1) is None  # the per-sequence path
    assert bucketer.dispatch(9, 1) is None
    assert bucketer.dispatch(4, 33) is None
    assert bucketer.dispatch(5, 3) == (8, 4)


def test_the_default_kv_and_query_ladders_are_the_plugins() -> None:
    # By hand, from the rules of the Spyre plugin: powers of two from the first that holds a block, up to
    # max_model_len; 1, then multiples of min(512, max_num_batched_tokens).
    bucketer = Bucketer.from_engine(
        Engine(block_size=192, max_num_seqs=4, max_model_len=3000, max_num_batched_tokens=1300)
    )
    assert bucketer.kv_tokens.rungs == (256, 512, 1024, 2048, 3000)
    assert bucketer.query_tokens.rungs == (1, 512, 1024, 1300)
    assert Bucketer.from_engine(engine_of(max_num_batched_tokens=256)).query_tokens.rungs == (1, 256)


def test_ragged_ladders_are_looked_up_by_the_batchs_own_rung() -> None:
    ladders = Ladders.from_ragged({4: (2, 8, 32), 8: (4, 32)})
    bucketer = bucketer_of(ladders, engine_of())
    assert bucketer.dispatch(4, 3) == (4, 8)
    assert bucketer.dispatch(5, 3) == (8, 4)
    assert bucketer.num_blocks_rung(3, 8) == 4
    assert bucketer.num_blocks_rung(5, 8) == 32
    assert bucketer.num_blocks_rung(5) == 8  # of all the rungs
    assert {(v.num_seqs, v.num_blocks) for v in bucketer.batched_variants()} == {
        (4, 2),
        (4, 8),
        (4, 32),
        (8, 4),
        (8, 32),
    }


def test_rung_pairs_of_one_kernel_are_one_variant() -> None:
    # num_seqs 4 takes 8 blocks a chunk: 9 to 16 blocks are two chunks, one kernel.
    bucketer = bucketer_of(Ladders((4,), (8, 9, 12, 16, 32)), engine_of(max_num_seqs=4))
    assert bucketer.batched_variants() == [
        BatchedVariant(4, 32, 8, 4),
        BatchedVariant(4, 9, 8, 2),
        BatchedVariant(4, 8, 8, 1),
    ]
    assert bucketer.variant_of(4, 16) == BatchedVariant(4, 9, 8, 2)
    with pytest.raises(KeyError):
        bucketer.variant_of(4, 10)


def test_per_sequence_variants_by_hand() -> None:
    # KV rungs of 1, 2, 4 blocks of 64; query rungs 1, 512, 1024. The shortest query padded to 512 has 2
    # tokens, to 1024 has 513, which no sequence of 256 tokens holds.
    engine = engine_of(max_model_len=256, max_num_batched_tokens=1024)
    assert Bucketer.from_engine(engine).sequence_variants() == [
        SequenceVariant(4, 512),
        SequenceVariant(4, 1),
        SequenceVariant(2, 512),
        SequenceVariant(2, 1),
        SequenceVariant(1, 512),
        SequenceVariant(1, 1),
    ]


def test_a_pool_too_small_for_a_variant_leaves_it_out() -> None:
    # 9 usable blocks: 4 sequences hold at most one of 6 blocks; 5 and more at most one of 5 blocks.
    bucketer = Bucketer.from_engine(engine_of(num_kv_blocks=10))
    assert {variant.key for variant in bucketer.batched_variants()} == {
        chunked(4, 1),
        chunked(4, 2),
        chunked(8, 1),
    }
    # (4, 4) and (4, 8) would gather 16 and 32 of 10 pages, (8, 2) 16: the plugin runs no such kernel.
    assert bucketer.dispatch(4, 3) is None
    assert bucketer.dispatch(5, 2) is None


def test_kernels_without_chunks() -> None:
    bucketer = bucketer_of(
        Ladders((4,), (8, 9)), engine_of(max_num_seqs=4, max_model_len=9 * 64), "per_block"
    )
    assert bucketer.batched_variants() == [BatchedVariant(4, 9, 1, 9), BatchedVariant(4, 8, 1, 8)]


def test_a_plan_gives_both_ladders() -> None:
    plan = make_plan()
    bucketer = Bucketer.from_engine(ENGINE, plan=plan, plan_path="p.json")
    assert bucketer.ladders == plan.ladders
    assert bucketer.source == "p.json"
    assert bucketer.kernel == plan.kernel
    assert len(bucketer.batched_variants()) == plan.result.num_variants
    assert bucketer.warnings == ()


def test_a_ragged_plan_gives_its_own() -> None:
    plan = make_plan(structure="ragged")
    bucketer = Bucketer.from_engine(ENGINE, plan=plan)
    assert bucketer.ladders.ragged is not None
    assert bucketer.ladders == plan.ladders
    assert len(bucketer.batched_variants()) == plan.result.num_variants


def test_a_plan_for_another_block_size_is_refused() -> None:
    with pytest.raises(InputError) as error:
        Bucketer.from_engine(engine_of(), plan=make_plan(), plan_path="p.json")
    assert str(error.value) == (
        "p.json: engine.block_size: found a plan for block_size 128, expected the engine's 64"
    )


def test_a_plan_for_other_limits_is_clamped_with_a_warning() -> None:
    engine = Engine(max_num_seqs=6, max_model_len=16 * 128)
    bucketer = Bucketer.from_engine(engine, plan=make_plan(num_seqs=(5, 8)))
    assert bucketer.ladders.num_seqs == (5, 6)
    assert bucketer.warnings == (
        "num_seqs: 8 is above max_num_seqs = 6 and was dropped",
        "num_seqs: max_num_seqs = 6 was missing and was added as the top rung",
    )


rungs = st.sets(st.integers(1, 40), max_size=6)


@st.composite
def bucketers(draw: st.DrawFn) -> Bucketer:
    """Any ladders, product or ragged, on any engine, short pools included."""
    top = draw(st.integers(1, 24))
    seqs_top = draw(st.integers(4, 40))
    block_size = draw(st.sampled_from([64, 192]))
    engine = Engine(
        block_size=block_size,
        max_num_seqs=seqs_top,
        max_model_len=top * block_size - draw(st.integers(0, 63)),
        max_num_batched_tokens=draw(st.sampled_from([64, 512, 2048])),
        num_kv_blocks=draw(st.none() | st.integers(2, 80)),
    )
    seqs = sorted({rung for rung in draw(rungs) if 4 <= rung < seqs_top} | {seqs_top})

    def blocks() -> tuple[int, ...]:
        return tuple(sorted({rung for rung in draw(rungs) if rung < top} | {top}))

    ladders = (
        Ladders.from_ragged({rung: blocks() for rung in seqs})
        if draw(st.booleans())
        else Ladders(tuple(seqs), blocks())
    )
    return bucketer_of(ladders, engine, draw(st.sampled_from(["chunked", "per_block"])))


def can_run(engine: Engine, num_seqs: int, num_blocks: int) -> bool:
    return num_seqs - 1 + num_blocks <= engine.usable_kv_blocks


@given(bucketers())
@example(bucketer_of(Ladders((4, 9), (4, 24)), Engine(block_size=64, max_num_seqs=9, max_model_len=24 * 64)))
def test_what_steps_reach_is_what_is_enumerated(bucketer: Bucketer) -> None:
    """Every runnable step meets a variant that warm-up compiled, and each of these has such a step."""
    engine = bucketer.engine
    reached = set()
    for num_seqs in range(1, engine.max_num_seqs + 1):
        for num_blocks in range(1, engine.max_num_blocks + 1):
            pair = bucketer.dispatch(num_seqs, num_blocks)
            if num_seqs < engine.min_batched_seqs:
                assert pair is None
            if pair is None or not can_run(engine, num_seqs, num_blocks):
                continue
            assert pair[0] >= num_seqs
            assert pair[1] >= num_blocks
            reached.add(bucketer.variant_of(*pair))
    variants = bucketer.batched_variants()
    assert len({variant.key for variant in variants}) == len(variants)
    assert set(variants) == reached


@given(bucketers())
def test_every_witness_is_dispatched_to_its_variant(bucketer: Bucketer) -> None:
    engine = bucketer.engine
    for variant in bucketer.batched_variants():
        batch = bucketer.batched_witness(variant)
        longest = max(batch.kv_lens)
        blocks = [-(-tokens // engine.block_size) for tokens in batch.kv_lens]
        assert batch.query_len == 1
        assert longest <= max(engine.max_model_len, 2)
        assert sum(blocks) <= engine.usable_kv_blocks
        pair = bucketer.dispatch(len(batch.kv_lens), max(blocks))
        assert pair is not None
        assert bucketer.variant_of(*pair) == variant
    for single in bucketer.sequence_variants():
        (tokens,), query = (
            bucketer.sequence_witness(single).kv_lens,
            bucketer.sequence_witness(single).query_len,
        )
        assert query <= tokens <= engine.max_model_len
        assert bucketer.sequence_blocks_rung(-(-tokens // engine.block_size)) == single.num_blocks
        assert bucketer.query_rung(query) == single.query_len


@given(bucketers())
def test_every_sequence_meets_a_recorded_per_sequence_variant(bucketer: Bucketer) -> None:
    engine = bucketer.engine
    known = set(bucketer.sequence_variants())
    edges = {1, 2, 63, 64, 65, engine.block_size, engine.max_model_len}
    for tokens in (t for t in edges if t <= engine.max_model_len):
        for query in (q for q in {1, 2, 64, tokens} if q <= min(tokens, engine.max_num_batched_tokens)):
            blocks = -(-tokens // engine.block_size)
            if blocks > engine.usable_kv_blocks:
                continue
            padded, width = bucketer.sequence_blocks_rung(blocks), bucketer.query_rung(query)
            assert padded is not None
            assert width is not None
            assert SequenceVariant(padded, width) in known


@given(bucketers())
def test_the_solver_counts_the_same_variants(bucketer: Bucketer) -> None:
    assert len(bucketer.batched_variants()) == distinct_variants(
        bucketer.ladders, bucketer.engine, get_kernel(bucketer.kernel)
    )


@given(bucketers(), st.sets(st.integers(1, 2048), max_size=5))
@example(
    bucketer_of(
        Ladders((4, 8), (1, 2, 16)),
        Engine(block_size=64, max_num_seqs=8, max_model_len=1000, num_kv_blocks=5),
    ),
    {900, 1010},
)
def test_the_solver_counts_what_the_spyre_plugin_records_alike(bucketer: Bucketer, lengths: set[int]) -> None:
    """Of both kernels, pools too small for a variant and queries longer than max_model_len included."""
    engine, ladders = bucketer.engine, bucketer.ladders
    top = engine.max_num_batched_tokens
    query_lens = tuple(sorted({1, top, *(each for each in lengths if each < top)}))
    shared = Ladders(ladders.num_seqs, ladders.num_blocks, query_lens=query_lens)
    ours = Bucketer(
        engine,
        shared,
        kv_tokens=tuple(min(m * engine.block_size, engine.max_model_len) for m in shared.num_blocks),
        query_tokens=query_lens,
        kernel=bucketer.kernel,
    )
    assert len(ours.batched_variants()) == distinct_variants(shared, engine, get_kernel(ours.kernel))
    compiled = compiled_sequence_variants(engine, shared)
    assert {(each.num_blocks, each.query_len) for each in ours.sequence_variants()} == {
        (blocks, query)
        for row, blocks in enumerate(shared.num_blocks)
        for column, query in enumerate(query_lens)
        if compiled[row, column]
    }


@pytest.mark.parametrize("num_kv_blocks", [None, 17, 40])
def test_a_plan_of_todays_plugin_has_as_many_variants_as_the_bucketer_says(num_kv_blocks: int | None) -> None:
    engine = dataclasses.replace(ENGINE, num_kv_blocks=num_kv_blocks)
    steps = dataclasses.replace(STEPS, sequences=STEPS.decode_calls(engine))
    plan = tune(steps, make_cost(), engine=engine, options=SolveOptions(target="spyre-env"))
    bucketer = Bucketer.from_engine(engine, plan=plan)
    variants = len(bucketer.batched_variants()) + len(bucketer.sequence_variants())
    assert variants == plan.result.num_variants
    assert plan.result.sequences is not None
    assert len(bucketer.sequence_variants()) == plan.result.sequences.num_variants


def test_look_ups_need_no_numpy() -> None:
    code = (
        "import json, sys, ladder_opt.bucketer; "
        "print(json.dumps([name for name in ('numpy', 'pydantic', 'torch', 'vllm') if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(ran.stdout) == []
