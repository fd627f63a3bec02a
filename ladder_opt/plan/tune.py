"""From traffic to a plan: replay, solve, price beside the baselines, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError, UsageError
from ladder_opt.ladder import Ladders, Target
from ladder_opt.occupancy.replay import Replay, load_warnings
from ladder_opt.plan.assemble import Outcome, assemble
from ladder_opt.plan.cost_warnings import cost_warnings
from ladder_opt.plan.given import Given, taken
from ladder_opt.plan.holdout import split, try_on
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.pins import pinned_ladders
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.robust import (
    check_robust_task,
    settle_robust,
    small_workload_warnings,
    solve_mix,
    workload_names,
)
from ladder_opt.plan.rounds import Progress, Round, Task, settle
from ladder_opt.plan.uncertainty import assess_uncertainty
from ladder_opt.solve.api import Structure, lower_bound
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import SolveResult, Status
from ladder_opt.trace.reasons import set_aside_lines
from ladder_opt.trace.table import TraceSource
from ladder_opt.units import duration_text

_ASIDE_SECONDS = 5.0
_LONG_WARMUP = 0.05  # of the uptime
_HARDLY_BATCHED = 0.01  # of the engines' busy time


@checked
def tune(
    source: Given,
    cost: CostModel | None = None,
    *,
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    inputs: Sequence[TraceSource] | None = None,
    warnings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Plan:
    """Make a plan.

    Args:
        source: a histogram, a steps file as read, a replay, or one or more traces, in memory or streams
            (which are replayed to a fixed point, a stream being read once for each replay).
        cost: prices; default: the built-in model.
        engine: the limits; default: vLLM-on-Spyre's for granite at 8k, as `Engine()`.
        options: what the plan is asked to be.
        replay_options: how traces are replayed.
        inputs: files for the provenance; default: those of the traces.
        warnings: warnings from reading the input, kept in the plan.
        progress: told what is being done.

    Raises:
        UsageError: options out of range.
        InputError: traffic that does not go with the engine, or with a measured table.
        SolveError: limits and pins leave no ladder.
    """
    traffic, inputs, warnings = taken(source, inputs, warnings)
    task = Task.of(
        traffic,
        cost=cost,
        engine=engine,
        options=options,
        replay_options=replay_options,
        progress=progress,
    )
    pins, notes = pinned_ladders(task.engine, task.cost, task.options)
    task, unseen = split(task)
    if task.options.robust:
        return assemble(_tune_robust(task, unseen, pins, [*warnings, *notes], inputs), inputs)
    last = settle(task, pins)
    solved = last.solved
    ladders = solved.ladders if solved else Ladders((), (task.engine.max_num_blocks,))
    price = price_ladders(last.steps, task.engine, task.cost, ladders, restarts=task.restarts(last.replay))
    notes = [*warnings, *notes, *_replay_warnings(last.replay)]
    notes += [*_hardly_batched(price, last.replay), *_unrecorded(price)]
    notes += _round_warnings(last, "the cheapest stands")
    notes += _warmup_warnings(task.options, price, last.replay)
    draws = task.options.uncertainty_draws
    notes += cost_warnings(task.cost, price, may_draw=not draws)
    is_padded = solved is not None and bool(price.batched_steps or price.sequences is not None)
    if draws and not is_padded:
        notes.append("--uncertainty: no step is batched, so that there is nothing to be unsure about")
    if solved is not None and solved.status is Status.FEASIBLE:
        notes.append(
            f"not proven within {task.options.time_limit_seconds:g} s: "
            f"at most {solved.gap:.3%} above the optimum"
        )
    outcome = Outcome(
        task=task,
        steps=last.steps,
        replay=last.replay,
        price=price,
        solved=solved,
        lower_bound_seconds=solved.lower_bound_seconds if solved else price.objective_seconds,
        pins=pins,
        limits=task.options.limits(task.cost) if solved else Limits(),
        warnings=notes,
        rounds={"rounds": last.rounds, "settled": last.settled},
        unguarded=_without_guard(task, last, pins),
        alternative=_alternative(task, last, pins),
        unlimited=_unlimited(task, last, pins),
        holdout=None if unseen is None else try_on(unseen, ladders, pins),
        uncertainty=assess_uncertainty(task, last.steps, last.replay, price, pins)
        if draws and is_padded
        else None,
    )
    return assemble(outcome, inputs)


def _tune_robust(
    task: Task,
    unseen: Task | None,
    pins: Ladders,
    notes: list[str],
    inputs: Sequence[TraceSource] | None,
) -> Outcome:
    """The ladders of least worst regret over the workloads, as an outcome for their sum."""
    check_robust_task(task)
    last = settle_robust(task, pins)
    solved, robust = last.solved, last.robust
    ladders = solved.ladders if solved else Ladders((), (task.engine.max_num_blocks,))
    price = price_ladders(last.steps, task.engine, task.cost, ladders, restarts=last.restarts)
    notes += _replay_warnings(last.replay)
    notes += _unrecorded(price)
    notes += _round_warnings(last, "the one of least worst regret stands")
    notes += _warmup_warnings(task.options, price, last.replay)
    notes += cost_warnings(task.cost, price)
    if len(last.workloads) == 1:
        notes.append("--robust: one workload, so that the plan is the best for that one alone")
    if robust is not None and robust.status is Status.FEASIBLE:
        notes.append(
            f"not proven within {task.options.time_limit_seconds:g} s: the least worst regret lies between "
            f"{robust.lower_bound:.3%} and {robust.worst_regret:.3%}"
        )
    aside = min(task.options.time_limit_seconds, _ASIDE_SECONDS)
    mix = solve_mix(last, task, pins, time_limit_seconds=aside)
    names = workload_names(last, inputs)
    notes += small_workload_warnings(last, names, pins, time_limit_seconds=aside)
    bounds = [each.lower_bound_seconds for each in (solved, mix) if each is not None]
    return Outcome(
        task=task,
        steps=last.steps,
        replay=last.replay,
        price=price,
        solved=solved,
        lower_bound_seconds=max(bounds, default=price.objective_seconds),
        pins=pins,
        limits=task.options.limits(task.cost) if solved else Limits(),
        warnings=notes,
        rounds={"rounds": last.rounds, "settled": last.settled},
        robust=last,
        mix=mix,
        unseen=unseen,
    )


@checked
def evaluate(
    source: Given,
    ladders: Ladders,
    cost: CostModel | None = None,
    *,
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    inputs: Sequence[TraceSource] | None = None,
    warnings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Plan:
    """Price given ladders on traffic, as a plan of status `evaluated`; traces are replayed with them.

    The lower bound is the ragged one, which no product ladders can beat: 0.05 to 2 % below the optimum.

    Raises:
        UsageError: options out of range, or ladders that do not end on the engine's limits.
        InputError: traffic that does not go with the engine, or with a measured table.
    """
    traffic, inputs, warnings = taken(source, inputs, warnings)
    target: Target = "plugin" if ladders.query_lens is None else "spyre-env"
    task = Task.of(
        traffic,
        cost=cost,
        engine=engine,
        options=replace(options or SolveOptions(), target=target),
        replay_options=replay_options,
        progress=progress,
    )
    if task.options.robust:
        raise UsageError("--robust: found for given ladders, expected with tune alone")
    _check_top(ladders, task.engine)
    steps, replay = task.steps_with(ladders)
    restarts = task.restarts(replay)
    price = price_ladders(steps, task.engine, task.cost, ladders, restarts=restarts)
    outcome = Outcome(
        task=task,
        steps=steps,
        replay=replay,
        price=price,
        solved=None,
        lower_bound_seconds=lower_bound(steps, task.engine, task.cost, restarts=restarts, target=target),
        pins=None,
        limits=Limits(),
        warnings=[
            *warnings,
            *_replay_warnings(replay),
            *_hardly_batched(price, replay),
            *_unrecorded(price),
            *cost_warnings(task.cost, price),
        ],
        rounds={},
    )
    return assemble(outcome, inputs)


def _check_top(ladders: Ladders, engine: Engine) -> None:
    for axis, rungs, top in (
        ("num_seqs", ladders.num_seqs, engine.max_num_seqs if engine.batches_decodes else None),
        ("num_blocks", ladders.num_blocks, engine.max_num_blocks),
    ):
        if top is not None and (not rungs or rungs[-1] != top):
            raise UsageError(f"{axis}: found {list(rungs)}, expected a last rung of {top}")


def _round_warnings(last: Round, stands: str) -> list[str]:
    if last.settled:
        return []
    return [f"after {last.rounds} rounds of replay and solve the ladders do not stand still; {stands}"]


def _replay_warnings(replay: Replay | None) -> list[str]:
    if replay is None:
        return []
    return [*set_aside_lines(replay.set_aside, replay.requests), *load_warnings(replay)]


def _hardly_batched(price: LadderPrice, replay: Replay | None) -> list[str]:
    if replay is None or price.sequences or not price.batched_steps or replay.busy_seconds <= 0:
        return []
    share = price.step_seconds / replay.busy_seconds
    if share >= _HARDLY_BATCHED:
        return []
    return [f"batched steps are {share:.2%} of the engines' busy time: ladders change next to nothing here"]


def _unrecorded(price: LadderPrice) -> list[str]:
    if not price.unrecorded_steps:
        return []
    steps = f"{price.unrecorded_steps:,.0f} steps are padded to variants that no warm-up records"
    why = "one iteration reads as many pages as the KV cache has"
    return [f"{steps}: {why}. They are priced as batched; the bucketer sends them down the per-sequence path"]


def _warmup_warnings(options: SolveOptions, price: LadderPrice, replay: Replay | None) -> list[str]:
    """Few starts charged to much traffic buy a warm-up that nobody would wait for."""
    if options.restarts is not None or (replay is None and options.span_seconds is None):
        return []
    uptime = options.uptime_or_default_seconds
    if price.warmup_seconds <= _LONG_WARMUP * uptime:
        return []
    warmup = duration_text(price.warmup_seconds)
    return [f"a warm-up of {warmup} is long for {duration_text(uptime)} of uptime; --warmup-budget limits it"]


def _without_guard(task: Task, last: Round, pins: Ladders) -> SolveResult | None:
    """What would have been best on the same steps without the guard; None where there is none."""
    if task.options.guard is None or last.solved is None:
        return None
    free = replace(task, options=replace(task.options, guard=None))
    return free.solve(last.steps, last.replay, pins)


def _alternative(task: Task, last: Round, pins: Ladders) -> dict[str, Any] | None:
    """The other structure on the same steps, within the same limits; None where it is not to be had."""
    if pins.num_blocks or task.options.target != "plugin":
        return None
    other: Structure = "product" if task.options.structure == "ragged" else "ragged"
    found = _solved_otherwise(task, last, pins, replace(task.options, structure=other))
    return None if found is None else {"structure": other, **found}


def _unlimited(task: Task, last: Round, pins: Ladders) -> dict[str, Any] | None:
    """What the budgets cost; None where there are none."""
    options = task.options
    if options.max_variants is None and options.warmup_budget_seconds is None:
        return None
    return _solved_otherwise(
        task, last, pins, replace(options, max_variants=None, warmup_budget_seconds=None)
    )


def _solved_otherwise(task: Task, last: Round, pins: Ladders, options: SolveOptions) -> dict[str, Any] | None:
    """Another solve on the same steps, and what it would save beyond the plan."""
    if last.solved is None:
        return None
    # A number beside the plan: it may not take as long as the plan itself.
    limit = min(options.time_limit_seconds, _ASIDE_SECONDS)
    aside = replace(task, options=replace(options, time_limit_seconds=limit))
    try:
        solved = aside.solve(last.steps, last.replay, pins)
    except SolveError:
        return None  # none found in time; the plan itself stands
    if solved is None:
        return None
    restarts = task.restarts(last.replay)
    price = price_ladders(last.steps, task.engine, task.cost, solved.ladders, restarts=restarts)
    return {
        "status": str(solved.status),
        "objective_seconds": price.objective_seconds,
        "saves_seconds": last.solved.objective_seconds - price.objective_seconds,
        "warmup_seconds": price.warmup_seconds,
        "num_variants": price.num_variants,
    }
