"""From traffic to a plan: verdicts, restarts, rounds, baselines, warnings, determinism."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, SolveError, UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan import rounds
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.presets import PRESETS, preset_num_blocks
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.result import SolveResult, Status, StopReason
from ladder_opt.trace.table import Trace, TraceSource
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_trace

FEW = StepHistogram(np.array([1, 3]), np.array([2, 5]), np.array([10.0, 20.0]))


def without_date(plan: Plan) -> dict[str, Any]:
    data = plan.to_dict()
    del data["provenance"]["created"]
    return data


# Verdicts.


def test_a_plan_that_saves_is_adopted() -> None:
    plan = make_plan()
    assert plan.verdict == "adopt"
    assert plan.result.status == "optimal"
    assert plan.result.stop_reason == "proven"
    assert plan.default is not None
    assert plan.result.objective_seconds < 0.99 * plan.default.objective_seconds
    assert plan.warnings == ()


def test_a_plan_that_saves_less_than_min_gain_is_not_adopted() -> None:
    plan = make_plan()
    assert plan.default is not None
    gain = 1 - plan.result.objective_seconds / plan.default.objective_seconds
    assert make_plan(min_gain=gain * 0.999).verdict == "adopt"
    assert make_plan(min_gain=gain * 1.001).verdict == "keep-default"


def test_the_default_ladders_themselves_are_kept() -> None:
    default = default_ladders(ENGINE)
    for plan in (
        make_plan(num_seqs=default.num_seqs, num_blocks=default.num_blocks, min_gain=0.0),
        evaluate(STEPS, default, make_cost(), engine=ENGINE, options=SolveOptions(min_gain=0.0)),
    ):
        assert plan.verdict == "keep-default"
        assert plan.ladders == default


def test_an_engine_of_three_sequences_uses_no_ladder() -> None:
    engine = Engine(max_num_seqs=3, max_model_len=16 * 128)
    plan = tune(FEW, make_cost(), engine=engine)
    assert (plan.verdict, plan.num_seqs, plan.num_blocks) == ("not-used", (), (16,))
    assert plan.result.objective_seconds == 0.0
    assert plan.result.num_variants == 0
    assert plan.result.warmup_seconds == 30.0
    assert plan.result.steps.per_sequence == 30.0
    (warning,) = plan.warnings
    assert warning == (
        "max_num_seqs 3 is below min_batched_seqs 4: batched decode never runs, "
        "and there is no ladder to load"
    )
    evaluated = evaluate(FEW, Ladders((), (16,)), make_cost(), engine=engine)
    assert evaluated.verdict == "not-used"


def test_a_pin_that_is_not_used_is_told() -> None:
    engine = Engine(max_num_seqs=3, max_model_len=16 * 128)
    plan = tune(FEW, make_cost(), engine=engine, options=SolveOptions(num_seqs=[4, 8]))
    assert plan.warnings[0] == ("num_seqs: max_num_seqs 3 is below min_batched_seqs 4: the list is not used")


def test_traffic_that_never_batches_uses_no_ladder() -> None:
    plan = tune(FEW, make_cost(), engine=ENGINE)
    assert plan.verdict == "not-used"
    assert plan.ladders == Ladders((8,), (16,))  # coverage alone, the fewest variants
    assert plan.result.num_variants == 1
    assert plan.warnings == (
        "no step ever had 4 decoding sequences: batched decode is not used by this traffic",
    )


# Restarts.


@pytest.mark.parametrize(
    ("options", "restarts"),
    [
        ({}, 1.0),  # a bare histogram has no span
        ({"uptime_seconds": 3600.0}, 1.0),
        ({"span_seconds": 43200.0}, 0.5),
        ({"span_seconds": 43200.0, "uptime_seconds": 3600.0}, 12.0),
        ({"restarts": 7.5}, 7.5),
        ({"restarts": 0.0, "span_seconds": 43200.0}, 0.0),
    ],
)
def test_restarts_of_a_histogram(options: dict[str, float], restarts: float) -> None:
    plan = make_plan(**options)
    assert plan.result.restarts == pytest.approx(restarts)
    assert plan.result.objective_seconds == pytest.approx(
        plan.result.step_seconds + restarts * (plan.result.warmup_seconds - 30.0)
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_restarts_of_a_trace_are_its_span_times_the_replicas_over_the_uptime(replicas: int) -> None:
    trace = make_trace()
    options = SolveOptions(uptime_seconds=600.0)
    plan = tune(
        trace, make_cost(), engine=ENGINE, options=options, replay_options=ReplayOptions(replicas=replicas)
    )
    assert plan.result.restarts == pytest.approx(trace.span_seconds * replicas / 600.0)


def test_restarts_of_several_traces_add_up_and_the_option_wins() -> None:
    traces = [make_trace(seed=1), make_trace(seed=2)]
    plan = tune(traces, make_cost(), engine=ENGINE)
    assert plan.result.restarts == pytest.approx(sum(trace.span_seconds for trace in traces) / 86400.0)
    assert tune(traces, make_cost(), engine=ENGINE, options=SolveOptions(restarts=3.0)).result.restarts == 3.0


def test_a_faster_trace_has_a_shorter_span() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(rate_scale=2.0))
    assert plan.result.restarts == pytest.approx(trace.span_seconds / 2.0 / 86400.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "spyre"},
            "--target: found 'spyre', expected plugin or spyre-env; did you mean spyre-env?",
        ),
        (
            {"structure": "raged"},
            "--structure: found 'raged', expected product or ragged; did you mean ragged?",
        ),
        ({"restarts": -1.0}, "--restarts: found -1.0, expected a number of 0 or more"),
        ({"restarts": np.nan}, "--restarts: found nan, expected a number of 0 or more"),
        ({"restarts": np.inf}, "--restarts: found inf, expected a number of 0 or more"),
        ({"uptime_seconds": 0.0}, "--uptime: found 0.0, expected more than 0 s"),
        ({"span_seconds": -1.0}, "--span: found -1.0, expected 0 s or more"),
        ({"max_variants": 0}, "--max-variants: found 0, expected 1 or more"),
        ({"guard": 0.99}, "--guard: found 0.99, expected a factor of 1 or more"),
        ({"min_gain": -0.1}, "--min-gain: found -0.1, expected a share of 0 or more"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        SolveOptions(**options)
    assert str(error.value) == message


# Limits and pins.


def test_limits_are_kept_and_infeasible_ones_told() -> None:
    plan = make_plan(max_variants=3)
    assert plan.result.num_variants <= 3
    assert plan.result.status == "optimal"
    default = plan.default
    assert default is not None
    assert not default.within_limits
    assert make_plan(warmup_budget_seconds=30.0 + 3 * 2.0).result.warmup_seconds <= 36.0
    with pytest.raises(UsageError) as error:
        make_plan(warmup_budget_seconds=29.0)
    assert str(error.value) == ("--warmup-budget: found 29 s, expected more than the start-up's 30 s")
    with pytest.raises(SolveError) as solve_error:
        make_plan(warmup_budget_seconds=31.0)
    assert str(solve_error.value) == (
        "--warmup-budget: found 31 s, expected at least 32 s (30 s of start-up and 2 s of compiles)"
    )


@pytest.mark.parametrize("guard", [1.0, 1.5, 2.0, 4.0])
def test_a_guard_holds_for_sizes_that_never_occurred(guard: float) -> None:
    plan = make_plan(guard=guard)
    free = make_plan()
    for rungs, smallest in ((plan.num_seqs, 4), (plan.num_blocks, 1)):
        for rung, least in zip(rungs, (smallest, *(below + 1 for below in rungs)), strict=False):
            assert rung <= guard * least
    evidence = plan.result.evidence
    assert evidence is not None
    assert evidence.guard is not None
    assert all(each.factor <= guard for each in evidence.worst_padding)
    assert evidence.guard.cost_seconds == pytest.approx(
        plan.result.objective_seconds - free.result.objective_seconds, abs=1e-9
    )
    assert free.result.evidence is not None
    assert free.result.evidence.guard is None


def test_evidence_says_what_never_occurred() -> None:
    plan = make_plan(num_seqs=[8], num_blocks=[9, 16])
    evidence = plan.result.evidence
    assert evidence is not None
    # Batches of 5 and 8 of 4 to 8 sequences, 3, 7 and 9 of 1 to 16 blocks: 3 of 80 shapes occurred.
    assert evidence.unseen_share == pytest.approx(77 / 80)
    assert [each.model_dump() for each in evidence.worst_padding] == [
        {"axis": "num_seqs", "size": 4, "rung": 8, "factor": 2.0, "unseen_from": 4, "unseen_to": 4},
        {"axis": "num_blocks", "size": 1, "rung": 9, "factor": 9.0, "unseen_from": 1, "unseen_to": 2},
    ]


def test_pins_are_kept_and_clamped_as_the_bucketer_clamps() -> None:
    plan = make_plan(num_seqs=[16, 5, 5], num_blocks=())
    assert plan.num_seqs == (5, 8)
    assert plan.warnings == (
        "num_seqs: [16, 5, 5] was sorted and freed of duplicates",
        "num_seqs: 16 is above max_num_seqs = 8 and was dropped",
        "num_seqs: max_num_seqs = 8 was missing and was added as the top rung",
    )
    assert [rung.forced for rung in plan.result.rungs if rung.axis == "num_seqs"] == [True, True]


def test_steps_beyond_the_engine_are_refused() -> None:
    with pytest.raises(InputError) as error:
        tune(STEPS, make_cost(), engine=Engine(max_num_seqs=6, max_model_len=16 * 128))
    assert str(error.value) == "num_seqs: found 8, expected at most max_num_seqs = 6"


def test_an_unproven_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> SolveResult:
        result = solve_ladders(*arguments, **options)
        return replace(
            result,
            status=Status.FEASIBLE,
            stop_reason=StopReason.TIME_LIMIT,
            lower_bound_seconds=result.objective_seconds * 0.98765,
        )

    monkeypatch.setattr(rounds, "solve_ladders", stopped)
    plan = make_plan(time_limit_seconds=1.5)
    assert (plan.result.status, plan.result.stop_reason) == ("feasible", "time limit")
    assert plan.result.gap == pytest.approx(0.01235)
    assert plan.warnings == ("not proven within 1.5 s: at most 1.235% above the optimum",)


# Rounds.


def test_rounds_end_where_the_ladders_stand_still() -> None:
    trace, cost = make_trace(), make_cost()
    plan = tune(trace, cost, engine=ENGINE, options=SolveOptions(restarts=1.0))
    replay = plan.provenance.replay
    assert replay is not None
    assert replay["settled"] is True
    assert 1 <= replay["rounds"] <= rounds.MAX_ROUNDS
    assert replay["requests"] == len(trace)
    # Replayed with its own ladders, the traffic gives the same steps, and they the same ladders.
    again = simulate(trace, ENGINE, cost, ladders=plan.ladders)
    assert again.steps.total_steps == plan.result.steps.total
    resolved = tune(again, cost, engine=ENGINE, options=SolveOptions(restarts=1.0))
    assert resolved.ladders == plan.ladders
    assert resolved.result.objective_seconds == plan.result.objective_seconds
    assert make_plan().provenance.replay is None


def test_rounds_that_do_not_settle_end_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 1)
    plan = tune(make_trace(), make_cost(), engine=ENGINE, options=SolveOptions(restarts=1.0))
    replay = plan.provenance.replay
    assert replay is not None
    assert (replay["rounds"], replay["settled"]) == (1, False)
    assert plan.warnings[0] == (
        "after 1 rounds of replay and solve the ladders do not stand still; the cheapest stands"
    )


def test_progress_is_told_of_replays_and_solves() -> None:
    told: list[tuple[str, float]] = []
    tune(make_trace(), make_cost(), engine=ENGINE, progress=lambda what, share: told.append((what, share)))
    assert {what for what, _ in told} <= {"replay", "solve"}
    assert any(what == "replay" for what, _ in told)
    assert all(0.0 <= share <= 1.0 for _, share in told)


# Baselines and bounds.


def test_baselines_are_priced_as_price_ladders_prices_them() -> None:
    plan = make_plan(restarts=2.0)
    default = default_ladders(ENGINE)
    expected = {"default": default} | {
        name: Ladders(default.num_seqs, preset_num_blocks(name, max_model_len=2048, block_size=128))
        for name in PRESETS
    }
    assert [baseline.name for baseline in plan.baselines] == list(expected)
    for baseline in plan.baselines:
        ladders = expected[baseline.name]
        assert (baseline.num_seqs, baseline.num_blocks) == (ladders.num_seqs, ladders.num_blocks)
        price = price_ladders(STEPS, ENGINE, make_cost(), ladders, restarts=2.0).to_dict()
        dumped = baseline.model_dump()
        assert {name: dumped[name] for name in price} == price
        assert plan.result.objective_seconds <= baseline.objective_seconds


def test_baselines_that_a_table_cannot_price_are_left_out() -> None:
    table = [[s, m, 0.1 + s * m / 1000] for s in (4, 5, 8) for m in (1, 3, 7, 9, 16)]
    plan = tune(STEPS, make_cost(step_table=table), engine=ENGINE)
    assert plan.result.status == "optimal"
    assert set(plan.num_blocks) <= {1, 3, 7, 9, 16}
    assert plan.baselines == ()
    assert plan.verdict == "adopt"


def test_evaluate_prices_a_tuned_plan_as_tune_did() -> None:
    for options in ({}, {"restarts": 0.25}, {"max_variants": 2}):
        plan = make_plan(**options)
        restarts = SolveOptions(restarts=plan.result.restarts)
        again = evaluate(STEPS, plan.ladders, make_cost(), engine=ENGINE, options=restarts)
        assert again.result.status == "evaluated"
        for name in ("objective_seconds", "step_seconds", "warmup_seconds", "num_variants", "dead_variants"):
            assert getattr(again.result, name) == getattr(plan.result, name)
        assert again.result.gathers == plan.result.gathers
        assert again.result.lower_bound_seconds <= again.result.objective_seconds
        assert [b.objective_seconds for b in again.baselines] == [b.objective_seconds for b in plan.baselines]


def test_the_bound_of_evaluate_is_below_every_baseline() -> None:
    for name in ("num_seqs", "num_blocks"):
        full = {"num_seqs": default_ladders(ENGINE).num_seqs, "num_blocks": (16,)} | (
            {"num_seqs": (8,)} if name == "num_blocks" else {}
        )
        plan = evaluate(STEPS, Ladders(full["num_seqs"], full["num_blocks"]), make_cost(), engine=ENGINE)
        assert 0 < plan.result.lower_bound_seconds <= plan.result.objective_seconds
        assert all(plan.result.lower_bound_seconds <= each.objective_seconds for each in plan.baselines)
        assert plan.result.gap == pytest.approx(
            1 - plan.result.lower_bound_seconds / plan.result.objective_seconds
        )


@pytest.mark.parametrize(
    ("ladders", "message"),
    [
        (Ladders((4, 6), (16,)), "num_seqs: found [4, 6], expected a last rung of 8"),
        (Ladders((), (16,)), "num_seqs: found [], expected a last rung of 8"),
        (Ladders((8,), (9,)), "num_blocks: found [9], expected a last rung of 16"),
    ],
)
def test_ladders_that_do_not_end_on_the_limit_are_refused(ladders: Ladders, message: str) -> None:
    with pytest.raises(UsageError) as error:
        evaluate(STEPS, ladders, make_cost(), engine=ENGINE)
    assert str(error.value) == message


# Warnings and provenance.


def test_requests_set_aside_are_told() -> None:
    trace = make_trace()
    long = Trace(
        trace.arrival_seconds, np.where(np.arange(300) < 3, 4000, trace.prompt_tokens), trace.output_tokens
    )
    plan = tune(long, make_cost(), engine=ENGINE)
    assert plan.warnings[0] == (
        "3 of 300 requests (1.00%) set aside: prompt and output together are longer than max_model_len"
    )


def test_an_engine_that_falls_behind_is_told() -> None:
    trace = make_trace(per_second=100.0)
    plan = tune(trace, make_cost(), engine=ENGINE)
    assert re.fullmatch(
        r"the engine falls behind: the last request ends [0-9.e+]+ times the trace's span after its start, "
        r"and server starts are charged for that span alone; "
        r"it would take about --replicas [0-9]+ to keep up",
        plan.warnings[-1],
    )


def test_traffic_that_is_hardly_ever_batched_is_told() -> None:
    """A burst of four, then one request at a time for long."""
    arrivals = np.r_[np.zeros(4), 1000.0 * np.arange(1, 61)]
    trace = Trace(arrivals, np.full(64, 100), np.r_[np.full(4, 3), np.full(60, 900)])
    plan = tune(trace, make_cost(), engine=ENGINE)
    found = simulate(trace, ENGINE, make_cost(), ladders=Ladders(plan.num_seqs, plan.num_blocks))
    share = plan.result.step_seconds / found.busy_seconds
    assert 0 < share < 0.01
    assert plan.warnings == (
        f"batched steps are {share:.2%} of the engines' busy time: ladders change next to nothing here",
    )


def test_warnings_of_reading_come_first() -> None:
    plan = tune(FEW, make_cost(), engine=ENGINE, warnings=["first"])
    assert plan.warnings[0] == "first"
    assert len(plan.warnings) == 2


def test_provenance_names_inputs_and_prices() -> None:
    source = TraceSource(path="t.csv", sha256="0" * 64, rows=300, format="canonical")
    trace = make_trace()
    trace = Trace(trace.arrival_seconds, trace.prompt_tokens, trace.output_tokens, sources=(source,))
    cost = make_cost()
    made = tune(trace, cost, engine=ENGINE).provenance
    assert made.cost_sha256 == cost.sha256()
    assert made.cost_name == "round numbers"
    assert [item.model_dump() for item in made.inputs] == [
        {"path": "t.csv", "sha256": "0" * 64, "rows": 300, "format": "canonical"}
    ]
    assert make_plan().provenance.inputs == ()
    given = tune(STEPS, cost, engine=ENGINE, inputs=[source]).provenance.inputs
    assert given[0].path == "t.csv"


def test_two_runs_are_equal_but_for_the_date() -> None:
    assert without_date(make_plan()) == without_date(make_plan())
    trace = make_trace()
    first, second = (tune(trace, make_cost(), engine=ENGINE) for _ in range(2))
    assert without_date(first) == without_date(second)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", first.provenance.created)
