"""Did it hold: a plan made on the first part of traces, tried on the rest of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.plan.baselines import default_of
from ladder_opt.plan.rounds import Task
from ladder_opt.solve.price import price_ladders
from ladder_opt.trace.stream import traces_of


def split(task: Task) -> tuple[Task, Task | None]:
    """The task on what the plan may see, and on what it may not; (the task, None) without a holdout.

    Raises:
        UsageError: the traffic is no trace, or one part of a trace is empty.
    """
    share = task.options.holdout
    if share is None:
        return task, None
    if not task.replays_traces:
        raise UsageError("--holdout: found a histogram, expected traces, which have a last part")
    traces = traces_of(task.source)  # type: ignore[arg-type]  # traces are what replays
    parts = [trace.split_by_time(share) for trace in traces]
    if not all(len(seen) and len(unseen) for seen, unseen in parts):
        raise UsageError(f"--holdout: found an empty part at {share:g}, expected requests before and after")
    return (
        replace(task, source=[seen for seen, _ in parts]),
        replace(task, source=[unseen for _, unseen in parts]),
    )


def try_on(task: Task, ladders: Ladders, pins: Ladders) -> dict[str, Any]:
    """What ladders cost on traffic replayed with them, and what the best would have cost on those steps."""
    steps, replay = task.steps_with(ladders)
    restarts = task.restarts(replay)
    price = price_ladders(steps, task.engine, task.cost, ladders, restarts=restarts)
    best = task.solve(steps, replay, pins)
    optimum = price.objective_seconds if best is None else best.objective_seconds
    default = default_of(task.engine, task.options.target)
    sizes = task.cost.table_sizes()
    return {
        "share": task.options.holdout,
        "steps": price.to_dict()["steps"],
        "restarts": restarts,
        "objective_seconds": price.objective_seconds,
        "default_seconds": price_ladders(
            steps, task.engine, task.cost, default, restarts=restarts
        ).objective_seconds
        if sizes is None
        else None,
        "optimum_seconds": optimum,
        "optimum_lower_bound_seconds": optimum if best is None else best.lower_bound_seconds,
        "regret_seconds": price.objective_seconds - optimum,
        "regret": (price.objective_seconds - optimum) / optimum if optimum else 0.0,
    }
