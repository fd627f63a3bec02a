"""What public functions were given, as the numbers of a figure need it: a plan stands for what it holds."""

from __future__ import annotations

from ladder_opt.cost.model import CostModel
from ladder_opt.errors import UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.occupancy.steps_file import StepsFile
from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.plan.plan import Plan


def steps_of(given: StepHistogram | StepsFile | Replay | Plan) -> StepHistogram:
    """A histogram of decode steps; a plan stands for those that it was made from.

    Raises:
        UsageError: the plan's file does not hold them.
    """
    if isinstance(given, StepHistogram):
        return given
    steps = given.to_steps() if isinstance(given, Plan) else given.steps
    if steps is None:
        raise UsageError("steps: found none in the plan, expected a histogram")
    return steps


def prices_of(name: str, given: CostModel | Plan) -> CostModel:
    """A cost model; a plan stands for the one that it was made with.

    Raises:
        UsageError: the plan's file does not hold its prices.
    """
    prices = given.to_cost_model() if isinstance(given, Plan) else given
    if prices is None:
        raise UsageError(f"{name}: found none in the plan, expected one")
    return prices


def timeline_of(given: Replay | Timeline | None) -> Timeline | None:
    """A replay's samples over time, or None where none is given.

    Raises:
        UsageError: the replay has none.
    """
    if not isinstance(given, Replay):
        return given
    if given.timeline is None:
        raise UsageError("replay: found one without a timeline, expected one made with timeline_seconds")
    return given.timeline
