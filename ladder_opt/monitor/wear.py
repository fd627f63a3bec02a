"""How a plan's rungs wear: those that no step comes to any more, and sizes that are padded far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.plan import Plan
from ladder_opt.solve.price import LadderPrice


@dataclass(frozen=True, kw_only=True)
class DeadRung:
    """A rung that steps of the plan's own traffic were padded to, and none of the new ones.

    Attributes:
        axis: num_seqs or num_blocks.
        rung: its size.
        of_num_seqs: of ragged ladders, the num_seqs rung whose block ladder it is in.
        share_then: of the plan's batched steps.
        has_to_stay: it is the top of its ladder, which covers the engine's limit.
    """

    axis: str
    rung: int
    of_num_seqs: int | None
    share_then: float
    has_to_stay: bool


@dataclass(frozen=True, kw_only=True)
class FarSize:
    """A size that steps have and no rung is near.

    Attributes:
        axis: num_seqs or num_blocks.
        size: what the steps have.
        rung: what it is padded to.
        factor: rung / size.
        share: of the batched steps.
        share_then: of the plan's own batched steps; None where the plan does not hold them.
        seconds: step seconds that a rung of this very size would save; None with a measured table, which
            does not price every size.
        share_of_seconds: of all batched step seconds.
    """

    axis: str
    size: int
    rung: int
    factor: float
    share: float
    share_then: float | None
    seconds: float | None
    share_of_seconds: float | None


def dead_rungs(plan: Plan, price: LadderPrice) -> tuple[DeadRung, ...]:
    """Rungs of the plan that lost all their steps; query lengths are left out, which no step is padded to."""
    total = plan.result.steps.batched
    ladders = price.ladders
    found = []
    for then in plan.result.rungs:
        if not then.hits or then.axis == "query_lens":
            continue
        here = (price.pair_seqs if then.axis == "num_seqs" else price.pair_blocks) == then.rung
        if then.of_num_seqs is not None:
            here &= price.pair_seqs == then.of_num_seqs
        if not here.any() or price.hits[here].sum():
            continue  # a clamped ladder has it no more
        top = ladders.num_seqs[-1] if then.axis == "num_seqs" else ladders.num_blocks[-1]
        found.append(
            DeadRung(
                axis=then.axis,
                rung=then.rung,
                of_num_seqs=then.of_num_seqs,
                share_then=then.hits / total if total else 0.0,
                has_to_stay=then.rung == top,
            )
        )
    return tuple(found)


def far_sizes(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    ladders: Ladders,
    *,
    then: StepHistogram | None = None,
) -> tuple[FarSize, ...]:
    """Sizes that are no rung, with what their padding costs; dearest first, then the most steps first.

    Args:
        steps: the new steps.
        engine: the limits.
        cost: prices.
        ladders: the rungs in use.
        then: the plan's own steps.
    """
    rows = steps.batched(engine)
    if not rows.any() or not ladders.num_seqs:
        return ()
    seqs, blocks, weight = steps.num_seqs[rows], steps.num_blocks[rows], steps.steps[rows]
    padded_seqs, padded_blocks = _padded(seqs, blocks, ladders)
    is_formula = cost.table_sizes() is None
    taken = cost.batched_step_seconds(padded_seqs, padded_blocks) * weight
    found: list[FarSize] = []
    for axis, sizes, rungs in (("num_seqs", seqs, padded_seqs), ("num_blocks", blocks, padded_blocks)):
        saved = None
        if is_formula:
            near = (seqs, padded_blocks) if axis == "num_seqs" else (padded_seqs, blocks)
            saved = taken - cost.batched_step_seconds(*near) * weight
        before = _shares(then, engine, axis)
        for size, rung in sorted({(int(s), int(r)) for s, r in zip(sizes, rungs, strict=True) if r > s}):
            here = (sizes == size) & (rungs == rung)
            seconds = None if saved is None else float(saved[here].sum())
            found.append(
                FarSize(
                    axis=axis,
                    size=size,
                    rung=rung,
                    factor=rung / size,
                    share=float(weight[here].sum() / weight.sum()),
                    share_then=None if before is None else before.get(size, 0.0),
                    seconds=seconds,
                    share_of_seconds=None if seconds is None else seconds / float(taken.sum() or 1.0),
                )
            )
    return tuple(sorted(found, key=lambda each: (-(each.seconds or 0.0), -each.share, each.axis, each.size)))


def _padded(
    seqs: NDArray[np.int64], blocks: NDArray[np.int64], ladders: Ladders
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    row = np.searchsorted(ladders.num_seqs, seqs)
    padded_blocks = np.zeros_like(blocks)
    for index in np.unique(row):
        ladder = np.array(ladders.blocks_of(int(index)))
        mine = row == index
        padded_blocks[mine] = ladder[np.searchsorted(ladder, blocks[mine])]
    return np.array(ladders.num_seqs)[row], padded_blocks


def _shares(steps: StepHistogram | None, engine: Engine, axis: str) -> dict[int, float] | None:
    if steps is None:
        return None
    rows = steps.batched(engine)
    sizes, weight = getattr(steps, axis)[rows], steps.steps[rows]
    total = float(weight.sum())
    return (
        {int(size): float(weight[sizes == size].sum() / total) for size in np.unique(sizes)} if total else {}
    )
