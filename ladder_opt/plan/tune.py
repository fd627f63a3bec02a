"""From traffic to a plan: replay, solve, price beside the baselines, judge.

The step time that a replay needs depends on the ladders, and the ladders on the replay. `tune` starts
with the default ladders and repeats both until the ladders stand still, or come round again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ladder_opt._version import __version__
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders, clamp, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay, simulate
from ladder_opt.plan.plan import PLAN_SCHEMA, Plan, Verdict
from ladder_opt.presets import PRESETS, preset_num_blocks
from ladder_opt.solve.api import DEFAULT_TIME_LIMIT_SECONDS, lower_bound, solve_ladders
from ladder_opt.solve.price import LadderPrice, price_ladders, value_rungs
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import SolveResult, Status, relative_gap
from ladder_opt.trace.table import Trace, TraceSource

DEFAULT_UPTIME_SECONDS = 86400.0
DEFAULT_MIN_GAIN = 0.01
MAX_ROUNDS = 12

Source = StepHistogram | Replay | Trace | Sequence[Trace]
Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it done (or, in a solve, the gap)."""


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """What a plan is asked to be.

    Attributes:
        restarts: server starts charged to the traffic; None: its span, times the replicas that serve
            it, / `uptime_seconds`; or 1 where there is no span.
        uptime_seconds: time between server starts.
        span_seconds: time that a histogram covers, where it is known.
        max_variants: limit on distinct variants.
        warmup_budget_seconds: limit on the warm-up, start-up included.
        num_seqs: pins the axis where not empty.
        num_blocks: pins the axis where not empty.
        time_limit_seconds: for each solve.
        min_gain: share of the default's objective that a plan has to save to be worth adopting.
    """

    restarts: float | None = None
    uptime_seconds: float | None = None
    span_seconds: float | None = None
    max_variants: int | None = None
    warmup_budget_seconds: float | None = None
    num_seqs: Sequence[int] = ()
    num_blocks: Sequence[int] = ()
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS
    min_gain: float = DEFAULT_MIN_GAIN

    def limits(self, cost: CostModel) -> Limits:
        """The solver's limits: the budget less the start-up that ladders do not change."""
        if self.warmup_budget_seconds is None:
            return Limits(max_variants=self.max_variants)
        if self.warmup_budget_seconds < cost.startup_seconds:
            raise UsageError(
                f"--warmup-budget: found {self.warmup_budget_seconds:g} s, expected more than the "
                f"start-up's {cost.startup_seconds:g} s"
            )
        return Limits(
            max_variants=self.max_variants,
            max_compile_seconds=self.warmup_budget_seconds - cost.startup_seconds,
        )

    def restarts_for(self, server_seconds: float | None) -> float:
        """Server starts to charge for traffic that kept servers up for so long (None: not known)."""
        if self.restarts is not None:
            return self.restarts
        seconds = self.span_seconds if self.span_seconds is not None else server_seconds
        if seconds is None:
            return 1.0
        return seconds / (DEFAULT_UPTIME_SECONDS if self.uptime_seconds is None else self.uptime_seconds)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How traces are replayed; see `occupancy.replay.simulate`."""

    concurrency: int | None = None
    rate_scale: float = 1.0
    replicas: int = 1


@dataclass(frozen=True)
class _Round:
    """One replay and what was solved for on it."""

    replayed_with: Ladders
    steps: StepHistogram
    replay: Replay | None
    solved: SolveResult | None


def tune(
    source: Source,
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
        source: a histogram, a replay, or one or more traces (which are replayed to a fixed point).
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
    engine = engine or Engine()
    cost = cost or read_cost_model()
    options = options or SolveOptions()
    replay_options = replay_options or ReplayOptions()
    pins, notes = _pins(engine, options)
    notes = [*warnings, *notes]
    last, rounds, settled = _rounds(source, engine, cost, options, replay_options, pins, progress)
    replay = last.replay
    restarts = options.restarts_for(replay.server_seconds if replay else None)
    ladders = last.solved.ladders if last.solved else _unused_ladders(engine)
    price = price_ladders(last.steps, engine, cost, ladders, restarts=restarts)
    baselines = price_baselines(last.steps, engine, cost, restarts=restarts)
    if replay is not None:
        notes += _replay_warnings(replay, settled, rounds)
    verdict = _judge(price, baselines, options.min_gain)
    if last.solved is not None and last.solved.status is Status.FEASIBLE:
        notes.append(
            f"not proven within {options.time_limit_seconds:g} s: at most {last.solved.gap:.3%} above the optimum"
        )
    if verdict == "not-used":
        notes.append(_why_not_used(engine))
    if inputs is None and not isinstance(source, StepHistogram | Replay):
        traces = [source] if isinstance(source, Trace) else source
        inputs = [item for trace in traces for item in trace.sources]
    limits = options.limits(cost) if engine.batches_decodes else Limits()
    return assemble(
        engine=engine,
        cost=cost,
        price=price,
        solved=last.solved,
        lower_bound_seconds=last.solved.lower_bound_seconds if last.solved else price.objective_seconds,
        rungs=value_rungs(last.steps, engine, cost, price, pinned=pins),
        baselines=[(name, each, _is_within(each, limits)) for name, each in baselines],
        verdict=verdict,
        warnings=notes,
        inputs=inputs or (),
        replay=None if replay is None else replay.to_dict() | {"rounds": rounds, "settled": settled},
    )


def evaluate(
    source: Source,
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
        UsageError: options out of range.
        InputError: traffic or ladders that do not go with the engine.
    """
    engine = engine or Engine()
    cost = cost or read_cost_model()
    options = options or SolveOptions()
    _check_top(ladders, engine)
    steps, replay = _steps_of(source, engine, cost, ladders, replay_options or ReplayOptions(), progress)
    restarts = options.restarts_for(replay.server_seconds if replay else None)
    price = price_ladders(steps, engine, cost, ladders, restarts=restarts)
    baselines = price_baselines(steps, engine, cost, restarts=restarts)
    if inputs is None and not isinstance(source, StepHistogram | Replay):
        traces = [source] if isinstance(source, Trace) else source
        inputs = [item for trace in traces for item in trace.sources]
    notes = [*warnings, *(_replay_warnings(replay, True, 1) if replay else [])]
    return assemble(
        engine=engine,
        cost=cost,
        price=price,
        solved=None,
        lower_bound_seconds=lower_bound(steps, engine, cost, restarts=restarts),
        rungs=value_rungs(steps, engine, cost, price),
        baselines=[(name, each, True) for name, each in baselines],
        verdict=_judge(price, baselines, options.min_gain),
        warnings=notes,
        inputs=inputs or (),
        replay=None if replay is None else replay.to_dict(),
    )


def price_baselines(
    steps: StepHistogram, engine: Engine, cost: CostModel, *, restarts: float
) -> list[tuple[str, LadderPrice]]:
    """Price the default ladders, and the Spyre plugin's KV presets as block ladders.

    Ladders with a rung pair that a measured cost table lacks are left out.
    """
    default = default_ladders(engine)
    ladders = {"default": default}
    for preset in PRESETS:
        blocks = preset_num_blocks(preset, max_model_len=engine.max_model_len, block_size=engine.block_size)
        ladders[preset] = Ladders(default.num_seqs, blocks)
    priced = []
    for name, each in ladders.items():
        try:
            priced.append((name, price_ladders(steps, engine, cost, each, restarts=restarts)))
        except InputError:
            if cost.table_sizes() is None:
                raise
    return priced


def assemble(
    *,
    engine: Engine,
    cost: CostModel,
    price: LadderPrice,
    solved: SolveResult | None,
    lower_bound_seconds: float,
    rungs: Sequence[Any],
    baselines: Sequence[tuple[str, LadderPrice, bool]],
    verdict: Verdict,
    warnings: Sequence[str],
    inputs: Sequence[TraceSource],
    replay: dict[str, Any] | None,
) -> Plan:
    """Put a plan file's parts together."""
    result = price.to_dict()
    status: str = Status.EVALUATED if solved is None else solved.status
    result |= {
        "status": str(status),
        "stop_reason": str(solved.stop_reason) if solved else None,
        "lower_bound_seconds": min(lower_bound_seconds, price.objective_seconds),
        "gap": relative_gap(price.objective_seconds, lower_bound_seconds),
        "rungs": [asdict(rung) for rung in rungs],
        "dead_variants": [list(pair) for pair in price.dead_variants],
    }
    return Plan.model_validate(
        {
            "schema": PLAN_SCHEMA,
            "target": "plugin",
            "structure": "product",
            "kernel": cost.kernel,
            "engine": engine.to_dict(),
            "num_seqs": list(price.ladders.num_seqs),
            "num_blocks": list(price.ladders.num_blocks),
            "ragged": None,
            "verdict": verdict,
            "result": result,
            "baselines": [
                {
                    "name": name,
                    "num_seqs": list(each.ladders.num_seqs),
                    "num_blocks": list(each.ladders.num_blocks),
                    **each.to_dict(),
                    "within_limits": within,
                }
                for name, each, within in baselines
            ],
            "warnings": list(warnings),
            "provenance": {
                "version": __version__,
                "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                "inputs": [
                    {"path": item.path, "sha256": item.sha256, "rows": item.rows, "format": item.format}
                    for item in inputs
                ],
                "cost_sha256": cost.sha256(),
                "cost_name": cost.name,
                "replay": replay,
            },
        }
    )


def _rounds(
    source: Source,
    engine: Engine,
    cost: CostModel,
    options: SolveOptions,
    replay_options: ReplayOptions,
    pins: Ladders,
    progress: Progress | None,
) -> tuple[_Round, int, bool]:
    """Replay and solve until the ladders stand still: (the round that stands, rounds run, settled)."""
    ladders = default_ladders(engine)
    rounds: list[_Round] = []
    replays_traces = not isinstance(source, StepHistogram | Replay)
    while True:
        steps, replay = _steps_of(source, engine, cost, ladders, replay_options, progress)
        steps.check_limits(engine)
        solved = None
        if engine.batches_decodes:
            restarts = options.restarts_for(replay.server_seconds if replay else None)
            solved = solve_ladders(
                steps,
                engine,
                cost,
                restarts=restarts,
                limits=options.limits(cost),
                pins=pins,
                time_limit_seconds=options.time_limit_seconds,
                progress=None if progress is None else lambda best, bound: progress("solve", relative_gap(best, bound)),
            )
        this = _Round(ladders, steps, replay, solved)
        rounds.append(this)
        if solved is None or not replays_traces or solved.ladders == ladders:
            return this, len(rounds), True
        seen = [each.replayed_with for each in rounds]
        if solved.ladders in seen:
            # Ladders that come round differ by less than the replay they cause: the cheapest of them stands.
            cycle = rounds[seen.index(solved.ladders) :]
            return min(cycle, key=_objective_of), len(rounds), False
        if len(rounds) == MAX_ROUNDS:
            return this, len(rounds), False
        ladders = solved.ladders


def _objective_of(each: _Round) -> float:
    return each.solved.objective_seconds if each.solved else 0.0


def _steps_of(
    source: Source,
    engine: Engine,
    cost: CostModel,
    ladders: Ladders,
    replay_options: ReplayOptions,
    progress: Progress | None,
) -> tuple[StepHistogram, Replay | None]:
    if isinstance(source, StepHistogram):
        return source, None
    if isinstance(source, Replay):
        return source.steps, source
    replay = simulate(
        source,
        engine,
        cost,
        ladders=ladders,
        concurrency=replay_options.concurrency,
        rate_scale=replay_options.rate_scale,
        replicas=replay_options.replicas,
        progress=None if progress is None else lambda share: progress("replay", share),
    )
    return replay.steps, replay


def _pins(engine: Engine, options: SolveOptions) -> tuple[Ladders, list[str]]:
    rungs: list[tuple[int, ...]] = []
    notes: list[str] = []
    for axis, entries in (("num_seqs", options.num_seqs), ("num_blocks", options.num_blocks)):
        if not len(entries):
            rungs.append(())
            continue
        clamped, said = clamp(entries, axis, engine)  # type: ignore[arg-type]
        rungs.append(clamped)
        notes += said
    return Ladders(rungs[0], rungs[1]), notes


def _check_top(ladders: Ladders, engine: Engine) -> None:
    if engine.batches_decodes and (
        not ladders.num_seqs or ladders.num_seqs[-1] != engine.max_num_seqs
    ):
        raise UsageError(f"num_seqs: found {list(ladders.num_seqs)}, expected a last rung of {engine.max_num_seqs}")
    if not ladders.num_blocks or ladders.num_blocks[-1] != engine.max_num_blocks:
        raise UsageError(
            f"num_blocks: found {list(ladders.num_blocks)}, expected a last rung of {engine.max_num_blocks}"
        )


def _unused_ladders(engine: Engine) -> Ladders:
    return Ladders((), (engine.max_num_blocks,))


def _judge(price: LadderPrice, baselines: Sequence[tuple[str, LadderPrice]], min_gain: float) -> Verdict:
    if price.batched_steps == 0 or not price.ladders.num_seqs:
        return "not-used"
    default = dict(baselines).get("default")
    if default is None:
        return "adopt"
    saved = default.objective_seconds - price.objective_seconds
    return "adopt" if saved > 0 and saved >= min_gain * default.objective_seconds else "keep-default"


def _is_within(price: LadderPrice, limits: Limits) -> bool:
    if limits.max_variants is not None and price.num_variants > limits.max_variants:
        return False
    budget = limits.max_compile_seconds
    return budget is None or price.compile_seconds <= budget * (1 + 1e-9)


def _why_not_used(engine: Engine) -> str:
    if not engine.batches_decodes:
        return (
            f"max_num_seqs {engine.max_num_seqs} is below min_batched_seqs {engine.min_batched_seqs}: "
            "batched decode never runs, and there is no ladder to load"
        )
    return (
        f"no step ever had {engine.min_batched_seqs} decoding sequences: batched decode is not used by this traffic"
    )


def _replay_warnings(replay: Replay, settled: bool, rounds: int) -> list[str]:
    notes = []
    if replay.set_aside:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(replay.set_aside.items()))
        notes.append(f"requests set aside: {counts}")
    if replay.span_seconds > 0 and replay.end_seconds > 1.25 * replay.span_seconds + 60:
        notes.append(
            f"the engine falls behind: the last request ends {replay.end_seconds / replay.span_seconds:.2g} times "
            "the trace's span after its start; more --replicas, or a lower --rate-scale, would keep up"
        )
    if not settled:
        notes.append(
            f"after {rounds} rounds of replay and solve the ladders alternate between near-equals; the cheapest stands"
        )
    return notes
