"""Solve for one pair of ladders for several workloads, checked: the least worst regret."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ladder_opt.arguments import check_fields, checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError, UsageError
from ladder_opt.ladder import Ladders, Target
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.api import DEFAULT_TIME_LIMIT_SECONDS, check_limits
from ladder_opt.solve.problem import (
    Floats,
    Integers,
    LadderProblem,
    Limits,
    build_problem,
    cumulative_on,
)
from ladder_opt.solve.result import RELATIVE_TOLERANCE, SolveResult, Status, StopReason
from ladder_opt.solve.verify import check_robust

_ALONE_SHARE = 0.6  # of the time, for the workloads' own optima


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One of the workloads that ladders have to serve.

    Attributes:
        steps: its histogram.
        restarts: server starts charged to it.
    """

    steps: StepHistogram
    restarts: float

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class WorkloadRegret:
    """What ladders cost on one workload, beside the best there.

    Attributes:
        objective_seconds: what they cost.
        optimum: the solve for this workload alone, within the same limits; regrets are over its lower bound.
        scale_seconds: what regrets are shares of: that bound, or where it is 0, the most that any ladders
            could cost.
        restarts: server starts charged to it.
    """

    objective_seconds: float
    optimum: SolveResult
    scale_seconds: float
    restarts: float

    @property
    def regret(self) -> float:
        """By how much the ladders cost more than the optimum, as a share of it."""
        return self.regret_at(self.objective_seconds)

    def regret_at(self, objective_seconds: float) -> float:
        """The regret of ladders that cost so much on this workload."""
        return max(0.0, (objective_seconds - self.optimum.lower_bound_seconds) / self.scale_seconds)


@dataclass(frozen=True, kw_only=True)
class RobustResult:
    """Ladders of least worst regret, and how far off they can be.

    Attributes:
        ladders: the best ones found.
        status: OPTIMAL (proven, each workload's own optimum too) or FEASIBLE.
        stop_reason: why the search ended.
        worst_regret: the largest regret of the workloads, a share.
        lower_bound: no ladders within the limits have a smaller worst regret.
        mixed_bound: the bound by weights on the workloads, before the search raised it.
        workloads: in the order given.
        nodes: nodes of the depth-first searches.
        bound_evaluations: relaxations solved.
        solve_seconds: wall-clock time, the workloads' own optima included.
    """

    ladders: Ladders
    status: Status
    stop_reason: StopReason
    worst_regret: float
    lower_bound: float
    mixed_bound: float
    workloads: tuple[WorkloadRegret, ...]
    nodes: int
    bound_evaluations: int
    solve_seconds: float

    def __post_init__(self) -> None:
        if self.lower_bound > self.worst_regret + RELATIVE_TOLERANCE:
            raise InternalError(f"lower bound {self.lower_bound!r} above the regret {self.worst_regret!r}")
        if (self.status is Status.OPTIMAL) != (self.stop_reason is StopReason.PROVEN):
            raise InternalError(f"status {self.status} does not go with stop reason {self.stop_reason}")
        if self.status is Status.OPTIMAL and self.gap > 4 * RELATIVE_TOLERANCE:
            raise InternalError(f"called optimal with a gap of {self.gap!r}")

    @property
    def gap(self) -> float:
        """By how much, as a share of a workload's optimum, the worst regret could still be smaller."""
        return max(0.0, self.worst_regret - self.lower_bound)


@checked
def solve_robust(
    workloads: Sequence[Workload],
    engine: Engine,
    cost: CostModel,
    *,
    limits: Limits | None = None,
    pins: Ladders | None = None,
    target: Target = "plugin",
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    progress: Callable[[float, float], None] | None = None,
) -> RobustResult:
    """The ladders whose largest regret over several workloads is least.

    Args:
        workloads: one or more.
        engine: an engine that batches decodes (max_num_seqs >= min_batched_seqs), unless for `spyre-env`.
        cost: prices.
        limits: hard limits; they hold for each workload's own optimum too.
        pins: a non-empty ladder on an axis pins it; likewise.
        target: as for `solve_ladders`.
        time_limit_seconds: when to stop with what is proven so far, the workloads' own optima included.
        progress: called with (worst regret, bound on it) now and then.

    Raises:
        UsageError: no workload, or `spyre-env` without calls.
        SolveError: limits and pins leave no ladder.
        InputError: a histogram or a measured table does not go with the engine.
        InternalError: the independent check disagrees with the solver.
    """
    if not workloads:
        raise UsageError("workloads: found none, expected one or more")
    started = time.perf_counter()
    limits = limits or Limits()
    problem = build_problem(
        StepHistogram.sum_of([each.steps for each in workloads]),
        engine,
        cost,
        restarts=sum(each.restarts for each in workloads),
        limits=limits,
        pins=pins,
        target=target,
    )
    check_limits(problem, limits)
    found = _search(
        problem,
        np.array([cumulative_on(problem, each.steps, engine, cost, target=target) for each in workloads]),
        np.array([each.restarts for each in workloads], np.float64),
        started + time_limit_seconds,
        progress,
    )
    result = replace(found, solve_seconds=time.perf_counter() - started)
    check_robust(
        [(each.steps, each.restarts) for each in workloads],
        engine,
        cost,
        result.ladders,
        objectives_seconds=[each.objective_seconds for each in result.workloads],
        optima_seconds=[each.optimum.lower_bound_seconds for each in result.workloads],
        worst_regret=result.worst_regret,
        max_variants=limits.max_variants,
        max_compile_seconds=limits.max_compile_seconds,
        guard=limits.guard,
        pins=pins,
    )
    return result


def _search(
    problem: LadderProblem,
    cumulative: Floats,
    restarts: Floats,
    deadline: float,
    progress: Callable[[float, float], None] | None,
) -> RobustResult:
    from ladder_opt.solve._product import solve_product  # noqa: PLC0415  (numba loads on first use)
    from ladder_opt.solve._robust import search_workloads  # noqa: PLC0415
    from ladder_opt.solve._workloads import Workloads, dearest  # noqa: PLC0415

    count = len(restarts)
    alone = []
    alone_until = deadline - (1 - _ALONE_SHARE) * (deadline - time.perf_counter())
    for k in range(count):
        # What the ones before left of their time goes to those after them.
        share = (alone_until - time.perf_counter()) / (count - k)
        own = replace(problem, cumulative=cumulative[k], restarts=float(restarts[k]))
        alone.append(solve_product(own, time_limit_seconds=max(share, 0.0)))
    optima = np.array([each.lower_bound_seconds for each in alone])
    most = np.array([dearest(problem, cumulative[k], float(restarts[k])) for k in range(count)])
    counted = most > 0
    if not counted.any():
        counted[:] = True  # nothing costs anything: any ladders do
        most[:] = 1.0
    every = Workloads(
        base=problem,
        cumulative=cumulative,
        restarts=restarts,
        optima=optima,
        scales=np.where(optima > 0, optima, np.where(most > 0, most, 1.0)),
    )
    found = search_workloads(
        every.only(counted),
        [_indices(problem, each.ladders) for each in alone],
        time_limit_seconds=max(0.0, deadline - time.perf_counter()),
        progress=None if progress is None else lambda worst, bound: progress(worst - 1, bound - 1),
    )
    seconds = every.seconds(found.best.rows, found.best.columns)
    priced = tuple(
        WorkloadRegret(
            objective_seconds=float(seconds[k]),
            optimum=alone[k],
            scale_seconds=float(every.scales[k]),
            restarts=float(restarts[k]),
        )
        for k in range(count)
    )
    proven = found.proven and all(each.status is Status.OPTIMAL for each in alone)
    worst = max(each.regret for each in priced)
    return RobustResult(
        ladders=problem.ladders(found.best.rows, found.best.columns),
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        stop_reason=StopReason.PROVEN if proven else StopReason.TIME_LIMIT,
        worst_regret=worst,
        lower_bound=worst if proven else _bound_on_regret(found.bound, alone, worst),
        mixed_bound=_bound_on_regret(found.mixed_bound, alone, worst),
        workloads=priced,
        nodes=found.nodes,
        bound_evaluations=found.bound_evaluations,
        solve_seconds=0.0,
    )


def _bound_on_regret(bound: float, alone: Sequence[SolveResult], worst: float) -> float:
    """What the worst regret cannot go below, though references are bounds on the optima.

    `bound` is on seconds / reference. The optimum is at most the objective found for it, so that a true
    regret is at least seconds / objective - 1.
    """
    shares = [
        each.lower_bound_seconds / each.objective_seconds if each.objective_seconds > 0 else 1.0
        for each in alone
    ]
    return min(max(0.0, bound * min(shares) - 1.0), worst)


def _indices(problem: LadderProblem, ladders: Ladders) -> tuple[Integers, Integers]:
    queries = problem.num_query_rows
    of_queries = np.searchsorted(problem.rows[:queries], ladders.query_lens or ())
    of_seqs = queries + np.searchsorted(problem.rows[queries:], ladders.num_seqs)
    columns = np.searchsorted(problem.columns, ladders.num_blocks)
    return np.r_[of_queries, of_seqs].astype(np.int64), columns.astype(np.int64)
