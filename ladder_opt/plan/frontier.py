"""The warm-up frontier of traffic: every pair of ladders that none beats in both warm-up and step time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError, SolveError, UsageError
from ladder_opt.extras import data_frame
from ladder_opt.ladder import Ladders
from ladder_opt.markup import table
from ladder_opt.occupancy.replay import load_warnings
from ladder_opt.plan.baselines import is_within
from ladder_opt.plan.given import Given, taken
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.pins import pinned_ladders
from ladder_opt.plan.rounds import Progress, Task, settle
from ladder_opt.solve.api import solve_frontier_of
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.verify import check_result
from ladder_opt.units import duration_text, hours_text

if TYPE_CHECKING:
    import pandas as pd

    from ladder_opt.occupancy.histogram import StepHistogram
    from ladder_opt.plan.plan import Plan

_CHECKED_IN_FULL = 25  # points that the plain checker prices too; the others are priced by `price_ladders`
_MINUTE_SECONDS = 60.0
_ROWS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Points by warm-up; step time falls as warm-up rises.

    Attributes:
        prices: each point's ladders, priced.
        complete: whether no other Pareto-optimal point exists.
        knee: index of the point farthest below the straight line between the ends, both axes scaled to 1.
        chosen: index of the point with the least step seconds + restarts * compile seconds.
        restarts: server starts charged for that.
        warnings: what a person should know.
    """

    prices: tuple[LadderPrice, ...]
    complete: bool
    knee: int
    chosen: int
    restarts: float
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prices)

    def to_frame(self) -> pd.DataFrame:
        """A row for each point: warm-up, step seconds, variants, ladders, marks."""
        return data_frame(self.to_columns())

    def to_columns(self) -> dict[str, list[Any]]:
        """The columns of `to_frame`, a value a point."""
        return {
            "warmup_seconds": [price.warmup_seconds for price in self.prices],
            "step_seconds": [price.step_seconds for price in self.prices],
            "num_variants": [price.num_variants for price in self.prices],
            "num_seqs": [" ".join(map(str, price.ladders.num_seqs)) for price in self.prices],
            "num_blocks": [" ".join(map(str, price.ladders.num_blocks)) for price in self.prices],
            **self._query_lens(),
            "knee": [index == self.knee for index in range(len(self))],
            "chosen": [index == self.chosen for index in range(len(self))],
        }

    def _query_lens(self) -> dict[str, list[str]]:
        """The column of query lengths, where the target has them."""
        if all(price.ladders.query_lens is None for price in self.prices):
            return {}
        return {"query_lens": [" ".join(map(str, price.ladders.query_lens or ())) for price in self.prices]}

    def _repr_html_(self) -> str:
        """Its ends, knee and choice, and some points between."""
        count = len(self)
        spread = {round(index * (count - 1) / (_ROWS_SHOWN - 1)) for index in range(_ROWS_SHOWN)}
        marks = {self.knee: "knee", self.chosen: "least in all"}
        rows = [
            (
                marks.get(index, ""),
                duration_text(self.prices[index].warmup_seconds),
                hours_text(self.prices[index].step_seconds),
                f"{self.prices[index].num_variants:,}",
            )
            for index in sorted(spread | set(marks))
        ]
        whole = "complete" if self.complete else "the best known"
        caption = f"Frontier: {count:,} points, {whole}; {self.restarts:.4g} server starts"
        return table(("", "warm-up", "step time", "variants"), rows, caption=caption)

    def best_within(self, warmup_seconds: float) -> LadderPrice | None:
        """The least step time that a warm-up allows."""
        allowed = [price for price in self.prices if price.warmup_seconds <= warmup_seconds * (1 + 1e-12)]
        return allowed[-1] if allowed else None

    def with_known(self, prices: Iterable[LadderPrice]) -> Frontier:
        """The frontier with ladders known from elsewhere: those that none of all beats stay, each point once.

        A complete frontier stays as it is.
        """
        if self.complete:
            return self
        kept: list[LadderPrice] = []
        for price in sorted(
            (*self.prices, *prices),
            key=lambda each: (each.warmup_seconds, each.step_seconds, each.num_variants),
        ):
            if not kept or price.step_seconds < kept[-1].step_seconds:
                kept.append(price)
        return replace(self, prices=tuple(kept), knee=_knee(kept), chosen=_chosen(kept))

    def minute_after(self, index: int) -> float:
        """Step seconds that one more minute of warm-up would save at a point."""
        here = self.prices[index]
        better = self.best_within(here.warmup_seconds + _MINUTE_SECONDS)
        return 0.0 if better is None else here.step_seconds - better.step_seconds

    def minute_before(self, index: int) -> float | None:
        """Step seconds that the last minute of warm-up saved; None where there was no less to be had."""
        here = self.prices[index]
        cheaper = self.best_within(here.warmup_seconds - _MINUTE_SECONDS)
        return None if cheaper is None else cheaper.step_seconds - here.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "complete": self.complete,
            "restarts": self.restarts,
            "knee": self.knee,
            "chosen": self.chosen,
            "next_minute_saves_seconds": self.minute_after(self.chosen),
            "last_minute_saved_seconds": self.minute_before(self.chosen),
            "points": [
                {
                    "warmup_seconds": price.warmup_seconds,
                    "step_seconds": price.step_seconds,
                    "num_variants": price.num_variants,
                    "num_seqs": list(price.ladders.num_seqs),
                    "num_blocks": list(price.ladders.num_blocks),
                }
                | ({} if price.ladders.query_lens is None else {"query_lens": list(price.ladders.query_lens)})
                for price in self.prices
            ],
            "warnings": list(self.warnings),
        }


@checked
def frontier(
    source: Given,
    cost: CostModel | None = None,
    *,
    engine: Engine | None = None,
    options: SolveOptions | None = None,
    replay_options: ReplayOptions | None = None,
    warnings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Frontier:
    """Every Pareto-optimal pair of ladders, on the steps that the best one leads to.

    Args:
        source: a histogram, a replay, or traces (replayed to a fixed point, as `tune` does).
        cost: prices; default: the built-in model.
        engine: the limits; default: `Engine()`.
        options: restarts choose the point that is marked; the guard holds for every point; budgets leave
            out the points beyond them; pins and ragged structure are refused.
        replay_options: how traces are replayed.
        warnings: warnings from reading the input.
        progress: told what is being done.

    Raises:
        UsageError: options out of range, an engine that batches nothing, or a pinned axis.
        InputError: traffic that does not go with the engine.
    """
    traffic, _, warnings = taken(source, None, warnings)
    task = Task.of(
        traffic,
        cost=cost,
        engine=engine,
        options=options,
        replay_options=replay_options,
        progress=progress,
    )
    if task.options.structure != "product":
        raise UsageError(f"--structure: found {task.options.structure!r}, expected 'product' for a frontier")
    if not task.solves:
        raise UsageError(
            f"max_num_seqs: found {task.engine.max_num_seqs}, "
            f"expected {task.engine.min_batched_seqs} or more: batched decode never runs"
        )
    if task.options.robust:
        raise UsageError("--robust: found for a frontier, expected with tune alone")
    if task.options.holdout is not None:
        raise UsageError("--holdout: found a share, expected none for a frontier")
    if task.options.num_seqs or task.options.num_blocks:
        raise UsageError("--num-seqs, --num-blocks: found a pinned axis, expected none for a frontier")
    pins, notes = pinned_ladders(task.engine, task.cost, task.options)
    last = settle(task, pins)
    restarts = task.restarts(last.replay)
    limits = task.options.limits(task.cost)
    ladders, complete = solve_frontier_of(
        last.steps,
        task.engine,
        task.cost,
        guard=limits.guard,
        pins=pins,
        target=task.options.target,
        time_limit_seconds=task.options.time_limit_seconds,
        progress=None if progress is None else lambda share: progress("frontier", share),
    )
    prices = [price_ladders(last.steps, task.engine, task.cost, each, restarts=restarts) for each in ladders]
    _check(last.steps, task, prices)
    prices = [price for price in prices if is_within(price, limits)]
    if not prices:
        raise SolveError("--max-variants, --warmup-budget: found no point of the frontier within them")
    notes = [*warnings, *notes, *(load_warnings(last.replay) if last.replay else [])]
    if not complete:
        notes.append(
            f"not complete within {task.options.time_limit_seconds:g} s: the points are the best known, "
            "and others are missing"
        )
    return Frontier(
        prices=tuple(prices),
        complete=complete,
        knee=_knee(prices),
        chosen=_chosen(prices),
        restarts=restarts,
        warnings=tuple(notes),
    )


def plan_frontier(
    plan: Plan,
    steps: StepHistogram | None = None,
    cost: CostModel | None = None,
    *,
    time_limit_seconds: float = 20.0,
    progress: Progress | None = None,
) -> Frontier:
    """The frontier of a plan's own steps under its own prices; what the time leaves out holds its ladders.

    Args:
        plan: whose steps, prices, engine and restarts to take.
        steps: default: those that its file holds.
        cost: default: the prices that its file holds.
        time_limit_seconds: time to find it in.
        progress: told what is being done.

    Raises:
        UsageError: the plan's file does not hold what is left to its default, or its engine batches nothing.
        InputError: what it holds contradicts itself.
    """
    steps = plan.to_steps() if steps is None else steps
    cost = plan.to_cost_model() if cost is None else cost
    if steps is None or cost is None:
        what = "steps" if steps is None else "prices"
        raise UsageError(f"frontier: found a plan that does not hold its {what}, expected one that does")
    guard = (plan.provenance.asked or {}).get("guard")
    found = frontier(
        steps,
        cost,
        engine=plan.to_engine(),
        options=SolveOptions(
            target=plan.target,
            restarts=plan.result.restarts,
            guard=guard if isinstance(guard, int | float) and not isinstance(guard, bool) else None,
            query_lens=None if plan.query_lens is None else list(plan.query_lens),
            time_limit_seconds=time_limit_seconds,
        ),
        progress=progress,
    )
    known = [plan.ladders] if plan.ragged is None else []
    if plan.query_lens is None:  # a baseline's query lengths are not in the file
        known += [Ladders(each.num_seqs, each.num_blocks) for each in plan.baselines]
    return found.with_known(
        price_ladders(steps, plan.to_engine(), cost, each, restarts=plan.result.restarts) for each in known
    )


def _check(steps: StepHistogram, task: Task, prices: Sequence[LadderPrice]) -> None:
    for before, after in itertools.pairwise(prices):
        if not (before.compile_seconds < after.compile_seconds and before.step_seconds > after.step_seconds):
            raise InternalError(f"{before.ladders} and {after.ladders} are no two points of a frontier")
    for index in np.unique(np.linspace(0, len(prices) - 1, min(_CHECKED_IN_FULL, len(prices))).astype(int)):
        price = prices[index]
        check_result(
            steps,
            task.engine,
            task.cost,
            price.ladders,
            restarts=price.restarts,
            objective_seconds=price.objective_seconds,
            guard=task.options.guard,
        )


def _chosen(prices: Sequence[LadderPrice]) -> int:
    return min(range(len(prices)), key=lambda index: prices[index].objective_seconds)


def _knee(prices: Sequence[LadderPrice]) -> int:
    warmup = np.array([price.warmup_seconds for price in prices])
    steps = np.array([price.step_seconds for price in prices])
    if len(prices) < 3 or np.ptp(warmup) == 0 or np.ptp(steps) == 0:
        return 0
    below = 1 - (warmup - warmup[0]) / np.ptp(warmup) - (steps - steps[-1]) / np.ptp(steps)
    return int(below.argmax())
