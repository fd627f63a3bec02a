"""Labels of a frontier's points: no box meets another, in sums, matplotlib and (tests/report) a browser."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ladder_opt.plot import _matplotlib, _plotly
from ladder_opt.plot._plotly_frontier import _LABELS
from ladder_opt.plot.labels import (
    AxisRange,
    PointLabel,
    frontier_axes,
    frontier_labels,
    place_labels,
    shortened,
)
from ladder_opt.plot.time_data import FrontierData, FrontierPoint

PRESETS = ("8_5", "4_3", "9_8", "uniform")
Box = tuple[float, float, float, float]


def data_of(presets: list[tuple[float, float]], names: tuple[str, ...] = PRESETS) -> FrontierData:
    """A frontier like that of the bundled sample, and presets at (warm-up, step time) in seconds."""
    warmup = np.geomspace(700.0, 22000.0, 60)
    others = [
        FrontierPoint("plan", "plan", 2272.0, 228700.0, 117),
        FrontierPoint("default", "default", 869.0, 324400.0, 28),
    ]
    others += [FrontierPoint(name, "preset", *at, 50) for name, at in zip(names, presets, strict=False)]
    return FrontierData(
        warmup_seconds=warmup,
        step_seconds=223000.0 + 190000.0 * (700.0 / warmup) ** 3,
        num_variants=np.arange(60),
        ladders=("",) * 60,
        knee=20,
        chosen=35,
        restarts=2.0,
        points_in_all=60,
        complete=True,
        others=tuple(others),
    )


def boxes_of(
    data: FrontierData, placed: list[PointLabel], room: tuple[float, float], **letters: float
) -> tuple[list[Box], list[Box]]:
    """Boxes of the labels, and of the points, in pixels of a plot of that size, counted here."""
    x, y = frontier_axes(data)
    radius = letters["radius"]

    def at(point: FrontierPoint) -> tuple[float, float]:
        across, up = x.fractions(np.array(point.warmup_seconds)), y.fractions(np.array(point.step_seconds))
        return float(across) * room[0], float(up) * room[1]

    points = [(a - radius, b - radius, a + radius, b + radius) for a, b in map(at, data.others)]
    labels = []
    for each in placed:
        (a, b), wide, high = at(each.point), letters["letter"] * len(each.text), letters["line"]
        a, b = a + each.place.right, b + each.place.up
        labels.append((a - wide / 2, b - high / 2, a + wide / 2, b + high / 2))
    return labels, points


def meet(one: Sequence[float], other: Sequence[float]) -> bool:
    across, up = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    return across > 1e-6 and up > 1e-6


SIZES = {name: value for name, value in _LABELS.items() if name != "rooms"}
SAMPLE = [(1044.0, 268600.0), (1121.0, 256700.0), (1417.0, 241900.0), (1169.0, 243400.0)]


@given(st.lists(st.tuples(st.floats(700, 22000), st.floats(223000, 413000)), min_size=1, max_size=4))
@example(SAMPLE)
@example([(1169.0, 243400.0)] * 4)
@example([(22000.0, 413000.0)] * 4)
@example([(700.0, 223000.0)] * 4)
def test_no_label_covers_another_or_a_point_however_wide_the_plot(presets: list[tuple[float, float]]) -> None:
    data = data_of(presets)
    placed = frontier_labels(data, **_LABELS)
    for room in _LABELS["rooms"]:
        labels, points = boxes_of(data, placed, room, **SIZES)
        assert len(labels) == len(presets)
        assert not [pair for pair in itertools.combinations(labels, 2) if meet(*pair)]
        assert not [(label, point) for label in labels for point in points if meet(label, point)]
        for left, low, right, high in labels:
            assert left >= -1e-6
            assert right <= room[0] + 1e-6
            assert low >= -1e-6
            assert high <= room[1] + 1e-6


def test_a_label_stands_beside_its_point_where_nothing_is_near() -> None:
    placed = place_labels(
        np.array([[0.5, 0.5]]),
        np.array([[40.0, 14.0]]),
        np.array([[0.5, 0.5]]),
        np.zeros((0, 2)),
        rooms=[(400, 300)],
        radius=6.0,
    )
    assert [each.is_far for each in placed] == [False]
    assert 0 < placed[0].right < 40
    assert 0 < placed[0].up < 20


def test_a_label_far_from_its_point_has_a_line_to_it() -> None:
    figure = _plotly.frontier_figure(data_of([(1169.0, 243400.0)] * 4))
    shown = [note.text for note in figure.layout.annotations]
    assert sorted(shown) == sorted(PRESETS)
    assert {note.showarrow for note in figure.layout.annotations} == {False, True}


def test_long_names_are_cut_and_no_markup() -> None:
    name = "<b>" + "n" * 60
    assert len(shortened(name)) == 16
    figure = _plotly.frontier_figure(data_of(SAMPLE[:1], (name,)))
    assert figure.layout.annotations[0].text == "&lt;b&gt;nnnnnnnnnn..."


def test_of_many_presets_the_first_dozen_have_labels() -> None:
    presets = [(1000.0 + at, 250000.0 + at) for at in range(500)]
    figure = _plotly.frontier_figure(data_of(presets, tuple(f"p{at}" for at in range(500))))
    assert [note.text for note in figure.layout.annotations] == [f"p{at}" for at in range(12)]


def test_an_axis_shows_all_values_with_a_margin() -> None:
    near = AxisRange.of(np.array([10.0, 30.0]))
    assert not near.is_log
    assert (near.low, near.high) == pytest.approx((8.8, 31.2))
    far = AxisRange.of(np.array([1.0, 100.0]))
    assert far.is_log
    assert far.fractions(np.array([10.0])) == pytest.approx([0.5])
    for one in (AxisRange.of(np.array([5.0])), AxisRange.of(np.array([0.0, 0.0]))):
        assert one.low < one.high
        assert one.fractions(np.array([(one.low + one.high) / 2])) == pytest.approx([0.5])


@pytest.mark.parametrize("presets", [SAMPLE, [(1169.0, 243400.0)] * 4])
def test_matplotlib_draws_no_label_over_another(presets: list[tuple[float, float]]) -> None:
    figure = _matplotlib.frontier_figure(data_of(presets))
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.axes[0].texts if text.get_text() in PRESETS]
    assert len(texts) == 4
    # Of an annotation's extent the arrow is a part; the text alone is what may not be covered.
    boxes = [super(type(text), text).get_window_extent(canvas.get_renderer()).extents for text in texts]
    assert not [pair for pair in itertools.combinations(boxes, 2) if meet(*pair)]
