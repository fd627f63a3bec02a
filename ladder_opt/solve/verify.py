"""The independent check of a solve: plain Python, one step cell at a time.

It shares no code with the solver, with `price.py` or with the kernels' geometry: the formulas are
written out again. Only a kernel that a caller registered is asked itself, one rung pair at a time. Every
result goes through `check_result` before anyone sees it.
"""

from __future__ import annotations

import math

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
    fewest_seqs = engine.min_batched_seqs
    for s in ladders.num_seqs:
        fewest_blocks = 1
        for m in _blocks_of(ladders, s):
            # The smallest batch padded to (s, m): one sequence of fewest_blocks, the others of one block.
            if fewest_blocks + (fewest_seqs - 1) <= usable:
                variants.setdefault(_shape(cost.kernel, s, m)[0], _compile_seconds(cost, s, m))
            fewest_blocks = m + 1
        fewest_seqs = s + 1
    return step_seconds, math.fsum(variants.values()), len(variants)


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
    top = (engine.max_num_seqs, -(-engine.max_model_len // engine.block_size))
    if (ladders.num_seqs[-1], ladders.num_blocks[-1]) != top:
        raise InternalError(f"ladders end on {ladders.num_seqs[-1]}, {ladders.num_blocks[-1]}, not on {top}")
    if ladders.num_seqs[0] < engine.min_batched_seqs:
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
        ):
            if pinned and tuple(pinned) != tuple(got):
                raise InternalError(f"{name} is {got}, pinned to {pinned}")
    if guard is not None:
        block_ladders = [(_blocks_of(ladders, s), 1) for s in ladders.num_seqs]
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
