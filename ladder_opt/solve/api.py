"""Solve for ladders, checked: the one entry that everything else calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError, UsageError, one_of
from ladder_opt.ladder import Ladders, Target
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.problem import LadderProblem, Limits, build_problem
from ladder_opt.solve.result import SolveResult
from ladder_opt.solve.verify import check_result

DEFAULT_TIME_LIMIT_SECONDS = 60.0

Structure = Literal["product", "ragged"]


@checked
def solve_ladders(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    restarts: float,
    limits: Limits | None = None,
    pins: Ladders | None = None,
    target: Target = "plugin",
    structure: Structure = "product",
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    progress: Callable[[float, float], None] | None = None,
) -> SolveResult:
    """The best ladders for a histogram.

    Args:
        steps: the histogram.
        engine: an engine that batches decodes (max_num_seqs >= min_batched_seqs), unless for `spyre-env`.
        cost: prices.
        restarts: server starts charged to the histogram.
        limits: hard limits.
        pins: a non-empty ladder on an axis pins it.
        target: "spyre-env" shares the num_blocks ladder with the per-sequence kernel, whose calls the
            histogram has to hold, and solves for its query lengths too.
        structure: "product" for two independent ladders, "ragged" for a block ladder for each num_seqs rung.
        time_limit_seconds: when to stop with what is proven so far.
        progress: called with (objective_seconds, lower_bound_seconds) now and then.

    Raises:
        SolveError: limits and pins leave no ladder.
        UsageError: `spyre-env` with ragged ladders, or without calls.
        InputError: the histogram or a measured table does not go with the engine.
        InternalError: the independent check disagrees with the solver.
    """
    from ladder_opt.solve._product import solve_product  # noqa: PLC0415  (numba loads on first use)

    limits = limits or Limits()
    for name, found, known in (
        ("structure", structure, get_args(Structure)),
        ("target", target, get_args(Target)),
    ):
        if found not in known:
            raise UsageError(f"{name}: found {found!r}, expected {one_of(known, found)}")
    if target == "spyre-env" and structure == "ragged":
        raise UsageError("--structure: found ragged, expected product: the Spyre plugin has one block ladder")
    problem = build_problem(steps, engine, cost, restarts=restarts, limits=limits, pins=pins, target=target)
    if structure == "product":
        check_limits(problem, limits)
    if structure == "ragged":
        result = _solve_ragged(problem, time_limit_seconds)
    else:
        result = solve_product(problem, time_limit_seconds=time_limit_seconds, progress=progress)
    check_result(
        steps,
        engine,
        cost,
        result.ladders,
        restarts=restarts,
        objective_seconds=result.objective_seconds,
        max_variants=limits.max_variants,
        max_compile_seconds=limits.max_compile_seconds,
        guard=limits.guard,
        pins=pins,
    )
    return result


def _solve_ragged(problem: LadderProblem, time_limit_seconds: float) -> SolveResult:
    from ladder_opt.solve._ragged import solve_ragged  # noqa: PLC0415

    if problem.columns_pinned:
        raise UsageError("--num-blocks: found a pinned ladder, expected none with --structure ragged")
    return solve_ragged(problem, time_limit_seconds=time_limit_seconds)


def check_limits(problem: LadderProblem, limits: Limits) -> None:
    """Say the least that would do."""
    from ladder_opt.solve._product import least_compile_seconds, least_variants  # noqa: PLC0415

    guarded = "" if limits.guard is None else f" with --guard {limits.guard:g}"
    if limits.max_variants is not None and limits.max_variants < (least := least_variants(problem)):
        raise SolveError(f"--max-variants: found {limits.max_variants}, expected at least {least}{guarded}")
    budget, startup = limits.max_compile_seconds, limits.startup_seconds
    if budget is None:
        return
    seconds = least_compile_seconds(problem)
    if seconds > budget * (1 + 1e-9):
        raise SolveError(
            f"--warmup-budget: found {budget + startup:.6g} s, expected at least {seconds + startup:.6g} s "
            f"({startup:.6g} s of start-up and {seconds:.6g} s of compiles{guarded})"
        )


def lower_bound(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    restarts: float,
    target: Target = "plugin",
) -> float:
    """Seconds that no pair of ladders can go below: the ragged optimum. 0 where nothing is batched.

    Raises:
        InputError: the histogram or a measured table does not go with the engine.
    """
    from ladder_opt.solve._product import ragged_bound  # noqa: PLC0415  (numba loads on first use)

    if not engine.batches_decodes and target == "plugin":
        return 0.0
    return ragged_bound(build_problem(steps, engine, cost, restarts=restarts, target=target))


def solve_frontier_of(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    guard: float | None = None,
    pins: Ladders | None = None,
    target: Target = "plugin",
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    progress: Callable[[float], None] | None = None,
) -> tuple[list[Ladders], bool]:
    """Every pair of ladders that none beats in both compile seconds and step seconds, by compile seconds.

    Returns:
        The ladders, and whether they are complete.

    Raises:
        InputError: the histogram or a measured table does not go with the engine.
    """
    from ladder_opt.solve._frontier import solve_frontier  # noqa: PLC0415  (numba)

    problem = build_problem(
        steps, engine, cost, restarts=1.0, limits=Limits(guard=guard), pins=pins, target=target
    )
    points, complete = solve_frontier(problem, time_limit_seconds=time_limit_seconds, progress=progress)
    return [problem.ladders(point.rows, point.columns) for point in points], complete
