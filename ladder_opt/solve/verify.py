"""The independent check of a solve: plain Python, one step cell at a time.

It shares no code with the solver, with `price.py` or with the kernels' geometry: the formulas are
written out again. Only a kernel that a caller registered is asked itself, one rung pair at a time. Every
result goes through `check_result` before anyone sees it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ladder_opt.cost.geometry import get_kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram

_TOLERANCE = 1e-9


def price_plain(
    steps: StepHistogram, engine: Engine, cost: CostModel, ladders: Ladders
) -> tuple[float, float, int]:
    """(step seconds, compile seconds, distinct variants) of ladders on a histogram."""
    step_seconds = 0.0
    for n, b, weight in zip(
        steps.num_seqs.tolist(), steps.num_blocks.tolist(), steps.steps.tolist(), strict=True
    ):
        if n < engine.min_batched_seqs:
            continue
        s = min(rung for rung in ladders.num_seqs if rung >= n)
        m = min(rung for rung in _blocks_of(ladders, s) if rung >= b)
        step_seconds += weight * _step_seconds(cost, s, m)
    variants: dict[tuple[int, ...], float] = {}
    usable = math.inf if engine.num_kv_blocks is None else engine.num_kv_blocks - 1
    spyre_records = ladders.query_lens is not None
    fewest_seqs = engine.min_batched_seqs
    for s in ladders.num_seqs:
        fewest_blocks = 1
        for m in _blocks_of(ladders, s):
            # The smallest batch padded to (s, m): one sequence of fewest_blocks, the others of one block.
            occurs = spyre_records or fewest_blocks + (fewest_seqs - 1) <= usable
            if occurs and _entries(cost.kernel, s, m) <= usable:
                variants.setdefault(_shape(cost.kernel, s, m)[0], _compile_seconds(cost, s, m))
            fewest_blocks = m + 1
        fewest_seqs = s + 1
    if ladders.query_lens is not None:
        step_seconds += _price_calls(steps, cost, ladders, ladders.query_lens)
        shortest = 1
        for q in ladders.query_lens:
            for m in ladders.num_blocks:
                if m * engine.block_size >= shortest and m - 1 <= usable:
                    variants[0, q, m] = _sequence_compile_seconds(cost, m)
            shortest = q + 1
    return step_seconds, math.fsum(variants.values()), len(variants)


def _price_calls(
    steps: StepHistogram, cost: CostModel, ladders: Ladders, query_lens: tuple[int, ...]
) -> float:
    calls = steps.sequences
    if calls is None:
        raise InternalError("no calls to price query lengths with")
    per_query_gather = cost.per_sequence.per_query_gather if cost.per_sequence else 0.0
    seconds = 0.0
    for b, length, weight in zip(
        calls.num_blocks.tolist(), calls.query_len.tolist(), calls.calls.tolist(), strict=True
    ):
        m = min(rung for rung in ladders.num_blocks if rung >= b)
        q = min(rung for rung in query_lens if rung >= length)
        seconds += weight * m * (cost.replay_seconds.per_sequence_gather + per_query_gather * q)
    return seconds


def _sequence_compile_seconds(cost: CostModel, m: int) -> float:
    terms = cost.compile_seconds
    if cost.per_sequence is not None and cost.per_sequence.compile_seconds is not None:
        terms = cost.per_sequence.compile_seconds
    return cost.graphs_per_variant * (terms.base + terms.per_iteration * m + terms.per_iteration_sq * m * m)


def check_result(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    ladders: Ladders,
    *,
    restarts: float,
    objective_seconds: float,
    max_variants: int | None = None,
    max_compile_seconds: float | None = None,
    guard: float | None = None,
    pins: Ladders | None = None,
) -> None:
    """Re-price a solver's ladders and test that they keep every limit.

    Raises:
        InternalError: they do not, or the price differs.
    """
    tops = [("num_blocks", ladders.num_blocks, -(-engine.max_model_len // engine.block_size))]
    if ladders.num_seqs or ladders.query_lens is None:
        tops.append(("num_seqs", ladders.num_seqs, engine.max_num_seqs))
    if ladders.query_lens is not None:
        tops.append(("query_lens", ladders.query_lens, engine.max_num_batched_tokens))
        if ladders.query_lens[0] != 1:
            raise InternalError(f"query lengths start at {ladders.query_lens[0]}, not at 1")
    for name, rungs, top in tops:
        if rungs[-1] != top:
            raise InternalError(f"{name} ends on {rungs[-1]}, not on {top}")
    if ladders.num_seqs and ladders.num_seqs[0] < engine.min_batched_seqs:
        raise InternalError(f"num_seqs starts at {ladders.num_seqs[0]}, below {engine.min_batched_seqs}")
    _check_rungs(engine, ladders, guard=guard, pins=pins)
    step_seconds, compile_seconds, variants = price_plain(steps, engine, cost, ladders)
    objective = step_seconds + restarts * compile_seconds
    if not math.isclose(objective, objective_seconds, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise InternalError(f"the solver says {objective_seconds!r} s, the check {objective!r} s")
    if max_variants is not None and variants > max_variants:
        raise InternalError(f"{variants} variants, {max_variants} allowed")
    if max_compile_seconds is not None and compile_seconds > max_compile_seconds * (1 + _TOLERANCE):
        raise InternalError(f"{compile_seconds} s of compiles, {max_compile_seconds} s allowed")


def check_robust(
    workloads: Sequence[tuple[StepHistogram, float]],
    engine: Engine,
    cost: CostModel,
    ladders: Ladders,
    *,
    objectives_seconds: Sequence[float],
    optima_seconds: Sequence[float],
    worst_regret: float,
    max_variants: int | None = None,
    max_compile_seconds: float | None = None,
    guard: float | None = None,
    pins: Ladders | None = None,
) -> None:
    """Re-price ladders on each of several workloads, (histogram, restarts), and their worst regret.

    A workload whose optimum is 0 s has no regret in seconds, and is left out of the worst.

    Raises:
        InternalError: a price or the worst regret differs, or a limit is not kept.
    """
    worst = 0.0
    for (steps, restarts), said, optimum in zip(workloads, objectives_seconds, optima_seconds, strict=True):
        check_result(
            steps,
            engine,
            cost,
            ladders,
            restarts=restarts,
            objective_seconds=said,
            max_variants=max_variants,
            max_compile_seconds=max_compile_seconds,
            guard=guard,
            pins=pins,
        )
        if optimum > 0.0:
            step_seconds, compile_seconds, _ = price_plain(steps, engine, cost, ladders)
            worst = max(worst, (step_seconds + restarts * compile_seconds) / optimum - 1.0)
    differs = not math.isclose(worst, worst_regret, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if worst > worst_regret + _TOLERANCE or (differs and min(optima_seconds) > 0.0):
        raise InternalError(f"the solver says a worst regret of {worst_regret!r}, the check {worst!r}")


def _chunks(s: int, m: int) -> tuple[int, int]:
    blocks = 32 // s
    blocks = min(blocks, m)
    blocks = max(blocks, 1)
    chunks, rest = divmod(m, blocks)
    return blocks, chunks + (1 if rest else 0)


def _blocks_of(ladders: Ladders, s: int) -> tuple[int, ...]:
    if ladders.ragged is None:
        return ladders.num_blocks
    return dict(zip(ladders.num_seqs, ladders.ragged, strict=True))[s]


def _check_rungs(engine: Engine, ladders: Ladders, *, guard: float | None, pins: Ladders | None) -> None:
    if pins is not None:
        for name, pinned, got in (
            ("num_seqs", pins.num_seqs, ladders.num_seqs),
            ("num_blocks", pins.num_blocks, ladders.num_blocks),
            ("query_lens", pins.query_lens, ladders.query_lens),
        ):
            if pinned and tuple(pinned) != tuple(got or ()):
                raise InternalError(f"{name} is {got}, pinned to {pinned}")
    if guard is not None:
        block_ladders = [(_blocks_of(ladders, s), 1) for s in ladders.num_seqs]
        if not ladders.num_seqs:
            block_ladders = [(ladders.num_blocks, 1)]
        for rungs, smallest in [(ladders.num_seqs, engine.min_batched_seqs), *block_ladders]:
            for rung, least in zip(rungs, (smallest, *(below + 1 for below in rungs)), strict=False):
                if rung > guard * least * (1 + _TOLERANCE):
                    raise InternalError(f"size {least} is padded to {rung}, past the guard {guard}")


def _shape(kernel: str, s: int, m: int) -> tuple[tuple[int, ...], int, int]:
    """(variant, iterations, gathers) of a rung pair."""
    if kernel == "per_block":
        return (s, m), m, s * m
    if kernel == "chunked":
        blocks, chunks = _chunks(s, m)
        return (s, blocks, chunks), chunks, s * blocks * chunks
    other = get_kernel(kernel)
    return (int(other.variant_key(s, m)),), int(other.iterations(s, m)), int(other.gathers(s, m))


def _entries(kernel: str, s: int, m: int) -> int:
    """Pages that one iteration reads."""
    _, iterations, gathers = _shape(kernel, s, m)
    return gathers // iterations


def _step_seconds(cost: CostModel, s: int, m: int) -> float:
    if cost.step_table is not None:
        return next(seconds for n, b, seconds in cost.step_table if (n, b) == (s, m))
    _, iterations, gathers = _shape(cost.kernel, s, m)
    terms = cost.step_seconds
    return terms.base + terms.per_seq * s + terms.per_iteration * iterations + terms.per_gather * gathers


def _compile_seconds(cost: CostModel, s: int, m: int) -> float:
    if cost.compile_table is not None:
        same = [
            seconds
            for n, b, seconds in cost.compile_table
            if _shape(cost.kernel, n, b)[0] == _shape(cost.kernel, s, m)[0]
        ]
        return sum(same) / len(same)
    iterations = _shape(cost.kernel, s, m)[1]
    terms = cost.compile_seconds
    return cost.graphs_per_variant * (
        terms.base + terms.per_iteration * iterations + terms.per_iteration_sq * iterations * iterations
    )
