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
this decides for the whole variant, since higher rungs need more. `reach[i, c]` is the highest position a
that still fits. Nor is a variant compiled whose entries (pages that one iteration reads) reach the number of
pages: its `first_column` is -1, below every position.

**Query rows.** With target `spyre-env` the per-sequence kernel shares the block ladder; its query lengths are
further rows, below those of batched decode (`_rows`).

**Guard.** With a guard R, a rung may be at most R times the smallest size padded to it: m_c <= R * (m_a + 1),
and the same for rows. `lowest_column[c]` and `lowest_row[j]` are the lowest positions allowed below.

**Reductions** (`_rows.useful_columns`, `_rows.useful_rows`), each by moving a rung down without raising any
term:

* A column c with no steps in (m_{c-1}, m_c] is left out if in every row its step and compile are no cheaper
  than those of c-1, and wherever c+1 shares c's variant it shares c-1's too. *Proof.* Take a ladder that
  holds c. Put c-1 in its place (or drop c if c-1 is there). No step is padded worse, since none lies in
  between. The variant at c-1 costs no more than the one at c; variants below are shared at c-1 whenever they
  were at c (they start no higher); and the next rung up pays a compile afterwards only if it did before,
  by the last condition.
  Where sequences of m_{c-1} blocks are long enough for a query length, those of m_c are too: the move
  brings no per-sequence variant about.
* A row r that is not required, with no steps in (s_{r-1}, s_r], is left out if for every column step and
  compile are no cheaper than in r-1, every variant of row r-1 starts no higher than that of row r at the
  same column, and the rung above would find the same variants to open above r-1 as above r (`reach`; the
  shortest query that is padded to it gets shorter). *Proof.* The same move: with variants starting no higher,
  the rungs of any M open no more variants in row r-1, and each of them is no dearer.

Both are left undone under a guard, or where the pool is short anywhere: there a move can break a limit.
Moves are chained from the top down, so a run of useless candidates falls onto the one below it. Gathers are
not monotone in s (32 // s jumps), which is why rows are compared as they are and never assumed useless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import check_fields
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, SolveError, UsageError
from ladder_opt.ladder import Ladders, Target
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.sequences import known_calls
from ladder_opt.solve._rows import Rows, batched_rows, query_rows, stacked, useful_columns, useful_rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MAX_ROWS = 4096  # intervals of rows are counted by its square
_MAX_PAIRS = 10_000_000  # of candidates; a dozen arrays have as many elements
QUERY_GRAIN_TOKENS = 64  # query lengths are solved for in whole steps of this; see docs/design/0007
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
        check_fields(self)
        if self.max_variants is not None and self.max_variants < 1:
            raise UsageError(f"--max-variants: found {self.max_variants}, expected 1 or more")
        budget = self.max_compile_seconds
        if budget is not None and math.isnan(budget):
            raise UsageError(f"--warmup-budget: found {budget}, expected seconds")
        if self.guard is not None and not (math.isfinite(self.guard) and self.guard >= 1):
            raise UsageError(f"--guard: found {self.guard}, expected a factor of 1 or more")


class RowTerms(NamedTuple):
    """What the kernels price an edge with; of a `LadderProblem`, but for the price.

    Attributes:
        cumulative: (rows + 1, columns + 1) steps.
        step_seconds: (rows, columns).
        price: (rows, columns) what a variant is charged.
        compile_seconds: (rows, columns) of a variant, as the limit counts them.
        first_column: (rows, columns), the lowest column that shares the variant.
        reach: (rows + 1, columns) variants of the rows above a position that open above a higher column
            position than this are never compiled.
    """

    cumulative: Floats
    step_seconds: Floats
    price: Floats
    compile_seconds: Floats
    first_column: Integers
    reach: Integers


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
        reach: int64 (rows + 1, columns), by the position below a row: the highest position of the column
            below at which a variant of the column opens; -1 for none. A position p is candidate p - 1; 0 is
            none.
        lowest_row: int64 (rows + 1,), by position: the lowest position that may be the rung below.
        lowest_column: int64 (columns + 1,), the same for columns.
        restarts: server starts that compiles are charged for.
        limits: hard limits.
        rows_pinned: whether every row has to be a rung.
        columns_pinned: whether every column has to be a rung.
        num_query_rows: the first so many rows are query lengths of the per-sequence kernel; see `_rows`.
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
    num_query_rows: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.rows), len(self.columns)

    @property
    def typical_compile_seconds(self) -> float:
        """The mean variant's compile, above 0: brings limits in seconds to the scale of variants."""
        return max(float(self.compile_seconds.mean()), 1e-300)

    def row_terms(self, price: Floats) -> RowTerms:
        """What edges are priced with where a variant is charged `price`, float64 (rows, columns)."""
        return RowTerms(
            self.cumulative, self.step_seconds, price, self.compile_seconds, self.first_column, self.reach
        )

    def opens(self, rows: Integers, columns: Integers) -> NDArray[np.bool_]:
        """Whether each rung pair of ladders (candidates' indices) is the lowest of a compiled variant."""
        below = np.r_[0, columns[:-1] + 1][None, :]  # positions
        reach = self.reach[np.r_[0, rows[:-1] + 1]][:, columns]
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
        queries = tuple(int(self.rows[row]) for row in rows if row < self.num_query_rows)
        return Ladders(
            tuple(int(self.rows[row]) for row in rows if row >= self.num_query_rows),
            tuple(int(self.columns[column]) for column in columns),
            query_lens=queries or None,
        )

    def indices(self, ladders: Ladders) -> tuple[Integers, Integers]:
        """Ladders of candidates as their indices."""
        queries = self.num_query_rows
        below = np.searchsorted(self.rows[:queries], np.array(ladders.query_lens or (), np.int64))
        above = queries + np.searchsorted(self.rows[queries:], np.array(ladders.num_seqs, np.int64))
        rows = np.concatenate((below, above)).astype(np.int64)
        return rows, np.searchsorted(self.columns, np.array(ladders.num_blocks)).astype(np.int64)

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
    target: Target = "plugin",
) -> LadderProblem:
    """Set the problem up.

    Args:
        steps: the histogram; rows below min_batched_seqs do not count. With target `spyre-env` it holds the
            calls of the per-sequence kernel too.
        engine: the limits that the top rungs are; one that batches decodes, unless for `spyre-env`.
        cost: prices.
        restarts: server starts charged to the histogram, >= 0.
        limits: hard limits.
        pins: a non-empty ladder on an axis pins it.
        target: `spyre-env` shares the num_blocks ladder with the per-sequence kernel.

    Raises:
        UsageError: `restarts` is negative or not finite, or calls are not known.
        InputError: a step is beyond the engine's limits, or a measured table lacks the top rungs.
        SolveError: pinned rungs, or a measured table's sizes, cannot keep the guard.
    """
    if not (math.isfinite(restarts) and restarts >= 0):
        raise UsageError(f"--restarts: found {restarts}, expected a number of 0 or more")
    limits = limits or Limits()
    traffic = _Traffic(steps, engine, cost, target, pins or Ladders((), ()))
    rows, columns = traffic.rows, traffic.columns
    queries = len(rows[0])
    if queries and (queries + len(rows[1])) * len(columns) > _MAX_PAIRS:
        raise UsageError(
            f"--query-lens: found {queries} query lengths and {len(columns)} block rungs to choose from, "
            f"expected at most {_MAX_PAIRS} pairs of them (a list of lengths has fewer)"
        )
    parts = traffic.build(rows, columns)
    pool_is_short = engine.max_num_seqs - 1 + engine.max_num_blocks > engine.usable_kv_blocks
    if limits.guard is None and not pool_is_short and not (parts.first_column < 0).any():
        if not traffic.columns_pinned:
            columns = columns[useful_columns(parts)]
            parts = traffic.build(rows, columns)
        keep = useful_rows(parts, queries)
        rows = rows[0][keep[keep < queries]], rows[1][keep[keep >= queries] - queries]
        queries = len(rows[0])
        parts = traffic.build(rows, columns)
    if len(parts.sizes) > _MAX_ROWS:
        what = "batch sizes and query lengths" if queries else "batch sizes"
        option = "--query-lens" if queries > len(rows[1]) else "max_num_seqs"
        raise UsageError(
            f"{option}: found {len(parts.sizes)} {what} to choose from, expected at most {_MAX_ROWS}"
        )
    below_seqs = queries + _lowest_below(rows[1], engine.min_batched_seqs - 1, limits.guard)[1:]
    problem = LadderProblem(
        rows=parts.sizes,
        columns=columns,
        cumulative=np.ascontiguousarray(parts.cumulative),
        step_seconds=np.ascontiguousarray(parts.step_seconds),
        compile_seconds=np.ascontiguousarray(parts.compile_seconds),
        first_column=np.ascontiguousarray(parts.first_column),
        reach=np.concatenate((parts.reach, np.full((1, len(columns)), -1))),
        lowest_row=np.maximum(
            _nearest_required(parts.required), np.r_[np.zeros(queries + 1, int), below_seqs]
        ),
        lowest_column=_lowest_below(columns, 0, limits.guard),
        restarts=float(restarts),
        limits=_as_count_where_equal(limits, parts.compile_seconds),
        rows_pinned=traffic.rows_pinned,
        columns_pinned=traffic.columns_pinned,
        num_query_rows=queries,
    )
    _check_guard(problem, limits.guard, seqs_pinned=bool(pins and pins.num_seqs))
    return problem


def cumulative_on(
    problem: LadderProblem,
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    target: Target = "plugin",
) -> Floats:
    """Another histogram's `LadderProblem.cumulative`, on the candidates of a problem.

    Raises:
        UsageError: calls are not known.
        InputError: a step is beyond the engine's limits.
    """
    traffic = _Traffic(steps, engine, cost, target, Ladders((), ()))
    rows = problem.rows[: problem.num_query_rows], problem.rows[problem.num_query_rows :]
    return np.ascontiguousarray(traffic.build(rows, problem.columns).cumulative)


class _Traffic:
    """What a problem is built from, for any choice of candidates."""

    def __init__(
        self, steps: StepHistogram, engine: Engine, cost: CostModel, target: Target, pins: Ladders
    ) -> None:
        self._engine, self._cost, self._target, self._pins = engine, cost, target, pins
        self._calls = None if target == "plugin" else known_calls(steps.sequences)
        self._totals = steps.to_grid(engine).cumsum(0).cumsum(1)
        seqs, columns = _candidates(engine, cost)
        if pins.num_seqs:
            seqs = np.array(pins.num_seqs, np.int64)
        queries = np.zeros(0, np.int64)
        if target == "spyre-env":
            queries = np.array(pins.query_lens or query_candidates(engine, cost), np.int64)
        self.rows = queries, seqs
        self.columns = np.array(pins.num_blocks, np.int64) if pins.num_blocks else columns
        self.columns_pinned = bool(pins.num_blocks)
        self.rows_pinned = bool(pins.num_seqs) and (target == "plugin" or bool(pins.query_lens))

    def build(self, rows: tuple[Integers, Integers], columns: Integers) -> Rows:
        """Rows for candidate query lengths (none for the plugin) and num_seqs rungs."""
        queries, seqs = rows
        batched = batched_rows(
            self._totals,
            seqs,
            columns,
            self._engine,
            self._cost,
            pinned=bool(self._pins.num_seqs),
            any_variant=self._target == "spyre-env",
        )
        if self._calls is None:
            return batched
        calls = query_rows(
            self._calls, queries, columns, self._engine, self._cost, pinned=bool(self._pins.query_lens)
        )
        return stacked(calls, batched)


def query_candidates(engine: Engine, cost: CostModel) -> list[int]:
    """Query lengths that are solved for: 1, multiples of the grain, and max_num_batched_tokens.

    A decode needs the first, and the plugin appends the last to any list.

    Where query padding costs nothing, a length in between only adds variants: whatever is padded to it could
    go to the next one, and a variant that the next one then needs (m blocks hold its shortest query) is one
    that is no longer needed for the length left out.
    """
    top = engine.max_num_batched_tokens
    longest = min(engine.max_model_len + QUERY_GRAIN_TOKENS, top)
    between: Iterable[int] = range(QUERY_GRAIN_TOKENS, longest, QUERY_GRAIN_TOKENS)
    if cost.per_sequence is None or not cost.per_sequence.per_query_gather:
        between = ()
    return sorted({1, *between, top})


def _nearest_required(required: NDArray[np.bool_]) -> Integers:
    """By position: the position of the last required row below it, 0 for none."""
    positions = np.where(required, np.arange(1, len(required) + 1), 0)
    nearest: Integers = np.r_[0, 0, np.maximum.accumulate(positions)[:-1]].astype(np.int64)
    return nearest


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


def _lowest_below(rungs: Integers, start: int, guard: float | None) -> Integers:
    lowest = np.zeros(len(rungs) + 1, np.int64)
    if guard is not None:
        # The smallest size padded to a rung, one above the rung below, has to be rung / guard or more.
        smallest = np.ceil(rungs / guard * (1 - _RELATIVE_SLACK))
        lowest[1:] = np.searchsorted(np.r_[start, rungs], smallest - 1)
    return lowest


def _check_guard(problem: LadderProblem, guard: float | None, *, seqs_pinned: bool) -> None:
    """Pinned rungs have to keep the guard, and a measured table's sizes have to leave a way to keep it."""
    queries = problem.num_query_rows
    for axis, pinned, rungs, lowest in (
        ("num_seqs", seqs_pinned, problem.rows[queries:], problem.lowest_row[queries:] - queries),
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
