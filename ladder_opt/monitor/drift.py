"""What a plan costs on traffic, and under prices, that it was not made for: `ladder-opt drift`.

The new traffic is replayed with the plan's ladders and priced; the optimum is solved for on the same steps,
within the limits that the plan was asked to keep. The *regret* is what the plan costs above that, as a share
of it:

    regret = (plan - optimum) / optimum

A robust plan was made for several workloads: each trace is then judged on its own, and the worst counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel, builtin_names, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.monitor.asked import other_rate, replay_options_of, solve_options_of
from ladder_opt.monitor.parts import Parts, Regret, split_regret, swap_of
from ladder_opt.monitor.prices import Measured, moved_terms, predictions
from ladder_opt.monitor.result import Drift, WorkloadDrift, digest_of
from ladder_opt.monitor.wear import dead_rungs, far_sizes
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay, load_warnings
from ladder_opt.plan.baselines import default_of, is_within
from ladder_opt.plan.given import Given, taken
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.pins import pinned_ladders
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.plan.robust import split_by_workload
from ladder_opt.plan.rounds import Progress, Task
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.result import SolveResult, Status
from ladder_opt.trace.reasons import set_aside_lines
from ladder_opt.trace.stream import TraceStream
from ladder_opt.trace.table import Trace, TraceSource
from ladder_opt.units import duration_text

DEFAULT_MAX_REGRET = 0.05
_SHORT_SPAN = 0.5  # of the plan's


@dataclass(frozen=True)
class _Trial:
    """The plan on some traffic, beside the optimum there."""

    task: Task
    steps: StepHistogram
    price: LadderPrice
    best: SolveResult | None
    replay: Replay | None

    @property
    def optimum_seconds(self) -> float:
        """What the best ladders found cost; what the plan does where that is less and within the limits."""
        if self.best is None:
            return self.price.objective_seconds
        own = self.price.objective_seconds
        return min(self.best.objective_seconds, own) if self.keeps_limits else self.best.objective_seconds

    @property
    def keeps_limits(self) -> bool:
        """Whether the plan's ladders are within the limits under these prices."""
        return is_within(self.price, self.task.options.limits(self.task.cost))

    @property
    def regret(self) -> float:
        """Above the optimum, as a share of it."""
        optimum = self.optimum_seconds
        return (self.price.objective_seconds - optimum) / optimum if optimum else 0.0

    @property
    def whole_regret(self) -> Regret:
        """The regret, in seconds too."""
        optimum = self.optimum_seconds
        seconds = self.price.objective_seconds - optimum
        return Regret(share=self.regret, seconds=seconds, optimum_seconds=optimum)


@checked
def drift(
    plan: Plan,
    source: Given,
    cost: CostModel | None = None,
    *,
    plan_cost: CostModel | None = None,
    measured: Sequence[Measured] = (),
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    max_regret: float = DEFAULT_MAX_REGRET,
    tell_parts: bool = True,
    inputs: Sequence[TraceSource] = (),
    warnings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Drift:
    """Try a plan on new traffic, and under new prices.

    Args:
        plan: the plan.
        source: new traces, in memory or streams, or a histogram of new steps, or a steps file as read.
        cost: new prices; default: the plan's own.
        plan_cost: the prices that the plan was made with, where its file does not hold them.
        measured: new measurements, to be held against the plan's prices.
        engine: the limits; default: the plan's.
        options: limits and server starts; default: what the plan was asked to be, with as many server starts
            for a second of traffic (a histogram without a span: for a step) as it was charged.
        replay_options: how traces are replayed; default: as the plan's were, at the rate that they have.
        max_regret: regret from which `Drift.is_over` is true.
        tell_parts: whether to find out what changed, which takes three more replays and solves.
        inputs: files for the result.
        warnings: warnings from reading the input.
        progress: told what is being done.

    Raises:
        UsageError: options out of range, or prices that are nowhere to be had.
        InputError: traffic that does not go with the engine, or a plan that contradicts itself.
        SolveError: the limits leave no ladder.
    """
    traffic, named, warnings = taken(source, inputs, warnings)
    inputs = named or ()
    if not max_regret >= 0:
        raise UsageError(f"--max-regret: found {max_regret:g}, expected a share of 0 or more")
    then_cost = plan_cost or cost_of(plan)
    now_cost = cost or then_cost
    if now_cost is None:
        raise UsageError(
            f"found no prices: the plan does not hold those of its cost model "
            f"{plan.provenance.cost_name or 'without a name'}, expected --cost or --plan-cost"
        )
    engine = engine or plan.to_engine()
    resolved = resolve_plan(plan, engine)
    notes = [*warnings, *resolved.warnings]
    if now_cost.kernel != plan.kernel:
        notes.append(f"priced with kernel {now_cost.kernel}, the plan was made for {plan.kernel}")
    told = options or solve_options_of(plan)
    pins, more = pinned_ladders(engine, now_cost, told)
    task = Task.of(
        traffic,
        cost=now_cost,
        engine=engine,
        options=told,
        replay_options=replay_options or replay_options_of(plan),
        progress=progress,
    )
    notes += more
    scale = other_rate(plan)
    if scale is not None and task.replays_traces:
        notes.append(
            f"the plan was made for its traces at {scale:g} times their rate; these are taken at "
            f"{task.replay_options.rate_scale:g} times theirs"
        )
    is_robust = plan.result.robust is not None
    tasks = split_by_workload(task) if is_robust else (task,)
    trials = [_try(each, resolved.ladders, pins, plan) for each in tasks]
    worst = max(trials, key=lambda trial: trial.regret)
    notes += _trial_warnings(trials)
    notes += _short_span(plan, trials)
    parts, why = None, None
    if tell_parts and then_cost is not None:
        parts, why = _parts(plan, tasks, worst, pins, then_cost)
    changed = then_cost is not None and then_cost.sha256() != now_cost.sha256()
    if then_cost is None:
        notes.append("prices: the plan does not hold its own, so that what moved since is not told")
    elif plan.provenance.cost_sha256 != then_cost.sha256():
        notes.append("prices: those given for the plan are others than it was made with")
    return Drift(
        plan_digest=digest_of(plan),
        plan_created=plan.provenance.created,
        max_regret=max_regret,
        cost_name=now_cost.name,
        cost_changed=changed,
        workloads=tuple(
            _workload(name, trial) for name, trial in zip(_names(tasks, inputs), trials, strict=True)
        ),
        ladders=resolved.ladders,
        optimum_ladders=worst.best.ladders if worst.best else None,
        optimum_status=str(worst.best.status) if worst.best else None,
        dead_rungs=dead_rungs(plan, worst.price),
        dead_variants=worst.price.dead_variants,
        far_sizes=far_sizes(worst.steps, engine, now_cost, resolved.ladders, then=plan.to_steps()),
        parts=parts,
        parts_note=why,
        terms=moved_terms(then_cost, now_cost, worst.price) if changed and then_cost is not None else (),
        predictions=predictions(then_cost, measured) if then_cost is not None else (),
        promised_regret=_promised(plan),
        inputs=tuple(inputs),
        warnings=tuple(dict.fromkeys(notes)),
    )


def cost_of(plan: Plan) -> CostModel | None:
    """The prices that a plan was made with: those in its file, or a built-in model of the same digest."""
    held = plan.to_cost_model()
    if held is not None:
        return held
    name = plan.provenance.cost_name
    if name not in builtin_names():
        return None
    built_in = read_cost_model(name).with_kernel(plan.kernel)
    return built_in if built_in.sha256() == plan.provenance.cost_sha256 else None


def _promised(plan: Plan) -> float | None:
    """The regret that the plan had on its own traffic; None where it is not known."""
    if plan.result.robust is not None:
        return plan.result.robust.worst_regret
    return None if plan.result.status == "evaluated" else 0.0


def _try(task: Task, ladders: Ladders, pins: Ladders, plan: Plan) -> _Trial:
    steps, replay = task.steps_with(ladders)
    steps.check_limits(task.engine)
    task = replace(task, options=_charged(task.options, steps, replay, plan))
    price = price_ladders(steps, task.engine, task.cost, ladders, restarts=task.restarts(replay))
    best = task.solve(steps, replay, pins) if steps.total_steps else None
    return _Trial(task, steps, price, best, replay)


def _charged(options: SolveOptions, steps: StepHistogram, replay: Replay | None, plan: Plan) -> SolveOptions:
    """The options with server starts to charge: those asked for, else as many as the plan was charged.

    By the uptime, where the traffic says how long it took, and the uptime is another than the plan's or the
    plan was not given a number of starts; else as many starts for each step as the plan's traffic had.
    """
    if options.restarts is not None:
        return options
    asked = plan.provenance.asked or {}
    knows_time = replay is not None or options.span_seconds is not None
    is_given = options.uptime_seconds not in (None, asked.get("uptime_seconds"))
    if knows_time and (is_given or asked.get("restarts") is None):
        return options
    then = plan.result.steps.total
    per_step = plan.result.restarts / then if then else 0.0
    return replace(options, restarts=per_step * steps.total_steps)


def _trial_warnings(trials: Sequence[_Trial]) -> list[str]:
    notes = []
    for trial in trials:
        replay = trial.replay
        if replay is not None:
            notes += set_aside_lines(replay.set_aside, replay.requests)
            notes += load_warnings(replay)
        if not trial.keeps_limits:
            notes.append("the plan is over the limits that it was asked to keep, under these prices")
        if not trial.price.batched_steps and trial.price.sequences is None:
            notes.append(
                "no step reaches batched decode: nothing here depends on the ladders but the warm-up"
            )
        best = trial.best
        if best is not None and best.status is Status.FEASIBLE:
            own = trial.price.objective_seconds
            most = (
                (own - best.lower_bound_seconds) / best.lower_bound_seconds
                if best.lower_bound_seconds
                else 0.0
            )
            notes.append(
                f"the optimum is not proven within {trial.task.options.time_limit_seconds:g} s: "
                f"the regret is at least {trial.regret:.2%} and at most {most:.2%}"
            )
    return notes


def _short_span(plan: Plan, trials: Sequence[_Trial]) -> list[str]:
    """Much shorter traffic is more of a beginning and an end."""
    then = (plan.provenance.replay or {}).get("span_seconds")
    replay = trials[0].replay
    if replay is None or len(trials) > 1 or isinstance(then, bool) or not isinstance(then, int | float):
        return []
    now = replay.span_seconds
    if now >= _SHORT_SPAN * then:
        return []
    spans = f"the new traffic covers {duration_text(now)}, the plan's {duration_text(then)}"
    return [f"{spans}: its beginning and end, in which batches fill and drain, count for more"]


def _parts(
    plan: Plan, tasks: Sequence[Task], trial: _Trial, pins: Ladders, then_cost: CostModel
) -> tuple[Parts | None, str | None]:
    """What changed; or None, and why that cannot be told."""
    if len(tasks) > 1 or plan.result.robust is not None:
        return None, "what changed is not told apart for a robust plan, which was made for several workloads"
    task = replace(tasks[0], cost=then_cost)
    swap, note = swap_of(plan, task)
    if swap is None:
        return None, note

    def regret_of(each: Task) -> Regret:
        return _try(each, trial.price.ladders, pins, plan).whole_regret

    same_prices = then_cost.sha256() == trial.task.cost.sha256()
    return (
        split_regret(
            swap,
            regret_of,
            then=_promised(plan),
            before_cost=trial.whole_regret if same_prices else regret_of(task),
            now=trial.whole_regret,
            of_steps=isinstance(task.source, StepHistogram),
        ),
        note,
    )


def _workload(name: str, trial: _Trial) -> WorkloadDrift:
    default = default_of(trial.task.engine, trial.task.options.target)
    default_seconds = None
    if trial.task.cost.table_sizes() is None:
        default_seconds = price_ladders(
            trial.steps, trial.task.engine, trial.task.cost, default, restarts=trial.price.restarts
        ).objective_seconds
    return WorkloadDrift(
        name=name,
        regret=trial.regret,
        objective_seconds=trial.price.objective_seconds,
        optimum_seconds=trial.optimum_seconds,
        optimum_lower_bound_seconds=min(trial.best.lower_bound_seconds, trial.optimum_seconds)
        if trial.best
        else trial.optimum_seconds,
        default_seconds=default_seconds,
        restarts=trial.price.restarts,
        steps=trial.price.batched_steps + trial.price.per_sequence_steps,
        batched_steps=trial.price.batched_steps,
        requests=None if trial.replay is None else trial.replay.requests,
        overpay=trial.price.gathers.overpay,
    )


def _names(tasks: Sequence[Task], inputs: Sequence[TraceSource]) -> list[str]:
    if len(tasks) == len(inputs):
        return [each.path for each in inputs]
    if len(tasks) == 1:
        return ["new traffic"]
    return [
        task.source.sources[0].path
        if isinstance(task.source, Trace | TraceStream) and task.source.sources
        else f"workload {at}"
        for at, task in enumerate(tasks, start=1)
    ]
