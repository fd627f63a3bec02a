"""A plan and the ladders it is compared with, each pair of ladders once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ladder_opt.ladder import Ladders
from ladder_opt.plan.parts import PlanPrice
from ladder_opt.plan.plan import Plan
from ladder_opt.plot import palette

Kind = Literal["plan", "default", "preset"]
COLOURS: Final[dict[Kind, str]] = {
    "plan": palette.PLAN,
    "default": palette.DEFAULT,
    "preset": palette.PRESET,
}


@dataclass(frozen=True)
class Compared:
    """Ladders with their price.

    Attributes:
        name: "plan", or the baseline's; names of equal ladders are joined.
        kind: what it is.
        ladders: the rungs.
        price: what they cost on the plan's steps.
        within_limits: whether they keep the limits that the plan was asked to.
    """

    name: str
    kind: Kind
    ladders: Ladders
    price: PlanPrice
    within_limits: bool = True


def compared(plan: Plan) -> list[Compared]:
    """The plan first, then its baselines in their order."""
    names: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for baseline in plan.baselines:
        names.setdefault((baseline.num_seqs, baseline.num_blocks), []).append(baseline.name)
    found = [Compared("plan", "plan", plan.ladders, plan.result)]
    for baseline in plan.baselines:
        same = names[baseline.num_seqs, baseline.num_blocks]
        if same[0] == baseline.name:
            found.append(
                Compared(
                    ", ".join(same),
                    "default" if "default" in same else "preset",
                    Ladders(baseline.num_seqs, baseline.num_blocks),
                    baseline,
                    baseline.within_limits,
                )
            )
    return found
