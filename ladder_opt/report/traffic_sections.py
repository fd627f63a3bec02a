"""The sections of a report that need more than ladders: batch shapes, times, frontier, trace, prices."""

from __future__ import annotations

import numpy as np

from ladder_opt.markup import facts, table, text
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.plan import Plan
from ladder_opt.plot._plotly import (
    cost_figure,
    frontier_figure,
    occupancy_figure,
    step_seconds_figure,
    trace_figure,
)
from ladder_opt.plot.compared import compared
from ladder_opt.plot.ladder_data import OccupancyData
from ladder_opt.plot.time_data import QUANTILES, CostData, FrontierData, StepSecondsData
from ladder_opt.plot.trace_data import TraceData
from ladder_opt.report.contents import Contents
from ladder_opt.report.names import DIGITS_SHOWN, without_folders
from ladder_opt.report.page import Chart, Section, scrolled
from ladder_opt.report.sections import paragraphs
from ladder_opt.report.sentences import capital
from ladder_opt.trace.reasons import set_aside_facts
from ladder_opt.trace.summary import TraceSummary
from ladder_opt.units import duration_text, hours_text

_FRONTIER_ROWS = 16


def occupancy_section(plan: Plan, steps: StepHistogram, data: OccupancyData) -> Section:
    """How often each batch shape occurred, with the rungs over it."""
    told = (
        f"{data.total_steps:,.0f} decode steps, {data.batched_steps:,.0f} of them with "
        f"{data.min_batched_seqs} or more sequences, which reach the ladders"
    )
    return Section(
        key="occupancy",
        title="Batch shapes of this traffic",
        chart=Chart(
            occupancy_figure(data),
            f"Heat map of {told}, over the number of sequences and the blocks of the longest, with the rungs "
            "of the plan and of the default ladders as lines.",
            "Each cell is padded up to the next line above it and the next line to its right. A good ladder "
            "has lines just past where the steps are, and few elsewhere.",
        ),
        table=scrolled(_steps_table(plan, steps, data), label="Steps by batch size"),
        summary="Steps by number of sequences",
    )


def _steps_table(plan: Plan, steps: StepHistogram, data: OccupancyData) -> str:
    """A row for each row of the heat map that holds steps."""
    rungs = np.array(plan.num_seqs, np.int64)
    rows = []
    band = (steps.num_seqs - 1) // data.seqs_per_row
    for which in np.unique(band):
        here = band == which
        weight, blocks = steps.steps[here], steps.num_blocks[here]
        first = int(data.num_seqs[which])
        last = min(first + data.seqs_per_row - 1, plan.engine.max_num_seqs)
        at = int(np.searchsorted(rungs, last))
        batched = last >= plan.engine.min_batched_seqs and at < len(rungs)
        rows.append(
            (
                first if first == last else f"{first} to {last}",
                f"{weight.sum():,.0f}",
                f"{weight.sum() / data.total_steps:.2%}",
                f"{(weight * blocks).sum() / weight.sum():.1f}",
                int(blocks.max()),
                int(rungs[at]) if batched else "per sequence",
            )
        )
    columns = ("num_seqs", "steps", "share", "mean num_blocks", "largest num_blocks", "padded to num_seqs")
    return table(columns, rows)


def frontier_section(found: Frontier, data: FrontierData, plan: Plan) -> Section:
    """Every trade-off of warm-up and step time."""
    whole = "no other pair of ladders is missing" if data.complete else "the best known, not complete"
    drawn = len(data.warmup_seconds)
    some = f", {drawn:,} of them drawn" if drawn < data.points_in_all else ""
    told = f"{data.points_in_all:,} pairs of ladders that none beats in both warm-up and step time"
    lines = [f"{told} ({whole}{some})"]
    if data.complete:
        before, after = found.minute_before(found.chosen), found.minute_after(found.chosen)
        line = f"where the cost in all is least, at {data.restarts:.4g} server starts, one more minute of "
        line += f"warm-up would save {duration_text(after) if after > 0 else 'nothing'}"
        if before is not None:
            line += f", one less would cost {duration_text(before)}"
        lines.append(line)
    if plan.structure == "ragged":
        lines.append("the frontier is of two independent ladders; a ragged plan may lie below it")
    wanted = np.unique(np.linspace(0, drawn - 1, min(drawn, _FRONTIER_ROWS)).round().astype(int))
    shown = sorted({*(int(each) for each in wanted), data.knee, data.chosen})
    rows: list[tuple[object, ...]] = [
        (
            ", ".join(
                mark for mark, index in (("knee", data.knee), ("least in all", data.chosen)) if index == each
            )
            or "frontier",
            duration_text(data.warmup_seconds[each]),
            hours_text(data.step_seconds[each]),
            f"{data.num_variants[each]:,}",
        )
        for each in shown
    ]
    rows += [
        (
            row.name,
            duration_text(row.price.warmup_seconds),
            hours_text(row.price.step_seconds),
            f"{row.price.num_variants:,}",
        )
        for row in compared(plan)
    ]
    return Section(
        key="frontier",
        title="What a longer warm-up buys",
        body=paragraphs(*lines),
        chart=Chart(
            frontier_figure(data),
            f"Curve of {data.points_in_all:,} trade-offs of warm-up and step time, with the plan, the "
            "default ladders and the presets as points.",
            "Lower is faster serving, left a faster start. Knee: where the curve bends; further right, "
            "more variants save little."
            + ("" if data.complete else " <code>--frontier-time 5m</code> finds more of the curve."),
        ),
        table=scrolled(table(("ladders", "warm-up", "step time", "variants"), rows), label="Frontier"),
    )


def step_seconds_section(data: StepSecondsData) -> Section:
    """How long batched steps take."""
    rows = [
        (
            each.name,
            *(duration_text(value) for value in each.quantiles),
            duration_text(each.mean),
            duration_text(each.longest),
        )
        for each in data.ladders
    ]
    columns = ("ladders", *(f"p{quantile * 100:.0f}" for quantile in QUANTILES), "mean", "longest")
    plan = data.ladders[0]
    told = f"half of the plan's steps take {duration_text(plan.quantiles[0])} or less"
    default = next((each for each in data.ladders if each.kind == "default"), None)
    if default is not None:
        told += f", under the default ladders {duration_text(default.quantiles[0])}"
    return Section(
        key="step-times",
        title="Time of a step",
        body=paragraphs(
            "the time between two tokens of a sequence is that of a decode step; here are the batched ones, "
            "without the prefill that shares a step with them"
        )
        + scrolled(table(columns, rows), label="Time of a step"),
        chart=Chart(
            step_seconds_figure(data),
            f"Share of batched steps that take so long or less, under each pair of ladders: {told}.",
            f"{text(capital(told))} Presets can be switched on in the legend.",
        ),
    )


def trace_section(data: TraceData, contents: Contents) -> Section:
    """Arrivals, lengths, batches over time."""
    names, digests = contents.names, {each.path: each.sha256 for each in contents.sources}
    summaries = [
        (", ".join(names.get(part, part) for part in path.split(", ")), digests.get(path), summary)
        for path, summary in contents.summaries
    ]
    body = []
    for name, digest, summary in summaries:
        caption = name if digest is None else f"{name}, SHA-256 {digest[:DIGITS_SHOWN]}..."
        body.append(f'<div class="wrap">{facts(_summary_rows(summary), caption=caption)}</div>')
    body.append(paragraphs(*(without_folders(note, names) for note in contents.notes)))
    lengths = []
    for name, _, summary in summaries:
        for kind, values in (("prompt", summary.prompt_tokens), ("output", summary.output_tokens)):
            if values:
                where = f"{kind} tokens" if len(summaries) == 1 else f"{kind} tokens, {name}"
                lengths.append((where, *(f"{values[key]:,.0f}" for key in _LENGTHS)))
    return Section(
        key="trace",
        title="The traffic over time",
        body="\n".join(body),
        chart=Chart(
            trace_figure(data),
            f"Arrivals over time and lengths of {data.requests:,} requests"
            + (", and requests in a step over time." if data.timeline is not None else "."),
            "Top to bottom: arrivals, lengths"
            + (
                ", and the batch as a replay with the plan's ladders has it, an average over the engines; "
                "requests that wait can be switched on in the legend."
                if data.timeline is not None
                else "."
            ),
        ),
        table=scrolled(table(("", *_LENGTHS), lengths), label="Lengths") if lengths else "",
    )


_LENGTHS = ("p1", "p5", "p25", "p50", "p75", "p95", "p99", "max", "mean")


def _summary_rows(summary: TraceSummary) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("requests", f"{summary.requests:,} of {summary.rows:,} rows")]
    rows += set_aside_facts(summary.set_aside, summary.requests)
    if summary.span_seconds is not None:
        rows.append(("span", duration_text(summary.span_seconds)))
    if summary.requests_per_second is not None:
        rows.append(("rate", f"{summary.requests_per_second:.3g} requests/s"))
    if summary.busiest_minute_over_mean is not None:
        rows.append(("busiest minute", f"{summary.busiest_minute_over_mean:.3g} times the mean"))
    if summary.cached_share is not None:
        rows.append(("cached share of prompts", f"{summary.cached_share:.1%}"))
    return rows


def cost_section(data: CostData, *, name: str, kernel: str, startup_seconds: float) -> Section:
    """The prices, and how sure they are."""
    rows = [
        (
            each.name,
            f"{each.value:.4g}",
            "" if each.low is None or each.high is None else f"{each.low:.3g} to {each.high:.3g}",
            each.unit,
        )
        for each in data.parameters
    ]
    intervals = any(each.low is not None for each in data.parameters)
    lines = [
        f"every second in this report comes from the cost model {name}, kernel {kernel}",
        f"a start takes {duration_text(startup_seconds)} before the first variant"
        if startup_seconds
        else None,
        None if intervals else "it states no intervals, so that how sure its numbers are is not known",
    ]
    below = scrolled(table(("parameter", "value", "interval", "unit"), rows), label="Parameters")
    if data.residuals:
        below += f'<div class="wrap">{facts(data.residuals, caption="Residuals of the fit")}</div>'
    return Section(
        key="cost",
        title="What seconds are made of",
        body=paragraphs(*lines),
        chart=Chart(
            cost_figure(data),
            "Curves of the time of a step by the blocks that it is padded to, for several batch sizes"
            + (", and the interval of each parameter." if intervals else "."),
            "Time of a batched step by the rung pair that it is padded to."
            + (" Below, each parameter's interval as a multiple of its value." if intervals else ""),
        ),
        table=below,
    )
