"""What all of plotly's figures share: dashes and markers of plan, default and presets, legends, margins."""

from __future__ import annotations

from typing import Any

from ladder_opt.plot._plotly_package import go
from ladder_opt.plot.compared import Kind
from ladder_opt.plot.theme import template
from ladder_opt.plot.units import plotly_text, shown_name

DASHES: dict[Kind, str] = {"plan": "solid", "default": "dash", "preset": "dot"}
MARKERS: dict[Kind, str] = {"plan": "star", "default": "square", "preset": "circle"}


def figure_name(name: str) -> str:
    """A name out of a file, for a legend."""
    return plotly_text(shown_name(name))


_LEGEND = {"orientation": "h", "yanchor": "bottom", "xanchor": "left", "x": 0, "traceorder": "normal"}


def legend_of(figure: go.Figure, row: int) -> str:
    """A legend of its own above a row of a figure with several."""
    name = "legend" if row == 1 else f"legend{row}"
    axis = "yaxis" if row == 1 else f"yaxis{row}"
    figure.update_layout({name: {**_LEGEND, "y": figure.layout[axis].domain[1]}})
    return name


def finished(figure: go.Figure, *, height: int, **layout: Any) -> go.Figure:
    """With the page's template, its legend above, and room for labels."""
    figure.update_layout(
        template=template("light"),
        height=height,
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        legend={"y": 1.0, **_LEGEND, **(figure.layout.legend.to_plotly_json() or {})},
        **layout,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure
