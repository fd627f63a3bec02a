"""Both renderers show the prepared numbers, escape names, and touch no global state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt import plot
from ladder_opt.cost.model import read_cost_model
from ladder_opt.errors import UsageError
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.steps_file import read_steps, write_steps
from ladder_opt.plan.frontier import frontier, plan_frontier
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plot import _matplotlib, _plotly
from ladder_opt.plot.ladder_data import occupancy_data, rungs_data, waste_data
from ladder_opt.plot.time_data import cost_data, frontier_data, step_seconds_data
from ladder_opt.plot.trace_data import trace_data
from ladder_opt.plot.units import count_text, decades, log_ticks, shown_name, time_unit
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan, make_trace

HOSTILE = '<b>x</b><a href="https://evil.example">$\\frac{1}{$</a>\x1b[31m\u202e' + "n" * 80


def hostile(plan: Plan) -> Plan:
    data = plan.to_dict()
    data["baselines"][2]["name"] = HOSTILE
    return plan_from_dict(data)


def every(plan: Plan) -> dict[str, Any]:
    found = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(restarts=1.0))
    trace = make_trace(requests=60)
    replay = simulate(trace, ENGINE, make_cost(), timeline_seconds=10.0)
    return {
        "occupancy": occupancy_data(STEPS, ENGINE, plan),
        "waste": waste_data(plan),
        "rungs": rungs_data(plan),
        "step_seconds": step_seconds_data(plan, STEPS, make_cost()),
        "frontier": frontier_data(found, plan),
        "trace": trace_data(trace, replay.timeline),
        "cost": cost_data(read_cost_model(), ENGINE),
    }


@pytest.mark.parametrize("make", [make_plan, make_spyre_plan, lambda: make_plan(structure="ragged")])
def test_both_renderers_draw_every_figure(make: Any) -> None:
    for name, data in every(hostile(make())).items():
        figure = getattr(_plotly, f"{name}_figure")(data)
        assert figure.data
        drawn = getattr(_matplotlib, f"{name}_figure")(data)
        drawn.draw_without_rendering()
        assert drawn.axes


def test_names_of_files_are_neither_markup_nor_mathematics() -> None:
    for name, data in every(hostile(make_plan())).items():
        text = getattr(_plotly, f"{name}_figure")(data).to_json()
        assert "<b>x" not in text
        assert "<a" not in text
        shown = json.dumps(json.loads(text), ensure_ascii=False)
        assert not {"\u202e", "\x1b"} & set(shown)
    assert len(shown_name(HOSTILE)) == 40


def test_bars_and_points_are_the_prepared_numbers() -> None:
    plan = make_plan()
    data = waste_data(plan)
    figure = plot.waste(plan)
    assert [list(bar.x) for bar in figure.data] == [
        data.real[::-1].tolist(),
        data.ragged[::-1].tolist(),
        data.fixable[::-1].tolist(),
    ]
    heat = plot.occupancy(plan).data[0]
    assert float(np.nansum(heat.customdata)) == 4570
    assert float(np.nanmax(heat.z)) == pytest.approx(np.log10(3000))
    drawn = _matplotlib.waste_figure(data)
    widths = [patch.get_width() for bars in drawn.axes[0].containers for patch in bars]
    assert sum(widths) == pytest.approx(data.padded.sum())


def test_the_public_functions_take_what_a_notebook_has() -> None:
    plan = make_plan()
    trace = make_trace(requests=60)
    replay = simulate(trace, ENGINE, make_cost(), replicas=2, timeline_seconds=10.0)
    assert len(plot.occupancy(STEPS, engine=ENGINE).data) == 1  # no plan, no rungs
    assert len(plot.occupancy(replay, plan).data) == 5
    assert plot.step_seconds(plan).data
    assert plot.rungs(plan).data
    assert plot.cost(make_cost()).data
    assert len(plot.trace(trace).data) == 3
    assert len(plot.trace(trace, replay, replicas=2).data) == 6
    found = frontier(STEPS, make_cost(), engine=ENGINE)
    assert len(plot.frontier(found).data) == 3
    assert len(plot.frontier(found, plan).data) > 4


def test_a_plan_without_steps_or_prices_is_told() -> None:
    data = make_plan().to_dict()
    del data["occupancy"]
    with pytest.raises(UsageError, match="steps: found none in the plan"):
        plot.occupancy(plan_from_dict(data))
    data = make_plan().to_dict()
    del data["cost"]
    with pytest.raises(UsageError, match="cost_model: found none in the plan"):
        plot.step_seconds(plan_from_dict(data))


def test_a_plan_stands_for_what_it_holds() -> None:
    plan = make_plan()
    assert len(plot.frontier(plan).data) == len(plot.frontier(plan_frontier(plan), plan).data)
    cost, engine = plot.cost(plan), plot.cost(make_cost(), ENGINE)
    assert [line.name for line in cost.data] == [line.name for line in engine.data]
    data = plan.to_dict()
    del data["cost"]
    bare = plan_from_dict(data)
    with pytest.raises(UsageError, match="model: found none in the plan, expected one"):
        plot.cost(bare)
    with pytest.raises(UsageError, match="frontier: found a plan that does not hold its prices"):
        plot.frontier(bare)


def test_a_steps_file_stands_for_its_histogram(tmp_path: Path) -> None:
    write_steps(STEPS, tmp_path / "s.csv")
    file = read_steps(tmp_path / "s.csv")
    assert len(plot.occupancy(file, engine=ENGINE).data) == 1
    assert plot.step_seconds(make_plan(), file).data


ODD: dict[str, Any] = {
    "a path": Path("plan.json"),
    "a text": "plan.json",
    "nothing": None,
    "a number": 3,
    "an array": np.arange(3),
    "a dict": {"schema": "ladder_opt/plan/1"},
    "a list of texts": ["trace.csv"],
    "no traces": [],
    "a plan": make_plan(),
    "a cost model": make_cost(),
    "an engine": ENGINE,
    "a histogram": STEPS,
    "a trace": make_trace(requests=5),
    "the class": Plan,
}
CALLS: dict[str, tuple[Any, str, set[str]]] = {
    "occupancy": (lambda odd: plot.occupancy(odd, engine=ENGINE), " as steps, ", {"a plan", "a histogram"}),
    "occupancy of": (lambda odd: plot.occupancy(STEPS, odd), " as plan, ", {"a plan", "nothing"}),
    "occupancy, engine": (
        lambda odd: plot.occupancy(STEPS, engine=odd),
        " as engine, ",
        {"an engine", "nothing"},
    ),
    "waste": (plot.waste, " as plan, ", {"a plan"}),
    "rungs": (plot.rungs, " as plan, ", {"a plan"}),
    "step_seconds": (plot.step_seconds, " as plan, ", {"a plan"}),
    "step_seconds, steps": (
        lambda odd: plot.step_seconds(make_plan(), odd),
        " as steps, ",
        {"a plan", "a histogram", "nothing"},
    ),
    "step_seconds, prices": (
        lambda odd: plot.step_seconds(make_plan(), None, odd),
        " as cost_model, ",
        {"a plan", "a cost model", "nothing"},
    ),
    "frontier": (plot.frontier, " as found, ", {"a plan"}),
    "frontier, plan": (
        lambda odd: plot.frontier(plan_frontier(make_plan()), odd),
        " as plan, ",
        {"a plan", "nothing"},
    ),
    "trace": (plot.trace, " as traces, ", {"a trace"}),
    "trace, replay": (lambda odd: plot.trace(make_trace(requests=5), odd), " as replay, ", {"nothing"}),
    "trace, replicas": (
        lambda odd: plot.trace(make_trace(requests=5), replicas=odd),
        " as replicas, ",
        {"a number"},
    ),
    "cost": (plot.cost, " as model, ", {"a plan", "a cost model"}),
    "cost, engine": (lambda odd: plot.cost(make_cost(), odd), " as engine, ", {"an engine", "nothing"}),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("call", CALLS)
def test_what_will_not_do_is_one_line(call: str, kind: str) -> None:
    draw, argument, fine = CALLS[call]
    if kind in fine:
        assert draw(ODD[kind]).data
        return
    with pytest.raises(UsageError) as caught:
        draw(ODD[kind])
    line = str(caught.value)
    assert line.startswith(f"{call.partition(',')[0].partition(' ')[0]}: found ")
    assert f"{argument}expected " in line
    assert len(line.splitlines()) == 1
    assert len(line) < 250
    if kind == "the class":
        assert ": found the class Plan as " in line
    if kind in ("a path", "a text"):
        assert "found 'plan.json' (" in line
        if argument not in (" as replay, ", " as replicas, "):  # no file holds these
            assert re.search(r", such as lo\.(read_\w+\(path\)|Engine\(max_num_seqs=32\))", line)


def test_a_replay_without_a_timeline_is_told() -> None:
    for few in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match=r"trace: found .* as replicas, expected a whole number"):
            plot.trace(make_trace(requests=5), replicas=few)  # type: ignore[arg-type]
    trace = make_trace(requests=30)
    with pytest.raises(UsageError, match="replay: found one without a timeline, expected one made with"):
        plot.trace(trace, simulate(trace, ENGINE, make_cost()))


def test_neither_pyplot_nor_a_backend_is_set_up(tmp_path: Path) -> None:
    code = (
        "import sys, ladder_opt as lo, matplotlib\n"
        "from tests.plan.plans import make_plan\n"
        "before = matplotlib.rcParams.copy()\n"
        "lo.write_figures(make_plan(), sys.argv[1], frontier_seconds=1)\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).parents[2]
    )
    names = ("occupancy", "waste", "frontier", "rungs", "step_seconds", "cost")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.svg" for name in names}


def test_units_and_ticks() -> None:
    assert [time_unit(seconds)[0] for seconds in (0.5, 5.0, 119.0, 120.0, 7199.0, 7200.0)] == [
        "ms", "s", "s", "min", "min", "h",
    ]  # fmt: skip
    assert decades(1500.0) == [1.0, 10.0, 100.0, 1000.0]
    assert decades(0.5) == [1.0]
    assert log_ticks(3.0, 40.0) == [2.0, 5.0, 10.0, 20.0, 50.0]
    assert [count_text(value) for value in (7.0, 2500.0, 1e6, 3e9)] == ["7", "2.5k", "1M", "3G"]
