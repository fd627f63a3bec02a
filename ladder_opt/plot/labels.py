"""Where labels of points go, so that none covers another or a point, however wide the figure is drawn.

Labels are tried one after the other, from left to right, at places around their point, near ones first; a
place will do where its box stays inside the plot and meets no box of a label or a point in any of the rooms
asked for. Of those that will do, the one over the fewest points of the curve is taken among the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.plot.time_data import FrontierData, FrontierPoint
from ladder_opt.plot.units import shown_name, spans_decades

_FAR_APART = 12.0
_MARGIN = 0.06  # of an axis, at either end
_GAP = 5.0  # from a point's edge to its label
_RINGS = 9  # rows of labels tried above and below a point
_CURVE_WEIGHT = 0.25
_LONGEST_LABEL = 16
_MOST_LABELS = 12
_MOST_CURVE = 200  # points of a curve that are looked at
_ALONG = 8  # points on each straight piece of a curve

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AxisRange:
    """What an axis shows.

    Attributes:
        is_log: whether it is logarithmic.
        low: its left or lower end, in its unit.
        high: the other end.
    """

    is_log: bool
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> AxisRange:
        """Around values, with a margin; logarithmic where they lie far apart."""
        is_log = spans_decades(values, factor=_FAR_APART)
        ends = np.array([values.min(), values.max()])
        ends = np.log10(ends) if is_log else ends
        margin = _MARGIN * (ends[1] - ends[0]) or max(abs(ends[0]) * _MARGIN, 1e-3)
        low, high = ends[0] - margin, ends[1] + margin
        return cls(is_log, float(10**low if is_log else low), float(10**high if is_log else high))

    def fractions(self, values: Floats) -> Floats:
        """Where values lie: 0 at the low end, 1 at the high one."""
        at, low, high = (
            np.log10(each) if self.is_log else np.asarray(each, np.float64)
            for each in (values, self.low, self.high)
        )
        return np.asarray((at - low) / (high - low))


@dataclass(frozen=True)
class Placed:
    """A label's place.

    Attributes:
        right: from its point to its centre, in pixels.
        up: likewise.
        is_far: whether a line should join the two.
    """

    right: float
    up: float
    is_far: bool


def place_labels(
    points: Floats,
    sizes: Floats,
    obstacles: Floats,
    curve: Floats,
    *,
    rooms: Sequence[tuple[float, float]],
    radius: float,
) -> list[Placed]:
    """A place for each label.

    Args:
        points: float64 (labels, 2), where the labelled points lie, as shares of the plot, from the lower
            left.
        sizes: float64 (labels, 2), widths and heights of the labels, in pixels.
        obstacles: float64 (points, 2), all points that are not to be covered, the labelled ones too.
        curve: float64 (points, 2), what is better left uncovered.
        rooms: widths and heights of the plot, in pixels: those that the places have to do for.
        radius: of a point, in pixels.
    """
    room = np.array(rooms, np.float64)[:, None, :]
    curve_in = curve[:: max(1, len(curve) // _MOST_CURVE)] * room
    taken = [_boxes(obstacles * room, np.full((1, 2), 2 * radius))]
    found: list[Placed | None] = [None] * len(points)
    for index in np.lexsort((points[:, 1], points[:, 0])):
        here = points[index] * room[:, 0]
        best: tuple[float, Placed, Floats] | None = None
        for rank, (right, up) in enumerate(_offsets(sizes[index], radius + _GAP)):
            box = _boxes((here + np.array([right, up]))[:, None], sizes[index][None])
            blocked = _cost(box, taken, curve_in, room[:, 0])
            cost = blocked + rank / 1000
            if best is None or cost < best[0]:
                is_far = abs(up) > 1.6 * sizes[index, 1] + radius
                best = cost, Placed(float(right), float(up), bool(is_far)), box
            if not blocked or best[0] < (rank + 1) / 1000:  # none further off is better
                break
        if best is not None:
            found[index] = best[1]
            taken.append(best[2])
    return [each for each in found if each is not None]


def _offsets(size: Floats, away: float) -> list[tuple[float, float]]:
    """From a point to the centres of the places tried, near ones first."""
    beside, above = size[0] / 2 + away, size[1] / 2 + away
    near = [
        (beside * 0.8, above * 0.8),
        (-beside * 0.8, above * 0.8),
        (beside * 0.8, -above * 0.8),
        (-beside * 0.8, -above * 0.8),
        (beside, 0.0),
        (-beside, 0.0),
        (0.0, above),
        (0.0, -above),
    ]
    return near + [
        (side * beside, way * (above + ring * size[1] * 1.1))
        for ring in range(1, _RINGS)
        for way in (1, -1)
        for side in (0.5, -0.5, 0.0, 1.0, -1.0)
    ]


def _boxes(centres: Floats, sizes: Floats) -> Floats:
    """float64 (rooms, boxes, 4): left, low, right, high."""
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=-1)


def _cost(box: Floats, taken: Sequence[Floats], curve: Floats, room: Floats) -> float:
    """0 where a box will do; what it overlaps or leaves the plot by, in labels of its size, else."""
    area = float(np.prod(box[0, 0, 2:] - box[0, 0, :2]))
    overlap = sum(float(_overlap(box, other).max(axis=0).sum()) for other in taken)
    inside = np.clip(np.minimum(box[:, 0, 2:], room) - np.maximum(box[:, 0, :2], 0), 0, None)
    outside = area - float(np.prod(inside, axis=1).min())
    in_box = np.all((curve >= box[..., :2]) & (curve <= box[..., 2:]), axis=-1)
    covered = np.mean(np.any(in_box, axis=1))
    return 10 * overlap / area + 5 * max(0.0, outside) / area + _CURVE_WEIGHT * float(covered)


def _overlap(box: Floats, others: Floats) -> Floats:
    """float64 (rooms, others), square pixels."""
    shared = np.minimum(box[..., 2:], others[..., 2:]) - np.maximum(box[..., :2], others[..., :2])
    return np.asarray(np.prod(np.clip(shared, 0, None), axis=-1))


@dataclass(frozen=True)
class PointLabel:
    """The label of a point of a frontier."""

    point: FrontierPoint
    text: str
    place: Placed


def frontier_axes(data: FrontierData) -> tuple[AxisRange, AxisRange]:
    """Warm-up and step time, in seconds, with all that is drawn."""
    warmup = np.array([*data.warmup_seconds, *(each.warmup_seconds for each in data.others)])
    steps = np.array([*data.step_seconds, *(each.step_seconds for each in data.others)])
    return AxisRange.of(warmup), AxisRange.of(steps)


def frontier_labels(
    data: FrontierData,
    *,
    rooms: Sequence[tuple[float, float]],
    letter: float,
    line: float,
    radius: float,
) -> list[PointLabel]:
    """Labels of the presets, of the first dozen where a file has more; hovering names the others.

    Args:
        data: the frontier, and the points.
        rooms: widths and heights of the plot, in pixels.
        letter: width of a letter, in pixels, rather too much than too little.
        line: height of a line of text.
        radius: of the largest point.
    """
    x, y = frontier_axes(data)

    def shares(warmup: Sequence[float] | Floats, steps: Sequence[float] | Floats) -> Floats:
        return np.column_stack([x.fractions(np.asarray(warmup)), y.fractions(np.asarray(steps))])

    named = [each for each in data.others if each.kind == "preset"][:_MOST_LABELS]
    if not named:
        return []
    texts = [shortened(each.name) for each in named]
    marks = [index for _, index, _ in data.marks]
    places = place_labels(
        shares([each.warmup_seconds for each in named], [each.step_seconds for each in named]),
        np.array([[letter * len(text), line] for text in texts]),
        shares(
            [*(each.warmup_seconds for each in data.others), *data.warmup_seconds[marks]],
            [*(each.step_seconds for each in data.others), *data.step_seconds[marks]],
        ),
        _steps_of_curve(shares(data.warmup_seconds, data.step_seconds)),
        rooms=rooms,
        radius=radius,
    )
    return [PointLabel(*each) for each in zip(named, texts, places, strict=True)]


def shortened(name: str) -> str:
    """A name that has room beside a point."""
    shown = shown_name(name)
    return shown if len(shown) <= _LONGEST_LABEL else f"{shown[: _LONGEST_LABEL - 3]}..."


def _steps_of_curve(points: Floats) -> Floats:
    """Points along a curve that runs right, then down, to each next point."""
    if len(points) < 2:
        return points
    corners = np.column_stack([points[1:, 0], points[:-1, 1]])
    along = np.linspace(0, 1, _ALONG)[:, None, None]
    right = points[:-1] + along * (corners - points[:-1])
    down = corners + along * (points[1:] - corners)
    return np.concatenate([right.reshape(-1, 2), down.reshape(-1, 2)])
