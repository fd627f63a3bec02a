"""Where a plan leans on a poor fit, on what was never measured, or on a term that could not be told.

A cost file's `fit` says it: `residuals` (whether the formula fits at all), `range` (for "step" and "compile"
the least and the most of `num_seqs`, `num_blocks`, `iterations`, `gathers` among the rows; the built-in
model's holds sizes for both together), and for each of its `parameters` whether it was `told_from_zero`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.cost.poor_fit import NO_COMPILES, poor_fit
from ladder_opt.solve.price import LadderPrice

NOTICEABLE: Final = 0.05  # of the plan's step seconds, compile seconds, or cost
_BELOW: Final = 2  # a size is too small from this factor below the least measured on
_SIZES: Final = ("num_seqs", "num_blocks", "iterations", "gathers")
_OF_STEPS: Final = ("num_seqs", "iterations", "gathers")
_OF_COMPILES: Final = ("iterations",)
Range = Mapping[str, tuple[float, float]]


def cost_warnings(cost: CostModel, price: LadderPrice, *, may_draw: bool = False) -> list[str]:
    """One line for each way in which priced ladders lean on what is not known.

    Args:
        cost: prices.
        price: the ladders, priced.
        may_draw: whether to name the option that says what that does to a plan. Where no step is batched it
            says nothing.
    """
    if not len(price.pair_seqs) or not cost.fit:
        return []
    hint = " (see --uncertainty 40)" if may_draw and (price.batched_steps or price.sequences) else ""
    not_told = [f"{line}{hint}" for line in _not_told(cost, price)]
    return [*_no_compiles(cost), *_misses(cost), *_beyond_range(cost, price), *not_told]


def _no_compiles(cost: CostModel) -> list[str]:
    """Whether the fit had no compile to go by: then rungs cost nothing."""
    if cost.compile_table is not None or any(cost.compile_seconds.model_dump().values()):
        return []
    return [NO_COMPILES]


def _misses(cost: CostModel) -> list[str]:
    """Formulas that say little of what they were fitted to; a table stands for itself."""
    residuals = (cost.fit or {}).get("residuals")
    if not isinstance(residuals, dict):
        return []
    parts = [part for part in ("step", "compile") if getattr(cost, f"{part}_table") is None]
    return [line for part in parts if (line := poor_fit(part, residuals.get(part))) is not None]


def fitted_range(cost: CostModel, part: str) -> Range:
    """Sizes that a formula, or a table interpolated by it, was fitted to; none where the fit does not say.

    A table of pairs measured is not continued beyond them: none for it either.
    """
    fit = cost.fit or {}
    tables = fit.get("tables")
    told = tables.get(part) if isinstance(tables, dict) else None
    is_interpolated = isinstance(told, dict) and told.get("interpolated") is True
    if getattr(cost, f"{part}_table") is not None and not is_interpolated:
        return {}
    held = fit.get("range")
    if not isinstance(held, dict):
        return {}
    is_parted = isinstance(held.get("step"), dict) or isinstance(held.get("compile"), dict)
    own = held.get(part) if is_parted else held
    if not isinstance(own, dict):
        return {}
    sizes = {name: own.get(name, own.get(f"{name}_measured")) for name in _SIZES}
    return {
        name: (float(span[0]), float(span[1]))
        for name, span in sizes.items()
        if isinstance(span, list) and len(span) == 2 and all(isinstance(end, int | float) for end in span)
    }


def _beyond_range(cost: CostModel, price: LadderPrice) -> list[str]:
    lines = []
    steps = price.hits * cost.batched_step_seconds(price.pair_seqs, price.pair_blocks)
    keys = cost.geometry.variant_key(price.pair_seqs, price.pair_blocks)
    _, first = np.unique(keys, return_index=True)
    compiles = np.zeros(len(steps))
    compiles[first] = cost.variant_compile_seconds(price.pair_seqs[first], price.pair_blocks[first])
    for part, seconds, wanted in (("step", steps, _OF_STEPS), ("compile", compiles, _OF_COMPILES)):
        span = fitted_range(cost, part)
        # The formula is in iterations and pages; num_blocks stands for them where they are not known.
        names = [name for name in wanted if name in span] if "iterations" in span else [*span]
        if not names or not seconds.sum():
            continue
        outside = np.zeros(len(seconds), np.bool_)
        for name in names:
            low, high = span[name]
            size = _size(cost, price, name)
            outside |= (size > high) | (size * _BELOW < low)
        share = float(seconds[outside].sum() / seconds.sum())
        if share < NOTICEABLE:
            continue
        worst = int(np.argmax(np.where(outside, seconds, -1.0)))
        spans = ", ".join(f"{name} {span[name][0]:g} to {span[name][1]:g}" for name in names)
        lines.append(
            f"{share:.0%} of the plan's {part} seconds are extrapolated: the cost model was fitted to "
            f"{spans}; rung pairs such as {price.pair_seqs[worst]} x {price.pair_blocks[worst]} lie beyond"
        )
    return lines


def _size(cost: CostModel, price: LadderPrice, name: str) -> NDArray[np.int64]:
    if name == "num_seqs":
        return price.pair_seqs
    if name == "num_blocks":
        return price.pair_blocks
    kernel = cost.geometry
    of = kernel.iterations if name == "iterations" else kernel.gathers
    return of(price.pair_seqs, price.pair_blocks)


def _not_told(cost: CostModel, price: LadderPrice) -> list[str]:
    parameters: Any = (cost.fit or {}).get("parameters")
    if not isinstance(parameters, dict) or not price.objective_seconds:
        return []
    lines = []
    for name, units in _units(cost, price).items():
        entry = parameters.get(name)
        if not isinstance(entry, dict) or entry.get("told_from_zero") is not False:
            continue
        high = entry.get("high")
        if not isinstance(high, int | float) or high * units < NOTICEABLE * price.objective_seconds:
            continue
        lines.append(
            f"{name}: the measurements could not tell it from zero; at the upper end of its interval, "
            f"{high:.3g}, it would be {high * units / price.objective_seconds:.0%} of the plan's cost"
        )
    return lines


def _units(cost: CostModel, price: LadderPrice) -> dict[str, float]:
    """What each term of a formula is multiplied by in the plan's cost."""
    kernel, seqs, blocks = cost.geometry, price.pair_seqs, price.pair_blocks
    units: dict[str, float] = {}
    if cost.step_table is None:
        units |= {
            "step_seconds.base": float(price.hits.sum()),
            "step_seconds.per_seq": float((price.hits * seqs).sum()),
            "step_seconds.per_iteration": float((price.hits * kernel.iterations(seqs, blocks)).sum()),
            "step_seconds.per_gather": float((price.hits * kernel.gathers(seqs, blocks)).sum()),
        }
    if cost.compile_table is None:
        _, first = np.unique(kernel.variant_key(seqs, blocks), return_index=True)
        iterations = kernel.iterations(seqs[first], blocks[first]).astype(np.float64)
        graphs = cost.graphs_per_variant * price.restarts
        units |= {
            "compile_seconds.base": graphs * len(first),
            "compile_seconds.per_iteration": graphs * float(iterations.sum()),
            "compile_seconds.per_iteration_sq": graphs * float((iterations**2).sum()),
        }
    return units
