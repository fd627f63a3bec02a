"""Figures of plans, traffic and prices, for notebooks: each function returns a plotly figure.

    import ladder_opt as lo

    plan = lo.read_plan("plan.json")
    lo.plot.occupancy(plan)
    lo.plot.waste(plan).write_html("waste.html")

plotly is imported by the first figure. `ladder-opt report` puts the same figures on one page, and
`--figures` draws them with matplotlib; all take their numbers from the same functions (`ladder_data`,
`time_data`, `trace_data`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.occupancy.steps_file import StepsFile
from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.plan import Plan
from ladder_opt.plot import _given as given
from ladder_opt.trace.stream import AnyTrace

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["cost", "frontier", "occupancy", "rungs", "step_seconds", "trace", "waste"]


@checked
def occupancy(
    steps: StepHistogram | StepsFile | Replay | Plan,
    plan: Plan | None = None,
    *,
    engine: Engine | None = None,
) -> go.Figure:
    """How often each batch shape occurred, as a heat map, with the rungs of plan and default over it.

    Args:
        steps: decode steps; a plan stands for the steps that it was made from.
        plan: whose rungs to draw; none where there is no plan.
        engine: the limits; default: the plan's, else `Engine()`.

    Raises:
        UsageError: an argument is of another type, or the plan's file does not hold its steps.
        InputError: a step is beyond the limits.
    """
    from ladder_opt.plot._plotly import occupancy_figure  # noqa: PLC0415
    from ladder_opt.plot.ladder_data import occupancy_data  # noqa: PLC0415

    if isinstance(steps, Plan):
        plan = plan or steps
    engine = engine or (Engine() if plan is None else plan.to_engine())
    return occupancy_figure(occupancy_data(given.steps_of(steps), engine, plan))


@checked
def waste(plan: Plan) -> go.Figure:
    """Pages gathered under the plan and its baselines: needed, up to the ragged floor, and above it.

    Raises:
        UsageError: it is no plan.
    """
    from ladder_opt.plot._plotly import waste_figure  # noqa: PLC0415
    from ladder_opt.plot.ladder_data import waste_data  # noqa: PLC0415

    return waste_figure(waste_data(plan))


@checked
def rungs(plan: Plan) -> go.Figure:
    """What each rung of a plan saves: what the objective would lose without it.

    Raises:
        UsageError: it is no plan.
    """
    from ladder_opt.plot._plotly import rungs_figure  # noqa: PLC0415
    from ladder_opt.plot.ladder_data import rungs_data  # noqa: PLC0415

    return rungs_figure(rungs_data(plan))


@checked
def step_seconds(
    plan: Plan,
    steps: StepHistogram | StepsFile | Replay | Plan | None = None,
    cost_model: CostModel | Plan | None = None,
) -> go.Figure:
    """Distribution of the time of a batched step under the plan and its baselines.

    Args:
        plan: the ladders.
        steps: decode steps; default: those that the plan was made from. Another plan stands for its own.
        cost_model: prices; default: those that it was made with, likewise.

    Raises:
        UsageError: an argument is of another type, or the plan's file does not hold what is left to its
            default.
        InputError: a step is beyond the plan's limits.
    """
    from ladder_opt.plot._plotly import step_seconds_figure  # noqa: PLC0415
    from ladder_opt.plot.time_data import step_seconds_data  # noqa: PLC0415

    histogram = given.steps_of(plan if steps is None else steps)
    prices = given.prices_of("cost_model", plan if cost_model is None else cost_model)
    return step_seconds_figure(step_seconds_data(plan, histogram, prices))


@checked
def frontier(found: Frontier | Plan, plan: Plan | None = None) -> go.Figure:
    """Every trade-off of warm-up and step time; with a plan, where it and its baselines stand.

    Args:
        found: what `lo.frontier` found; for a plan it is found here, from the plan's own steps and prices,
            in at most 20 seconds.
        plan: what to show beside it; default: the plan that stands for `found`.

    Raises:
        UsageError: an argument is of another type, or the plan's file does not hold its steps and prices.
    """
    from ladder_opt.plan.frontier import plan_frontier  # noqa: PLC0415
    from ladder_opt.plot._plotly import frontier_figure  # noqa: PLC0415
    from ladder_opt.plot.time_data import frontier_data  # noqa: PLC0415

    if isinstance(found, Plan):
        plan = plan or found
        found = plan_frontier(found)
    return frontier_figure(frontier_data(found, plan))


@checked
def trace(
    traces: AnyTrace | Sequence[AnyTrace], replay: Replay | Timeline | None = None, *, replicas: int = 1
) -> go.Figure:
    """Arrivals and lengths of one trace or several; with a replay, the batch over time.

    Args:
        traces: the traffic.
        replay: one made with `timeline_seconds`, or its timeline.
        replicas: engines that were replayed.

    Raises:
        UsageError: an argument is of another type, or the replay has no timeline.
    """
    from ladder_opt.plot._plotly import trace_figure  # noqa: PLC0415
    from ladder_opt.plot.trace_data import trace_data  # noqa: PLC0415

    if isinstance(traces, Sequence) and not traces:
        raise UsageError("trace: found none as traces, expected one or several")
    if replicas < 1:
        raise UsageError(f"trace: found {replicas} as replicas, expected a whole number of at least 1")
    return trace_figure(trace_data(traces, given.timeline_of(replay), engines=int(replicas)))


@checked
def cost(model: CostModel | Plan, engine: Engine | None = None) -> go.Figure:
    """Seconds of a padded step by its sizes, and the intervals of the parameters where the model has them.

    Args:
        model: the prices; a plan stands for those that it was made with.
        engine: the limits that curves go up to; default: the plan's, else `Engine()`.

    Raises:
        UsageError: an argument is of another type, or the plan's file does not hold its prices.
    """
    from ladder_opt.plot._plotly import cost_figure  # noqa: PLC0415
    from ladder_opt.plot.time_data import cost_data  # noqa: PLC0415

    if engine is None and isinstance(model, Plan):
        engine = model.to_engine()
    return cost_figure(cost_data(given.prices_of("model", model), engine))
