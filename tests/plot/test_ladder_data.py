"""Numbers behind the heat map, the waste and the rungs, counted by hand on four cells."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import tune
from ladder_opt.plot.compared import compared
from ladder_opt.plot.ladder_data import occupancy_data, rung_segments, rungs_data, waste_data
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan


def test_the_grid_holds_each_cell_where_it_belongs() -> None:
    data = occupancy_data(STEPS, ENGINE)
    assert data.steps.shape == (8, 16)
    found = {
        (int(data.num_seqs[row]), int(data.num_blocks[column])): float(data.steps[row, column])
        for row, column in np.argwhere(np.isfinite(data.steps))
    }
    assert found == {(2, 1): 70.0, (5, 3): 1000.0, (5, 7): 500.0, (8, 9): 3000.0}
    assert (data.total_steps, data.batched_steps, data.min_batched_seqs) == (4570.0, 4500.0, 4)
    assert (data.seqs_per_row, data.blocks_per_column, data.lines) == (1, 1, ())


def test_sizes_share_rows_and_columns_where_there_is_no_room() -> None:
    data = occupancy_data(STEPS, ENGINE, most_rows=2, most_columns=4)
    assert data.num_seqs.tolist() == [1, 5]
    assert data.num_blocks.tolist() == [1, 5, 9, 13]
    nan = math.nan
    np.testing.assert_equal(data.steps, [[70, nan, nan, nan], [1000, 500, 3000, nan]])


@given(
    st.lists(st.tuples(st.integers(1, 37), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(1, 60),
)
def test_no_step_is_lost_whatever_the_room(
    cells: list[tuple[int, int, int]], rows: int, columns: int
) -> None:
    seqs, blocks, weight = (np.array(column) for column in zip(*cells, strict=True))
    steps = StepHistogram(seqs, blocks, weight.astype(float))
    data = occupancy_data(
        steps, Engine(max_num_seqs=37, max_model_len=50 * 128), most_rows=rows, most_columns=columns
    )
    assert data.steps.shape[0] <= rows
    assert data.steps.shape[1] <= columns
    assert np.nansum(data.steps) == weight.sum()


def test_a_step_beyond_the_engine_is_refused() -> None:
    with pytest.raises(InputError, match="at most max_num_seqs = 4"):
        occupancy_data(STEPS, Engine(max_num_seqs=4))


def test_rungs_are_lines_past_the_sizes_padded_to_them() -> None:
    assert rung_segments(Ladders((4, 8), (3, 16)), ENGINE).tolist() == [
        [0.5, 4.5, 16.5, 4.5],
        [0.5, 8.5, 16.5, 8.5],
        [3.5, 3.5, 3.5, 8.5],
        [16.5, 3.5, 16.5, 8.5],
    ]
    ragged = Ladders.from_ragged({4: [16], 8: [9, 16]})
    assert rung_segments(ragged, ENGINE).tolist() == [
        [0.5, 4.5, 16.5, 4.5],
        [0.5, 8.5, 16.5, 8.5],
        [16.5, 3.5, 16.5, 4.5],
        [9.5, 4.5, 9.5, 8.5],
        [16.5, 4.5, 16.5, 8.5],
    ]
    assert rung_segments(Ladders((), (16,)), ENGINE).shape == (0, 4)


def test_the_lines_of_a_plan_are_its_own_and_the_defaults() -> None:
    plan = make_plan()
    data = occupancy_data(STEPS, ENGINE, plan)
    assert [lines.kind for lines in data.lines] == ["plan", "default"]
    assert len(data.lines[0].segments) == len(plan.num_seqs) + len(plan.num_blocks)
    assert len(data.lines[1].segments) == 2 + 5  # 4, 8 and 1, 2, 4, 8, 16


def test_equal_ladders_are_compared_once_under_both_names() -> None:
    rows = compared(make_plan())
    assert rows[0].name == "plan"
    assert rows[1].name == "default, pow2"
    assert rows[1].kind == "default"
    assert all(row.kind == "preset" for row in rows[2:])


def test_waste_is_split_into_needed_ragged_and_fixable() -> None:
    data = waste_data(make_plan())
    at = data.names.index("default, pow2")
    # 5 x 3 x 1000 + 5 x 7 x 500 + 8 x 9 x 3000 pages needed; padded to 8 x 4, 8 x 8 and 8 x 16.
    assert data.real[at] == 248_500
    assert data.ragged[at] == 0
    assert data.fixable[at] == 448_000 - 248_500
    assert data.padded[at] == 448_000
    real = STEPS.real_gathers() / 2
    halved = StepHistogram(STEPS.num_seqs, STEPS.num_blocks, STEPS.steps, real)
    data = waste_data(tune(halved, make_cost(), engine=ENGINE, options=SolveOptions()))
    assert data.real[0] == 248_500 / 2
    assert data.ragged[0] == 248_500 / 2


def test_rungs_come_axis_by_axis_with_what_they_earn() -> None:
    plan = make_plan()
    data = rungs_data(plan)
    assert [axis.axis for axis in data.axes] == ["num_seqs", "num_blocks"]
    for axis in data.axes:
        rungs = [rung for rung in plan.result.rungs if rung.axis == axis.axis]
        assert axis.names == tuple(str(rung.rung) for rung in rungs)
        assert axis.marginal_seconds.tolist() == [rung.marginal_seconds for rung in rungs]
        assert axis.hits.sum() == 4500
        assert axis.forced[-1]
    assert data.most_seconds == max(abs(rung.marginal_seconds) for rung in plan.result.rungs)
    ragged = rungs_data(make_plan(structure="ragged"))
    assert all(" for " in name for name in ragged.axes[1].names)
    assert [axis.axis for axis in rungs_data(make_spyre_plan()).axes][-1] == "query_lens"
