"""The steps histogram: cells that add up, what it counts, what it refuses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy.histogram import StepHistogram

ENGINE = Engine(max_num_seqs=8, max_model_len=8 * 128)
CELLS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 1000)), max_size=30)


def histogram(cells: list[tuple[int, int, int]], *, real: bool = False) -> StepHistogram:
    columns = np.array(cells, np.int64).reshape(-1, 3)
    weights = columns[:, 2].astype(np.float64)
    return StepHistogram(columns[:, 0], columns[:, 1], weights, 2 * weights if real else None)


@given(CELLS, st.booleans(), st.randoms())
def test_equal_cells_add_up_in_any_order(cells: list[tuple[int, int, int]], real: bool, random) -> None:  # type: ignore[no-untyped-def]
    expected: Counter[tuple[int, int]] = Counter()
    for n, b, weight in cells:
        expected[n, b] += weight
    shuffled = list(cells)
    random.shuffle(shuffled)
    steps = histogram(shuffled, real=real)
    assert len(steps) == len(expected)
    found = zip(steps.num_seqs.tolist(), steps.num_blocks.tolist(), steps.steps.tolist(), strict=True)
    assert list(found) == [(n, b, weight) for (n, b), weight in sorted(expected.items())]
    assert steps.total_steps == sum(weight for _, _, weight in cells)
    if real:
        assert steps.gathers_real is not None
        assert steps.gathers_real.tolist() == [2.0 * weight for _, weight in sorted(expected.items())]


def test_weights_may_be_fractions() -> None:
    steps = StepHistogram(np.array([4, 4]), np.array([1, 1]), np.array([0.25, 0.5]))
    assert steps.steps.tolist() == [0.75]


@pytest.mark.parametrize(
    ("num_seqs", "num_blocks", "steps", "real", "message"),
    [
        ([4.0], [1], [1.0], None, "num_seqs: found num_seqs of type float64, expected integers"),
        ([4], [True], [1.0], None, "num_blocks: found num_blocks of type bool, expected integers"),
        ([4, 0], [1, 1], [1.0, 1.0], None, "num_seqs: found 0, expected 1 or more"),
        ([4], [-3], [1.0], None, "num_blocks: found -3, expected 1 or more"),
        ([4], [1], [0.0], None, "steps: found 0.0, expected a finite weight above 0"),
        ([4], [1], [-1.0], None, "steps: found -1.0, expected a finite weight above 0"),
        ([4], [1], [np.nan], None, "steps: found nan, expected a finite weight above 0"),
        ([4], [1], [np.inf], None, "steps: found inf, expected a finite weight above 0"),
        ([4], [1], [1.0], [-1.0], "gathers_real: found -1.0, expected a finite number of 0 or more"),
        ([4], [1], [1.0], [np.nan], "gathers_real: found nan, expected a finite number of 0 or more"),
        ([4, 5], [1], [1.0], None, "num_seqs: found 2 num_seqs, expected 1, one for each cell"),
        ([4], [1, 2], [1.0], None, "num_blocks: found 2 num_blocks, expected 1, one for each cell"),
        ([4], [1], [1.0], [1.0, 2.0], "gathers_real: found 2 gathers_real, expected 1, one for each cell"),
    ],
)
def test_columns_that_are_no_histogram(
    num_seqs: list[int], num_blocks: list[int], steps: list[float], real: list[float] | None, message: str
) -> None:
    with pytest.raises(InputError) as error:
        StepHistogram(
            np.array(num_seqs),
            np.array(num_blocks),
            np.array(steps),
            None if real is None else np.array(real),
        )
    assert str(error.value) == message


def test_an_empty_histogram_counts_nothing() -> None:
    steps = histogram([])
    assert (len(steps), steps.total_steps) == (0, 0.0)
    assert steps.to_grid(ENGINE).sum() == 0.0


@given(CELLS)
def test_the_grid_holds_the_batched_cells(cells: list[tuple[int, int, int]]) -> None:
    steps = histogram(cells)
    grid = steps.to_grid(ENGINE)
    assert grid.shape == (9, 9)
    assert grid.sum() == sum(weight for n, _, weight in cells if n >= 4)
    assert not grid[:4].any()


@given(CELLS)
def test_the_ragged_floor_is_sequences_times_the_longest(cells: list[tuple[int, int, int]]) -> None:
    steps = histogram(cells)
    assert steps.ragged_floor().sum() == sum(n * b * weight for n, b, weight in cells)
    assert steps.real_gathers().tolist() == steps.ragged_floor().tolist()
    known = histogram(cells, real=True)
    assert known.real_gathers().sum() == sum(2 * weight for _, _, weight in cells)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ((9, 1, 1), "s.csv: num_seqs: found 9, expected at most max_num_seqs = 8"),
        ((4, 9, 1), "s.csv: num_blocks: found 9, expected at most ceil(max_model_len / block_size) = 8"),
    ],
)
def test_cells_beyond_the_engine_are_refused(cell: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError) as error:
        histogram([(4, 1, 1), cell]).check_limits(ENGINE, path="s.csv")
    assert str(error.value) == message
    with pytest.raises(InputError):
        histogram([cell]).to_grid(ENGINE)


@given(CELLS, st.booleans())
def test_a_frame_round_trips(cells: list[tuple[int, int, int]], real: bool) -> None:
    steps = histogram(cells, real=real)
    frame = steps.to_frame()
    assert list(frame.columns) == ["num_seqs", "num_blocks", "steps"] + ["gathers_real"] * real
    pd.testing.assert_frame_equal(StepHistogram.from_frame(frame).to_frame(), frame)


@given(st.lists(st.tuples(CELLS, st.booleans()), min_size=1, max_size=4))
def test_sums_of_histograms_add_cell_by_cell(parts: list[tuple[list[tuple[int, int, int]], bool]]) -> None:
    total = StepHistogram.sum_of(histogram(cells, real=real) for cells, real in parts)
    every = histogram([cell for cells, _ in parts for cell in cells])
    assert total.num_seqs.tolist() == every.num_seqs.tolist()
    assert total.num_blocks.tolist() == every.num_blocks.tolist()
    assert total.steps.tolist() == every.steps.tolist()
    # Unless every part knows its sequences' own blocks, the sum does not claim to.
    assert (total.gathers_real is not None) == all(real for _, real in parts)
