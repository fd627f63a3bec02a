"""The ragged solver: every num_seqs rung has a num_blocks ladder of its own. Exact.

Without limits the problem is two nested shortest paths: the cheapest block ladder of every interval of rows
(`_dp_kernel.interval_dp`), then the cheapest chain of intervals. Both are polynomial.

With limits the chain needs more than the cheapest ladder of an interval. Multipliers mu, nu >= 0 of the
limits give a bound, as for the product problem, and an incumbent; then every interval that a better chain may
hold keeps all its block ladders that none beats in seconds, variants and compile seconds, and the chain keeps
labels of the same three. Labels that cannot end below the incumbent, at the multipliers' prices, are dropped:
what is left is exact.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders
from ladder_opt.solve import _axis_kernel as axis_kernel
from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve._ascent import Relaxation, excess, interval_costs
from ladder_opt.solve._incumbent import Incumbent, as_good_with_fewer, tie_price
from ladder_opt.solve._product import root_relaxation
from ladder_opt.solve.problem import Floats, Integers, LadderProblem, Limits
from ladder_opt.solve.result import SolveResult, Status, StopReason

_DUAL_ITERATIONS = 60
_LABEL_WORK = 100_000_000  # labels to extend in one interval
_TIE_PAIRS = 256
"""Candidate rung pairs up to which fewer variants are looked for: labels take as long again as the solve."""


@dataclass(frozen=True)
class _Chain:
    """Rungs with their block ladders, as candidates' indices."""

    rows: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Label:
    seconds: float
    variants: int
    compiles: float
    chain: _Chain


def solve_ragged(problem: LadderProblem, *, time_limit_seconds: float) -> SolveResult:
    """The best ragged ladders.

    Args:
        problem: the instance; a pinned num_blocks ladder is refused before it gets here.
        time_limit_seconds: for the labels that limits need; past it the result is FEASIBLE.

    Raises:
        SolveError: no ladders keep the limits, or none were found in time.
    """
    started = time.perf_counter()
    deadline = started + time_limit_seconds
    price = problem.restarts * problem.compile_seconds
    rough = Incumbent(replace(problem, limits=Limits()), price, deadline)
    chain = _relaxed_chain(problem, rough, _start(problem, rough))
    scale = 0.0 if chain is None else _price_of(problem, chain)[0]
    incumbent = Incumbent(problem, price + tie_price(problem, scale), deadline)
    bound, best, proven = _search(problem, incumbent)
    if best is None:
        raise SolveError(
            "no ladders keep all limits" if proven else "no ladders within the limits were found in time"
        )
    best = _without_idle_rungs(problem, best)
    least = _price_of(problem, best)[0]
    if proven and problem.step_seconds.size <= _TIE_PAIRS:
        best = _with_fewer_variants(problem, best, deadline)
    objective = _price_of(problem, best)[0]
    return SolveResult(
        ladders=Ladders(
            tuple(int(problem.rows[row]) for row in best.rows),
            tuple(sorted({int(problem.columns[column]) for ladder in best.columns for column in ladder})),
            tuple(tuple(int(problem.columns[column]) for column in ladder) for ladder in best.columns),
        ),
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        stop_reason=StopReason.PROVEN if proven else StopReason.TIME_LIMIT,
        objective_seconds=objective,
        lower_bound_seconds=min(least, objective) if proven else max(0.0, min(bound, objective)),
        ragged_bound_seconds=min(least, objective) if proven else max(0.0, min(bound, objective)),
        nodes=0,
        bound_evaluations=1,
        solve_seconds=time.perf_counter() - started,
    )


def _with_fewer_variants(problem: LadderProblem, best: _Chain, deadline: float) -> _Chain:
    """The chain, or another of the same objective with fewer variants: a tie goes to fewer.

    Each solve has one variant less to spend, and looks for what costs no more.
    """
    while time.perf_counter() <= deadline:
        objective, variants, _ = _price_of(problem, best)
        if variants <= 1:
            break
        incumbent = as_good_with_fewer(problem, objective, variants, deadline)
        _, found, _ = _search(incumbent.problem, incumbent)
        if found is None:
            break
        best = _without_idle_rungs(problem, found)
    return best


def _search(problem: LadderProblem, incumbent: Incumbent) -> tuple[float, _Chain | None, bool]:
    relaxation = _start(problem, incumbent)
    if not incumbent.limited:
        chain = _relaxed_chain(problem, incumbent, relaxation)
        return (-np.inf, None, True) if chain is None else (_price_of(problem, chain)[0], chain, True)
    relaxation, best = _dual(problem, incumbent, relaxation)
    found, finished = _labels(problem, incumbent, relaxation)
    if found is not None:
        best = found
    if not finished:
        return relaxation.bound, best, False
    return (-np.inf if best is None else _price_of(problem, best)[0]), best, True


def _start(problem: LadderProblem, incumbent: Incumbent) -> Relaxation:
    relaxation = root_relaxation(incumbent)
    if not problem.rows_pinned:
        return relaxation
    only = np.zeros_like(relaxation.alive)
    every = np.arange(problem.shape[0])
    only[every, every + 1] = True
    return replace(relaxation, alive=relaxation.alive & only)


def _relaxed_chain(problem: LadderProblem, incumbent: Incumbent, relaxation: Relaxation) -> _Chain | None:
    """The cheapest chain at the relaxation's prices."""
    chosen = np.zeros(problem.shape[0], np.int64)
    costs = interval_costs(relaxation, incumbent)
    _, count = dp_kernel.cheapest_rows(costs, chosen)
    if not count:
        return None
    has_rung = np.zeros(problem.shape)
    dp_kernel.ragged_solution(
        problem.row_terms(relaxation.price(incumbent)),
        problem.lowest_column,
        relaxation.cumulative_multipliers(),
        chosen[:count],
        has_rung,
    )
    rows = tuple(chosen[:count].tolist())
    return _Chain(rows, tuple(tuple(np.flatnonzero(has_rung[row] > 0).tolist()) for row in rows))


def _product_chain(problem: LadderProblem, incumbent: Incumbent) -> _Chain | None:
    """Good product ladders as a chain: ragged ones are never worse. They become the incumbent."""
    if problem.rows_pinned:
        return None
    incumbent.start()
    if not len(incumbent.rows):
        return None
    columns = tuple(incumbent.columns.tolist())
    return _Chain(tuple(incumbent.rows.tolist()), (columns,) * len(incumbent.rows))


def _dual(
    problem: LadderProblem, incumbent: Incumbent, relaxation: Relaxation
) -> tuple[Relaxation, _Chain | None]:
    """Raise the limits' multipliers; every allowed chain on the way may be the incumbent."""
    best_chain = _product_chain(problem, incumbent)
    best = current = relaxation
    typical = problem.typical_compile_seconds
    scale = 1.0
    for _ in range(_DUAL_ITERATIONS):
        chain = _relaxed_chain(problem, incumbent, current)
        if chain is None:
            break
        seconds, variants, compiles = _price_of(problem, chain)
        bound = (
            seconds
            + current.per_variant * variants
            + current.per_compile_second * compiles
            - current.allowance(incumbent)
        )
        if bound > best.bound:
            best = replace(current, bound=bound)
        else:
            scale *= 0.8
        is_allowed = variants <= incumbent.max_variants and compiles <= incumbent.max_compiles
        if is_allowed and seconds < incumbent.seconds:
            incumbent.seconds = seconds
            best_chain = chain
        over_variants, over_compiles = excess(current, incumbent, variants, compiles)
        norm = over_variants**2 + over_compiles**2
        if norm == 0.0 or time.perf_counter() > incumbent.deadline:
            break
        step = scale * max(incumbent.seconds - bound, 1e-12 * abs(bound)) / norm
        current = replace(
            current,
            per_variant=max(0.0, current.per_variant + step * over_variants),
            per_compile_second=max(0.0, current.per_compile_second + step * over_compiles / typical),
        )
    return best, best_chain


def _labels(
    problem: LadderProblem, incumbent: Incumbent, relaxation: Relaxation
) -> tuple[_Chain | None, bool]:
    """Chains with Pareto-optimal ladders in each interval; (a better chain or None, finished)."""
    rows, _ = problem.shape
    costs = interval_costs(relaxation, incumbent)
    rest = dp_kernel.counted_rows_above(costs, rows).min(axis=0)
    ahead = dp_kernel.counted_rows(costs, rows).min(axis=0)
    threshold = incumbent.bar + relaxation.allowance(incumbent)
    mu, nu = relaxation.per_variant, relaxation.per_compile_second
    labels: list[list[_Label]] = [[_Label(0.0, 0, 0.0, _Chain((), ()))]] + [[] for _ in range(rows)]
    for j in range(1, rows + 1):
        found: list[_Label] = []
        for i in range(j):
            if not labels[i] or ahead[i] + costs[i, j] + rest[j] >= threshold:
                continue
            if time.perf_counter() > incumbent.deadline:
                return None, False
            ceiling = threshold - ahead[i] - rest[j]
            parts = _interval_labels(incumbent, relaxation, (i, j), threshold=ceiling)
            if parts is None:
                return None, False
            for part in parts:
                for label in labels[i]:
                    seconds = label.seconds + part.seconds
                    variants = label.variants + part.variants
                    compiles = label.compiles + part.compiles
                    if variants > incumbent.max_variants or compiles > incumbent.max_compiles:
                        continue
                    if seconds + mu * variants + nu * compiles + rest[j] < threshold:
                        chain = _Chain(
                            (*label.chain.rows, *part.chain.rows), (*label.chain.columns, *part.chain.columns)
                        )
                        found.append(_Label(seconds, variants, compiles, chain))
        labels[j] = _undominated(found)
    whole = labels[rows]
    if not whole or whole[0].seconds >= incumbent.seconds:
        return None, True
    return whole[0].chain, True


def _interval_labels(
    incumbent: Incumbent, relaxation: Relaxation, interval: tuple[int, int], *, threshold: float
) -> list[_Label] | None:
    """Block ladders of rows (i, j] that none beats in what the limits count; None if too many."""
    problem = incumbent.problem
    i, j = interval
    seconds, variants, compiles, parent, position, first = axis_kernel.pareto_ladders(
        False,
        problem.row_terms(incumbent.price),
        problem.lowest_column,
        i,
        np.array([j - 1]),
        incumbent.max_variants,
        incumbent.max_compiles,
        relaxation.per_variant,
        relaxation.per_compile_second,
        threshold,
        _LABEL_WORK,
    )
    if first < 0:
        return None
    found = []
    for label in range(first, len(seconds)):
        columns = axis_kernel.rungs_of(label, parent, position)
        chain = _Chain((j - 1,), (tuple(columns.tolist()),))
        found.append(_Label(float(seconds[label]), int(variants[label]), float(compiles[label]), chain))
    return found


def _undominated(labels: list[_Label]) -> list[_Label]:
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda each: (each.seconds, each.variants, each.compiles)):
        if not any(each.variants <= label.variants and each.compiles <= label.compiles for each in kept):
            kept.append(label)
    return kept


def _price_of(problem: LadderProblem, chain: _Chain) -> tuple[float, int, float]:
    """(objective, variants, compile seconds) of a chain."""
    step_seconds = compiles = 0.0
    variants = 0
    base = 0
    for row, ladder in zip(chain.rows, chain.columns, strict=True):
        below: Integers = np.r_[0, np.array(ladder[:-1], np.int64) + 1]
        columns = np.array(ladder, np.int64)
        steps: Floats = problem.cumulative[row + 1] - problem.cumulative[base]
        step_seconds += float(
            ((steps[columns + 1] - steps[below]) * problem.step_seconds[row, columns]).sum()
        )
        opens = below <= np.minimum(problem.first_column[row, columns], problem.reach[base, columns])
        variants += int(opens.sum())
        compiles += float(problem.compile_seconds[row, columns][opens].sum())
        base = row + 1
    return step_seconds + problem.restarts * compiles, variants, compiles


def _without_idle_rungs(problem: LadderProblem, chain: _Chain) -> _Chain:
    """Drop block rungs that neither seconds nor variants need."""
    objective, variants, compiles = _price_of(problem, chain)
    allowed = objective + 1e-13 * abs(objective)
    for index, ladder in enumerate(chain.columns):
        for rung in ladder[:-1]:
            shorter = tuple(column for column in chain.columns[index] if column != rung)
            below = (0, *(column + 1 for column in shorter[:-1]))
            if any(
                low < problem.lowest_column[column + 1] for low, column in zip(below, shorter, strict=True)
            ):
                continue
            trial = _Chain(chain.rows, (*chain.columns[:index], shorter, *chain.columns[index + 1 :]))
            seconds, count, less = _price_of(problem, trial)
            if count <= variants and less <= compiles and seconds <= allowed:
                chain = trial
    return chain
