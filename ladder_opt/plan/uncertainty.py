"""What the cost model's own uncertainty does to a plan: other prices, the same steps.

Cost models are drawn from the fit (`cost.draws`), and the ladders are solved for again under each, with the
plan's limits and pins, on the steps of its final replay. Reported is how often each rung of the plan is among
a draw's best ladders, how the plan's gain on the default is spread, and which ladders are best on average.

For ladders L and cost parameters theta, the objective is f(L) . theta: counts (steps, sequences, iterations,
pages; graphs and their iterations) times seconds. The mean over draws is therefore f(L) . mean(theta): the
ladders solved for under the mean of the drawn parameters are the best on average, proven where that solve is.
They are compared with the plan and with every draw's own ladders all the same, since a solve may stop early.

The steps do not move with the prices: a replay of every draw would take as long as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.draws import draw_costs
from ladder_opt.cost.model import CostModel
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.plan.baselines import default_of, is_within
from ladder_opt.plan.rounds import Task
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.result import SolveResult

SECONDS_A_DRAW: Final = 5.0  # at most; most take a few tenths
SAME: Final = 1e-6  # relative: ladders this close cost the same
_COMMON: Final = 0.5  # share of draws from which on a rung outside the plan is told
_AXES: Final = ("num_seqs", "num_blocks", "query_lens")


def assess_uncertainty(
    task: Task,
    steps: StepHistogram,
    replay: Replay | None,
    price: LadderPrice,
    pins: Ladders,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """The plan file's `uncertainty`.

    Args:
        task: what the plan was made for; `options.uncertainty_draws` says how many draws.
        steps: of the plan's final replay.
        replay: that replay, where there was one.
        price: the plan's ladders, priced.
        pins: the plan's pins.
        seed: of the draws.

    Raises:
        UsageError: the cost model does not say how sure it is.
    """
    drawn = draw_costs(task.cost, task.options.uncertainty_draws, seed=seed)
    default = default_of(task.engine, task.options.target)
    solver = _Solver(task, steps, replay, pins, price.restarts)
    limits = task.options.limits(task.cost)
    draws = []
    for at, cost in enumerate(drawn.costs):
        mine = solver.price(cost, price.ladders)
        draws.append(
            _Draw(
                plan_seconds=mine.objective_seconds,
                is_over=not is_within(mine, limits),
                default_seconds=solver.price_or_none(cost, default),
                best=solver.solve(cost),
            )
        )
        if task.progress is not None:
            task.progress("uncertainty", (at + 1) / len(drawn.costs))
    found = [each.best.ladders for each in draws if each.best is not None]
    regret = np.array([each.regret for each in draws if each.best is not None])
    return {
        "draws": len(draws),
        "seed": seed,
        "source": drawn.how,
        **_gains(draws),
        "regret": None if not len(regret) else _spread(regret, (50, 95)),
        "stays_best": float(np.mean(regret <= SAME)) if len(regret) else None,
        "over_limits": sum(each.is_over for each in draws) / len(draws),
        "unsolved": len(draws) - len(found),
        **_rungs(price.ladders, found),
        "best_on_average": _best_on_average(solver, drawn.mean, price.ladders, found),
    }


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """What one drawn cost model makes of the plan.

    Attributes:
        plan_seconds: the plan's objective.
        is_over: whether the plan breaks its limits.
        default_seconds: the default ladders' objective; None where a measured table lacks them.
        best: the draw's own best ladders; None where the limits leave none.
    """

    plan_seconds: float
    is_over: bool
    default_seconds: float | None
    best: SolveResult | None

    @property
    def regret(self) -> float:
        """The plan above the draw's best; a solve that stopped early may have found less than the plan is."""
        best = self.plan_seconds if self.best is None else self.best.objective_seconds
        return self.plan_seconds / max(min(best, self.plan_seconds), 1e-300) - 1


class _Solver:
    """Solves and prices under drawn costs."""

    def __init__(
        self, task: Task, steps: StepHistogram, replay: Replay | None, pins: Ladders, restarts: float
    ) -> None:
        limit = min(task.options.time_limit_seconds, SECONDS_A_DRAW)
        self._task = replace(task, progress=None, options=replace(task.options, time_limit_seconds=limit))
        self._steps, self._replay, self._pins, self._restarts = steps, replay, pins, restarts

    @property
    def task(self) -> Task:
        """The task, its solves limited in time."""
        return self._task

    def price(self, cost: CostModel, ladders: Ladders) -> LadderPrice:
        """What ladders cost."""
        return price_ladders(self._steps, self._task.engine, cost, ladders, restarts=self._restarts)

    def price_or_none(self, cost: CostModel, ladders: Ladders) -> float | None:
        """Objective seconds; None where a measured table lacks the ladders."""
        sizes = cost.table_sizes()
        if sizes is not None and not (
            set(ladders.num_seqs) <= set(sizes[0]) and set(ladders.num_blocks) <= set(sizes[1])
        ):
            return None
        return self.price(cost, ladders).objective_seconds

    def solve(self, cost: CostModel) -> SolveResult | None:
        """The best ladders; None where the limits leave none."""
        try:
            return replace(self._task, cost=cost).solve(self._steps, self._replay, self._pins)
        except SolveError:
            return None


def _gains(draws: Sequence[_Draw]) -> dict[str, Any]:
    """How the plan does against the default, over the draws."""
    pairs = [(each.plan_seconds, each.default_seconds) for each in draws if each.default_seconds]
    if not pairs:
        return {"gain": None, "saves_seconds": None, "beats_default": None}
    mine, other = np.array(pairs).T
    return {
        "gain": _spread(1 - mine / other, (5, 50, 95)),
        "saves_seconds": _spread(other - mine, (5, 50, 95)),
        "beats_default": float(np.mean(mine < other * (1 - SAME))),
    }


def _spread(values: NDArray[np.float64], percents: tuple[int, ...]) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in percents}


def _rungs(plan: Ladders, found: list[Ladders]) -> dict[str, Any]:
    """How often each rung of the plan is in a draw's ladders, and common ones that it does not have."""
    kept, others = [], []
    for axis in _AXES:
        own = getattr(plan, axis) or ()
        counts: dict[int, int] = {}
        for ladders in found:
            for rung in getattr(ladders, axis) or ():
                counts[rung] = counts.get(rung, 0) + 1
        share = {rung: count / len(found) for rung, count in counts.items()}
        kept += [{"axis": axis, "rung": rung, "share": share.get(rung, 0.0)} for rung in own]
        others += [
            {"axis": axis, "rung": rung, "share": share[rung]}
            for rung in sorted(share)
            if rung not in own and share[rung] >= _COMMON
        ]
    return {"rungs": kept, "other_rungs": others}


def _best_on_average(
    solver: _Solver, mean: CostModel, plan: Ladders, found: list[Ladders]
) -> dict[str, Any] | None:
    """The ladders of least mean objective: those for the mean parameters, or any found before."""
    solved = solver.solve(mean)
    if solved is None:
        return None
    limits = solver.task.options.limits(mean)
    own = solver.price(mean, plan)
    others = [solver.price(mean, each) for each in dict.fromkeys([solved.ladders, *found]) if each != plan]
    chosen = min(
        (each for each in (own, *others) if is_within(each, limits)), key=lambda each: each.objective_seconds
    )
    mine = own.objective_seconds
    ladders = plan if mine - chosen.objective_seconds <= SAME * mine else chosen.ladders
    return {
        "num_seqs": list(ladders.num_seqs),
        "num_blocks": list(ladders.num_blocks),
        "query_lens": None if ladders.query_lens is None else list(ladders.query_lens),
        "ragged": ladders.ragged_dict(),
        "is_plan": ladders == plan,
        "saves_seconds": 0.0 if ladders == plan else mine - chosen.objective_seconds,
        "saves": 0.0 if ladders == plan else 1 - chosen.objective_seconds / mine,
        "status": str(solved.status),
    }
