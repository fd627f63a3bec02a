"""The steps and the prices that a plan was made from, as parts of its file: what a report is drawn from.

Both are for people and their tools; no server needs them. So that a plan stays a file one can open, what is
larger than a bound is left out, and the file says so: `occupancy.cells` is then there without the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ladder_opt.cost.model import CostModel
from ladder_opt.errors import InputError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.sequences import SequenceHistogram
from ladder_opt.plan.parts import Amount, Count, Part, Rung

MAX_CELLS = 1 << 15
"""Cells of both histograms together; about 25 bytes each in the file, 0.8 MB in all."""
MAX_COST_CHARACTERS = 1 << 18
"""Of a cost model's JSON; one with a measured table of some thousand rows is larger."""

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


def _check_lengths(columns: Mapping[str, tuple[float, ...] | None], where: str) -> None:
    lengths = {name: len(values) for name, values in columns.items() if values is not None}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise InputError(found, "columns of one length", column=where)


class PlanCalls(Part):
    """Calls of the per-sequence kernel, a cell each; see `occupancy.sequences`."""

    num_blocks: tuple[Rung, ...]
    query_len: tuple[Rung, ...]
    calls: tuple[Weight, ...]

    @model_validator(mode="after")
    def _columns_match(self) -> Self:
        columns = {"num_blocks": self.num_blocks, "query_len": self.query_len, "calls": self.calls}
        _check_lengths(columns, "occupancy.sequences")
        return self

    def to_histogram(self) -> SequenceHistogram:
        """The calls as arrays."""
        return SequenceHistogram(_sizes(self.num_blocks), _sizes(self.query_len), np.array(self.calls))


class PlanOccupancy(Part):
    """The steps that a plan is priced on, a cell each; see `occupancy.histogram`.

    `cells` counts those of `sequences` too. The columns are absent where there are more than MAX_CELLS.
    """

    cells: Count
    num_seqs: tuple[Rung, ...] | None = None
    num_blocks: tuple[Rung, ...] | None = None
    steps: tuple[Weight, ...] | None = None
    gathers_real: tuple[Amount, ...] | None = None
    sequences: PlanCalls | None = None

    left_out_where_none = ("num_seqs", "num_blocks", "steps", "gathers_real", "sequences")

    @model_validator(mode="after")
    def _columns_match(self) -> Self:
        columns = {
            "num_seqs": self.num_seqs,
            "num_blocks": self.num_blocks,
            "steps": self.steps,
            "gathers_real": self.gathers_real,
        }
        given = {name for name, values in columns.items() if values is not None}
        if given and not {"num_seqs", "num_blocks", "steps"} <= given:
            raise InputError(
                ", ".join(sorted(given)), "num_seqs, num_blocks and steps, or none", column="occupancy"
            )
        _check_lengths(columns, "occupancy")
        return self

    def to_steps(self) -> StepHistogram | None:
        """The histogram; None where it was too large to be kept."""
        if self.num_seqs is None or self.num_blocks is None or self.steps is None:
            return None
        return StepHistogram(
            _sizes(self.num_seqs),
            _sizes(self.num_blocks),
            np.array(self.steps, np.float64),
            None if self.gathers_real is None else np.array(self.gathers_real, np.float64),
            None if self.sequences is None else self.sequences.to_histogram(),
        )


def _sizes(values: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _numbers(values: Iterable[Any]) -> list[float]:
    """Plain numbers; whole ones without a decimal point."""
    return [int(value) if float(value).is_integer() else float(value) for value in values]


def occupancy_dict(steps: StepHistogram) -> dict[str, Any]:
    """The plan file's `occupancy` of a histogram."""
    calls = steps.sequences
    cells = len(steps) + (0 if calls is None else len(calls))
    if cells > MAX_CELLS:
        return {"cells": cells}
    part: dict[str, Any] = {
        "cells": cells,
        "num_seqs": steps.num_seqs.tolist(),
        "num_blocks": steps.num_blocks.tolist(),
        "steps": _numbers(steps.steps),
    }
    if steps.gathers_real is not None:
        part["gathers_real"] = _numbers(steps.gathers_real)
    if calls is not None:
        part["sequences"] = {
            "num_blocks": calls.num_blocks.tolist(),
            "query_len": calls.query_len.tolist(),
            "calls": _numbers(calls.calls),
        }
    return part


def cost_dict(cost: CostModel) -> dict[str, Any] | None:
    """The plan file's `cost`; None for a model that is too large to be kept."""
    data = cost.to_dict()
    return data if len(json.dumps(data)) <= MAX_COST_CHARACTERS else None


def plan_json(data: dict[str, Any]) -> str:
    """A plan's JSON object as text, two spaces to a level; `occupancy` last, each column on one line."""
    occupancy = data.get("occupancy")
    if occupancy is None:
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
    rest = json.dumps({k: v for k, v in data.items() if k != "occupancy"}, indent=2, allow_nan=False)
    columns = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(_compact(value), separators=(',', ':'), allow_nan=False)}"
        for name, value in occupancy.items()
    )
    return f'{rest.removesuffix("}").rstrip()},\n  "occupancy": {{\n{columns}\n  }}\n}}\n'


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _compact(each) for name, each in value.items()}
    if isinstance(value, list | tuple) and all(isinstance(each, float | int) for each in value):
        return _numbers(value)
    return value
