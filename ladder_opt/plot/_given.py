"""What public functions were given: taken where it will do, else refused in one line saying what would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.occupancy.steps_file import StepsFile
from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.plan.plan import Plan
from ladder_opt.trace.stream import AnyTrace, TraceStream
from ladder_opt.trace.table import Trace

_READERS = "lo.read_plan, lo.read_trace, lo.read_steps and lo.read_cost_model read files"
_LONGEST = 60


def wrong(name: str, found: Any, expected: str) -> UsageError:
    """The error for an argument that will not do."""
    if isinstance(found, str | PurePath):
        shown = str(found)
        shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."
        return UsageError(f"{name}: found the path or text {shown!r}, expected {expected} ({_READERS})")
    kind = "None" if found is None else f"a {type(found).__name__}"
    kind = f"the class {found.__name__}" if isinstance(found, type) else kind
    return UsageError(f"{name}: found {kind}, expected {expected}")


def plan_of(name: str, found: Any) -> Plan:
    """A plan."""
    if not isinstance(found, Plan):
        raise wrong(name, found, "a Plan")
    return found


def optional_plan(found: Any) -> Plan | None:
    """A plan, or None."""
    return None if found is None else plan_of("plan", found)


def engine_of(found: Any) -> Engine | None:
    """An engine, or None."""
    if found is not None and not isinstance(found, Engine):
        raise wrong("engine", found, "an Engine")
    return found


def steps_of(found: Any) -> StepHistogram:
    """A histogram of decode steps; a plan stands for those that it was made from.

    Raises:
        UsageError: it is nothing that holds steps, or the plan's file does not.
    """
    if isinstance(found, StepsFile):
        return found.steps
    if isinstance(found, Replay):
        return found.steps
    if isinstance(found, Plan):
        steps = found.to_steps()
        if steps is None:
            raise UsageError("steps: found none in the plan, expected a histogram")
        return steps
    if not isinstance(found, StepHistogram):
        raise wrong("steps", found, "a StepHistogram, a Replay, a Plan or what lo.read_steps returned")
    return found


def prices_of(name: str, found: Any) -> CostModel:
    """A cost model; a plan stands for the one that it was made with.

    Raises:
        UsageError: it is neither, or the plan's file does not hold its prices.
    """
    if isinstance(found, Plan):
        prices = found.to_cost_model()
        if prices is None:
            raise UsageError(f"{name}: found none in the plan, expected one")
        return prices
    if not isinstance(found, CostModel):
        raise wrong(name, found, "a CostModel or a Plan")
    return found


def traces_of_any(found: Any) -> AnyTrace | Sequence[AnyTrace]:
    """A trace or several."""
    expected = "a trace or a list of traces"
    if isinstance(found, Trace | TraceStream):
        return found
    if isinstance(found, Plan):
        raise UsageError(f"traces: found a Plan, which does not hold its traces, expected {expected}")
    if isinstance(found, str | bytes | PurePath) or not isinstance(found, Sequence):
        raise wrong("traces", found, expected)
    for at, each in enumerate(found):
        if not isinstance(each, Trace | TraceStream):
            raise wrong(f"traces[{at}]", each, "a trace")
    if not found:
        raise UsageError(f"traces: found none, expected {expected}")
    return found


def timeline_of(found: Any) -> Timeline | None:
    """A replay's samples over time, or None where none is given."""
    if found is None or isinstance(found, Timeline):
        return found
    if not isinstance(found, Replay):
        raise wrong("replay", found, "a Replay or its timeline")
    if found.timeline is None:
        raise UsageError("replay: found one without a timeline, expected one made with timeline_seconds")
    return found.timeline


def engines_of(found: Any) -> int:
    """How many engines were replayed."""
    expected = "a whole number of at least 1"
    if isinstance(found, bool) or not isinstance(found, int | np.integer):
        raise wrong("replicas", found, expected)
    if found < 1:
        raise UsageError(f"replicas: found {found}, expected {expected}")
    return int(found)
