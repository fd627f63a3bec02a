"""Plans of least worst regret: every trace is replayed, charged and compared with its own best on its own.

The plan's ordinary numbers are of the sum of the workloads; `result.robust` has those of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ladder_opt.errors import SolveError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay, sum_of_replays
from ladder_opt.plan.holdout import try_on
from ladder_opt.plan.rounds import Round, Task, run_rounds
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.result import SolveResult, Status, StopReason
from ladder_opt.solve.robust import RobustResult, Workload, solve_robust
from ladder_opt.trace.stream import TraceStream
from ladder_opt.trace.table import Trace, TraceSource

_SMALL_WORKLOAD = 0.01  # of the cost of all
_SPARED = 1e-3  # regret worth a warning


@dataclass(frozen=True, kw_only=True)
class RobustRound(Round):
    """A round in which each workload was replayed on its own.

    Attributes:
        tasks: one for each workload.
        workloads: their histograms and server starts.
        robust: the solve; None where the engine batches nothing. `solved` says the same of the sum.
    """

    tasks: tuple[Task, ...]
    workloads: tuple[Workload, ...]
    robust: RobustResult | None

    @property
    def rank(self) -> float:
        """The worst regret."""
        return self.robust.worst_regret if self.robust else 0.0

    @property
    def restarts(self) -> float:
        """Server starts charged to all workloads."""
        return sum(each.restarts for each in self.workloads)


def check_robust_task(task: Task) -> None:
    """Refuse what does not go with a worst regret.

    Raises:
        UsageError: weights.
    """
    if task.replay_options.weights is not None:
        raise UsageError(
            "--weights: found with --robust, expected none: the worst of the traces counts, "
            "and its regret does not change with its weight"
        )


def split_by_workload(task: Task) -> tuple[Task, ...]:
    """A task for each trace, or the one of a histogram."""
    source = task.source
    if isinstance(source, StepHistogram | Replay | Trace | TraceStream):
        return (task,)
    return tuple(replace(task, source=trace) for trace in source)


def settle_robust(task: Task, pins: Ladders) -> RobustRound:
    """Run rounds until the ladders stand still; of a cycle, the round of least worst regret stands."""
    tasks = split_by_workload(task)

    def play(ladders: Ladders) -> RobustRound:
        played = [_part(each, at, len(tasks)).steps_with(ladders) for at, each in enumerate(tasks)]
        workloads = []
        for each, (steps, replay) in zip(tasks, played, strict=True):
            steps.check_limits(task.engine)
            workloads.append(Workload(steps=steps, restarts=each.restarts(replay)))
        steps = StepHistogram.sum_of([each.steps for each in workloads])
        replays = [replay for _, replay in played if replay is not None]
        robust = _solve(task, workloads, pins)
        return RobustRound(
            replayed_with=ladders,
            steps=steps,
            replay=sum_of_replays(replays) if replays else None,
            solved=None if robust is None else _of_the_sum(robust),
            settled=False,
            rounds=0,
            tasks=tasks,
            workloads=tuple(workloads),
            robust=robust,
        )

    return run_rounds(task, play)


def _part(task: Task, at: int, count: int) -> Task:
    """The task with its progress as a part of the whole."""
    whole = task.progress
    if whole is None:
        return task
    return replace(task, progress=lambda what, share: whole(what, (at + share) / count))


def _solve(task: Task, workloads: Sequence[Workload], pins: Ladders) -> RobustResult | None:
    if not task.solves:
        return None
    progress = task.progress
    return solve_robust(
        workloads,
        task.engine,
        task.cost,
        limits=task.options.limits(task.cost),
        pins=pins,
        target=task.options.target,
        time_limit_seconds=task.options.time_limit_seconds,
        progress=None
        if progress is None
        else lambda worst, bound: progress("solve", max(0.0, worst - bound)),
    )


def _of_the_sum(robust: RobustResult) -> SolveResult:
    """The same ladders as a result for all workloads added up; their own optima bound what that can cost."""
    objective = sum(each.objective_seconds for each in robust.workloads)
    bound = min(objective, sum(each.optimum.lower_bound_seconds for each in robust.workloads))
    alone = len(robust.workloads) == 1 and robust.status is Status.OPTIMAL
    return SolveResult(
        ladders=robust.ladders,
        status=Status.OPTIMAL if alone else Status.FEASIBLE,
        stop_reason=StopReason.PROVEN if alone else StopReason.LEAST_WORST_REGRET,
        objective_seconds=objective,
        lower_bound_seconds=bound,
        ragged_bound_seconds=0.0,
        nodes=robust.nodes,
        bound_evaluations=robust.bound_evaluations,
        solve_seconds=robust.solve_seconds,
    )


def small_workload_warnings(
    last: RobustRound, names: Sequence[str], pins: Ladders, *, time_limit_seconds: float
) -> list[str]:
    """A share does not know how little it is a share of: what the others would be spared without it."""
    robust, task = last.robust, last.tasks[0]
    if robust is None:
        return []
    total = sum(each.objective_seconds for each in robust.workloads)
    small = [each.objective_seconds < _SMALL_WORKLOAD * total for each in robust.workloads]
    if all(small) or not any(small):
        return []
    try:
        others = solve_robust(
            [each for each, is_small in zip(last.workloads, small, strict=True) if not is_small],
            task.engine,
            task.cost,
            limits=task.options.limits(task.cost),
            pins=pins,
            target=task.options.target,
            time_limit_seconds=time_limit_seconds,
        )
    except SolveError:
        return []  # none found in time
    regrets = zip(robust.workloads, small, strict=True)
    worst = max(each.regret for each, is_small in regrets if not is_small)
    if worst - others.worst_regret < _SPARED:
        return []
    named = ", ".join(name for name, is_small in zip(names, small, strict=True) if is_small)
    cost = sum(
        each.objective_seconds for each, is_small in zip(robust.workloads, small, strict=True) if is_small
    )
    share = f"{named}: {cost / total:.1%} of the cost of all workloads, and what decides the plan"
    spared = f"the others would pay at most {others.worst_regret:.2%} above their own best, not {worst:.2%}"
    return [f"{share}. Leave it out, and {spared}"]


def workload_names(last: RobustRound, inputs: Sequence[TraceSource] | None) -> list[str]:
    """The file of each workload, where there is one."""
    if inputs is not None and len(inputs) == len(last.tasks):
        return [each.path for each in inputs]
    names = []
    for at, task in enumerate(last.tasks, start=1):
        sources = task.source.sources if isinstance(task.source, Trace | TraceStream) else ()
        names.append(sources[0].path if sources else f"workload {at}")
    return names


def solve_mix(
    last: RobustRound, task: Task, pins: Ladders, *, time_limit_seconds: float
) -> SolveResult | None:
    """The plan for the sum of the workloads, on the same steps and charged the same server starts."""
    options = replace(
        task.options, robust=False, restarts=last.restarts, time_limit_seconds=time_limit_seconds
    )
    try:
        return replace(task, options=options).solve(last.steps, last.replay, pins)
    except SolveError:
        return None  # none found in time


def robust_dict(
    last: RobustRound,
    *,
    mix: SolveResult | None,
    baselines: Sequence[tuple[str, LadderPrice]],
    names: Sequence[str],
    unseen: Task | None,
    pins: Ladders,
) -> dict[str, Any] | None:
    """The plan file's `result.robust`; None where the engine batches nothing.

    Args:
        last: the round that stands.
        mix: the plan for the sum of the workloads.
        baselines: other ladders, by name.
        names: of the workloads.
        unseen: the task on what was held out of the traces.
        pins: pinned rungs.
    """
    robust = last.robust
    if robust is None:
        return None
    task = last.tasks[0]

    def worst_regret(ladders: Ladders) -> float:
        return max(
            workload.regret_at(
                price_ladders(
                    each.steps, task.engine, task.cost, ladders, restarts=each.restarts
                ).objective_seconds
            )
            for workload, each in zip(robust.workloads, last.workloads, strict=True)
        )

    return {
        "status": str(robust.status),
        "stop_reason": str(robust.stop_reason),
        "worst_regret": robust.worst_regret,
        "lower_bound": robust.lower_bound,
        "gap": robust.gap,
        "workloads": [
            {
                "path": name,
                "restarts": each.restarts,
                "objective_seconds": each.objective_seconds,
                "optimum_seconds": each.optimum.objective_seconds,
                "optimum_lower_bound_seconds": each.optimum.lower_bound_seconds,
                "optimum_status": str(each.optimum.status),
                "regret": each.regret,
                "own_plan_worst_regret": worst_regret(each.optimum.ladders),
            }
            for name, each in zip(names, robust.workloads, strict=True)
        ],
        "mix": None
        if mix is None
        else {
            "num_seqs": list(mix.ladders.num_seqs),
            "num_blocks": list(mix.ladders.num_blocks),
            "query_lens": None if mix.ladders.query_lens is None else list(mix.ladders.query_lens),
            "objective_seconds": mix.objective_seconds,
            "worst_regret": worst_regret(mix.ladders),
        },
        "baselines": [
            {"name": name, "worst_regret": worst_regret(price.ladders)} for name, price in baselines
        ],
        "holdout": None if unseen is None else _held_out(unseen, robust.ladders, names, pins),
    }


def _held_out(unseen: Task, ladders: Ladders, names: Sequence[str], pins: Ladders) -> dict[str, Any]:
    """Each trace's last part, with these ladders and beside its own best."""
    options = replace(unseen.options, robust=False)
    tried = [
        {"path": name, **try_on(replace(part, options=options), ladders, pins)}
        for name, part in zip(names, split_by_workload(unseen), strict=True)
    ]
    return {
        "share": unseen.options.holdout,
        "worst_regret": max(max(0.0, each["regret"]) for each in tried),
        "workloads": tried,
    }
