"""The best ladders found so far, and how better ones are looked for: alternating exact one-axis solves."""

from __future__ import annotations

import time

import numpy as np

from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve.problem import Floats, Integers, LadderProblem

_BUDGET_SLACK = 1e-9
_DETOUR = 1.003  # an alternation within limits may pass through ladders this much dearer than the best


class Incumbent:
    """Best ladders of a problem, as candidates' indices.

    Attributes:
        seconds: objective, tie price included; before the first, more than any ladders cost.
        rows: num_seqs rungs.
        columns: num_blocks rungs.
        max_variants: the limit, NO_LIMIT without.
        max_compiles: the limit in compile seconds, HUGE without.
    """

    def __init__(self, problem: LadderProblem, price: Floats, deadline: float) -> None:
        self.problem = problem
        self.price = price
        self.deadline = deadline
        self.seconds = _dearest(problem, price)
        self.rows: Integers = np.zeros(0, np.int64)
        self.columns: Integers = np.zeros(0, np.int64)
        limits = problem.limits
        self.limited = limits.max_variants is not None or limits.max_compile_seconds is not None
        self.max_variants = axis_kernel.NO_LIMIT if limits.max_variants is None else limits.max_variants
        self.max_compiles = axis_kernel.HUGE
        if limits.max_compile_seconds is not None:
            self.max_compiles = limits.max_compile_seconds * (1 + _BUDGET_SLACK)
        self._tried: set[bytes] = set()

    def one_axis(
        self,
        along_rows: bool,
        other: Integers,
        *,
        per_variant: float = 0.0,
        per_compile_second: float = 0.0,
        detour: float = 1.0,
    ) -> tuple[float, Integers]:
        """The best ladder on one axis against `other`; empty where the limits leave none worth having.

        The multipliers are those of the limits; any value gives the same answer, a good one sooner. Within
        limits, ladders at `detour` times the best known seconds or more are not looked for.
        """
        p = self.problem
        chosen = np.zeros(p.shape[0] if along_rows else p.shape[1], np.int64)
        data = (
            p.cumulative,
            p.step_seconds,
            self.price,
            p.compile_seconds,
            p.first_column,
            p.reach,
            p.lowest_row if along_rows else p.lowest_column,
            other,
        )
        if self.limited:
            seconds, count = axis_kernel.best_ladder_within(
                along_rows,
                *data,
                self.max_variants,
                self.max_compiles,
                per_variant,
                per_compile_second,
                self.seconds * detour,
                chosen,
            )
        else:
            seconds, count = axis_kernel.best_ladder(along_rows, *data, chosen)
        return float(seconds), chosen[:count]

    def offer(self, seconds: float, rows: Integers, columns: Integers) -> None:
        """Take these ladders if they are better."""
        if seconds < self.seconds:
            self.seconds, self.rows, self.columns = seconds, rows, columns

    def improve_from(
        self, rows: Integers, *, per_variant: float = 0.0, per_compile_second: float = 0.0
    ) -> None:
        """Choose columns for these rows, rows for those columns, and so on, until nothing gets better."""
        key = rows.tobytes()
        if key in self._tried:
            return
        self._tried.add(key)
        prices = {"per_variant": per_variant, "per_compile_second": per_compile_second, "detour": _DETOUR}
        last = axis_kernel.HUGE
        while time.perf_counter() <= self.deadline or not len(self.rows):
            _, columns = self.one_axis(False, rows, **prices)
            if not len(columns):
                return
            seconds, rows = self.one_axis(True, columns, **prices)
            if not len(rows):
                return
            self.offer(seconds, rows, columns)
            if seconds >= last * (1 - 1e-12):
                return
            last = seconds

    def start(self) -> None:
        """First ladders: the top row alone, then rows spread evenly, twice as many each time."""
        rows = self.problem.shape[0]
        count = 1
        while True:
            even = np.linspace(-1, rows - 1, min(count, rows) + 1)[1:]
            self.improve_from(np.unique(np.round(even).astype(np.int64)))
            if count >= rows or time.perf_counter() > self.deadline:
                return
            count *= 2


def _dearest(problem: LadderProblem, price: Floats) -> float:
    """A bound from above: every step at the dearest rung pair, and every variant compiled."""
    steps = float(problem.cumulative[-1, -1])
    return 2.0 * (steps * float(problem.step_seconds.max()) + float(price.sum())) + 1e-9
