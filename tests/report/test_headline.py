"""The top of a report: how sure it is, whose traffic it was, whose time it adds up, what else there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.frontier import Frontier, plan_frontier
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.report.certainty import certainty_text, knee_text, synthetic_notes
from ladder_opt.report.contents import gather
from ladder_opt.report.html import report_html
from ladder_opt.report.names import file_names, without_folders
from ladder_opt.trace.reasons import reason_words, set_aside_lines
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import TraceSource
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_trace, with_result
from tests.report.reports import Page

OF_ROWS = {
    "residuals": {
        "step": {"rows": 120, "relative": {"p5": -0.031, "p95": 0.042}},
        "compile": {"rows": 9, "relative": {"p5": -0.2, "p95": 0.1}},
    }
}
OF_REQUESTS = {
    "requests": 1300,
    "residuals": {"mean_step_seconds": 0.05, "seconds_per_step": {"p25": -0.001, "p75": 0.002}},
}
ROWS_TOLD = (
    "the cost model round numbers, fitted to 120 measured steps (nine in ten of them -3.1% to +4.2% off it) "
    "and 9 measured compiles (nine in ten of them -20.0% to +10.0% off it)."
)
REQUESTS_TOLD = (
    "the cost model round numbers, fitted to 1,300 requests of a server (half of their times for a "
    "step -2.0% to +4.0% off it)."
)


def page_of(plan: Plan, **given: Any) -> str:
    options: dict[str, Any] = {"name": "p.json", "frontier_seconds": 0.0} | given
    return Page(report_html(gather(plan, **options))).text


@pytest.mark.parametrize(
    ("fit", "told"),
    [
        (None, "the cost model round numbers, which does not say how sure it is."),
        ({"residuals": 3}, "the cost model round numbers, which does not say how sure it is."),
        (
            OF_ROWS,
            ROWS_TOLD,
        ),
        (
            OF_REQUESTS,
            REQUESTS_TOLD,
        ),
    ],
)
def test_beneath_the_verdict_stands_how_sure_it_is(fit: dict[str, Any] | None, told: str) -> None:
    plan = tune(STEPS, make_cost(fit=fit), engine=ENGINE)
    line = certainty_text(plan, plan.to_cost_model())
    assert line == (
        "How sure: calculated, not measured; no server has run with these ladders. Seconds come from "
        f"{told} By these prices no ladders cost less: proven."
    )
    text = page_of(plan)
    assert text.index("Load this plan") < text.index(line) < text.index("kernel variants compiled")


def test_the_built_in_prices_state_their_factor() -> None:
    cost = read_cost_model()
    assert cost.fit is not None
    factor = cost.fit["scale_uncertainty_factor"]
    line = certainty_text(tune(STEPS, cost, engine=ENGINE), cost)
    assert "Seconds come from the built-in cost model, derived from published figures; " in line
    assert (
        f"real steps may take {1 / factor:.2g} to {factor:.3g} times as long, compiles 0.33 to 3 times."
        in line
    )
    per_block = cost.with_kernel("per_block")
    assert "the built-in cost model" in certainty_text(make_plan(), per_block)
    other = CostModel.model_validate(cost.model_dump(by_alias=True) | {"startup_seconds": 700.0})
    assert "the built-in cost model" not in certainty_text(make_plan(), other)


def test_a_gap_limits_and_unknown_prices_are_told() -> None:
    plan = make_plan(max_variants=3)
    assert "no ladders that keep to the limits asked for cost less: proven." in certainty_text(plan, None)
    found = with_result(make_plan(), status="feasible", stop_reason="time limit", gap=0.0123)
    assert "they cost at most 1.23% more than the best ladders would." in certainty_text(found, None)
    assert "the best ladders would cost at most 50.00% less." in certainty_text(
        with_result(make_plan(), status="evaluated", gap=0.5), None
    )
    assert (
        "The plan does not hold its cost model, so how sure its seconds are is not known."
        in certainty_text(make_plan(), None)
    )
    unused = tune(StepHistogram(np.array([1]), np.array([2]), np.array([9.0])), make_cost(), engine=ENGINE)
    assert certainty_text(unused, None) == "How sure: read off the steps given; no server was measured."
    both = tune([make_trace(requests=60), make_trace(requests=60, seed=1)], make_cost(), engine=ENGINE,
                options=SolveOptions(robust=True))  # fmt: skip
    assert "have a smaller worst regret" in certainty_text(both, make_cost())
    assert knee_text(plan_frontier(both), both) is None
    slow = tune(make_trace(requests=20, per_second=0.001), make_cost(), engine=ENGINE)
    assert certainty_text(slow, None) == "How sure: the traffic was replayed; no server was measured."


def test_drawn_prices_say_how_far_the_saving_moves() -> None:
    cost = read_cost_model()
    plan = tune(STEPS, cost, engine=ENGINE, options=SolveOptions(uncertainty_draws=5))
    assert plan.uncertainty is not None
    assert plan.uncertainty.gain is not None
    low, high = plan.uncertainty.gain["p5"], plan.uncertainty.gain["p95"]
    assert f"it saves {low:.1%} to {high:.1%} in nine cases of ten." in certainty_text(plan, cost)


def test_synthetic_traffic_is_said_beneath_the_verdict_with_and_without_its_trace() -> None:
    trace = synthesize(requests=200, rate=2.0, seed=1)
    plan = tune(trace, make_cost())
    assert plan.provenance.notes == trace.notes
    assert plan_from_dict(plan.to_dict()) == plan
    told = "Synthetic traffic: profile azure2023_conv, 200 requests, 2 requests/s, seed 1; not a recording"
    credit = "Drawn from published figures of Azure/AzurePublicDataset"
    for given in ({}, {"traces": [trace]}):
        text = page_of(plan, **given)
        assert text.index("How sure") < text.index(told) < text.index(credit) < text.index("Ladders")
        at = text.index(
            "The traffic over time" if given else "The traffic at a glance", text.index("Padding")
        )
        glance = text.rindex("The traffic", at)
        assert "synthetic: profile azure2023_conv" in text[glance:].replace("Synthetic", "synthetic")
    data = plan.to_dict()
    del data["provenance"]["notes"]  # of an earlier release
    older = plan_from_dict(data)
    assert told not in page_of(older)
    assert told in page_of(older, traces=[trace])


def test_many_synthetic_traces_fill_no_page_beneath_the_verdict() -> None:
    traces = [synthesize(requests=60, rate=2.0, seed=seed) for seed in range(6)]
    text = page_of(tune(traces, make_cost()))
    head = text[: text.index("kernel variants compiled")]
    assert head.count("Synthetic traffic: ") == 3  # and whose figures they follow, which is the same for all
    assert "3 more such notes stand with the traffic." in head
    assert text.count("Synthetic: profile") == 6


def test_recorded_traffic_has_no_such_line() -> None:
    plan = tune(
        replace(make_trace(requests=80), notes=("arrivals sit on a 1 s grid",)), make_cost(), engine=ENGINE
    )
    assert synthetic_notes(plan.provenance.notes or ()) == []
    text = page_of(plan)
    assert "Arrivals sit on a 1 s grid." in text
    assert "Synthetic" not in text
    bare = tune(make_trace(requests=80), make_cost(), engine=ENGINE).to_dict()
    assert "notes" not in bare["provenance"]


def test_sums_say_how_many_engines_they_add_up() -> None:
    trace = make_trace(requests=200, per_second=2.0)
    plan = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(replicas=3))
    text = page_of(plan, frontier_seconds=5.0)
    assert "time of batched steps, 3 engines added up" in text
    assert " over 3 engines) against the default ladders" in text
    assert "step time of batched decode, 3 engines added up, + " in text
    assert "engines added up" not in page_of(tune(trace, make_cost(), engine=ENGINE))
    data = plan.to_dict()
    for odd in ("3", 2.5, True, 0, None):
        data["provenance"]["asked"]["replicas"] = odd
        assert plan_from_dict(data).replicas == 1


def knee_at(found: Frontier, index: int) -> Frontier:
    return replace(found, knee=index)


def test_the_knee_is_told_where_it_is_cheaper_than_the_plan() -> None:
    plan = make_plan()
    found = plan_frontier(plan)
    assert len(found) == 5
    rich = evaluate(STEPS, found.prices[-1].ladders, make_cost(), engine=ENGINE)
    line = knee_text(knee_at(found, 2), rich)
    knee, dear = found.prices[2], found.prices[-1]
    assert line is not None
    assert line.startswith("A shorter start, at the knee of the trade-off: ")
    assert f"{knee.num_variants} kernel variants instead of {dear.num_variants}, " in line
    assert line.endswith(f"for {knee.step_seconds / dear.step_seconds - 1:.1%} more step time.")
    for end in (0, len(found) - 1):
        assert knee_text(knee_at(found, end), rich) is None
    poor = evaluate(STEPS, found.prices[0].ladders, make_cost(), engine=ENGINE)
    assert knee_text(knee_at(found, 2), poor) is None


def test_what_is_set_aside_has_a_share_and_plain_words() -> None:
    assert set_aside_lines({"zero_output": 1, "beyond_kv_pool": 2, "odd_thing": 1}, 999_996) == [
        "2 of 1,000,000 requests (under 0.01%) set aside: they need more KV blocks than the engine has",
        "1 of 1,000,000 requests (under 0.01%) set aside: odd thing",
        "1 of 1,000,000 requests (under 0.01%) set aside: they produced no output token",
    ]
    assert set_aside_lines({"failed": 0}, 5) == []
    assert set_aside_lines({"failed": 5}, 0) == [
        "5 of 5 requests (100.00%) set aside: they failed, as their records say"
    ]


def test_every_reason_has_words() -> None:
    from ladder_opt.calibration.request_records import WITHOUT_TIMINGS
    from ladder_opt.occupancy.shares import BEYOND_KV_POOL
    from ladder_opt.trace.readers.formats import REASONS

    for reason in (*REASONS, BEYOND_KV_POOL, WITHOUT_TIMINGS):
        assert reason_words(reason) != reason.replace("_", " ") or reason in ("failed", "unreadable")
        assert " " in reason_words(reason)


def test_files_go_by_their_names_and_whole_paths_stand_in_the_provenance_alone() -> None:
    path, other = "/home/somebody/secret project/a.parquet", "/home/somebody/b.parquet"
    source = TraceSource(path=path, sha256="ab" * 32, rows=80, format="csv")
    trace = replace(
        make_trace(requests=80), sources=(source,), notes=(f"1 row set aside; first at {path}:3: x",)
    )
    plan = tune(trace, make_cost(), engine=ENGINE)
    given = replace(trace, sources=(replace(source, path=other, sha256="cd" * 32),))
    source_text = report_html(gather(plan, name="p.json", traces=[given], frontier_seconds=0.0))
    shown = Page(source_text).text
    assert "/home/somebody" not in shown
    assert "b.parquet is not what the plan was made from" in shown
    assert "b.parquet, SHA-256 cdcdcdcdcdcd..." in shown
    assert "first at a.parquet:3" in shown
    titles = [given.get("title") for given in Page(source_text).attributes("span")]
    assert path in titles
    assert "ab" * 32 in shown


def test_names_are_as_long_as_tells_them_apart() -> None:
    assert file_names(["/x/a/t.csv", "/x/b/t.csv", "u.csv", "/x/v.csv"]) == {
        "/x/a/t.csv": "a/t.csv",
        "/x/b/t.csv": "b/t.csv",
        "u.csv": "u.csv",
        "/x/v.csv": "v.csv",
    }
    assert file_names(["t.csv", "/a/t.csv"]) == {"t.csv": "t.csv", "/a/t.csv": "a/t.csv"}
    many = {f"/data/{at % 7}/run-{at}/steps.csv": f"run-{at}/steps.csv" for at in range(5000)}
    assert file_names(many) == many  # in no time, too
    assert file_names(["", "/", "."]) == {"": "", "/": "/", ".": "."}
    names = file_names(["/x/t.csv", "/x/t.csv.gz"])
    assert (
        without_folders("/x/t.csv.gz and /x/t.csv: 1; /y/x/t.csv", names)
        == "t.csv.gz and t.csv: 1; /y/x/t.csv"
    )
    assert without_folders("a", {"/x\\d/a": "d\\d"}) == "a"
