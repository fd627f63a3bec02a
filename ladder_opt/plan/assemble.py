"""Write an outcome down as a plan: priced beside the baselines, and judged."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ladder_opt._version import __version__
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.plan.baselines import is_within, price_baselines
from ladder_opt.plan.parts import Verdict
from ladder_opt.plan.plan import PLAN_SCHEMA, Plan
from ladder_opt.plan.robust import (
    RobustRound,
    robust_dict,
    workload_names,
)
from ladder_opt.plan.rounds import Source, Task
from ladder_opt.plan.steps_part import cost_dict, occupancy_dict
from ladder_opt.plan.traffic import traffic_dict
from ladder_opt.solve.evidence import unseen_share, worst_padding
from ladder_opt.solve.price import LadderPrice, best_absent_rung, value_rungs
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import SolveResult, Status, relative_gap
from ladder_opt.trace.stream import traces_of
from ladder_opt.trace.table import TraceSource


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `assemble` writes down."""

    task: Task
    steps: StepHistogram
    replay: Replay | None
    price: LadderPrice
    solved: SolveResult | None
    lower_bound_seconds: float
    pins: Ladders | None
    limits: Limits
    warnings: list[str]
    rounds: dict[str, Any]
    unguarded: SolveResult | None = None
    alternative: dict[str, Any] | None = None
    unlimited: dict[str, Any] | None = None
    holdout: dict[str, Any] | None = None
    robust: RobustRound | None = None
    mix: SolveResult | None = None
    unseen: Task | None = None
    uncertainty: dict[str, Any] | None = None


def _judge(
    price: LadderPrice, default: LadderPrice | None, min_gain: float, robust: dict[str, Any] | None
) -> Verdict:
    if (price.batched_steps == 0 or not price.ladders.num_seqs) and not price.sequences:
        return "not-used"
    if default is None:
        return "adopt"
    if robust is not None:
        regrets = {each["name"]: each["worst_regret"] for each in robust["baselines"]}
        less = (regrets["default"] - robust["worst_regret"]) / (1 + regrets["default"])
        if less <= 0 or less < min_gain:
            return "keep-default"
        # What is best for the worst of them may cost more in all than changing nothing.
        return "adopt" if price.objective_seconds <= default.objective_seconds else "keep-default"
    saved = default.objective_seconds - price.objective_seconds
    return "adopt" if saved > 0 and saved >= min_gain * default.objective_seconds else "keep-default"


def _why_not_used(engine: Engine) -> str:
    if not engine.batches_decodes:
        return (
            f"max_num_seqs {engine.max_num_seqs} is below min_batched_seqs {engine.min_batched_seqs}: "
            "batched decode never runs, and there is no ladder to load"
        )
    return (
        f"no step ever had {engine.min_batched_seqs} decoding sequences: "
        "batched decode is not used by this traffic"
    )


def _evidence(outcome: Outcome) -> dict[str, Any]:
    task, free, solved = outcome.task, outcome.unguarded, outcome.solved

    def worst(ladders: Ladders) -> list[dict[str, Any]]:
        return [asdict(each) for each in worst_padding(outcome.steps, task.engine, ladders)]

    guard = None
    if free is not None and solved is not None:
        guard = {
            "factor": task.options.guard,
            "cost_seconds": solved.objective_seconds - free.objective_seconds,
            "worst_padding_without": worst(free.ladders),
        }
    return {
        "unseen_share": unseen_share(outcome.steps, task.engine),
        "worst_padding": worst(outcome.price.ladders),
        "guard": guard,
    }


def assemble(outcome: Outcome, inputs: Sequence[TraceSource] | None) -> Plan:
    """Write an outcome down as a plan."""
    task, price, solved = outcome.task, outcome.price, outcome.solved
    ladders = price.ladders
    target = task.options.target
    baselines = price_baselines(outcome.steps, task.engine, task.cost, restarts=price.restarts, target=target)
    default = dict(baselines).get("default")
    if default is not None and not is_within(default, outcome.limits):
        default = None  # not to be had within the limits, so nothing to keep
    robust = None
    if outcome.robust is not None:
        names = workload_names(outcome.robust, inputs)
        robust = robust_dict(
            outcome.robust,
            mix=outcome.mix,
            baselines=baselines,
            names=names,
            unseen=outcome.unseen,
            pins=outcome.pins or Ladders((), ()),
        )
    verdict = _judge(price, default, task.options.min_gain, robust)
    warnings = list(outcome.warnings)
    if verdict == "not-used":
        warnings.append(_why_not_used(task.engine))
    rungs = value_rungs(outcome.steps, task.engine, task.cost, price, pinned=outcome.pins)
    absent = None
    if robust is None:  # a rung that would pay for the sum of the workloads may not for the worst of them
        absent = best_absent_rung(outcome.steps, task.engine, task.cost, price)
    replay = None if outcome.replay is None else outcome.replay.to_dict() | outcome.rounds
    return Plan.model_validate(
        {
            "schema": PLAN_SCHEMA,
            "target": target,
            "structure": "product" if ladders.ragged is None else "ragged",
            "kernel": task.cost.kernel,
            "engine": task.engine.to_dict(),
            "num_seqs": list(ladders.num_seqs),
            "num_blocks": list(ladders.num_blocks),
            "query_lens": None if ladders.query_lens is None else list(ladders.query_lens),
            "ragged": ladders.ragged_dict(),
            "verdict": verdict,
            "result": {
                **price.to_dict(),
                "status": str(solved.status if solved else Status.EVALUATED),
                "stop_reason": str(solved.stop_reason) if solved else None,
                "lower_bound_seconds": min(outcome.lower_bound_seconds, price.objective_seconds),
                "gap": relative_gap(price.objective_seconds, outcome.lower_bound_seconds),
                "rungs": [asdict(rung) for rung in rungs],
                "dead_variants": [list(pair) for pair in price.dead_variants],
                "evidence": _evidence(outcome),
                "alternative": outcome.alternative,
                "unlimited": outcome.unlimited,
                "holdout": outcome.holdout,
                "robust": robust,
                "best_absent_rung": None if absent is None else asdict(absent),
            },
            "baselines": [
                {
                    "name": name,
                    "num_seqs": list(each.ladders.num_seqs),
                    "num_blocks": list(each.ladders.num_blocks),
                    **each.to_dict(),
                    "within_limits": is_within(each, outcome.limits),
                }
                for name, each in baselines
            ],
            "warnings": warnings,
            "uncertainty": outcome.uncertainty,
            "provenance": {
                "version": __version__,
                "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                "inputs": [
                    {"path": item.path, "sha256": item.sha256, "rows": item.rows, "format": item.format}
                    for item in (_sources(task.source) if inputs is None else inputs)
                ],
                "cost_sha256": task.cost.sha256(),
                "cost_name": task.cost.name,
                "replay": replay,
                "traffic": traffic_dict(task),
                "notes": _notes(task.source) or None,
                "asked": _asked(task),
            },
            "cost": cost_dict(task.cost),
            "occupancy": occupancy_dict(outcome.steps),
        }
    )


def _asked(task: Task) -> dict[str, Any]:
    """The options of the run; what was left to its default too."""
    options = asdict(task.options)
    for name in ("num_seqs", "num_blocks", "query_lens"):
        if not isinstance(options[name], str | None):
            options[name] = list(options[name])
    options.pop("time_limit_seconds")
    if not task.options.uncertainty_draws:
        del options["uncertainty_draws"]
    replayed = asdict(task.replay_options) if task.replays_traces else {}
    replayed.pop("executor", None)  # where it ran does not change the plan
    return {**options, **replayed, "startup_seconds": task.cost.startup_seconds_of(task.options.target)}


def _notes(source: Source) -> list[str]:
    """What the traces say of themselves, each line once."""
    if isinstance(source, StepHistogram | Replay):
        return []
    return list(dict.fromkeys(note for trace in traces_of(source) for note in trace.notes))


def _sources(source: Source) -> list[TraceSource]:
    if isinstance(source, StepHistogram | Replay):
        return []
    return [item for trace in traces_of(source) for item in trace.sources]
