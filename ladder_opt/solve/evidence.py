"""Where a histogram says nothing, and how badly ladders may pad there.

A tuned ladder leaves sizes that did not occur to whatever rung comes next, often the top one. Traffic moves:
the worst factor by which any size would be padded says what such a move can cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.ladder import AXES, Axis, Ladders
from ladder_opt.occupancy.histogram import StepHistogram


@dataclass(frozen=True, kw_only=True)
class WorstPadding:
    """The size of one axis that ladders pad the most.

    Attributes:
        axis: num_seqs or num_blocks.
        size: the smallest size padded to the rung.
        rung: what it is padded to.
        factor: rung / size.
        unseen_from: the first of the sizes up to the rung that no step had, or None where all were seen.
        unseen_to: the last of that run.
    """

    axis: Axis
    size: int
    rung: int
    factor: float
    unseen_from: int | None
    unseen_to: int | None


def worst_padding(steps: StepHistogram, engine: Engine, ladders: Ladders) -> tuple[WorstPadding, ...]:
    """For each axis the rung with the largest factor over the smallest size padded to it."""
    batched = steps.batched(engine)
    seen = steps.num_blocks[batched]
    worst = []
    if ladders.num_seqs:
        worst.append(_worst(AXES[0], ladders.num_seqs, engine.min_batched_seqs, steps.num_seqs[batched]))
    elif ladders.query_lens is None:
        return ()
    block_ladders = {ladders.num_blocks}
    if ladders.ragged is not None:
        block_ladders = set(ladders.ragged)
    if ladders.query_lens is not None and steps.sequences is not None:
        seen = np.union1d(seen, steps.sequences.num_blocks)
    of_blocks = (_worst(AXES[1], blocks, 1, seen) for blocks in sorted(block_ladders))
    return (*worst, max(of_blocks, key=lambda each: each.factor))


def _worst(axis: Axis, rungs: tuple[int, ...], smallest: int, seen: NDArray[np.int64]) -> WorstPadding:
    sizes = (smallest, *(rung + 1 for rung in rungs[:-1]))
    factors = [rung / size for rung, size in zip(rungs, sizes, strict=True)]
    at = factors.index(max(factors))
    run = _first_run(np.setdiff1d(np.arange(sizes[at], rungs[at] + 1), seen).tolist())
    return WorstPadding(
        axis=axis,
        size=sizes[at],
        rung=rungs[at],
        factor=factors[at],
        unseen_from=run[0] if run else None,
        unseen_to=run[-1] if run else None,
    )


def unseen_share(steps: StepHistogram, engine: Engine) -> float:
    """Share of the (num_seqs, num_blocks) sizes that a batched step may have and none had."""
    # A batch of n sequences, one of them of b blocks, needs n - 1 + b blocks of the pool.
    seqs = np.arange(engine.min_batched_seqs, engine.max_num_seqs + 1)
    possible = int(np.clip(engine.usable_kv_blocks + 1 - seqs, 0, engine.max_num_blocks).sum())
    return 1.0 - float(steps.batched(engine).sum()) / possible if possible else 0.0


def _first_run(sizes: list[int]) -> list[int]:
    run: list[int] = []
    for size in sizes:
        if run and size != run[-1] + 1:
            break
        run.append(size)
    return run
