"""The frontier as plotly draws it, with labels that keep clear of each other."""

from __future__ import annotations

import math
from typing import Any

from ladder_opt.plot import palette
from ladder_opt.plot._plotly_common import MARKERS, figure_name, finished
from ladder_opt.plot._plotly_package import go
from ladder_opt.plot.compared import COLOURS
from ladder_opt.plot.labels import AxisRange, Placed, frontier_axes, frontier_labels
from ladder_opt.plot.time_data import FrontierData
from ladder_opt.plot.units import log_ticks, plotly_text, time_unit
from ladder_opt.units import duration_text, hours_text


def frontier_figure(data: FrontierData) -> go.Figure:
    """Every trade-off of warm-up and step time, and where the plan and its baselines stand."""
    figure = go.Figure()
    x_axis, y_axis = frontier_axes(data)
    (x_unit, x_seconds), (y_unit, y_seconds) = time_unit(x_axis.high), time_unit(y_axis.high)
    hover = [
        f"{_priced(warmup, steps, variants)}<br>{text}"
        for warmup, steps, variants, text in zip(
            data.warmup_seconds, data.step_seconds, data.num_variants, data.ladders, strict=True
        )
    ]
    figure.add_trace(
        go.Scatter(
            x=data.warmup_seconds / x_seconds,
            y=data.step_seconds / y_seconds,
            mode="lines+markers",
            line={"color": palette.GREEN, "width": 1.5, "shape": "hv"},
            marker={"size": 4, "color": palette.GREEN},
            customdata=hover,
            hovertemplate="%{customdata}<extra>frontier</extra>",
            name="frontier" if data.complete else "frontier, best known",
        )
    )
    for label, index, symbol in data.marks:
        figure.add_trace(
            go.Scatter(
                x=[data.warmup_seconds[index] / x_seconds],
                y=[data.step_seconds[index] / y_seconds],
                mode="markers",
                marker={"symbol": symbol, "size": 15, "color": palette.PURPLE, "line": {"width": 2}},
                customdata=[hover[index]],
                hovertemplate="%{customdata}<extra>" + label + "</extra>",
                name=label,
            )
        )
    for each in reversed(data.others):
        figure.add_trace(
            go.Scatter(
                x=[each.warmup_seconds / x_seconds],
                y=[each.step_seconds / y_seconds],
                mode="markers",
                text=[figure_name(each.name)],
                marker={
                    "symbol": MARKERS[each.kind],
                    "size": 14 if each.kind == "plan" else 10,
                    "color": COLOURS[each.kind],
                },
                customdata=[_priced(each.warmup_seconds, each.step_seconds, each.num_variants)],
                hovertemplate="%{customdata}<extra>%{text}</extra>",
                name=figure_name(each.name),
                showlegend=each.kind != "preset",
            )
        )
    for named in frontier_labels(data, **_LABELS):
        at = named.point.warmup_seconds / x_seconds, named.point.step_seconds / y_seconds
        figure.add_annotation(
            x=math.log10(at[0]) if x_axis.is_log else at[0],
            y=math.log10(at[1]) if y_axis.is_log else at[1],
            text=plotly_text(named.text),
            font={"size": 12},
            borderpad=0,
            **_beside(named.place),
        )
    figure.update_xaxes(title=f"warm-up, {x_unit}", **_scale(x_axis, x_seconds))
    figure.update_yaxes(title=f"{data.step_time_of}, {y_unit}", **_scale(y_axis, y_seconds))
    return finished(figure, height=440)


# Of the plot between the axes: a phone's, where the legend takes lines of its own, a tablet's, paper's and a
# desk's; of letters of 12 pixels, and of the star.
_LABELS: dict[str, Any] = {
    "rooms": (
        *((width, height) for width in (230, 270, 320, 400) for height in (230, 280, 330)),
        *((width, 340) for width in (500, 600, 750, 900, 1100)),
    ),
    "letter": 7.4,
    "line": 15.0,
    "radius": 8.0,
}


def _beside(place: Placed) -> dict[str, Any]:
    """Of an annotation: where its text stands, with a line to its point from afar."""
    if not place.is_far:
        return {"showarrow": False, "xshift": place.right, "yshift": place.up}
    line = {"arrowhead": 0, "arrowwidth": 1, "arrowcolor": palette.GREY, "standoff": 5}
    return {"showarrow": True, "ax": place.right, "ay": -place.up, **line}


def _priced(warmup: float, steps: float, variants: int) -> str:
    return f"warm-up {duration_text(warmup)}<br>step time {hours_text(steps)}<br>{variants:,} variants"


def _scale(axis: AxisRange, unit_seconds: float) -> dict[str, Any]:
    """Of an axis: its range; with plain numbers at the ticks of a logarithmic one."""
    low, high = axis.low / unit_seconds, axis.high / unit_seconds
    if not axis.is_log:
        return {"type": "linear", "range": [low, high]}
    ticks = log_ticks(low, high)
    text = [f"{tick:,g}" for tick in ticks]
    return {"type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": ticks, "ticktext": text}
