"""The figures as plotly draws them: each function takes prepared numbers and returns a figure.

Names out of files are escaped, since plotly reads tags in its texts. Sizes are left to the page or notebook.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ladder_opt.plot import palette
from ladder_opt.plot._plotly_common import DASHES, figure_name, finished, legend_of
from ladder_opt.plot._plotly_frontier import frontier_figure
from ladder_opt.plot._plotly_package import go, make_subplots
from ladder_opt.plot.compared import COLOURS
from ladder_opt.plot.ladder_data import LadderLines, OccupancyData, RungsData, WasteData
from ladder_opt.plot.time_data import QUANTILES, CostData, Parameter, StepSecondsData
from ladder_opt.plot.trace_data import TraceData
from ladder_opt.plot.units import (
    count_text,
    decades,
    plotly_text,
    time_unit,
)
from ladder_opt.units import duration_text

__all__ = [
    "cost_figure",
    "frontier_figure",
    "occupancy_figure",
    "rungs_figure",
    "step_seconds_figure",
    "trace_figure",
    "waste_figure",
]

_HATCH = {"fillmode": "overlay", "fgcolor": "rgba(0,0,0,0.45)", "size": 6, "solidity": 0.2}
_MANY_LINES = 60
_MANY_RUNGS = 30  # labels of more would run into each other


def occupancy_figure(data: OccupancyData) -> go.Figure:
    """The heat map, logarithmic in steps, with the rungs over it."""
    figure = go.Figure()
    largest = float(np.nanmax(data.steps)) if np.isfinite(data.steps).any() else 1.0
    ticks = decades(largest)
    with np.errstate(invalid="ignore"):
        heat = np.log10(data.steps)
    figure.add_trace(
        go.Heatmap(
            x=data.num_blocks + (data.blocks_per_column - 1) / 2,
            y=data.num_seqs + (data.seqs_per_row - 1) / 2,
            z=heat.astype(np.float32),
            customdata=data.steps.astype(np.float32),
            colorscale=palette.HEAT,
            zmin=min(0.0, float(np.nanmin(heat))) if np.isfinite(heat).any() else 0.0,
            zmax=max(1e-9, float(np.log10(largest))),
            hoverongaps=False,
            hovertemplate="num_seqs %{y}<br>num_blocks %{x}<br>%{customdata:,.4~g} steps<extra></extra>",
            colorbar={
                "title": {"text": "steps", "side": "right"},
                "tickvals": np.log10(ticks).tolist(),
                "ticktext": [count_text(tick) for tick in ticks],
                "thickness": 12,
                "outlinewidth": 0,
            },
            name="steps",
        )
    )
    for lines in reversed(data.lines):
        x, y = _polyline(lines)
        few = len(lines.segments) <= _MANY_LINES
        if few:  # a light edge, so that the line stands out from dark cells
            edge = {"color": "rgba(255,255,255,0.55)", "width": 3.2}
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    mode="lines",
                    line=edge,
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=lines.kind,
                )
            )
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line={
                    "color": COLOURS[lines.kind],
                    "width": 1.8 if few else 0.7,
                    "dash": DASHES[lines.kind],
                },
                opacity=1.0 if few else 0.6,
                hoverinfo="skip",
                name=f"rungs, {figure_name(lines.name)}",
                legendgroup=lines.kind,
            )
        )
    per_column = f" ({data.blocks_per_column} sizes a column)" if data.blocks_per_column > 1 else ""
    per_row = f" ({data.seqs_per_row} sizes a row)" if data.seqs_per_row > 1 else ""
    figure.update_xaxes(
        title=f"num_blocks of the longest sequence{per_column}",
        range=[0.5, data.num_blocks[-1] + data.blocks_per_column - 0.5],
        showgrid=False,
    )
    figure.update_yaxes(
        title=f"num_seqs decoding{per_row}",
        range=[0.5, data.num_seqs[-1] + data.seqs_per_row - 0.5],
        showgrid=False,
    )
    return finished(figure, height=480)


def _polyline(lines: LadderLines) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All segments as one line with gaps: NaN between them."""
    gaps = np.full(len(lines.segments), np.nan)
    x = np.column_stack([lines.segments[:, 0], lines.segments[:, 2], gaps]).ravel()
    y = np.column_stack([lines.segments[:, 1], lines.segments[:, 3], gaps]).ravel()
    return x, y


def waste_figure(data: WasteData) -> go.Figure:
    """Pages gathered, a bar for each pair of ladders, split by what they are for."""
    figure = go.Figure()
    names = [figure_name(name) for name in reversed(data.names)]
    total = data.padded[::-1]
    for label, values, colour, pattern in (
        ("needed", data.real, palette.REAL, ""),
        ("ragged floor: as long as the longest", data.ragged, palette.RAGGED, "/"),
        ("padding that ladders can fix", data.fixable, palette.FIXABLE, "x"),
    ):
        part = values[::-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(total > 0, part / total, 0.0)
        figure.add_trace(
            go.Bar(
                y=names,
                x=part,
                orientation="h",
                name=label,
                customdata=share,
                marker={"color": colour, "pattern": {"shape": pattern, **_HATCH}},
                hovertemplate="%{y}<br>%{x:,.0f} pages, %{customdata:.1%} of all<extra>" + label + "</extra>",
            )
        )
    figure.update_xaxes(title="KV pages gathered in batched steps")
    return finished(figure, height=130 + 44 * len(names), barmode="stack")


def rungs_figure(data: RungsData) -> go.Figure:
    """What each rung earns, a row of bars for each axis."""
    unit, seconds = time_unit(data.most_seconds)
    rows = max(1, len(data.axes))
    figure = make_subplots(rows=rows, cols=1, vertical_spacing=0.24 / rows if rows > 1 else 0)
    for row, axis in enumerate(data.axes, start=1):
        forced = np.where(axis.forced, "; there whatever it earns", "")
        hover = [
            f"{axis.axis} {name}<br>saves {_signed(value)}<br>{hits:,.0f} padded to it{note}"
            for name, value, hits, note in zip(
                axis.names, axis.marginal_seconds, axis.hits, forced, strict=True
            )
        ]
        figure.add_trace(
            go.Bar(
                x=list(axis.names),
                y=axis.marginal_seconds / seconds,
                customdata=hover,
                hovertemplate="%{customdata}<extra></extra>",
                marker={
                    "color": palette.PLAN,
                    "pattern": {"shape": ["x" if each else "" for each in axis.forced], **_HATCH},
                },
                name=axis.axis,
                showlegend=False,
            ),
            row=row,
            col=1,
        )
        figure.update_xaxes(
            title=f"{axis.axis} rung",
            type="category",
            showticklabels=True,
            nticks=_MANY_RUNGS if len(axis.names) > _MANY_RUNGS else 0,
            showgrid=False,
            row=row,
            col=1,
        )
        earns = {} if np.any(axis.marginal_seconds) else {"range": [0, 1], "showticklabels": False}
        figure.update_yaxes(title=f"saves, {unit}", row=row, col=1, **earns)
    return finished(figure, height=60 + 230 * rows)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{duration_text(abs(seconds))}"


def step_seconds_figure(data: StepSecondsData) -> go.Figure:
    """Share of the batched steps that take so long or less, a curve for each pair of ladders."""
    figure = go.Figure()
    longest = max((each.longest for each in data.ladders), default=1.0)
    unit, seconds = time_unit(longest)
    for each in data.ladders:
        figure.add_trace(
            go.Scatter(
                x=np.concatenate(([each.seconds[0]], each.seconds)) / seconds,
                y=np.concatenate(([0.0], each.shares)),
                mode="lines",
                line={
                    "shape": "hv",
                    "color": COLOURS[each.kind],
                    "dash": DASHES[each.kind],
                    "width": 2 if each.kind != "preset" else 1,
                },
                name=figure_name(each.name),
                visible=True if each.kind != "preset" else "legendonly",
                hovertemplate="%{y:.1%} of the steps take %{x:.3f} " + unit + " or less",
            )
        )
    for quantile in QUANTILES:
        figure.add_hline(
            y=quantile,
            line={"width": 1, "dash": "dot", "color": palette.GREY},
            annotation={"text": f"p{quantile * 100:.0f}", "font": {"size": 10}},
            annotation_position="top left" if quantile == QUANTILES[-1] else "bottom left",
        )
    figure.update_xaxes(title=f"time of a batched step, {unit}", range=[0, 1.04 * longest / seconds])
    figure.update_yaxes(title="share of batched steps", tickformat=".0%", range=[0, 1.06])
    return finished(figure, height=380)


def trace_figure(data: TraceData) -> go.Figure:
    """Arrivals, lengths and, where a replay is at hand, requests running and waiting over time."""
    has_arrivals, has_timeline = bool(len(data.seconds)), data.timeline is not None
    rows = 1 + has_arrivals + has_timeline
    figure = make_subplots(rows=rows, cols=1, vertical_spacing=0.34 / rows if rows > 1 else 0)
    row = 1
    if has_arrivals:
        last = data.timeline.seconds[-1] if data.timeline is not None else data.seconds[-1]
        unit, seconds = time_unit(float(max(last, data.seconds[-1])))
        figure.add_trace(
            go.Scatter(
                x=data.seconds / seconds,
                y=data.arrivals_per_second,
                mode="lines",
                line={"shape": "hv", "color": palette.BLUE, "width": 1},
                fill="tozeroy",
                name="arrivals",
                showlegend=False,
                hovertemplate="%{y:.3g} requests/s from %{x:.3f} " + unit + "<extra></extra>",
            ),
            row=row,
            col=1,
        )
        figure.update_xaxes(title=f"since the first arrival, {unit}", row=row, col=1)
        figure.update_yaxes(title="requests/s", rangemode="tozero", row=row, col=1)
        row += 1
    if len(data.length_edges):
        centres = np.sqrt(data.length_edges[:-1] * data.length_edges[1:])
        for name, counts, colour, dash in (
            ("prompt tokens", data.prompts, palette.VERMILLION, "solid"),
            ("output tokens", data.outputs, palette.GREEN, "dash"),
        ):
            figure.add_trace(
                go.Scatter(
                    x=centres,
                    y=counts,
                    mode="lines",
                    line={"shape": "hvh", "color": colour, "dash": dash, "width": 1.5},
                    name=name,
                    legend=legend_of(figure, row),
                    hovertemplate="%{y:,} requests of about %{x:,.0f}<extra>" + name + "</extra>",
                ),
                row=row,
                col=1,
            )
    figure.update_xaxes(title="tokens of a request", type="log", row=row, col=1)
    figure.update_yaxes(title="requests", rangemode="tozero", row=row, col=1)
    if data.timeline is not None:
        _add_timeline(figure, data, row + 1)
    return finished(figure, height=60 + 240 * rows)


def _add_timeline(figure: go.Figure, data: TraceData, row: int) -> None:
    if data.timeline is None or not len(data.timeline):
        return
    unit, seconds = time_unit(float(data.timeline.seconds[-1]))
    for name, values, colour, dash in (
        ("decodes in a step", data.timeline.decode_batch_size, palette.BLUE, "solid"),
        ("running on an engine", data.running_per_engine, palette.ORANGE, "dash"),
        ("waiting for an engine", data.waiting_per_engine, palette.PURPLE, "dot"),
    ):
        figure.add_trace(
            go.Scatter(
                x=data.timeline.seconds / seconds,
                y=values,
                mode="lines",
                line={"color": colour, "dash": dash, "width": 1.5},
                name=name,
                legend=legend_of(figure, row),
                visible="legendonly" if name.startswith("waiting") else True,
                hovertemplate="%{y:.3g} at %{x:.3f} " + unit + "<extra>" + name + "</extra>",
            ),
            row=row,
            col=1,
        )
    figure.update_xaxes(title=f"time of the replay, {unit}", row=row, col=1)
    figure.update_yaxes(title="requests", rangemode="tozero", row=row, col=1)


_CURVES_PIXELS, _ROW_PIXELS, _BETWEEN_PIXELS, _BELOW_PIXELS = 300, 44, 110, 56
_MOST_TIMES = 4.0  # of a value: an interval that ends beyond is cut there, so that the others can be seen


def cost_figure(data: CostData) -> go.Figure:
    """Seconds of a padded step by its sizes, and how sure each parameter is."""
    sure = data.sure
    heights = [_CURVES_PIXELS, _ROW_PIXELS * len(sure)] if sure else [_CURVES_PIXELS]
    plot = sum(heights) + (_BETWEEN_PIXELS if sure else 0)
    figure = make_subplots(
        rows=len(heights), cols=1, row_heights=heights, vertical_spacing=_BETWEEN_PIXELS / plot
    )
    unit, seconds = time_unit(float(data.step_seconds.max(initial=0.0)))
    for index, (num_seqs, curve) in enumerate(zip(data.num_seqs, data.step_seconds, strict=True)):
        figure.add_trace(
            go.Scatter(
                x=data.num_blocks,
                y=curve / seconds,
                mode="lines",
                line={
                    "color": palette.CYCLE[index % len(palette.CYCLE)],
                    "dash": ("solid", "dash", "dot", "dashdot")[index % 4],
                    "width": 1.5,
                },
                name=f"{num_seqs} sequences",
                hovertemplate="num_blocks %{x}: %{y:.3f} " + unit + f"<extra>num_seqs {num_seqs}</extra>",
            ),
            row=1,
            col=1,
        )
    figure.update_xaxes(title="num_blocks that a step is padded to", row=1, col=1)
    figure.update_yaxes(title=f"time of a step, {unit}", rangemode="tozero", row=1, col=1)
    if sure:
        _add_intervals(figure, sure)
    finished(figure, height=plot + 40 + _BELOW_PIXELS)
    # Fixed, so that the rows keep their height: what an axis asks for by itself is taken from the plots.
    return figure.update_layout(margin={"b": _BELOW_PIXELS}).update_xaxes(automargin=False)


def _add_intervals(figure: go.Figure, sure: Sequence[Parameter]) -> None:
    """A row for each parameter: its name, its value, and the interval as a multiple of that."""
    low, high = (np.array([each.interval_ratio[at] for each in sure]) for at in (0, 1))
    most = min(_MOST_TIMES, float(high.max()))
    shown = np.minimum(high, most)
    rows = np.arange(len(sure))
    hover = [
        f"{each.name}<br>{each.value:.3g} {each.unit}<br>{each.low:.3g} to {each.high:.3g}" for each in sure
    ]
    figure.add_trace(
        go.Scatter(
            x=np.ones(len(sure)),
            y=rows,
            mode="markers",
            marker={"color": palette.BLUE, "size": 8},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": shown - 1,
                "arrayminus": 1 - low,
                "color": palette.BLUE,
            },
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
        ),
        row=2,
        col=1,
    )
    for row, each in enumerate(sure):
        beyond = f", up to {high[row]:.3g} times" if high[row] > most else ""
        figure.add_annotation(
            text=f"{plotly_text(each.name)}{beyond}",
            xref="x2 domain",
            yref="y2",
            x=0,
            y=row,
            xanchor="left",
            yanchor="bottom",
            xshift=4,
            yshift=5,
            showarrow=False,
        )
        if beyond:
            figure.add_annotation(
                text="\u25b6",
                font={"color": palette.BLUE},
                xref="x2",
                yref="y2",
                x=most,
                y=row,
                xanchor="center",
                showarrow=False,
            )
    figure.update_xaxes(
        title="interval, in units of the value", range=[-0.05 * most, 1.05 * most], row=2, col=1
    )
    figure.update_yaxes(
        range=[len(sure) - 0.65, -0.65], showticklabels=False, ticks="", showgrid=False, row=2, col=1
    )
