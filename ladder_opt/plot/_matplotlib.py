"""The figures as matplotlib draws them, for slides and papers; no global state, no display.

Each function takes prepared numbers and returns a `matplotlib.figure.Figure` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder_opt.extras import brought_by
from ladder_opt.plot import palette
from ladder_opt.plot.compared import COLOURS, Kind
from ladder_opt.plot.labels import frontier_axes, frontier_labels
from ladder_opt.plot.ladder_data import OccupancyData, RungsData, WasteData
from ladder_opt.plot.time_data import (
    QUANTILES,
    CostData,
    FrontierData,
    StepSecondsData,
)
from ladder_opt.plot.trace_data import TraceData
from ladder_opt.plot.units import count_text, log_ticks, matplotlib_text, shown_name, time_unit

with brought_by("report"):
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

_STYLES: dict[Kind, str] = {"plan": "-", "default": "--", "preset": ":"}
_MARKERS: dict[Kind, str] = {"plan": "*", "default": "s", "preset": "o"}
_WIDTH_INCHES = 8.0
_MANY_RUNGS = 24
_MOST_TIMES = 4.0  # of a value: an interval that ends beyond is cut there, so that the others can be seen
# Of the plot between the axes, in points, of small letters, and of the star.
_LABELS: dict[str, Any] = {"rooms": ((470, 205), (520, 235)), "letter": 5.2, "line": 11.0, "radius": 6.5}


def _name(name: str) -> str:
    return matplotlib_text(shown_name(name))


def _figure(
    height_inches: float, rows: int = 1, *, height_ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    grid = figure.add_gridspec(rows, 1, height_ratios=height_ratios)
    axes = [figure.add_subplot(grid[row]) for row in range(rows)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axis: Axes, **options: Any) -> None:
    axis.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), **options)


def occupancy_figure(data: OccupancyData) -> Figure:
    """The heat map with the rungs over it."""
    figure, (axis,) = _figure(4.6)
    left = data.num_blocks[0] - 0.5
    right = data.num_blocks[-1] + data.blocks_per_column - 0.5
    bottom, top = data.num_seqs[0] - 0.5, data.num_seqs[-1] + data.seqs_per_row - 0.5
    largest = float(np.nanmax(data.steps)) if np.isfinite(data.steps).any() else 1.0
    least = float(np.nanmin(data.steps)) if np.isfinite(data.steps).any() else 1.0
    image = axis.imshow(
        data.steps,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(left, right, bottom, top),
        cmap=palette.HEAT,
        norm=LogNorm(min(1.0, least), max(largest, 1.0 + 1e-9)),
    )
    figure.colorbar(image, ax=axis, label="steps")
    for lines in reversed(data.lines):
        ends = list(lines.segments.reshape(-1, 2, 2))
        axis.add_collection(LineCollection(ends, colors="white", linewidths=2.2, alpha=0.75))
        axis.add_collection(
            LineCollection(
                ends,
                colors=COLOURS[lines.kind],
                linewidths=1.1,
                linestyles=_STYLES[lines.kind],
                label=f"rungs, {_name(lines.name)}",
            )
        )
    axis.set(
        xlim=(left, right),
        ylim=(bottom, top),
        xlabel="num_blocks of the longest sequence",
        ylabel="num_seqs decoding",
    )
    if data.lines:
        _legend(axis, ncols=2)
    return figure


def waste_figure(data: WasteData) -> Figure:
    """Pages gathered, a bar for each pair of ladders."""
    figure, (axis,) = _figure(1.4 + 0.4 * len(data.names))
    names = [_name(name) for name in data.names]
    start = np.zeros(len(names))
    for label, values, colour, hatch in (
        ("needed", data.real, palette.REAL, ""),
        ("ragged floor: as long as the longest", data.ragged, palette.RAGGED, "//"),
        ("padding that ladders can fix", data.fixable, palette.FIXABLE, "xx"),
    ):
        axis.barh(names, values, left=start, label=label, color=colour, hatch=hatch, edgecolor="white")
        start += values
    axis.invert_yaxis()
    axis.set_xlabel("KV pages gathered in batched steps")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda pages, _: count_text(pages)))
    _legend(axis, ncols=3)
    return figure


def rungs_figure(data: RungsData) -> Figure:
    """What each rung earns."""
    rows = max(1, len(data.axes))
    figure, axes = _figure(0.6 + 2.2 * rows, rows)
    unit, seconds = time_unit(data.most_seconds)
    for axis, each in zip(axes, data.axes, strict=False):
        at = np.arange(len(each.names))
        axis.bar(at, each.marginal_seconds / seconds, color=palette.PLAN)
        every = -(-len(each.names) // _MANY_RUNGS)
        axis.set_xticks(
            at[::every], [matplotlib_text(name) for name in each.names[::every]], fontsize="small"
        )
        axis.set(xlabel=f"{each.axis} rung", ylabel=f"saves, {unit}")
    return figure


def step_seconds_figure(data: StepSecondsData) -> Figure:
    """Share of the batched steps that take so long or less."""
    figure, (axis,) = _figure(4.0)
    unit, seconds = time_unit(max((each.longest for each in data.ladders), default=1.0))
    for each in data.ladders:
        axis.step(
            np.concatenate(([each.seconds[0]], each.seconds)) / seconds,
            np.concatenate(([0.0], each.shares)),
            where="post",
            color=COLOURS[each.kind],
            linestyle=_STYLES[each.kind],
            linewidth=1.8 if each.kind != "preset" else 0.9,
            label=_name(each.name),
        )
    for quantile in QUANTILES:
        axis.axhline(quantile, color=palette.GREY, linewidth=0.6, linestyle=":")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set(
        xlabel=f"time of a batched step, {unit}",
        ylabel="share of batched steps",
        ylim=(0, 1.02),
        xlim=(0, None),
    )
    _legend(axis, ncols=4)
    return figure


def frontier_figure(data: FrontierData) -> Figure:
    """Every trade-off of warm-up and step time, and where the plan and its baselines stand."""
    figure, (axis,) = _figure(4.4)
    x_axis, y_axis = frontier_axes(data)
    (x_unit, x_seconds), (y_unit, y_seconds) = time_unit(x_axis.high), time_unit(y_axis.high)
    axis.step(
        data.warmup_seconds / x_seconds,
        data.step_seconds / y_seconds,
        where="post",
        color=palette.GREEN,
        marker=".",
        markersize=3,
        linewidth=1.2,
        label="frontier" if data.complete else "frontier, best known",
    )
    for each in reversed(data.others):
        at = each.warmup_seconds / x_seconds, each.step_seconds / y_seconds
        axis.plot(
            *at,
            linestyle="none",
            marker=_MARKERS[each.kind],
            markersize=13 if each.kind == "plan" else 7,
            color=COLOURS[each.kind],
            label=_name(each.name) if each.kind != "preset" else None,
        )
    for label, index, symbol in data.marks:
        axis.plot(
            data.warmup_seconds[index] / x_seconds,
            data.step_seconds[index] / y_seconds,
            linestyle="none",
            marker={"diamond-open": "D", "circle-open": "o"}[symbol],
            markersize=13,
            markerfacecolor="none",
            markeredgewidth=1.5,
            color=palette.PURPLE,
            label=label,
        )
    for named in frontier_labels(data, **_LABELS):
        axis.annotate(
            matplotlib_text(named.text),
            (named.point.warmup_seconds / x_seconds, named.point.step_seconds / y_seconds),
            xytext=(named.place.right, named.place.up),
            textcoords="offset points",
            horizontalalignment="center",
            verticalalignment="center",
            fontsize="small",
            arrowprops={"arrowstyle": "-", "color": palette.GREY, "linewidth": 0.6, "shrinkB": 4}
            if named.place.is_far
            else None,
        )
    for along, shown, seconds in ((axis.xaxis, x_axis, x_seconds), (axis.yaxis, y_axis, y_seconds)):
        low, high = shown.low / seconds, shown.high / seconds
        if shown.is_log:
            ticks = [tick for tick in log_ticks(low, high) if low <= tick <= high]
            (axis.set_xscale if along is axis.xaxis else axis.set_yscale)("log")
            along.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
            along.set_minor_locator(NullLocator())
        (axis.set_xlim if along is axis.xaxis else axis.set_ylim)(low, high)
    axis.set(xlabel=f"warm-up, {x_unit}", ylabel=f"{data.step_time_of}, {y_unit}")
    _legend(axis, ncols=3)
    return figure


def trace_figure(data: TraceData) -> Figure:
    """Arrivals, lengths and, where a replay is at hand, requests running over time."""
    has_arrivals = bool(len(data.seconds))
    timeline = data.timeline
    rows = 1 + has_arrivals + (timeline is not None)
    figure, axes = _figure(0.6 + 2.2 * rows, rows)
    row = 0
    if has_arrivals:
        unit, seconds = time_unit(float(data.seconds[-1]))
        axes[0].fill_between(
            data.seconds / seconds, data.arrivals_per_second, step="post", color=palette.BLUE
        )
        axes[0].set(xlabel=f"since the first arrival, {unit}", ylabel="requests/s", ylim=(0, None))
        row = 1
    if len(data.length_edges):
        axes[row].stairs(data.prompts, data.length_edges, color=palette.VERMILLION, label="prompt tokens")
        axes[row].stairs(
            data.outputs, data.length_edges, color=palette.GREEN, linestyle="--", label="output tokens"
        )
        axes[row].set_xscale("log")
        _legend(axes[row], ncols=2)
    axes[row].set(xlabel="tokens of a request", ylabel="requests")
    if timeline is not None and len(timeline):
        axis = axes[row + 1]
        unit, seconds = time_unit(float(timeline.seconds[-1]))
        at = timeline.seconds / seconds
        axis.plot(at, timeline.decode_batch_size, color=palette.BLUE, linewidth=1, label="decodes in a step")
        axis.plot(
            at, data.running_per_engine, "--", color=palette.ORANGE, linewidth=1, label="running on an engine"
        )
        axis.set(xlabel=f"time of the replay, {unit}", ylabel="requests", ylim=(0, None))
        _legend(axis, ncols=2)
    return figure


def cost_figure(data: CostData) -> Figure:
    """Seconds of a padded step by its sizes, and how sure each parameter is."""
    sure = data.sure
    heights = [3.4, 0.7 + 0.26 * len(sure)] if sure else [3.4]
    figure, axes = _figure(sum(heights), len(heights), height_ratios=heights)
    unit, seconds = time_unit(float(data.step_seconds.max(initial=0.0)))
    for index, (num_seqs, curve) in enumerate(zip(data.num_seqs, data.step_seconds, strict=True)):
        axes[0].plot(
            data.num_blocks,
            curve / seconds,
            color=palette.CYCLE[index % len(palette.CYCLE)],
            linestyle=("-", "--", ":", "-.")[index % 4],
            label=f"{num_seqs} sequences",
        )
    axes[0].set(
        xlabel="num_blocks that a step is padded to", ylabel=f"time of a step, {unit}", ylim=(0, None)
    )
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes[0], ncols=5)
    if sure:
        low, high = (np.array([each.interval_ratio[at] for each in sure]) for at in (0, 1))
        rows, most = np.arange(len(sure)), min(_MOST_TIMES, float(high.max()))
        shown = np.minimum(high, most)
        axes[1].errorbar(np.ones(len(sure)), rows, xerr=(1 - low, shown - 1), fmt="o", color=palette.BLUE)
        axes[1].plot(most * np.ones(len(sure))[high > most], rows[high > most], ">", color=palette.BLUE)
        names = [
            f"{each.name}, up to {top:.3g} times" if top > most else each.name
            for each, top in zip(sure, high, strict=True)
        ]
        axes[1].set_yticks(rows, [matplotlib_text(name) for name in names], fontsize="small")
        axes[1].set_ylim(len(sure) - 0.5, -0.5)
        axes[1].set_xlabel("interval, in units of the value")
    return figure
