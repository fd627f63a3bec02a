"""Price a pair of ladders on a histogram: seconds, variants, gathers, hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram


@dataclass(frozen=True, kw_only=True)
class Gathers:
    """KV pages over all batched steps.

    Attributes:
        real: what the sequences themselves hold.
        ragged_floor: num_seqs * num_blocks of each step; no ladder goes below.
        padded: what the compiled shapes read.
    """

    real: float
    ragged_floor: float
    padded: float

    @property
    def fixable(self) -> float:
        """Padded above the floor: the ladders' part of the waste."""
        return self.padded - self.ragged_floor

    @property
    def overpay(self) -> float:
        """Fixable pages as a share of the floor; 0 without any step."""
        return self.fixable / self.ragged_floor if self.ragged_floor else 0.0


@dataclass(frozen=True, kw_only=True)
class LadderPrice:
    """What ladders cost on a histogram.

    Attributes:
        ladders: the ladders priced.
        restarts: server starts charged.
        step_seconds: sum over the batched steps.
        compile_seconds: sum over distinct variants.
        warmup_seconds: compile_seconds and the start-up that ladders do not change.
        num_variants: distinct variants of the whole product, dead ones included; none that the KV pool can
            never hold.
        gathers: pages of the batched steps.
        batched_steps: steps that reach the ladders.
        per_sequence_steps: decode steps below min_batched_seqs.
        hits: float64 (num_seqs rungs, num_blocks rungs), steps padded to each rung pair.
        dead_variants: the lowest rung pair of every variant that no step is padded to.
    """

    ladders: Ladders
    restarts: float
    step_seconds: float
    compile_seconds: float
    warmup_seconds: float
    num_variants: int
    gathers: Gathers
    batched_steps: float
    per_sequence_steps: float
    hits: NDArray[np.float64]
    dead_variants: tuple[tuple[int, int], ...]

    @property
    def objective_seconds(self) -> float:
        """step_seconds + restarts * compile_seconds."""
        return self.step_seconds + self.restarts * self.compile_seconds

    def to_dict(self) -> dict[str, Any]:
        """The numbers of a plan file's `result` and `baselines` entries."""
        return {
            "objective_seconds": self.objective_seconds,
            "restarts": self.restarts,
            "step_seconds": self.step_seconds,
            "warmup_seconds": self.warmup_seconds,
            "num_variants": self.num_variants,
            "gathers": {
                "real": self.gathers.real,
                "ragged_floor": self.gathers.ragged_floor,
                "padded": self.gathers.padded,
            },
            "steps": {
                "total": self.batched_steps + self.per_sequence_steps,
                "batched": self.batched_steps,
                "per_sequence": self.per_sequence_steps,
            },
        }


def price_ladders(
    steps: StepHistogram, engine: Engine, cost: CostModel, ladders: Ladders, *, restarts: float
) -> LadderPrice:
    """Price ladders on a histogram.

    Args:
        steps: the histogram; rows below min_batched_seqs only count as per-sequence steps.
        engine: the limits.
        cost: prices.
        ladders: rungs of both axes; num_seqs empty where the engine batches nothing.
        restarts: server starts charged.

    Raises:
        InputError: a step is beyond the engine's limits, or a measured table lacks a rung pair.
        UsageError: a batched step is beyond the ladders.
    """
    steps.check_limits(engine)
    batched = steps.batched(engine)
    _check_covers(steps, batched, ladders)
    weight = steps.steps[batched]
    seqs = np.array(ladders.num_seqs, np.int64)
    blocks = np.array(ladders.num_blocks, np.int64)
    kernel = cost.geometry
    hits = np.zeros((len(seqs), len(blocks)))
    step_seconds = padded = compile_seconds = 0.0
    variants = 0
    dead: tuple[tuple[int, int], ...] = ()
    if len(seqs):
        row = np.searchsorted(seqs, steps.num_seqs[batched])
        column = np.searchsorted(blocks, steps.num_blocks[batched])
        np.add.at(hits, (row, column), weight)
        grid = (seqs[:, None], blocks[None, :])
        step_seconds = float((hits * cost.batched_step_seconds(*grid)).sum())
        padded = float((hits * kernel.gathers(*grid)).sum())
        held = _is_ever_held(seqs, blocks, engine)
        keys = np.where(held, kernel.variant_key(*grid), -1)
        known, first, variant = np.unique(keys, return_index=True, return_inverse=True)
        used = np.bincount(variant.ravel(), hits.ravel(), minlength=len(known)) > 0
        compiled = known >= 0
        variants = int(compiled.sum())
        compile_seconds = float(cost.variant_compile_seconds(*grid).ravel()[first[compiled]].sum())
        dead = tuple(
            (int(seqs[at // len(blocks)]), int(blocks[at % len(blocks)]))
            for at in np.sort(first[compiled & ~used])
        )
    return LadderPrice(
        ladders=ladders,
        restarts=restarts,
        step_seconds=step_seconds,
        compile_seconds=compile_seconds,
        warmup_seconds=cost.startup_seconds + compile_seconds,
        num_variants=variants,
        gathers=Gathers(
            real=float(steps.real_gathers()[batched].sum()),
            ragged_floor=float(steps.ragged_floor()[batched].sum()),
            padded=padded,
        ),
        batched_steps=float(weight.sum()),
        per_sequence_steps=float(steps.steps[~batched].sum()),
        hits=hits,
        dead_variants=dead,
    )


def _check_covers(steps: StepHistogram, batched: NDArray[np.bool_], ladders: Ladders) -> None:
    for axis, rungs, sizes in (
        ("num_seqs", ladders.num_seqs, steps.num_seqs[batched]),
        ("num_blocks", ladders.num_blocks, steps.num_blocks[batched]),
    ):
        largest = int(sizes.max(initial=0))
        if largest > (rungs[-1] if rungs else 0):
            raise UsageError(f"{axis}: found {list(rungs)}, expected a rung of {largest} or more")


def _is_ever_held(seqs: NDArray[np.int64], blocks: NDArray[np.int64], engine: Engine) -> NDArray[np.bool_]:
    """Whether the KV pool holds even the smallest batch padded to each rung pair; the others never occur.

    That batch has one sequence more than the rung below holds, one of them a block longer than the rung
    below, the others of one block.
    """
    others = np.r_[engine.min_batched_seqs - 1, seqs[:-1]]
    longest = np.r_[0, blocks[:-1]] + 1
    held: NDArray[np.bool_] = others[:, None] + longest[None, :] <= engine.usable_kv_blocks
    return held


@dataclass(frozen=True, kw_only=True)
class RungValue:
    """One rung of a plan.

    Attributes:
        axis: num_seqs or num_blocks.
        rung: its size.
        hits: steps padded to it.
        forced: it is there whatever it earns: the engine's limit, or pinned.
        marginal_seconds: what the objective would lose without it; 0 for the top rung, which cannot go.
    """

    axis: str
    rung: int
    hits: float
    forced: bool
    marginal_seconds: float


def value_rungs(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    price: LadderPrice,
    *,
    pinned: Ladders | None = None,
) -> tuple[RungValue, ...]:
    """What each rung of priced ladders earns: the ladders are priced again without it."""
    values = []
    axes = (
        ("num_seqs", price.ladders.num_seqs, price.hits.sum(axis=1), bool(pinned and pinned.num_seqs)),
        ("num_blocks", price.ladders.num_blocks, price.hits.sum(axis=0), bool(pinned and pinned.num_blocks)),
    )
    for axis, rungs, hits, is_pinned in axes:
        for index, rung in enumerate(rungs):
            is_top = index == len(rungs) - 1
            marginal = 0.0
            if not is_top:
                rest = rungs[:index] + rungs[index + 1 :]
                without = (
                    Ladders(rest, price.ladders.num_blocks)
                    if axis == "num_seqs"
                    else Ladders(price.ladders.num_seqs, rest)
                )
                other = price_ladders(steps, engine, cost, without, restarts=price.restarts)
                marginal = other.objective_seconds - price.objective_seconds
            forced = is_top or is_pinned
            hit = float(hits[index]) if len(hits) else 0.0
            values.append(RungValue(axis=axis, rung=rung, hits=hit, forced=forced, marginal_seconds=marginal))
    return tuple(values)
