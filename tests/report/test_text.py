"""Plans, replays and traces as people read them on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.plan import plan_from_dict
from ladder_opt.plan.tune import tune
from ladder_opt.report.terminal import MIN_WIDTH, _TrimmingConsole, console
from ladder_opt.report.text import plan_text, replay_text, summary_text
from ladder_opt.trace.summary import summarize
from ladder_opt.trace.table import Trace
from tests.plan.plans import ENGINE, make_cost, make_plan, make_trace, with_result


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[RenderableType], str]:
    def text(renderable: RenderableType) -> str:
        console().print(renderable)
        return capsys.readouterr().out

    return text


Printed = Callable[[RenderableType], str]


def test_a_pipe_gets_lines_of_a_readable_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert console().width == MIN_WIDTH


def test_a_plan_says_verdict_proof_and_comparison(printed: Printed) -> None:
    plan = make_plan(max_variants=3)
    text = printed(plan_text(plan, path="p.json"))
    assert "optimal, proven: no ladders that keep to the limits asked for cost less" in text
    assert "over limits" in text  # a baseline
    assert "4,570 decode steps, 4,500 of them batched" in text
    assert "+ 1 server start x (warm-up" in text
    assert text.rstrip().endswith("next: ladder-opt export p.json --format env")


def test_a_plan_that_is_not_proven_says_how_far_off_it_can_be(printed: Printed) -> None:
    plan = make_plan()
    text = printed(plan_text(with_result(plan, status="feasible", stop_reason="time limit", gap=0.01234)))
    assert "feasible: at most 1.234% above the optimum (time limit)" in text
    text = printed(plan_text(with_result(plan, status="evaluated", gap=0.5)))
    assert "evaluated as given: the optimum is at most 50.00% below" in text


def test_a_plan_that_costs_more_than_the_default_says_so(printed: Printed) -> None:
    text = printed(plan_text(make_plan(num_seqs=[8], num_blocks=[16])))
    assert text.startswith("keep the default ladders: what was asked for costs more in all; costs ")


def test_unused_variants_and_rungs_are_told(printed: Printed) -> None:
    plan = make_plan(num_seqs=[4, 5, 6, 7, 8], num_blocks=list(range(1, 17)))
    text = printed(plan_text(plan))
    dead = len(plan.result.dead_variants)
    assert dead > 6
    assert (
        f"compiled but never used by this traffic: {dead} of {plan.result.num_variants} variants (4 x 1, "
        in (" ".join(text.split()))
    )
    assert "num_seqs 4 is there for coverage alone: no step is padded to it" in text
    top = StepHistogram(np.array([8]), np.array([16]), np.array([1000.0]))
    plan = tune(top, make_cost(), engine=ENGINE)
    assert plan.result.dead_variants == ()
    assert "every variant is used" in printed(plan_text(plan))


def test_many_earning_rungs_are_cut_short(printed: Printed) -> None:
    steps = StepHistogram(np.full(16, 8), np.arange(1, 17), np.full(16, 1e6))
    plan = tune(steps, make_cost(kernel="per_block"), engine=ENGINE)
    assert len(plan.num_blocks) == 16
    assert " and 7 more" in printed(plan_text(plan))


def test_a_guard_says_what_it_costs(printed: Printed) -> None:
    text = " ".join(printed(plan_text(make_plan(guard=2.0))).split())
    assert "the guard x2 costs " in text
    assert "without it the worst would be num_seqs x" in text


def test_a_plan_of_a_trace_says_its_rounds(printed: Printed) -> None:
    plan = tune(make_trace(requests=60), make_cost(), engine=ENGINE)
    assert " rounds of replay and solve" in printed(plan_text(plan))


def test_a_plan_without_baselines_prints(printed: Printed) -> None:
    data = make_plan().to_dict() | {"baselines": []}
    text = printed(plan_text(plan_from_dict(data)))
    assert text.startswith("adopt: worth loading\n")


def test_a_replay_prints_its_totals(printed: Printed) -> None:
    replay = simulate(make_trace(requests=60), ENGINE, make_cost())
    text = printed(replay_text(replay))
    assert f"engine steps             {replay.engine_steps:,}" in text
    assert "requests replayed        60" in text


def test_a_trace_without_arrivals_says_what_a_replay_needs(printed: Printed) -> None:
    trace = make_trace(requests=30)
    bare = Trace(None, trace.prompt_tokens, trace.output_tokens, notes=("a [note]",))
    text = printed(summary_text(summarize(bare), path="[t].csv"))
    assert "none: replay needs --concurrency" in text
    assert "[t].csv" in text
    assert "note: a [note]" in text


def test_a_trace_of_one_request_and_one_of_sessions(printed: Printed) -> None:
    one = Trace(np.array([0.0]), np.array([5]), np.array([2]))
    assert "unknown" in printed(summary_text(summarize(one), path="t"))
    rich = Trace(
        np.repeat(np.arange(50.0), 4),
        np.full(200, 10),
        np.full(200, 2),
        cached_tokens=np.full(200, 5),
        session=np.array([f"s{index // 10}" for index in range(200)], object),
        set_aside={"unreadable": 3},
    )
    text = printed(summary_text(summarize(rich), path="t"))
    for part in (
        "cached share of prompts",
        "50.0%",
        "sessions",
        "20",
        "set aside",
        "3 of 203 requests (1.48%): a value of theirs is missing or no number",
    ):
        assert part in text


def test_an_empty_trace_prints(printed: Printed) -> None:
    empty = Trace(np.array([], float), np.array([], np.int64), np.array([], np.int64))
    assert "requests" in printed(summary_text(summarize(empty), path="t"))


def test_no_line_ends_in_blanks_and_nothing_else_changes(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("ladders")
    table.add_column("rungs", justify="right")
    table.add_column("")
    table.add_row("plan", "5", "")
    table.add_row("default", "12", "over limits")
    parts = Group(Text("a  "), "", table, Text("  b", style="bold on red"))
    console().print(parts)
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "a",
        "",
        "ladders  rungs",
        "plan         5",
        "default     12  over limits",
        "  b",
    ]
    Console(width=MIN_WIDTH, highlight=False).print(parts)
    plain = capsys.readouterr().out
    assert [line.rstrip() for line in plain.splitlines()] == printed.splitlines()
    assert plain.endswith("\n")
    assert printed.endswith("b\n")


def test_colours_on_a_terminal_stay_and_blanks_go() -> None:
    stream = io.StringIO()
    terminal = _TrimmingConsole(file=stream, force_terminal=True, color_system="truecolor", width=20)
    terminal.print(Text("ab", style="bold"), "x [not a tag] ", Text("c   ", style="red"))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "\x1b[1mab\x1b[0m"
    assert lines[-1] == "\x1b[31mc\x1b[0m"
    terminal.print(Text("long " * 8), soft_wrap=True)
    assert stream.getvalue().endswith(f"{('long ' * 8).rstrip()}\n")
