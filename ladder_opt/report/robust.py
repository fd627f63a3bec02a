"""A robust plan as text: what each trace pays, and what other plans would have made the worst of them pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.plan.parts import PlanMix, PlanRobust, PlanWorkload
from ladder_opt.plan.plan import Plan
from ladder_opt.units import duration_text, hours_text

_NAME_WIDTH = 30


def robust_headline(robust: PlanRobust) -> str:
    """For the verdict's line."""
    count = len(robust.workloads)
    text = f"; the worst of {count} workloads pays {robust.worst_regret:.2%} above its own best"
    default = robust.baseline_regret("default")
    return text if default is None else f"{text} (default: {default:.2%})"


def robust_status(robust: PlanRobust, *, limited: bool) -> str:
    """What is proven."""
    within = " that keep to the limits asked for" if limited else ""
    if robust.status == "optimal":
        return f"optimal, proven: no ladders{within} have a smaller worst regret"
    return (
        f"feasible: the least worst regret{within} lies between {robust.lower_bound:.3%} and "
        f"{robust.worst_regret:.3%} ({robust.stop_reason})"
    )


def robust_text(plan: Plan) -> list[RenderableType]:
    """The table of workloads, what else was to be had, and the held-out parts."""
    robust = plan.result.robust
    if robust is None:
        return []
    table = Table(box=None, pad_edge=False)
    names = _short_names([each.path for each in robust.workloads])
    table.add_column("workload", no_wrap=True)
    for name in ("starts", "objective", "optimum there", "regret", "own plan's worst"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, each in zip(names, robust.workloads, strict=True):
        table.add_row(
            Text(name),
            f"{each.restarts:.4g}",
            hours_text(each.objective_seconds),
            _optimum(each),
            f"{each.regret:.2%}",
            f"{each.own_plan_worst_regret:.2%}",
        )
    lines = []
    if robust.mix is not None and len(robust.workloads) > 1:
        lines.append(_mix(plan, robust.mix))
    if robust.holdout is not None:
        lines.append(
            f"on the last {robust.holdout.share:.0%} of the traffic, which it has not seen, "
            f"the worst regret is {robust.holdout.worst_regret:.2%}:"
        )
        lines += [
            f"  {name}: {each.regret:.2%}" for name, each in zip(names, robust.holdout.workloads, strict=True)
        ]
    parts: list[RenderableType] = ["", table]
    if lines:
        parts.append(Text("\n".join(lines)))
    if len(robust.workloads) > 1:
        parts += ["", Text("the sum of the workloads:")]
    return parts


def _mix(plan: Plan, mix: PlanMix) -> str:
    same = (plan.num_seqs, plan.num_blocks, plan.query_lens)
    if (mix.num_seqs, mix.num_blocks, mix.query_lens) == same:
        return "a plan for the sum of the workloads would have the same ladders"
    more = plan.result.objective_seconds - mix.objective_seconds
    return (
        f"a plan for the sum of the workloads would have a worst regret of {mix.worst_regret:.2%} "
        f"and cost {duration_text(abs(more))} {'less' if more >= 0 else 'more'} in all"
    )


def _optimum(workload: PlanWorkload) -> str:
    if workload.optimum_status == "optimal":
        return hours_text(workload.optimum_seconds)
    return f">= {hours_text(workload.optimum_lower_bound_seconds)}"


def _short_names(paths: Sequence[str]) -> list[str]:
    """File names where they tell the paths apart, cut to a width that leaves the table its other columns."""
    names = [PurePath(path).name or path for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    return [name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}" for name in names]
