"""What moved between two cost models, term by term, and what that comes to on given steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.errors import InputError
from ladder_opt.solve.price import LadderPrice

STEP_TERMS: Final = ("base", "per_seq", "per_iteration", "per_gather")
COMPILE_TERMS: Final = ("base", "per_iteration", "per_iteration_sq")
QUANTITIES: Final = ("step", "attention", "compile")


@dataclass(frozen=True, kw_only=True)
class MovedTerm:
    """One term of both models.

    Attributes:
        term: as in the cost file, `step_seconds.per_gather`; a table as a whole: `step_table`. Compile terms
            are of a variant, all its graphs together.
        then: seconds in the plan's model.
        now: seconds in the new one.
        low: lower end of the new one's interval, where its fit says.
        high: upper end.
        moved: whether the old value lies outside that interval; without one, whether they differ at all.
        seconds: by how much the plan's objective on the new traffic grew through this term; None where it
            is not in it (start-up, the replay's terms).
    """

    term: str
    then: float | None
    now: float | None
    low: float | None
    high: float | None
    moved: bool
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured seconds of rung pairs, to be held against a cost model.

    Attributes:
        quantity: "step": a whole decode step; "attention": the batched kernel's part of it; "compile": a
            variant, all its graphs. What attention takes beside what grows with the rung pair is in a model's
            base, so that its rows are held against the model from the cheapest one on.
        num_seqs: (rows,), the rungs measured.
        num_blocks: (rows,)
        seconds: (rows,), above 0.
        spread: (rows,), relative standard error; NaN where it is not known.
    """

    quantity: str
    num_seqs: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        quantity: str,
        num_seqs: ArrayLike,
        num_blocks: ArrayLike,
        seconds: ArrayLike,
        spread: ArrayLike = np.nan,
    ) -> Measured:
        """From anything array-like.

        Raises:
            InputError: an unknown quantity, columns of other lengths, or seconds that are not above 0.
        """
        if quantity not in QUANTITIES:
            raise InputError(repr(quantity), f"one of {', '.join(QUANTITIES)}", column="quantity")
        taken = np.atleast_1d(np.asarray(seconds, np.float64))
        seqs, blocks = (np.atleast_1d(np.asarray(each, np.int64)) for each in (num_seqs, num_blocks))
        if not len(taken) == len(seqs) == len(blocks):
            raise InputError(
                f"{len(seqs)} num_seqs, {len(blocks)} num_blocks, {len(taken)} seconds",
                "columns of one length",
            )
        if not (np.isfinite(taken) & (taken > 0)).all() or (len(seqs) and min(seqs.min(), blocks.min()) < 1):
            raise InputError("seconds or sizes of 0 or less", "rung pairs from 1, seconds above 0")
        errors = np.broadcast_to(np.asarray(spread, np.float64), taken.shape).copy()
        return cls(quantity=quantity, num_seqs=seqs, num_blocks=blocks, seconds=taken, spread=errors)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Measurements of one quantity beside what a model says.

    Attributes:
        quantity: as in `Measured`.
        rows: how many.
        ratio: median of measured / predicted.
        ratio_low: 10th percentile of it.
        ratio_high: 90th percentile.
        noise: median relative standard error of the measurements; None where it is not known.
        worst_num_seqs: the rung pair that is furthest off.
        worst_num_blocks: likewise.
        worst_ratio: its measured / predicted.
    """

    quantity: str
    rows: int
    ratio: float
    ratio_low: float
    ratio_high: float
    noise: float | None
    worst_num_seqs: int
    worst_num_blocks: int
    worst_ratio: float


def moved_terms(then: CostModel, now: CostModel, price: LadderPrice) -> tuple[MovedTerm, ...]:
    """Terms that differ, those first that moved the plan's objective the most.

    Args:
        then: the plan's model.
        now: the new one.
        price: the plan's ladders on the new traffic, under either model: the steps of each rung pair count.
    """
    units = _units(now, price)
    intervals = _intervals(now)
    found = []
    for name, old, new in _terms(then, now):
        low, high = intervals.get(name, (None, None))
        if old == new:
            continue
        known = low is not None and high is not None and old is not None
        outside = known and not low <= old <= high  # type: ignore[operator]  # both are there
        unit = units.get(name)
        grown = None if unit is None or old is None or new is None else unit * (new - old)
        found.append(
            MovedTerm(
                term=name,
                then=old,
                now=new,
                low=low,
                high=high,
                moved=bool(outside) if known else True,
                seconds=grown,
            )
        )
    return tuple(sorted(found, key=lambda each: -abs(each.seconds or 0.0)))


def predictions(cost: CostModel, measured: Sequence[Measured]) -> tuple[Prediction, ...]:
    """Measurements beside what a model says of the pairs; rows that its tables lack are left out."""
    found = []
    for each in measured:
        ratio, rows = _ratios(cost, each)
        if not len(ratio):
            continue
        worst = int(np.argmax(np.abs(np.log(ratio))))
        known = each.spread[rows][np.isfinite(each.spread[rows])]
        found.append(
            Prediction(
                quantity=each.quantity,
                rows=len(ratio),
                ratio=float(np.median(ratio)),
                ratio_low=float(np.quantile(ratio, 0.1)),
                ratio_high=float(np.quantile(ratio, 0.9)),
                noise=float(np.median(known)) if len(known) else None,
                worst_num_seqs=int(each.num_seqs[rows][worst]),
                worst_num_blocks=int(each.num_blocks[rows][worst]),
                worst_ratio=float(ratio[worst]),
            )
        )
    return tuple(found)


def _ratios(cost: CostModel, measured: Measured) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Measured / predicted of the rows that the model prices above 0, and which rows these are."""
    sizes = cost.table_sizes()
    rows = np.arange(len(measured.seconds))
    if sizes is not None:
        rows = rows[np.isin(measured.num_seqs, sizes[0]) & np.isin(measured.num_blocks, sizes[1])]
    seqs, blocks, seconds = measured.num_seqs[rows], measured.num_blocks[rows], measured.seconds[rows]
    if not len(rows):
        return np.zeros(0), rows
    if measured.quantity == "compile":
        said = cost.variant_compile_seconds(seqs, blocks)
    else:
        said = cost.batched_step_seconds(seqs, blocks)
    if measured.quantity == "attention":
        least = np.lexsort((seconds, said))[0]
        said, seconds = said - said[least], seconds - seconds[least]
    priced = (said > 0) & (seconds > 0)
    return seconds[priced] / said[priced], rows[priced]


def _terms(then: CostModel, now: CostModel) -> list[tuple[str, float | None, float | None]]:
    """(name, old value, new value) of every term; a table stands for its part's terms."""
    rows: list[tuple[str, float | None, float | None]] = []
    for part, names, table in (
        ("step_seconds", STEP_TERMS, "step_table"),
        ("compile_seconds", COMPILE_TERMS, "compile_table"),
    ):
        tables = [getattr(cost, table) for cost in (then, now)]
        if any(tables):
            means = [float(np.mean([row[2] for row in one])) if one else None for one in tables]
            if tables[0] != tables[1]:
                rows.append((table, means[0], means[1]))
            continue
        rows += [
            (
                f"{part}.{name}",
                getattr(getattr(then, part), name) * _graphs(then, part),
                getattr(getattr(now, part), name) * _graphs(now, part),
            )
            for name in names
        ]
    for name in ("per_sequence_gather", "per_prefill_token", "per_seq"):
        values = [getattr(cost.replay_seconds, name) for cost in (then, now)]
        rows.append((f"replay_seconds.{name}", values[0], values[1]))
    rows.append(("startup_seconds", then.startup_seconds, now.startup_seconds))
    return rows


def _graphs(cost: CostModel, part: str) -> int:
    """Compiles are compared by the variant: files may count its graphs differently."""
    return cost.graphs_per_variant if part == "compile_seconds" else 1


def _units(cost: CostModel, price: LadderPrice) -> dict[str, float]:
    """What each term of a formula is multiplied by in the plan's objective; none where tables are in use."""
    units: dict[str, float] = {}
    seqs, blocks, hits = price.pair_seqs, price.pair_blocks, price.hits
    if not len(seqs):
        return units
    kernel = cost.geometry
    iterations = kernel.iterations(seqs, blocks)
    if cost.step_table is None:
        counts = (np.ones(len(seqs)), seqs, iterations, kernel.gathers(seqs, blocks))
        for name, count in zip(STEP_TERMS, counts, strict=True):
            units[f"step_seconds.{name}"] = float((hits * count).sum())
    if cost.compile_table is None:
        _, first = np.unique(kernel.variant_key(seqs, blocks), return_index=True)
        unrolled = iterations[first].astype(np.float64)
        for power, name in enumerate(COMPILE_TERMS):
            units[f"compile_seconds.{name}"] = price.restarts * float((unrolled**power).sum())
    return units


def _intervals(cost: CostModel) -> dict[str, tuple[float, float]]:
    """Intervals that the model's fit states, by term; whatever else stands there is passed over."""
    parameters: Any = (cost.fit or {}).get("parameters")
    found = {}
    for name, entry in parameters.items() if isinstance(parameters, Mapping) else ():
        low, high = (entry.get("low"), entry.get("high")) if isinstance(entry, Mapping) else (None, None)
        if isinstance(low, int | float) and isinstance(high, int | float):
            key = _term_of(name)
            graphs = _graphs(cost, key.partition(".")[0])
            found[key] = (float(low) * graphs, float(high) * graphs)
    return found


def _term_of(parameter: object) -> str:
    """The term that a fit's parameter is; fits of steps alone name theirs without the part."""
    name = str(parameter)
    return name if "." in name else f"step_seconds.{name}"


def with_measured(then: CostModel, fitted: CostModel) -> CostModel:
    """New prices of what was measured, the plan's of what was not.

    Args:
        then: the plan's model.
        fitted: what `calibrate` made of the measurements; its `fit` says which terms it found.
    """
    found = (fitted.fit or {}).get("parameters")
    told = [_term_of(name) for name in found or ()]
    changes: dict[str, Any] = {"name": fitted.name, "fit": fitted.fit}
    for part, table in (("step_seconds", "step_table"), ("compile_seconds", "compile_table")):
        if any(name.startswith(f"{part}.") for name in told) or getattr(fitted, table) is not None:
            changes[part] = getattr(fitted, part)
            changes[table] = getattr(fitted, table)
            if part == "compile_seconds":
                changes["graphs_per_variant"] = fitted.graphs_per_variant
    terms = {
        name: getattr(fitted.replay_seconds, name)
        for name in type(then.replay_seconds).model_fields
        if f"replay_seconds.{name}" in told
    }
    changes["replay_seconds"] = then.replay_seconds.model_copy(update=terms)
    if fitted.startup_seconds:
        changes["startup_seconds"] = fitted.startup_seconds
    return then.model_copy(update=changes)
