"""Numbers of the figures about seconds: the frontier, step times under each ladder, the cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import powers_of_two
from ladder_opt.markup import joined
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import step_seconds_by_size
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.plan import Plan
from ladder_opt.plot.compared import Kind, compared

QUANTILES = (0.5, 0.95, 0.99)
MOST_FRONTIER_POINTS = 1_000
_RUNGS_SHOWN = 12
_CURVE_POINTS = 256


@dataclass(frozen=True)
class FrontierPoint:
    """Ladders on the plane of warm-up and step time."""

    name: str
    kind: Kind
    warmup_seconds: float
    step_seconds: float
    num_variants: int


@dataclass(frozen=True, kw_only=True)
class FrontierData:
    """The frontier, and where the plan and others stand.

    Attributes:
        warmup_seconds: float64 (points,), ascending.
        step_seconds: float64 (points,), descending.
        num_variants: int64 (points,).
        ladders: rungs of each point as text.
        knee: index of the knee among these points.
        chosen: index of the point that costs least in all at `restarts`.
        restarts: server starts charged.
        points_in_all: of the frontier; more than `warmup_seconds` has where not all are drawn.
        complete: whether no other point exists.
        engines: whose step time it is: so many engines' added up.
        others: the plan and its baselines.
    """

    warmup_seconds: NDArray[np.float64]
    step_seconds: NDArray[np.float64]
    num_variants: NDArray[np.int64]
    ladders: tuple[str, ...]
    knee: int
    chosen: int
    restarts: float
    points_in_all: int
    complete: bool
    others: tuple[FrontierPoint, ...]
    engines: int = 1

    @property
    def step_time_of(self) -> str:
        """What the step time is of."""
        return (
            f"step time, {self.engines:,} engines added up"
            if self.engines > 1
            else "step time of the traffic"
        )

    @property
    def marks(self) -> list[tuple[str, int, str]]:
        """(name, index, plotly's symbol) of the points that stand out.

        What costs least in all is known only where no point is missing.
        """
        found = [("knee", self.knee, "diamond-open")]
        if self.complete:
            found.append((f"least in all at {self.restarts:.3g} starts", self.chosen, "circle-open"))
        return found


def frontier_data(found: Frontier, plan: Plan | None = None) -> FrontierData:
    """A frontier's points, at most MOST_FRONTIER_POINTS of them, its ends, knee and choice among these."""
    kept = _kept_points(found)
    prices = [found.prices[index] for index in kept]
    return FrontierData(
        warmup_seconds=np.array([price.warmup_seconds for price in prices]),
        step_seconds=np.array([price.step_seconds for price in prices]),
        num_variants=np.array([price.num_variants for price in prices], np.int64),
        ladders=tuple(
            f"num_seqs {joined(price.ladders.num_seqs, most=_RUNGS_SHOWN)}; "
            f"num_blocks {joined(price.ladders.num_blocks, most=_RUNGS_SHOWN)}"
            for price in prices
        ),
        knee=kept.index(found.knee),
        chosen=kept.index(found.chosen),
        restarts=found.restarts,
        points_in_all=len(found),
        complete=found.complete,
        engines=1 if plan is None else plan.replicas,
        others=()
        if plan is None
        else tuple(
            FrontierPoint(
                row.name, row.kind, row.price.warmup_seconds, row.price.step_seconds, row.price.num_variants
            )
            for row in compared(plan)
        ),
    )


def _kept_points(found: Frontier) -> list[int]:
    """Indices of the points to draw: all, or an even share by the logarithm of the warm-up."""
    if len(found) <= MOST_FRONTIER_POINTS:
        return list(range(len(found)))
    warmup = np.array([price.warmup_seconds for price in found.prices])
    wanted = np.geomspace(max(warmup[0], 1e-9), max(warmup[-1], 1e-9), MOST_FRONTIER_POINTS - 4)
    at = np.clip(np.searchsorted(warmup, wanted), 0, len(found) - 1)
    return sorted({0, found.knee, found.chosen, len(found) - 1, *(int(index) for index in at)})


@dataclass(frozen=True)
class StepSeconds:
    """How long batched steps take under one pair of ladders.

    Attributes:
        name: whose ladders.
        kind: what they are.
        seconds: float64 (values,), distinct, ascending.
        shares: float64 (values,), share of the batched steps that take as long or less; the last is 1.
        quantiles: seconds at QUANTILES: the smallest value that so many steps do not exceed.
        mean: seconds.
    """

    name: str
    kind: Kind
    seconds: NDArray[np.float64]
    shares: NDArray[np.float64]
    quantiles: tuple[float, ...]
    mean: float

    @property
    def longest(self) -> float:
        """The longest step."""
        return float(self.seconds[-1])


@dataclass(frozen=True)
class StepSecondsData:
    """Step times under the plan and its baselines; empty where no step is batched."""

    ladders: tuple[StepSeconds, ...]


def step_seconds_data(plan: Plan, steps: StepHistogram, cost: CostModel) -> StepSecondsData:
    """Step times of the plan's traffic under each of its ladders; ladders that `cost` cannot price left out.

    Raises:
        InputError: a step is beyond the engine's limits.
    """
    engine = plan.to_engine()
    steps.check_limits(engine)
    batched = steps.batched(engine)
    if not batched.any() or not plan.num_seqs:
        return StepSecondsData(())
    weight = steps.steps[batched]
    found = []
    for row in compared(plan):
        try:
            table = step_seconds_by_size(engine, cost, row.ladders)
        except InputError:  # a measured table without one of these rungs
            continue
        seconds = table[steps.num_seqs[batched], steps.num_blocks[batched]]
        found.append(_distribution(row.name, row.kind, seconds, weight))
    return StepSecondsData(tuple(found))


def _distribution(
    name: str, kind: Kind, seconds: NDArray[np.float64], weight: NDArray[np.float64]
) -> StepSeconds:
    values, which = np.unique(seconds, return_inverse=True)
    total = np.cumsum(np.bincount(which.ravel(), weight))
    shares = total / total[-1]
    at = [
        min(int(np.searchsorted(shares, quantile * (1 - 1e-12))), len(values) - 1) for quantile in QUANTILES
    ]
    mean = float((seconds * weight).sum() / weight.sum())
    return StepSeconds(name, kind, values, shares, tuple(float(values[index]) for index in at), mean)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a cost model, with the interval that its fit states."""

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str

    @property
    def is_sure(self) -> bool:
        """Whether there is an interval around a value above 0."""
        return self.low is not None and self.high is not None and self.value > 0 and self.low <= self.high

    @property
    def interval_ratio(self) -> tuple[float, float]:
        """(low, high) of the interval over the value, 1 in it."""
        low, high = self.low or 0.0, self.high or 0.0
        return min(1.0, low / self.value), max(1.0, high / self.value)


@dataclass(frozen=True, kw_only=True)
class CostData:
    """A cost model as curves, and its fit.

    Attributes:
        num_seqs: sequences of each curve.
        num_blocks: int64 (points,), blocks that a step is padded to.
        step_seconds: float64 (curves, points), seconds of a batched step.
        parameters: every term, with its interval where `fit` has one.
        residuals: what `fit` says of them, (name, value) as text.
    """

    num_seqs: tuple[int, ...]
    num_blocks: NDArray[np.int64]
    step_seconds: NDArray[np.float64]
    parameters: tuple[Parameter, ...]
    residuals: tuple[tuple[str, str], ...]

    @property
    def sure(self) -> tuple[Parameter, ...]:
        """The parameters with an interval around a value above 0."""
        return tuple(each for each in self.parameters if each.is_sure)


def cost_data(cost: CostModel, engine: Engine | None = None) -> CostData:
    """A cost model's curves up to an engine's limits (default: `Engine()`), or at its measured sizes."""
    engine = engine or Engine()
    sizes = cost.table_sizes()
    if sizes is None:
        seqs = powers_of_two(min(engine.min_batched_seqs, engine.max_num_seqs), engine.max_num_seqs)
        points = np.unique(np.linspace(1, engine.max_num_blocks, _CURVE_POINTS).round().astype(np.int64))
    else:
        every = max(1, len(sizes[0]) // 5)
        seqs = tuple(sorted({*sizes[0][::every], *sizes[0][-1:]}))
        points = np.array(sizes[1], np.int64)
    return CostData(
        num_seqs=seqs,
        num_blocks=points,
        step_seconds=np.array([cost.batched_step_seconds(each, points) for each in seqs]),
        parameters=_parameters(cost),
        residuals=tuple(_flat(cost.fit.get("residuals"))) if cost.fit else (),
    )


_UNITS = {
    "step_seconds.base": "s",
    "step_seconds.per_seq": "s/sequence",
    "step_seconds.per_iteration": "s/iteration",
    "step_seconds.per_gather": "s/page",
    "compile_seconds.base": "s/graph",
    "compile_seconds.per_iteration": "s/graph/iteration",
    "compile_seconds.per_iteration_sq": "s/graph/iteration^2",
    "replay_seconds.per_sequence_gather": "s/block",
    "replay_seconds.per_prefill_token": "s/token",
    "replay_seconds.per_seq": "s/sequence",
    "per_sequence.per_query_gather": "s/token/page",
    "per_sequence.compile_seconds.base": "s/graph",
    "per_sequence.compile_seconds.per_iteration": "s/graph/block",
    "per_sequence.compile_seconds.per_iteration_sq": "s/graph/block^2",
    "per_sequence.recorded_in_startup_seconds": "s",
    "startup_seconds": "s",
    "graphs_per_variant": "graphs",
}


def _parameters(cost: CostModel) -> tuple[Parameter, ...]:
    data = cost.to_dict()
    fitted = (cost.fit or {}).get("parameters")
    fitted = fitted if isinstance(fitted, Mapping) else {}
    found = []
    for name, unit in _UNITS.items():
        at: Any = data
        for key in name.split("."):
            at = at.get(key) if isinstance(at, Mapping) else None
        if at is None:
            continue
        said = fitted.get(name)
        said = said if isinstance(said, Mapping) else {}
        found.append(Parameter(name, float(at), _number(said.get("low")), _number(said.get("high")), unit))
    return tuple(found)


def _number(value: Any) -> float | None:
    """A finite number; `fit` may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


_MOST_RESIDUALS = 40


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested numbers as (path, text), at most _MOST_RESIDUALS of them."""
    if isinstance(value, Mapping):
        rows = [row for key, each in value.items() for row in _flat(each, f"{prefix} {key}".strip())]
        return rows[:_MOST_RESIDUALS]
    if isinstance(value, list | tuple):
        numbers = [_number(each) for each in value[:8]]
        text = ", ".join("?" if each is None else f"{each:.3g}" for each in numbers)
        return [(prefix, text + (", ..." if len(value) > len(numbers) else ""))]
    number = _number(value)
    if number is not None:
        return [(prefix, f"{number:.4g}")]
    return [(prefix, value[:200])] if isinstance(value, str) else []
