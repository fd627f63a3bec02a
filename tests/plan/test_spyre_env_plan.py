"""Plans for the Spyre plugin's environment variables: what they hold, what they export, what is refused."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine, read_engine_settings
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders, clamp_query_lens, default_query_lens
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.sequences import SequenceHistogram
from ladder_opt.plan.export import export_plan
from ladder_opt.plan.frontier import frontier
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.plan.spyre_environment import spyre_variables
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.solve.api import Structure
from tests.plan.plans import STEPS, make_cost, make_plan, make_trace

# Neither limit is a whole number of blocks or of query steps.
ENGINE = Engine(max_num_seqs=8, max_model_len=3000, max_num_batched_tokens=700)
CALLS = SequenceHistogram(
    np.array([1, 2, 4, 6, 9]), np.array([1, 128, 512, 700, 1]), np.array([40.0, 90, 200, 30, 100])
)
SHARED_STEPS = dataclasses.replace(STEPS, sequences=CALLS)
COST = make_cost(
    replay_seconds={"per_sequence_gather": 0.002, "per_prefill_token": 0.0001},
    per_sequence={"per_query_gather": 1e-5, "recorded_in_startup_seconds": 20.0},
)


def make(**options: Any) -> Plan:
    return tune(SHARED_STEPS, COST, engine=ENGINE, options=SolveOptions(target="spyre-env", **options))


def test_a_shell_gets_the_lists_that_end_exactly_on_the_limits(tmp_path: Path) -> None:
    plan = make()
    assert plan.query_lens is not None
    script = tmp_path / "plan.env"
    script.write_text(export_plan(plan, "env", path="plan.json"), encoding="utf-8")
    names = list(spyre_variables(plan))
    shell = subprocess.run(
        [
            "bash",
            "-euc",
            '. "$1"; shift; for name; do printf "%s\\n" "${!name}"; done',
            "-",
            str(script),
            *names,
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    got = dict(zip(names, shell.stdout.splitlines(), strict=True))
    assert list(got) == [
        "SPYRE_ATTN_KV_BUCKETS",
        "SPYRE_ATTN_NUM_SEQS_BUCKETS",
        "SPYRE_ATTN_QUERY_BUCKETS",
        "SPYRE_BATCHED_DECODE",
        "SPYRE_ATTN_RECORD",
    ]
    kv = [int(tokens) for tokens in got["SPYRE_ATTN_KV_BUCKETS"].split(",")]
    assert kv[-1] == 3000
    assert tuple(-(-tokens // 128) for tokens in kv) == plan.num_blocks
    assert got["SPYRE_ATTN_NUM_SEQS_BUCKETS"].split(",")[-1] == "8"
    query = [int(tokens) for tokens in got["SPYRE_ATTN_QUERY_BUCKETS"].split(",")]
    assert query[0] == 1
    assert query[-1] == 700
    assert got["SPYRE_BATCHED_DECODE"] == got["SPYRE_ATTN_RECORD"] == "1"


def test_a_serve_file_tells_the_variables_in_comments() -> None:
    text = export_plan(make(), "vllm-yaml", path="plan.json")
    assert "# export SPYRE_ATTN_KV_BUCKETS=" in text
    assert set(yaml.safe_load(text)) == {
        "block-size",
        "max-num-seqs",
        "max-model-len",
        "max-num-batched-tokens",
    }


def test_a_plan_survives_its_file_and_is_evaluated_alike() -> None:
    plan = make()
    again = plan_from_dict(plan.to_dict())
    assert again.ladders == plan.ladders
    assert again.result.sequences == plan.result.sequences
    priced = evaluate(SHARED_STEPS, plan.ladders, COST, engine=ENGINE)
    assert priced.target == "spyre-env"
    assert priced.result.objective_seconds == pytest.approx(plan.result.objective_seconds)
    assert priced.result.lower_bound_seconds <= plan.result.lower_bound_seconds * (1 + 1e-9)
    assert resolve_plan(plan, ENGINE).ladders == plan.ladders


def test_warmup_counts_both_kernels_and_not_the_recording_twice() -> None:
    result = make().result
    assert result.sequences is not None
    assert result.num_variants > result.sequences.num_variants > 0
    # 30 s of start-up hold 20 s of recording; a compile takes 2 s.
    assert result.warmup_seconds == pytest.approx(10.0 + 2.0 * result.num_variants)


def test_no_baseline_is_better_and_all_have_the_plugins_query_lengths() -> None:
    plan = make()
    assert [baseline.name for baseline in plan.baselines][:2] == ["default", "pow2"]
    for baseline in plan.baselines:
        assert baseline.sequences is not None
        assert baseline.objective_seconds >= plan.result.objective_seconds * (1 - 1e-9)


def test_query_lengths_are_solved_for_where_their_padding_has_a_price() -> None:
    assert make().query_lens == make(query_lens="solve").query_lens
    free = COST.model_copy(update={"per_sequence": None})
    options = SolveOptions(target="spyre-env")
    assert tune(SHARED_STEPS, free, engine=ENGINE, options=options).query_lens == (1, 512, 700)
    asked = dataclasses.replace(options, query_lens="solve")
    assert tune(SHARED_STEPS, free, engine=ENGINE, options=asked).query_lens == (1, 700)
    pinned = make(query_lens=[100, 900])
    assert pinned.query_lens == (1, 100, 700)
    assert any("900 is above max_num_batched_tokens" in warning for warning in pinned.warnings)


def test_traces_are_replayed_with_their_calls() -> None:
    trace = make_trace(requests=60)
    plan = tune(trace, COST, engine=ENGINE, options=SolveOptions(target="spyre-env", restarts=1.0))
    replay = simulate(trace, ENGINE, COST, ladders=plan.ladders, per_sequence=True)
    assert replay.sequences is not None
    assert plan.result.sequences is not None
    assert plan.result.sequences.calls == replay.sequences.total_calls
    assert plan.result.sequences.query_tokens.real == replay.prefill_tokens + (
        replay.sequences.total_calls - _prefill_calls(replay.sequences, replay.prefill_tokens)
    )


def _prefill_calls(calls: SequenceHistogram, prefill_tokens: int) -> float:
    """Calls that are no decode: each decode adds one query token."""
    return calls.total_calls - (float((calls.calls * calls.query_len).sum()) - prefill_tokens)


def test_a_replay_without_calls_is_not_enough() -> None:
    replay = simulate(make_trace(requests=20), ENGINE, COST)
    with pytest.raises(UsageError, match="without calls"):
        tune(replay, COST, engine=ENGINE, options=SolveOptions(target="spyre-env"))


def test_budgets_hold_for_both_kernels() -> None:
    free = make().result
    plan = make(max_variants=free.num_variants - 3)
    assert plan.result.num_variants <= free.num_variants - 3
    assert plan.result.unlimited is not None
    budget = make(warmup_budget_seconds=free.warmup_seconds - 7)
    assert budget.result.warmup_seconds <= free.warmup_seconds - 7


def test_the_frontier_is_of_all_three_ladders() -> None:
    found = frontier(
        SHARED_STEPS, COST, engine=ENGINE, options=SolveOptions(target="spyre-env", restarts=1.0)
    )
    assert found.complete
    plan = make(restarts=1.0)
    assert found.prices[found.chosen].objective_seconds == pytest.approx(plan.result.objective_seconds)
    assert found.prices[0].ladders.query_lens == (1, 700)
    assert found.to_frame()["query_lens"][0] == "1 700"
    assert found.to_dict()["points"][0]["query_lens"] == [1, 700]


def test_an_engine_that_never_batches_still_gets_kv_buckets() -> None:
    engine = dataclasses.replace(ENGINE, max_num_seqs=2)
    steps = StepHistogram(np.array([2]), np.array([9]), np.array([70.0]), sequences=CALLS)
    plan = tune(steps, COST, engine=engine, options=SolveOptions(target="spyre-env"))
    assert plan.verdict != "not-used"
    assert plan.num_seqs == ()
    assert "SPYRE_ATTN_NUM_SEQS_BUCKETS" not in spyre_variables(plan)


@pytest.mark.parametrize(
    ("options", "engine", "message"),
    [
        ({"num_seqs": [1, 2, 8]}, ENGINE, "pooling models, which reuse SPYRE_ATTN_NUM_SEQS_BUCKETS"),
        ({}, dataclasses.replace(ENGINE, min_batched_seqs=2), "min_batched_seqs: found 2, expected 4"),
        ({"query_lens": []}, ENGINE, "query_lens: found an empty list"),
        ({"query_lens": [0, 5]}, ENGINE, "query_lens: found 0, expected integers of 1 or more"),
    ],
)
def test_what_is_refused(options: dict[str, Any], engine: Engine, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune(SHARED_STEPS, COST, engine=engine, options=SolveOptions(target="spyre-env", **options))


def test_options_that_do_not_go_together() -> None:
    structure: Structure = "ragged"
    with pytest.raises(UsageError, match="--structure: found ragged"):
        SolveOptions(target="spyre-env", structure=structure)
    with pytest.raises(UsageError, match="--query-lens: found with --target plugin"):
        SolveOptions(query_lens="solve")


@pytest.mark.parametrize("text", ["runner: pooling", "convert: embed", "max-num-seqs: 8\nconvert: classify"])
def test_a_pooling_model_is_refused_with_the_reason(tmp_path: Path, text: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="pooling models never decode"):
        read_engine_settings(path)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"query_lens": None}, "query_lens"),
        ({"query_lens": [1, 512]}, "query_lens"),
        ({"query_lens": [2, 700]}, "query_lens"),
        ({"target": "plugin"}, "query_lens"),
        ({"query_lens": [1, 700, 600]}, "query_lens"),
    ],
)
def test_a_torn_plan_is_refused(change: dict[str, Any], column: str) -> None:
    with pytest.raises(InputError, match=column):
        plan_from_dict(make().to_dict() | change)


def test_plans_for_the_plugin_say_nothing_of_query_lengths() -> None:
    data = make_plan().to_dict()
    assert "query_lens" not in data
    assert "sequences" not in data["result"]
    assert "sequences" not in data["baselines"][0]


def test_default_query_lengths_are_the_plugins() -> None:
    assert default_query_lens(Engine(max_num_batched_tokens=512)) == (1, 512)
    assert default_query_lens(Engine(max_num_batched_tokens=1300)) == (1, 512, 1024, 1300)
    assert default_query_lens(Engine(max_num_batched_tokens=64)) == (1, 64)
    assert clamp_query_lens([64, 1], Engine(max_num_batched_tokens=64)) == ((1, 64), [])
    assert Ladders((4,), (1,), query_lens=(1, 64)).ragged is None


def test_a_step_that_no_warm_up_records_is_told() -> None:
    # 12 pages in all: 4 sequences of 8 blocks a chunk read 32 entries in one iteration.
    engine = Engine(max_num_seqs=4, max_model_len=1024, num_kv_blocks=12)
    steps = StepHistogram(np.array([4]), np.array([8]), np.array([50.0]))
    plan = tune(steps, make_cost(), engine=engine)
    assert plan.result.num_variants == 0 or not any("no warm-up records" in each for each in plan.warnings)
    given = evaluate(steps, Ladders((4,), (8,)), make_cost(), engine=engine)
    assert given.result.num_variants == 0
    (warning,) = (each for each in given.warnings if "no warm-up records" in each)
    assert warning.startswith("50 steps are padded to variants")
    bucketer = Bucketer(engine, given.ladders, kv_tokens=(1024,), query_tokens=(1,))
    assert bucketer.dispatch(4, 8) is None
    assert warning.endswith("the bucketer sends them down the per-sequence path")
