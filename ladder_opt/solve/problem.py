"""The ladder problem: candidates, weights, prices and limits, as plain arrays.

**Sets.** Rows r are candidate num_seqs rungs s_r (ascending, the last is max_num_seqs), columns c candidate
num_blocks rungs m_c (ascending, the last is ceil(max_model_len / block_size)). A *ladder* on an axis is a
subset that holds the last candidate.

**Weights.** w(i, j, a, c) is the number of steps with n in (s_i, s_j] and b in (m_a, m_c]; it comes from
cumulative sums in four look-ups.

**Objective.** For ladders S and M with consecutive rungs i -> j and a -> c,

    sum over (i -> j) in S, (a -> c) in M of
        w(i, j, a, c) * step[j, c]  +  restarts * compile[j, c] * [c opens a variant of row j after a]

"c opens a variant after a" means that m_a is below the first candidate that shares m_c's variant in that
row: rung pairs of one variant are consecutive in m, so each variant is paid exactly once, at the lowest of
its rungs in the ladder.

**KV pool.** The smallest batch padded to (j, c) has s_i + 1 sequences, one of them with m_a + 1 blocks and
the others with one: it needs s_i + m_a + 1 blocks. Where the pool has fewer, no batch is ever padded
there, and the variant is neither compiled nor counted. With a the rung below the *lowest* rung of a variant
this decides for the whole variant, since higher rungs need more. `reach[i]` is the highest position a that
still fits.

**Guard.** With a guard R, a rung may be at most R times the smallest size padded to it: m_c <= R * (m_a + 1),
and the same for rows. `lowest_column[c]` and `lowest_row[j]` are the lowest positions allowed below.

**Reductions** (`_useful_columns`, `_useful_rows`), each by moving a rung down without raising any term:

* A column c with no steps in (m_{c-1}, m_c] is left out if in every row its step and compile are no cheaper
  than those of c-1, and wherever c+1 shares c's variant it shares c-1's too. *Proof.* Take a ladder that
  holds c. Put c-1 in its place (or drop c if c-1 is there). No step is padded worse, since none lies in
  between. The variant at c-1 costs no more than the one at c; variants below are shared at c-1 whenever they
  were at c (they start no higher); and the next rung up pays a compile afterwards only if it did before,
  by the last condition.
* A row r with no steps in (s_{r-1}, s_r] is left out if for every column step and compile are no cheaper
  than in r-1 and every variant of row r-1 starts no higher than that of row r at the same column. *Proof.*
  The same move: with variants starting no higher, the rungs of any M open no more variants in row r-1,
  and each of them is no dearer.

Both are left undone under a guard or with a pool that is short somewhere, where a move can break a limit.
Moves are chained from the top down, so a run of useless candidates falls onto the one below it. Gathers are
not monotone in s (32 // s jumps), which is why rows are compared as they are and never assumed useless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, InternalError, SolveError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MAX_ROWS = 4096  # intervals of rows are counted by its square
_RELATIVE_SLACK = 1e-9  # a budget of 600 s holds 42 variants that take 14.2857142857 s each


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Hard limits of a plan.

    Attributes:
        max_variants: distinct batched decode variants; None for no limit.
        max_compile_seconds: sum of their compile seconds (a warm-up budget less the start-up); None for
            no limit.
        startup_seconds: the part of a warm-up that max_compile_seconds leaves out, for messages alone.
        guard: no size is padded by more than this factor on either axis (each rung <= guard * (rung below
            + 1)); None for no limit.
    """

    max_variants: int | None = None
    max_compile_seconds: float | None = None
    guard: float | None = None
    startup_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.max_variants is not None and self.max_variants < 1:
            raise UsageError(f"--max-variants: found {self.max_variants}, expected 1 or more")
        budget = self.max_compile_seconds
        if budget is not None and math.isnan(budget):
            raise UsageError(f"--warmup-budget: found {budget}, expected seconds")
        if self.guard is not None and not (math.isfinite(self.guard) and self.guard >= 1):
            raise UsageError(f"--guard: found {self.guard}, expected a factor of 1 or more")


@dataclass(frozen=True, kw_only=True)
class LadderProblem:
    """One instance for the solver.

    Attributes:
        rows: candidate num_seqs rungs, int64 (rows,), ascending; the last is required.
        columns: candidate num_blocks rungs, int64 (columns,), ascending; the last is required.
        cumulative: float64 (rows + 1, columns + 1); [j, c] = steps with n <= s_j and b <= m_c.
        step_seconds: float64 (rows, columns), a step at the rung pair.
        compile_seconds: float64 (rows, columns), the compile of the rung pair's variant.
        first_column: int64 (rows, columns), the lowest column that shares the variant.
        reach: int64 (rows + 1,), by the position below a row: the highest position of the column below at
            which the KV pool still holds a batch; -1 for none. A position p is candidate p - 1; 0 is none.
        lowest_row: int64 (rows + 1,), by position: the lowest position that may be the rung below.
        lowest_column: int64 (columns + 1,), the same for columns.
        restarts: server starts that compiles are charged for.
        limits: hard limits.
        rows_pinned: whether every row has to be a rung.
        columns_pinned: whether every column has to be a rung.
    """

    rows: Integers
    columns: Integers
    cumulative: Floats
    step_seconds: Floats
    compile_seconds: Floats
    first_column: Integers
    reach: Integers
    lowest_row: Integers
    lowest_column: Integers
    restarts: float
    limits: Limits
    rows_pinned: bool
    columns_pinned: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.rows), len(self.columns)

    @property
    def typical_compile_seconds(self) -> float:
        """The mean variant's compile, above 0: brings limits in seconds to the scale of variants."""
        return max(float(self.compile_seconds.mean()), 1e-300)

    def opens(self, rows: Integers, columns: Integers) -> NDArray[np.bool_]:
        """Whether each rung pair of ladders (candidates' indices) is the lowest of a compiled variant."""
        below = np.r_[0, columns[:-1] + 1][None, :]  # positions
        reach = self.reach[np.r_[0, rows[:-1] + 1]][:, None]
        opens: NDArray[np.bool_] = below <= np.minimum(self.first_column[np.ix_(rows, columns)], reach)
        return opens

    def totals(self, rows: Integers, columns: Integers) -> tuple[float, int, float]:
        """(step seconds, variants, compile seconds) of ladders, candidates' indices."""
        corners = self.cumulative[np.r_[0, rows + 1]][:, np.r_[0, columns + 1]]
        steps = np.diff(np.diff(corners, axis=0), axis=1)
        cells = np.ix_(rows, columns)
        opens = self.opens(rows, columns)
        return (
            float((steps * self.step_seconds[cells]).sum()),
            int(opens.sum()),
            float((self.compile_seconds[cells] * opens).sum()),
        )

    def ladders(self, rows: Sequence[int] | Integers, columns: Sequence[int] | Integers) -> Ladders:
        """Candidates' indices as ladders."""
        return Ladders(
            tuple(int(self.rows[row]) for row in rows), tuple(int(self.columns[column]) for column in columns)
        )

    def objective(self, rows: Integers, columns: Integers) -> float:
        """Step seconds plus restarts times compile seconds."""
        step_seconds, _, compiles = self.totals(rows, columns)
        return step_seconds + self.restarts * compiles


def build_problem(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    restarts: float,
    limits: Limits | None = None,
    pins: Ladders | None = None,
) -> LadderProblem:
    """Set the problem up for an engine that batches decodes.

    Args:
        steps: the histogram; rows below min_batched_seqs do not count.
        engine: the limits that the top rungs are.
        cost: prices.
        restarts: server starts charged to the histogram, >= 0.
        limits: hard limits.
        pins: a non-empty ladder on an axis pins it.

    Raises:
        UsageError: `restarts` is negative or not finite.
        InputError: a step is beyond the engine's limits, or a measured table lacks the top rungs.
        SolveError: pinned rungs, or a measured table's sizes, cannot keep the guard.
    """
    if not (math.isfinite(restarts) and restarts >= 0):
        raise UsageError(f"--restarts: found {restarts}, expected a number of 0 or more")
    limits = limits or Limits()
    pinned_rows = pins.num_seqs if pins else ()
    pinned_columns = pins.num_blocks if pins else ()
    rows, columns = _candidates(engine, cost)
    if pinned_rows:
        rows = np.array(pinned_rows, np.int64)
    if pinned_columns:
        columns = np.array(pinned_columns, np.int64)
    grid = steps.to_grid(engine)
    totals = grid.cumsum(0).cumsum(1)
    step_seconds = cost.batched_step_seconds(rows[:, None], columns[None, :])
    compile_seconds = cost.variant_compile_seconds(rows[:, None], columns[None, :])
    first = _first_sharing(cost.geometry.variant_key(rows[:, None], columns[None, :]))
    weights = np.diff(np.diff(totals[np.r_[0, rows]][:, np.r_[0, columns]], axis=0), axis=1)
    pool_is_short = engine.max_num_seqs - 1 + engine.max_num_blocks > engine.usable_kv_blocks
    reducible = limits.guard is None and not pool_is_short
    if reducible and not pinned_columns:
        keep = _useful_columns(weights, step_seconds, compile_seconds, first)
        columns, step_seconds, compile_seconds = (
            columns[keep],
            step_seconds[:, keep],
            compile_seconds[:, keep],
        )
        first = _first_sharing(cost.geometry.variant_key(rows[:, None], columns[None, :]))
        weights = np.diff(np.diff(totals[np.r_[0, rows]][:, np.r_[0, columns]], axis=0), axis=1)
    if reducible and not pinned_rows:
        keep = _useful_rows(weights, step_seconds, compile_seconds, first)
        rows, step_seconds, compile_seconds, first = (
            rows[keep],
            step_seconds[keep],
            compile_seconds[keep],
            first[keep],
        )
    if len(rows) > _MAX_ROWS:
        raise UsageError(
            f"max_num_seqs: found {len(rows)} batch sizes to choose from, expected at most {_MAX_ROWS}"
        )
    problem = LadderProblem(
        rows=rows,
        columns=columns,
        cumulative=np.ascontiguousarray(totals[np.r_[0, rows]][:, np.r_[0, columns]]),
        step_seconds=np.ascontiguousarray(step_seconds),
        compile_seconds=np.ascontiguousarray(compile_seconds),
        first_column=np.ascontiguousarray(first),
        reach=_reach(rows, columns, engine),
        lowest_row=_lowest_below(rows, engine.min_batched_seqs - 1, limits.guard),
        lowest_column=_lowest_below(columns, 0, limits.guard),
        restarts=float(restarts),
        limits=_as_count_where_equal(limits, compile_seconds),
        rows_pinned=bool(pinned_rows),
        columns_pinned=bool(pinned_columns),
    )
    _check_guard(problem, limits.guard)
    return problem


def _candidates(engine: Engine, cost: CostModel) -> tuple[Integers, Integers]:
    rows = np.arange(engine.min_batched_seqs, engine.max_num_seqs + 1, dtype=np.int64)
    columns = np.arange(1, engine.max_num_blocks + 1, dtype=np.int64)
    sizes = cost.table_sizes()
    if sizes is None:
        return rows, columns
    rows = np.intersect1d(rows, np.array(sizes[0], np.int64))
    columns = np.intersect1d(columns, np.array(sizes[1], np.int64))
    for axis, found, top in (
        ("num_seqs", rows, engine.max_num_seqs),
        ("num_blocks", columns, engine.max_num_blocks),
    ):
        if not len(found) or found[-1] != top:
            raise InputError(
                f"no row for {axis} {top}", "the engine's top rung in the measured table", path=cost.name
            )
    return rows, columns


def _first_sharing(keys: Integers) -> Integers:
    """Lowest column of each column's variant; refuses a geometry the solver's sums would misprice."""
    rows, columns = keys.shape
    opens = np.ones((rows, columns), bool)
    opens[:, 1:] = keys[:, 1:] != keys[:, :-1]
    first = np.maximum.accumulate(np.where(opens, np.arange(columns)[None, :], 0), axis=1)
    if int(opens.sum()) != len(np.unique(keys)):
        raise InternalError(
            "the kernel's variants are not consecutive in num_blocks, or shared between num_seqs"
        )
    return first.astype(np.int64)


def _useful_columns(weights: Floats, step: Floats, price: Floats, first: Integers) -> NDArray[np.intp]:
    columns = weights.shape[1]
    keep = np.ones(columns, bool)
    for c in range(1, columns - 1):
        if weights[:, c].any():
            continue
        shared_above = first[:, c + 1] <= c
        keep[c] = not (
            (step[:, c - 1] <= step[:, c]).all()
            and (price[:, c - 1] <= price[:, c]).all()
            and (first[shared_above, c + 1] <= c - 1).all()
        )
    return np.flatnonzero(keep)


def _useful_rows(weights: Floats, step: Floats, price: Floats, first: Integers) -> NDArray[np.intp]:
    rows = weights.shape[0]
    keep = np.ones(rows, bool)
    for r in range(1, rows - 1):
        keep[r] = weights[r].any() or not (
            (step[r - 1] <= step[r]).all()
            and (price[r - 1] <= price[r]).all()
            and (first[r - 1] <= first[r]).all()
        )
    return np.flatnonzero(keep)


def _as_count_where_equal(limits: Limits, compile_seconds: Floats) -> Limits:
    """A budget in seconds over variants of one price is a limit on their number, which solves faster."""
    budget = limits.max_compile_seconds
    if budget is None:
        return limits
    low, high = float(compile_seconds.min()), float(compile_seconds.max())
    if high == 0.0:
        return replace(limits, max_compile_seconds=None) if budget >= 0 else limits
    if low < high or budget < 0:
        return limits
    # Variants that the pool cannot hold cost nothing and count nothing, so one price is still one count.
    count = math.floor(budget / high * (1 + _RELATIVE_SLACK))
    if limits.max_variants is not None:
        count = min(count, limits.max_variants)
    return replace(limits, max_variants=count, max_compile_seconds=None) if count >= 1 else limits


def _reach(rows: Integers, columns: Integers, engine: Engine) -> Integers:
    below = np.r_[engine.min_batched_seqs - 1, rows]  # sequences below the smallest batch, by position
    blocks = engine.usable_kv_blocks - below - 1  # the most blocks below the longest sequence's
    reach: Integers = np.searchsorted(np.r_[0, columns], blocks, side="right").astype(np.int64) - 1
    return reach


def _lowest_below(rungs: Integers, start: int, guard: float | None) -> Integers:
    lowest = np.zeros(len(rungs) + 1, np.int64)
    if guard is not None:
        # The smallest size padded to a rung, one above the rung below, has to be rung / guard or more.
        smallest = np.ceil(rungs / guard * (1 - _RELATIVE_SLACK))
        lowest[1:] = np.searchsorted(np.r_[start, rungs], smallest - 1)
    return lowest


def _check_guard(problem: LadderProblem, guard: float | None) -> None:
    """Pinned rungs have to keep the guard, and a measured table's sizes have to leave a way to keep it."""
    for axis, pinned, rungs, lowest in (
        ("num_seqs", problem.rows_pinned, problem.rows, problem.lowest_row),
        ("num_blocks", problem.columns_pinned, problem.columns, problem.lowest_column),
    ):
        # No candidate is allowed below this one; among pinned rungs the one just below has to be.
        broken = np.flatnonzero(lowest[1:] > np.arange(len(rungs)))
        if len(broken):
            at = int(broken[0])
            below = f"after {rungs[at - 1]}" if at else "first"
            what = f"--{axis.replace('_', '-')}" if pinned else f"{axis} sizes of the measured table"
            kind = "rungs" if pinned else "sizes"
            raise SolveError(
                f"{what}: found {rungs[at]} {below}, expected {kind} that keep --guard {guard:g}"
            )
