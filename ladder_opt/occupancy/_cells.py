"""Cells of a histogram: checked, sorted by their two sizes, each pair of sizes once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError

Table = TypeVar("Table")
"""A histogram whose fields are two sizes and a weight, in this order."""


def merged_cells(
    sizes: Mapping[str, NDArray[np.int64]],
    weights: Mapping[str, NDArray[np.float64] | None],
    *,
    above_zero: str,
) -> dict[str, NDArray[Any]]:
    """Sort cells by their sizes and add equal ones up.

    Args:
        sizes: two int64 (cells,) columns by name, the more significant first; each >= 1.
        weights: float64 (cells,) columns by name, finite and >= 0; None for one that is not known.
        above_zero: the name of the weight that has to be above 0; it sets how many cells there are.

    Returns:
        The columns by name, those that are not known left out.

    Raises:
        InputError: columns of unlike lengths, or a value out of range; the column is named.
    """
    known = {name: _as_floats(name, values) for name, values in weights.items() if values is not None}
    cells = known[above_zero].size
    arrays = {name: np.asarray(values) for name, values in sizes.items()}
    for name, values in [*arrays.items(), *known.items()]:
        if values.shape != (cells,):
            raise InputError(f"{values.size} {name}", f"{cells}, one for each cell", column=name)
    for name, values in arrays.items():
        if values.dtype.kind not in "iu" and cells:
            raise InputError(f"{name} of type {values.dtype}", "integers", column=name)
        if cells and values.max() > np.iinfo(np.int64).max:
            raise InputError(f"{values.max()}", f"at most {np.iinfo(np.int64).max}", column=name)
        if cells and values.min() < 1:
            raise InputError(f"{values.min()}", "1 or more", column=name)
    for name, values in known.items():
        fine = np.isfinite(values) & ((values > 0) if name == above_zero else (values >= 0))
        if not fine.all():
            expected = "a finite weight above 0" if name == above_zero else "a finite number of 0 or more"
            raise InputError(f"{values[~fine][0]}", expected, column=name)
    order = np.lexsort(tuple(reversed(arrays.values())))
    ordered = {name: values[order].astype(np.int64) for name, values in arrays.items()}
    new_cell = np.ones(cells, bool)
    if cells:
        new_cell[1:] = np.any([np.diff(values) != 0 for values in ordered.values()], axis=0)
    first = np.flatnonzero(new_cell)
    return {name: values[first] for name, values in ordered.items()} | {
        name: np.add.reduceat(values[order], first) if cells else values for name, values in known.items()
    }


def _as_floats(name: str, values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except OverflowError:
        raise InputError("a number that no float holds", "a finite one", column=name) from None


def counted_cells(
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Both sizes and the weight of every cell of a dense table that is not 0."""
    first, second = np.nonzero(counts)
    return first, second, counts[first, second].astype(np.float64)


def joined(kind: type[Table], parts: Iterable[Table]) -> Table:
    """All cells of several tables in one, which adds equal ones up."""
    tables = list(parts)
    if len(tables) == 1:
        return tables[0]
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # they are dataclasses
    return kind(*(np.concatenate([getattr(table, name) for table in tables]) for name in names))
