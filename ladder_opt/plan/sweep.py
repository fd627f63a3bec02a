"""What-if: a plan for every combination of engine settings, on the same traffic.

Grid points know nothing of each other, so they run through an executor; each is a `tune` of its own, and its
row is the same wherever it ran (a solve that its time limit cuts short excepted). A point for which there is
no plan is a row with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, SolveError, UsageError
from ladder_opt.executor import Executor, Report
from ladder_opt.extras import brought_by
from ladder_opt.occupancy.replay import falls_behind
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.rounds import Progress
from ladder_opt.plan.tune import tune
from ladder_opt.trace.stream import AnyTrace

if TYPE_CHECKING:
    import pandas as pd

ENGINE_SETTINGS = ("max_num_seqs", "max_model_len", "block_size", "max_num_batched_tokens", "num_kv_blocks")
REPLAY_SETTINGS = ("rate_scale", "replicas")
SETTINGS = (*ENGINE_SETTINGS, *REPLAY_SETTINGS)
MOST_POINTS = 10_000

RESULTS = (
    "verdict",
    "status",
    "gap",
    "num_seqs",
    "num_blocks",
    "num_variants",
    "warmup_seconds",
    "step_seconds",
    "objective_seconds",
    "overpay",
    "default_num_variants",
    "default_warmup_seconds",
    "default_step_seconds",
    "default_objective_seconds",
    "default_overpay",
    "saved",
    "requests",
    "set_aside",
    "busy_share",
    "end_over_span",
    "falls_behind",
    "error",
)
"""Columns after the settings; `saved` is the share of the default's objective, `end_over_span` when the last
request ends over the traffic's span, `falls_behind` whether that is late enough for the plan to warn that the
engines fall behind, `error` why there is no plan."""

_WHOLE = (*ENGINE_SETTINGS, "replicas", "num_variants", "default_num_variants", "requests", "set_aside")


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One combination, with all that it takes to make its plan."""

    settings: Mapping[str, Any]
    traces: Sequence[AnyTrace]
    engine: Engine
    cost: CostModel
    options: SolveOptions
    replay_options: ReplayOptions


@checked
def sweep(
    traces: AnyTrace | Sequence[AnyTrace],
    cost: CostModel | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """A row for every combination of settings: its plan beside the default ladders.

    Args:
        traces: the traffic, in memory or as streams.
        cost: prices; default: the built-in model.
        grid: the values of each setting in `SETTINGS` that is varied, such as {"max_num_seqs": [16, 32]}.
        engine: the settings that are not varied; default: `Engine()`.
        options: what each plan is asked to be.
        replay_options: how traces are replayed, and where the points run.
        progress: told the share of the points that are done.

    Returns:
        The settings, then `RESULTS`; the last setting named in the grid varies fastest. Ladders are rungs
        separated by spaces. Where `error` says why there is no plan, the other results are missing.

    Raises:
        UsageError: an unknown setting, one without values, or too many combinations.
    """
    with brought_by("frames"):
        import pandas as pd  # noqa: PLC0415

    rows = sweep_rows(
        traces,
        cost,
        grid=grid,
        engine=engine,
        options=options,
        replay_options=replay_options,
        progress=progress,
    )
    frame = pd.DataFrame(rows, columns=[*SETTINGS, *RESULTS])
    # A missing whole number would make floats of all of them.
    return frame.astype(dict.fromkeys(_WHOLE, "Int64") | {"falls_behind": "boolean"})


def sweep_rows(
    traces: AnyTrace | Sequence[AnyTrace],
    cost: CostModel | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """The rows of `sweep`, without pandas: `SETTINGS` and `RESULTS` by name, None where missing.

    Raises:
        UsageError: as `sweep` does.
    """
    _check(grid)
    base = replay_options or ReplayOptions()
    point = _Point(
        settings={},
        traces=list(traces) if isinstance(traces, Sequence) else [traces],
        engine=engine or Engine(),
        cost=cost or read_cost_model(),
        options=options or SolveOptions(),
        replay_options=replace(base, executor=Executor(jobs=1)),  # a point is one job
    )
    points = [
        replace(point, settings=dict(zip(grid, values, strict=True)))
        for values in itertools.product(*(dict.fromkeys(values) for values in grid.values()))
    ]
    with (base.executor or Executor()).open() as pool:
        return pool.map(
            _row,
            points,
            sizes=[1] * len(points),
            progress=None if progress is None else lambda share: progress("sweep", share),
        )


def _check(grid: Mapping[str, Sequence[Any]]) -> None:
    count = 1
    for name, values in grid.items():
        if name not in SETTINGS:
            raise UsageError(f"grid: found {name!r}, expected settings among {', '.join(SETTINGS)}")
        if isinstance(values, str) or not len(values):
            raise UsageError(f"{name}: found {values!r}, expected at least one value")
        count *= len(values)
    if not grid or count > MOST_POINTS:
        raise UsageError(f"grid: found {count if grid else 0} combinations, expected 1 to {MOST_POINTS}")


def _row(point: _Point, report: Report | None) -> dict[str, Any]:
    """One combination's row; what its maker would be told on stderr is its reason."""
    replayed = asdict(replace(point.replay_options, executor=None))
    row = {
        name: {**point.engine.to_dict(), **replayed, **point.settings}[name] for name in SETTINGS
    } | dict.fromkeys(RESULTS)
    changed = {name: value for name, value in point.settings.items() if name in ENGINE_SETTINGS}
    loaded = {name: value for name, value in point.settings.items() if name in REPLAY_SETTINGS}
    try:
        plan = tune(
            point.traces,
            point.cost,
            engine=replace(point.engine, **changed),
            options=point.options,
            replay_options=replace(point.replay_options, **loaded),
        )
    except (InputError, UsageError, SolveError) as error:
        row["error"] = str(error)
    else:
        row |= _results(plan)
    if report is not None:
        report(1)
    return row


def _results(plan: Plan) -> dict[str, Any]:
    result = plan.result
    replay = plan.provenance.replay or {}
    found: dict[str, Any] = {
        "verdict": plan.verdict,
        "status": result.status,
        "gap": result.gap,
        "num_seqs": " ".join(map(str, plan.num_seqs)),
        "num_blocks": " ".join(map(str, plan.num_blocks)),
        "num_variants": result.num_variants,
        "warmup_seconds": result.warmup_seconds,
        "step_seconds": result.step_seconds,
        "objective_seconds": result.objective_seconds,
        "overpay": result.gathers.overpay,
        "requests": replay.get("requests"),
        "set_aside": sum(replay.get("set_aside", {}).values()),
    }
    if plan.ragged is not None:
        found["num_blocks"] = "; ".join(
            f"{rung}: {' '.join(map(str, blocks))}" for rung, blocks in plan.ragged.items()
        )
    busy, idle = replay.get("busy_seconds", 0.0), replay.get("idle_seconds", 0.0)
    if busy + idle > 0:
        found["busy_share"] = busy / (busy + idle)
    end, span = replay.get("end_seconds", 0.0), replay.get("longest_span_seconds", 0.0)
    found["falls_behind"] = falls_behind(end, span)
    if span > 0:
        found["end_over_span"] = end / span
    default = plan.default
    if default is not None:
        found |= {
            "default_num_variants": default.num_variants,
            "default_warmup_seconds": default.warmup_seconds,
            "default_step_seconds": default.step_seconds,
            "default_objective_seconds": default.objective_seconds,
            "default_overpay": default.gathers.overpay,
        }
        if default.objective_seconds > 0:
            found["saved"] = 1 - result.objective_seconds / default.objective_seconds
    return found
