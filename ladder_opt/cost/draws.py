"""Cost models drawn from how sure a cost model's numbers are, as its `fit` says.

* A fit that holds `draws` (what `calibrate` writes: `parameters`, their key paths, and `values`, a row a
  draw) gives its own rows, so that terms which move together do so here; each once before any comes again.
* A fit that holds `parameters` with `low` and `high` alone (the built-in model) gives each term by itself
  from a distribution of two halves, whose 5th and 95th percentiles are `low` and `high`: log-normal where
  `low` is above 0, else normal and cut off at 0. `scale_uncertainty_factor` f is one factor more on all
  seconds of a step, log-normal, between 1/f and f in nine cases of ten.

A measured table is multiplied by one log-normal factor a draw, of the relative error in `fit.tables`; with
it the terms it replaces do not matter. `startup_seconds`, which no ladder changes, stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.errors import InputError, UsageError

_SIGMAS: Final = 1.6449  # the 95th percentile of a normal distribution
_MOST_DRAWS: Final = 10_000
_OF_A_STEP: Final = ("step_seconds.", "replay_seconds.", "per_sequence.per_query_gather")
_DRAWN: Final = ("step_seconds.", "compile_seconds.", "replay_seconds.", "per_sequence.")
_NOT_DRAWN: Final = "per_sequence.recorded_in_startup_seconds"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CostDraws:
    """Cost models drawn from one.

    Attributes:
        costs: one a draw.
        mean: the mean of all, by parameter. What ladders cost is linear in the parameters, so that this is
            also what they cost on average.
        how: what they were drawn from.
    """

    costs: tuple[CostModel, ...]
    mean: CostModel
    how: str


@checked
def draw_costs(cost: CostModel, draws: int, *, seed: int = 0) -> CostDraws:
    """Draw cost models.

    Args:
        cost: with a `fit` that says how sure its numbers are.
        draws: how many.
        seed: of the draws.

    Raises:
        UsageError: `draws` is out of range, or the fit says nothing.
        InputError: what it says is malformed.
    """
    if not 1 <= draws <= _MOST_DRAWS:
        raise UsageError(f"--uncertainty: found {draws}, expected 1 to {_MOST_DRAWS} draws")
    fit = cost.fit or {}
    rng = np.random.default_rng(seed)
    if fit.get("draws"):
        parameters, how = _stored(cost, fit["draws"], draws, rng), "draws of the fit"
    elif isinstance(fit.get("parameters"), dict) and fit["parameters"]:
        parameters, how = _from_intervals(cost, fit, draws, rng), "intervals of the fit, each by itself"
    else:
        raise UsageError(
            f"--uncertainty: found a cost model {cost.name!r} that does not say how sure it is, expected one "
            "made by calibrate, or a built-in one"
        )
    factors = {
        name: np.exp(rng.standard_normal(draws) * _table_error(cost, name))
        for name in ("step", "compile")
        if getattr(cost, f"{name}_table") is not None
    }
    costs = tuple(
        _with(
            cost,
            {name: values[at] for name, values in parameters.items()},
            {n: f[at] for n, f in factors.items()},
        )
        for at in range(draws)
    )
    mean = _with(
        cost,
        {name: float(np.mean(values)) for name, values in parameters.items()},
        {name: float(np.mean(each)) for name, each in factors.items()},
    )
    return CostDraws(costs, mean, how)


def _stored(cost: CostModel, stored: Any, draws: int, rng: np.random.Generator) -> dict[str, Floats]:
    try:
        names = list(stored["parameters"])
        values = np.array(stored["values"], np.float64)
        fits = values.ndim == 2 and values.shape[1] == len(names) and len(values) > 0
        sound = fits and bool(np.isfinite(values).all() and (values >= 0).all())
    except (KeyError, TypeError, ValueError):
        sound, names = False, []
    if not sound or not all(isinstance(name, str) and name.startswith(_DRAWN) for name in names):
        raise InputError(
            "something else",
            "parameters, and rows of a number of 0 or more for each",
            path=cost.name,
            column="fit.draws",
        )
    order = np.concatenate([rng.permutation(len(values)) for _ in range(-(-draws // len(values)))])[:draws]
    return {name: values[order, at] for at, name in enumerate(names)}


def _from_intervals(
    cost: CostModel, fit: Mapping[str, Any], draws: int, rng: np.random.Generator
) -> dict[str, Floats]:
    drawn = {}
    for name, entry in fit["parameters"].items():
        if not name.startswith(_DRAWN) or name == _NOT_DRAWN:
            continue
        try:
            value, low, high = (float(entry[key]) for key in ("value", "low", "high"))
        except (KeyError, TypeError, ValueError):
            value = low = high = math.nan
        if not (0 <= low <= value <= high < math.inf):
            raise InputError(
                "something else", "0 <= low <= value <= high", path=cost.name, column=f"fit.parameters.{name}"
            )
        drawn[name] = _two_halves(value, low, high, rng.standard_normal(draws) / _SIGMAS)
    factor = fit.get("scale_uncertainty_factor", 1.0)
    if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
        raise InputError(
            repr(factor)[:60], "a factor of 1 or more", path=cost.name, column="fit.scale_uncertainty_factor"
        )
    scale = np.exp(rng.standard_normal(draws) / _SIGMAS * math.log(factor))
    return {name: values * scale if name.startswith(_OF_A_STEP) else values for name, values in drawn.items()}


def _two_halves(value: float, low: float, high: float, normal: Floats) -> Floats:
    """Values whose 5th and 95th percentiles are the ends; `normal` has them at -1 and 1."""
    if low > 0:
        down, up = math.log(value / low), math.log(high / value)
        return np.asarray(value * np.exp(normal * np.where(normal < 0, down, up)))
    return np.asarray(np.maximum(value + normal * np.where(normal < 0, value - low, high - value), 0.0))


def _table_error(cost: CostModel, name: str) -> float:
    tables = (cost.fit or {}).get("tables")
    error = tables.get(name, {}).get("relative_error") if isinstance(tables, dict) else None
    return float(error) if isinstance(error, int | float) and 0 <= error < math.inf else 0.0


def _with(cost: CostModel, parameters: Mapping[str, float], factors: Mapping[str, float]) -> CostModel:
    """The model with other parameters; its `fit`, which was of the old ones, is left out."""
    data = cost.model_dump(mode="python", by_alias=True, exclude={"fit"})
    for path, value in parameters.items():
        *parents, last = path.split(".")
        part = data
        for parent in parents:
            if part.get(parent) is None:
                part[parent] = {}
            part = part[parent]
        part[last] = float(value)
    for name, factor in factors.items():
        rows = data[f"{name}_table"]
        data[f"{name}_table"] = tuple((s, m, seconds * float(factor)) for s, m, seconds in rows)
    try:
        return CostModel.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{where} ({first['msg']})", "parameters of a cost model", path=cost.name, column="fit"
        ) from None
