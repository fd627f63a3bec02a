"""Price a pair of ladders on a histogram: seconds, variants, gathers, hits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.cost.geometry import Kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.problem import query_candidates
from ladder_opt.solve.sequence_price import SequencePrice, price_sequences


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
        step_seconds: sum over the batched steps, and over the calls in `sequences`.
        compile_seconds: sum over distinct variants, those in `sequences` too.
        warmup_seconds: compile_seconds and the start-up that ladders do not change.
        num_variants: distinct variants of the whole product, dead ones included; none that the KV pool can
            never hold. Those in `sequences` count too.
        gathers: pages of the batched steps.
        batched_steps: steps that reach the ladders.
        per_sequence_steps: decode steps below min_batched_seqs.
        pair_seqs: int64 (rung pairs,), num_seqs rung of each pair.
        pair_blocks: int64 (rung pairs,), its num_blocks rung.
        hits: float64 (rung pairs,), steps padded to it.
        dead_variants: the lowest rung pair of every variant that no step is padded to.
        sequences: the per-sequence kernel's part, where it shares the num_blocks ladder.
        unrecorded_steps: steps padded to a variant that no recorder compiles, since one iteration of it reads
            as many pages as the KV cache has.
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
    pair_seqs: NDArray[np.int64]
    pair_blocks: NDArray[np.int64]
    hits: NDArray[np.float64]
    dead_variants: tuple[tuple[int, int], ...]
    sequences: SequencePrice | None = None
    unrecorded_steps: float = 0.0

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
        } | ({} if self.sequences is None else {"sequences": self.sequences.to_dict()})


@checked
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
    pairs = _rung_pairs(ladders, engine, cost.geometry)
    hits = _hits(steps, batched, ladders)
    step_seconds = padded = compile_seconds = 0.0
    variants = 0
    dead: tuple[tuple[int, int], ...] = ()
    if len(pairs.seqs):
        kernel = cost.geometry
        step_seconds = float((hits * cost.batched_step_seconds(pairs.seqs, pairs.blocks)).sum())
        padded = float((hits * kernel.gathers(pairs.seqs, pairs.blocks)).sum())
        keys = np.where(pairs.held, kernel.variant_key(pairs.seqs, pairs.blocks), -1)
        known, first, variant = np.unique(keys, return_index=True, return_inverse=True)
        used = np.bincount(variant.ravel(), hits, minlength=len(known)) > 0
        compiled = known >= 0
        variants = int(compiled.sum())
        prices = cost.variant_compile_seconds(pairs.seqs, pairs.blocks)
        compile_seconds = float(prices[first[compiled]].sum())
        dead = tuple((int(pairs.seqs[at]), int(pairs.blocks[at])) for at in np.sort(first[compiled & ~used]))
    sequences = price_sequences(steps.sequences, engine, cost, ladders)
    if sequences is not None:
        step_seconds += sequences.step_seconds
        compile_seconds += sequences.compile_seconds
        variants += sequences.num_variants
    startup_seconds = cost.startup_seconds_of("plugin" if sequences is None else "spyre-env")
    return LadderPrice(
        ladders=ladders,
        restarts=restarts,
        step_seconds=step_seconds,
        compile_seconds=compile_seconds,
        warmup_seconds=startup_seconds + compile_seconds,
        num_variants=variants,
        gathers=Gathers(
            real=float(steps.real_gathers()[batched].sum()),
            ragged_floor=float(steps.ragged_floor()[batched].sum()),
            padded=padded,
        ),
        batched_steps=float(weight.sum()),
        per_sequence_steps=float(steps.steps[~batched].sum()),
        pair_seqs=pairs.seqs,
        pair_blocks=pairs.blocks,
        hits=hits,
        dead_variants=dead,
        sequences=sequences,
        unrecorded_steps=float(hits[~pairs.held].sum()) if len(hits) else 0.0,
    )


def _check_covers(steps: StepHistogram, batched: NDArray[np.bool_], ladders: Ladders) -> None:
    for axis, rungs, sizes in (
        ("num_seqs", ladders.num_seqs, steps.num_seqs[batched]),
        ("num_blocks", ladders.num_blocks, steps.num_blocks[batched]),
    ):
        largest = int(sizes.max(initial=0))
        if largest > (rungs[-1] if rungs else 0):
            raise UsageError(f"{axis}: found {list(rungs)}, expected a rung of {largest} or more")


def distinct_variants(ladders: Ladders, engine: Engine, kernel: Kernel) -> int:
    """Variants that warm-up compiles for ladders: distinct ones, none that the KV pool can never hold."""
    pairs = _rung_pairs(ladders, engine, kernel)
    return len(np.unique(kernel.variant_key(pairs.seqs, pairs.blocks)[pairs.held]))


@dataclass(frozen=True)
class _RungPairs:
    """Every rung pair of ladders, num_seqs rung by num_seqs rung.

    `held` says whether the pair's variant may be compiled. For that, the KV pool has to hold the smallest
    batch padded there: one sequence more than the rung below holds, one of them a block longer than the
    block rung below, the others of one block. The Spyre plugin's own recorder does not ask for that. Nor may
    one iteration read as many pages as there are.
    """

    seqs: NDArray[np.int64]
    blocks: NDArray[np.int64]
    held: NDArray[np.bool_]


def _rung_pairs(ladders: Ladders, engine: Engine, kernel: Kernel) -> _RungPairs:
    seqs: list[int] = []
    blocks: list[int] = []
    needed: list[int] = []
    others = engine.min_batched_seqs - 1
    for index, rung in enumerate(ladders.num_seqs):
        ladder = ladders.blocks_of(index)
        seqs += [rung] * len(ladder)
        blocks += ladder
        needed += [others + below + 1 for below in (0, *ladder[:-1])]
        others = rung
    pairs = np.array(seqs, np.int64), np.array(blocks, np.int64)
    held = kernel.entries(*pairs) < engine.num_pages
    if ladders.query_lens is None:
        held &= np.array(needed, np.int64) <= engine.usable_kv_blocks
    return _RungPairs(*pairs, held)


def _hits(steps: StepHistogram, batched: NDArray[np.bool_], ladders: Ladders) -> NDArray[np.float64]:
    """Steps padded to each rung pair, in the order of `_rung_pairs`."""
    seqs, blocks, weight = steps.num_seqs[batched], steps.num_blocks[batched], steps.steps[batched]
    parts = []
    row = np.searchsorted(ladders.num_seqs, seqs) if ladders.num_seqs else np.zeros(0, np.int64)
    for index in range(len(ladders.num_seqs)):
        ladder = ladders.blocks_of(index)
        mine = row == index
        column = np.searchsorted(ladder, blocks[mine])
        parts.append(np.bincount(column, weight[mine], minlength=len(ladder)))
    return np.concatenate(parts) if parts else np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class RungValue:
    """One rung of a plan.

    Attributes:
        axis: num_seqs, num_blocks or query_lens.
        rung: its size.
        hits: batched steps padded to it; calls of the per-sequence kernel for a query length.
        forced: it is there whatever it earns: the engine's limit, or pinned.
        marginal_seconds: what the objective would lose without it; 0 for the top rung, which cannot go.
        of_num_seqs: of ragged ladders, the num_seqs rung whose block ladder it is in.
    """

    axis: str
    rung: int
    hits: float
    forced: bool
    marginal_seconds: float
    of_num_seqs: int | None = None


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
    for axis, rung, of_num_seqs, without in _removals(price.ladders):
        marginal = 0.0
        if without is not None:
            other = price_ladders(steps, engine, cost, without, restarts=price.restarts)
            marginal = other.objective_seconds - price.objective_seconds
        is_pinned = bool(pinned and getattr(pinned, axis))
        values.append(
            RungValue(
                axis=axis,
                rung=rung,
                hits=_rung_hits(price, axis, rung, of_num_seqs),
                forced=without is None or is_pinned,
                marginal_seconds=marginal,
                of_num_seqs=of_num_seqs,
            )
        )
    return tuple(values)


def _rung_hits(price: LadderPrice, axis: str, rung: int, of_num_seqs: int | None) -> float:
    if axis == "query_lens" and price.sequences is not None and price.ladders.query_lens is not None:
        return float(price.sequences.hits[:, price.ladders.query_lens.index(rung)].sum())
    here = price.pair_seqs == rung if axis == "num_seqs" else price.pair_blocks == rung
    if of_num_seqs is not None:
        here &= price.pair_seqs == of_num_seqs
    return float(price.hits[here].sum())


@dataclass(frozen=True, kw_only=True)
class AbsentRung:
    """The rung not in the ladders that would come closest to paying for itself.

    Attributes:
        axis: num_seqs, num_blocks or query_lens.
        rung: its size.
        saves_step_seconds: step seconds that adding it would save.
        costs_seconds: what its compiles would be charged.
        num_variants: how many it would add.
    """

    axis: str
    rung: int
    saves_step_seconds: float
    costs_seconds: float
    num_variants: int


def best_absent_rung(
    steps: StepHistogram, engine: Engine, cost: CostModel, price: LadderPrice
) -> AbsentRung | None:
    """Try every rung that two independent ladders lack; None for ragged ladders, or where none is lacking."""
    ladders = price.ladders
    if ladders.ragged is not None or not (ladders.num_seqs or ladders.query_lens):
        return None
    sizes = cost.table_sizes() or (range(engine.max_num_seqs), range(1, engine.max_num_blocks))
    best: AbsentRung | None = None
    for axis, rungs, candidates in (
        ("num_seqs", ladders.num_seqs, [size for size in sizes[0] if size >= engine.min_batched_seqs]),
        ("num_blocks", ladders.num_blocks, sizes[1]),
        ("query_lens", ladders.query_lens or (), query_candidates(engine, cost)),
    ):
        for rung in candidates:
            if not rungs or rung in rungs or rung > rungs[-1]:
                continue
            trial = _with_rungs(ladders, axis, tuple(sorted((*rungs, rung))))
            other = price_ladders(steps, engine, cost, trial, restarts=price.restarts)
            found = AbsentRung(
                axis=axis,
                rung=rung,
                saves_step_seconds=price.step_seconds - other.step_seconds,
                costs_seconds=price.restarts * (other.compile_seconds - price.compile_seconds),
                num_variants=other.num_variants - price.num_variants,
            )
            if best is None or _loss(found) < _loss(best):
                best = found
    return best


def _with_rungs(ladders: Ladders, axis: str, rungs: tuple[int, ...]) -> Ladders:
    return replace(ladders, **{axis: rungs})  # type: ignore[arg-type]  # of these axes all are tuples


def _loss(rung: AbsentRung) -> float:
    return rung.costs_seconds - rung.saves_step_seconds


def _removals(ladders: Ladders) -> Iterator[tuple[str, int, int | None, Ladders | None]]:
    """(axis, rung, its num_seqs rung where ragged, the ladders without it or None where it cannot go)."""
    if ladders.ragged is None:
        for axis in ("num_seqs", "num_blocks", "query_lens"):
            rungs = getattr(ladders, axis) or ()
            for index, rung in enumerate(rungs):
                # A decode is a query of 1, and the recorder only knows the lengths listed.
                has_to_stay = index == len(rungs) - 1 or (axis == "query_lens" and not index)
                rest = rungs[:index] + rungs[index + 1 :]
                yield axis, rung, None, None if has_to_stay else _with_rungs(ladders, axis, rest)
        return
    seqs = ladders.num_seqs
    for index, rung in enumerate(seqs):
        kept = ladders.blocks_by_rung()
        del kept[rung]
        yield "num_seqs", rung, None, None if index == len(seqs) - 1 else Ladders.from_ragged(kept)
    for row, of_num_seqs in enumerate(seqs):
        blocks = ladders.ragged[row]
        for index, rung in enumerate(blocks):
            is_top = index == len(blocks) - 1
            kept = ladders.blocks_by_rung() | {of_num_seqs: blocks[:index] + blocks[index + 1 :]}
            yield "num_blocks", rung, of_num_seqs, None if is_top else Ladders.from_ragged(kept)
