"""Lists that people set for the Spyre plugin: its rules, and what happens beside a plan."""

from __future__ import annotations

import pytest

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from tests.plan.plans import ENGINE, make_plan, make_spyre_plan

SMALL = Engine(block_size=64, max_num_seqs=8, max_model_len=2048)


def test_an_unset_or_empty_variable_is_no_list() -> None:
    plain = Bucketer.from_engine(SMALL)
    for environ in ({}, {"SPYRE_ATTN_NUM_SEQS_BUCKETS": "", "SPYRE_ATTN_KV_BUCKETS": ""}):
        bucketer = Bucketer.from_engine(SMALL, environ=environ)
        assert bucketer.ladders == plain.ladders
        assert bucketer.kv_tokens == plain.kv_tokens
        assert bucketer.source == "the default ladders"


def test_a_list_is_sorted_freed_of_duplicates_and_of_empty_parts() -> None:
    bucketer = Bucketer.from_engine(SMALL, environ={"SPYRE_ATTN_NUM_SEQS_BUCKETS": " 8,5,,5 ,"})
    assert bucketer.ladders.num_seqs == (5, 8)
    assert bucketer.warnings == ()
    assert bucketer.source == "SPYRE_ATTN_NUM_SEQS_BUCKETS and the default ladders"
    assert bucketer.sources["num_blocks"] == "the default ladders"


def test_a_list_that_does_not_fit_is_fitted_with_a_warning() -> None:
    bucketer = Bucketer.from_engine(
        SMALL,
        environ={
            "SPYRE_ATTN_NUM_SEQS_BUCKETS": "2,6,32",
            "SPYRE_ATTN_KV_BUCKETS": "100,4096",
            "SPYRE_ATTN_QUERY_BUCKETS": "128,1024",
        },
    )
    assert bucketer.ladders.num_seqs == (6, 8)
    assert bucketer.kv_tokens.rungs == (100, 2048)
    assert bucketer.query_tokens.rungs == (1, 128, 512)
    assert bucketer.warnings == (
        "SPYRE_ATTN_NUM_SEQS_BUCKETS: num_seqs: 2 is below min_batched_seqs = 4 and was dropped",
        "SPYRE_ATTN_NUM_SEQS_BUCKETS: num_seqs: 32 is above max_num_seqs = 8 and was dropped",
        "SPYRE_ATTN_NUM_SEQS_BUCKETS: num_seqs: max_num_seqs = 8 was missing and was added as the top rung",
        "SPYRE_ATTN_KV_BUCKETS: 4096 is above max_model_len = 2048 and was dropped",
        "SPYRE_ATTN_KV_BUCKETS: max_model_len = 2048 was missing and was added as the top rung",
        "SPYRE_ATTN_QUERY_BUCKETS: 1024 is above max_num_batched_tokens = 512 and was dropped",
        "SPYRE_ATTN_QUERY_BUCKETS: max_num_batched_tokens = 512 was missing and was added as the top rung",
        "SPYRE_ATTN_QUERY_BUCKETS: 1 was missing and was added: a decode's query is never padded",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4,x", "found 'x' in '4,x', expected whole numbers of 1 or more"),
        ("0,4", "found '0' in '0,4', expected whole numbers of 1 or more"),
        ("-1", "found '-1' in '-1', expected whole numbers of 1 or more"),
        ("1_000", "found '1_000' in '1_000', expected whole numbers of 1 or more"),
        ("4.0", "found '4.0' in '4.0', expected whole numbers of 1 or more"),
        (" ,", "found ' ,', expected at least one whole number"),
    ],
)
@pytest.mark.parametrize("name", ["NUM_SEQS", "KV", "QUERY"])
def test_a_malformed_list_is_one_line(name: str, text: str, message: str) -> None:
    variable = f"SPYRE_ATTN_{name}_BUCKETS"
    with pytest.raises(UsageError) as error:
        Bucketer.from_engine(SMALL, environ={variable: text})
    assert str(error.value) == f"{variable}: {message}"


def test_a_list_wins_over_a_plan_and_says_so() -> None:
    plan = make_plan(num_seqs=(5, 8))
    bucketer = Bucketer.from_engine(
        ENGINE, plan=plan, plan_path="p.json", environ={"SPYRE_ATTN_NUM_SEQS_BUCKETS": "4,8"}
    )
    assert bucketer.ladders.num_seqs == (4, 8)
    assert bucketer.ladders.num_blocks == plan.num_blocks
    assert bucketer.warnings == (
        "SPYRE_ATTN_NUM_SEQS_BUCKETS asks for num_seqs 4,8, p.json for 5,8: the variable wins",
    )
    assert bucketer.source == "SPYRE_ATTN_NUM_SEQS_BUCKETS and p.json"


def test_a_list_that_agrees_with_the_plan_is_no_news() -> None:
    bucketer = Bucketer.from_engine(
        ENGINE, plan=make_plan(num_seqs=(5, 8)), environ={"SPYRE_ATTN_NUM_SEQS_BUCKETS": "5,8"}
    )
    assert bucketer.warnings == ()


def test_a_list_beside_ragged_ladders_takes_the_block_ladder_next_above() -> None:
    plan = make_plan(structure="ragged", num_seqs=(5, 8))
    bucketer = Bucketer.from_engine(ENGINE, plan=plan, environ={"SPYRE_ATTN_NUM_SEQS_BUCKETS": "4,7,8"})
    own, given = plan.ladders.blocks_by_rung(), bucketer.ladders.blocks_by_rung()
    assert given == {4: own[5], 7: own[8], 8: own[8]}


def test_a_plan_of_todays_plugin_brings_its_own_kv_and_query_lists() -> None:
    plan = make_spyre_plan(num_blocks=(3, 16), query_lens=(1, 128, 512))
    bucketer = Bucketer.from_engine(ENGINE, plan=plan, plan_path="p.json")
    assert bucketer.ladders.num_blocks == (3, 16)
    assert bucketer.kv_tokens.rungs == (3 * 128, 16 * 128)
    assert bucketer.sequence_blocks == (3, 16)
    assert bucketer.query_tokens.rungs == (1, 128, 512)
    assert set(bucketer.sources.values()) == {"p.json"}
    assert bucketer.warnings == ()
    assert bucketer.planned == {"num_seqs", "num_blocks", "kv_tokens", "query_tokens"}
    environ = {"SPYRE_ATTN_KV_BUCKETS": "1024,2048", "SPYRE_ATTN_QUERY_BUCKETS": "1,128,512"}
    bucketer = Bucketer.from_engine(ENGINE, plan=plan, plan_path="p.json", environ=environ)
    assert bucketer.planned == {"num_seqs", "num_blocks"}
    assert bucketer.kv_tokens.rungs == (1024, 2048)
    assert bucketer.ladders.num_blocks == (3, 16)
    assert bucketer.warnings == (
        "SPYRE_ATTN_KV_BUCKETS asks for 1024,2048, p.json for 384,2048: the variable wins",
    )


def test_lists_do_not_matter_where_nothing_is_batched() -> None:
    engine = Engine(max_num_seqs=3, max_model_len=1024)
    bucketer = Bucketer.from_engine(engine, environ={"SPYRE_ATTN_NUM_SEQS_BUCKETS": "2,3"})
    assert bucketer.ladders.num_seqs == ()
    assert bucketer.batched_variants() == []
    assert bucketer.dispatch(3, 1) is None
    assert len(bucketer.warnings) == 1
