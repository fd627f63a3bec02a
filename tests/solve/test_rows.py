"""The rungs that are dropped before the search: each reason to keep one, by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ladder_opt.solve._rows import Rows, useful_columns, useful_rows


def rows_of(**changes: Any) -> Rows:
    """Three rows and columns of equal prices, all steps at the corner; each pair is a variant of its own."""
    cumulative = np.zeros((4, 4))
    cumulative[3, 3] = 1.0
    values: dict[str, Any] = {
        "sizes": np.array([4, 5, 6]),
        "required": np.zeros(3, bool),
        "cumulative": cumulative,
        "step_seconds": np.ones((3, 3)),
        "compile_seconds": np.ones((3, 3)),
        "first_column": np.tile(np.arange(3), (3, 1)),
        "reach": np.full((3, 3), -1),
    }
    return Rows(**values | changes)


def changed(array: NDArray[Any], at: tuple[int, int], value: float) -> NDArray[Any]:
    new = array.copy()
    new[at] = value
    return new


def test_a_rung_without_steps_and_no_cheaper_than_the_next_is_dropped() -> None:
    assert useful_columns(rows_of()).tolist() == [0, 2]
    assert useful_rows(rows_of(), 0).tolist() == [0, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"step_seconds": changed(np.ones((3, 3)), (1, 0), 2.0)},
        {"compile_seconds": changed(np.ones((3, 3)), (1, 0), 2.0)},
        {"first_column": changed(np.tile(np.arange(3), (3, 1)), (1, 2), 1)},
    ],
)
def test_a_column_is_kept_for_one_reason_alone(change: dict[str, Any]) -> None:
    assert useful_columns(rows_of(**change)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"step_seconds": changed(np.ones((3, 3)), (0, 1), 2.0)},
        {"compile_seconds": changed(np.ones((3, 3)), (0, 1), 2.0)},
        {"first_column": changed(np.tile(np.arange(3), (3, 1)), (1, 2), 1)},
        {"reach": changed(np.full((3, 3), -1), (1, 0), 1)},
        {"required": np.array([False, True, False])},
    ],
)
def test_a_row_is_kept_for_one_reason_alone(change: dict[str, Any]) -> None:
    assert useful_rows(rows_of(**change), 0).tolist() == [0, 1, 2]
