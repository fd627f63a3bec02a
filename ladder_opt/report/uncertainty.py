"""How sure a plan is, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from ladder_opt.plan.parts import PlanBestOnAverage, PlanRungShare, PlanUncertainty
from ladder_opt.plan.plan import Plan
from ladder_opt.units import duration_text

_SURE = 0.9
_RUNGS_SHOWN = 10


def uncertainty_text(plan: Plan) -> list[RenderableType]:
    """What other prices of the same fit would make of the plan; nothing where it was not asked."""
    found = plan.uncertainty
    if found is None:
        return []
    lines: list[RenderableType] = ["", f"how sure: {found.draws} cost models drawn ({found.source})"]
    if found.gain is not None and found.beats_default is not None:
        spread = " to ".join(f"{found.gain[name]:.1%}" for name in ("p5", "p95"))
        lines.append(
            f"  the plan saves {found.gain['p50']:.1%} of the default's cost, {spread} in nine cases of ten; "
            f"it beats the default in {found.beats_default:.0%}"
        )
    if found.regret is not None and found.stays_best is not None:
        lines.append(
            f"  it is the very best in {found.stays_best:.0%}; in 19 of 20 it costs at most "
            f"{found.regret['p95']:.2%} more than the best"
        )
    lines += _limits(found)
    lines.append(f"  rungs that stay: {_shares(found.rungs)}")
    if found.other_rungs:
        lines.append(f"  not in the plan, but often best: {_shares(found.other_rungs)}")
    if found.best_on_average is not None:
        lines.append(f"  best on average: {_best(found.best_on_average)}")
    return lines


def _limits(found: PlanUncertainty) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if found.over_limits:
        lines.append(f"  in {found.over_limits:.0%} its warm-up is beyond the budget")
    if found.unsolved:
        lines.append(f"  under {found.unsolved} of them no ladders keep the limits")
    return lines


def _shares(rungs: Sequence[PlanRungShare]) -> str:
    parts = []
    for axis in dict.fromkeys(each.axis for each in rungs):
        own = [each for each in rungs if each.axis == axis]
        sure = [each for each in own if each.share >= _SURE]
        rest = sorted((each for each in own if each.share < _SURE), key=lambda each: -each.share)
        told = [f"{each.rung} ({each.share:.0%})" for each in rest[:_RUNGS_SHOWN]]
        if sure:
            told.insert(0, f"{', '.join(str(each.rung) for each in sure)} (90% or more)")
        if len(rest) > _RUNGS_SHOWN:
            told.append(f"{len(rest) - _RUNGS_SHOWN} more")
        parts.append(f"{axis} {', '.join(told)}")
    return "; ".join(parts)


def _best(best: PlanBestOnAverage) -> str:
    if best.is_plan:
        return "the plan itself"
    ladders = "; ".join(
        f"{axis} {', '.join(map(str, rungs))}"
        for axis, rungs in (
            ("num_seqs", best.num_seqs),
            ("num_blocks", best.num_blocks),
            ("query_lens", best.query_lens),
        )
        if rungs
    )
    return f"{ladders}, which saves {duration_text(best.saves_seconds)} ({best.saves:.2%}) more"
