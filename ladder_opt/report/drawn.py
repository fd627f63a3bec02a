"""The figures of a report by name, as prepared numbers: the HTML page and `--figures` draw the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from ladder_opt.plot.ladder_data import (
    OccupancyData,
    RungsData,
    WasteData,
    occupancy_data,
    rungs_data,
    waste_data,
)
from ladder_opt.plot.time_data import (
    CostData,
    FrontierData,
    StepSecondsData,
    cost_data,
    frontier_data,
    step_seconds_data,
)
from ladder_opt.plot.trace_data import TraceData
from ladder_opt.report.contents import Contents
from ladder_opt.report.sentences import has_prices

FigureData = OccupancyData | WasteData | FrontierData | RungsData | StepSecondsData | TraceData | CostData


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The numbers of each figure; None where there is nothing to draw."""

    occupancy: OccupancyData | None
    waste: WasteData | None
    frontier: FrontierData | None
    rungs: RungsData | None
    step_seconds: StepSecondsData | None
    trace: TraceData | None
    cost: CostData | None

    def named(self) -> dict[str, FigureData]:
        """Those that there are, in the order of the report."""
        every: dict[str, FigureData | None] = {
            "occupancy": self.occupancy,
            "waste": self.waste,
            "frontier": self.frontier,
            "rungs": self.rungs,
            "step_seconds": self.step_seconds,
            "trace": self.trace,
            "cost": self.cost,
        }
        return {name: data for name, data in every.items() if data is not None}


def drawn(contents: Contents) -> Drawn:
    """Prepare the numbers of every figure that a report can have."""
    plan, steps, cost = contents.plan, contents.steps, contents.cost
    priced = has_prices(plan)
    rungs = rungs_data(plan)
    times = None if steps is None or cost is None else step_seconds_data(plan, steps, cost)
    return Drawn(
        occupancy=occupancy_data(steps, plan.to_engine(), plan) if steps is not None and len(steps) else None,
        waste=waste_data(plan) if priced and plan.result.steps.batched else None,
        frontier=None if contents.frontier is None else frontier_data(contents.frontier, plan),
        rungs=rungs if rungs.axes and priced else None,
        step_seconds=times if times is not None and times.ladders else None,
        trace=contents.traffic,
        cost=None if cost is None else cost_data(cost, plan.to_engine()),
    )
