"""The clock and tick rules: which dips are disorder, which a restart, and what each choice does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ladder_opt.errors import InputError
from ladder_opt.trace.clock import Ticks, find_ticks, simply_out_of_order, spread
from ladder_opt.trace.read import read_trace


def put(folder: Path, times: list[float]) -> Path:
    path = folder / "t.csv"
    rows = "".join(f"{time},{row + 1},1\n" for row, time in enumerate(times))
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + rows)
    return path


RESTART = [0.0, 5.0, 10.0, 1.0, 4.0, 9.0]


def test_a_restart_is_refused_with_its_row_and_the_choices(tmp_path: Path) -> None:
    path = put(tmp_path, RESTART)
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert str(error.value) == (
        f"{path}:5: arrival_seconds: found a clock that runs backwards at 1 row, here '1.0' after '10.0', "
        "expected arrivals that do not fall, or --clock sort|unwrap to mend them "
        "(the default sorts rows that are simply out of order; here the clock may have restarted)"
    )


def test_a_restart_may_be_sorted_or_unwrapped(tmp_path: Path) -> None:
    path = put(tmp_path, RESTART)
    first = f"(first at {path}:5: '1.0' after '10.0')"
    trace = read_trace(path, clock="sort")
    assert trace.arrival_seconds is not None
    assert trace.arrival_seconds.tolist() == sorted(RESTART)
    assert trace.prompt_tokens.tolist() == [1, 4, 5, 2, 6, 3]
    assert trace.notes == (f"arrivals were out of order at 1 row {first}; sorted",)
    trace = read_trace(path, clock="unwrap")
    assert trace.arrival_seconds is not None
    assert trace.arrival_seconds.tolist() == [0.0, 5.0, 10.0, 10.0, 13.0, 18.0]
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.notes == (f"the clock ran backwards at 1 row {first}; unwrapped, each run on from the last",)


def test_small_disorder_is_sorted_unless_refused(tmp_path: Path) -> None:
    path = put(tmp_path, [0.0, 3.0, 2.5, 50.0, 100.0])
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [1, 3, 2, 4, 5]
    with pytest.raises(InputError) as error:
        read_trace(path, clock="refuse")
    assert str(error.value) == (
        f"{path}:4: arrival_seconds: found a clock that runs backwards at 1 row, here '2.5' after '3.0', "
        "expected arrivals that do not fall, or --clock sort|unwrap to mend them"
    )


def test_the_clock_of_a_row_set_aside_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n100,5,1\n0,5,0\n101,5,1\n")
    assert read_trace(path).span_seconds == 1.0


def test_equal_arrivals_keep_their_order(tmp_path: Path) -> None:
    assert read_trace(put(tmp_path, [2, 1, 2, 1]), clock="sort").prompt_tokens.tolist() == [2, 4, 1, 3]


@pytest.mark.parametrize(
    ("readings", "plain"),
    [
        ([0, 10, 5, 20], True),  # deep, but a shuffle that does not fall to the start
        ([5, 0], False),  # two rows tell nothing
        ([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], False),
        (list(range(100)) + list(range(90)), False),
        (list(range(100, 200)) + list(range(50, 150)), False),
        ([*range(100), 96, 100, 101], True),
        ([*range(100), 90, 100, 101], False),
    ],
)
def test_what_counts_as_simply_out_of_order(readings: list[int], plain: bool) -> None:
    assert simply_out_of_order(np.array(readings)) is plain


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [20, 200])
def test_a_shuffle_is_out_of_order(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    assert simply_out_of_order(draw.permutation(np.cumsum(draw.exponential(1.0, size))))


@given(st.lists(st.integers(1, 9), min_size=8, max_size=40), st.integers(2, 5))
def test_runs_that_each_begin_anew_are_restarts(gaps: list[int], runs: int) -> None:
    assert not simply_out_of_order(np.tile(np.cumsum(gaps), runs))


def test_unwrapping_far_jumps_stays_finite(tmp_path: Path) -> None:
    path = put(tmp_path, [-9e10, 9e10] * 40)
    trace = read_trace(path, clock="unwrap")
    assert trace.span_seconds == 40 * 1.8e11


def test_a_grid_with_a_millisecond_of_jitter_is_a_grid() -> None:
    arrivals = np.repeat(np.array([0, 3.0, 5.999, 9.001, 12.0, 15.0, 18.0, 21.0, 24.0]), 4)
    assert find_ticks(arrivals) == Ticks(3.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "arrivals",
    [
        np.zeros(0),
        np.zeros(50),
        np.arange(7.0),  # too few to tell
        np.cumsum(np.random.default_rng(0).exponential(1.0, 500)),
        np.arange(50) * 0.0001,  # finer than 1 ms
        np.array([0.0, 1e13]),
    ],
)
def test_what_sits_on_no_grid(arrivals: NDArray[np.float64]) -> None:
    assert find_ticks(arrivals) is None


def test_ticks_are_told_and_spread_where_asked(tmp_path: Path) -> None:
    path = put(tmp_path, [float(3 * (row // 3)) for row in range(30)])
    assert read_trace(path).notes == (
        (
            "arrivals sit on a 3 s grid (100.0% of them), so its bursts are the recorder's; "
            "--spread-ticks spreads them"
        ),
    )
    trace = read_trace(path, spread_ticks=True)
    assert trace.arrival_seconds is not None
    np.testing.assert_allclose(trace.arrival_seconds, np.arange(30.0), atol=1e-12)
    assert trace.prompt_tokens.tolist() == list(range(1, 31))
    assert trace.notes == ("arrivals sit on a 3 s grid (100.0% of them); spread evenly over each tick",)


def test_a_fine_grid_is_a_fact_and_no_warning(tmp_path: Path) -> None:
    assert read_trace(put(tmp_path, [float(40 * row) for row in range(20)] + [761.0])).notes == ()


def test_spreading_without_a_grid_says_so(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, [0.0, 0.5, 2.0]), spread_ticks=True)
    assert trace.notes == ("arrivals sit on no grid; nothing to spread",)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_spreading_keeps_every_request_within_its_tick(ticks: list[int]) -> None:
    arrivals = np.array(sorted(ticks), dtype=np.float64)
    arrivals -= arrivals[0]
    moved, order = spread(arrivals, Ticks(1.0, 1.0))
    assert sorted(order.tolist()) == list(range(len(arrivals)))
    assert (np.diff(moved) >= 0).all()
    assert np.floor(moved + 1e-9).tolist() == arrivals[order].tolist()
