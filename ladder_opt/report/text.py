"""Results as text for a terminal: plans, replays, trace summaries."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.markup import joined
from ladder_opt.occupancy.replay import Replay
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.parts import PlanPadded
from ladder_opt.plan.plan import Plan
from ladder_opt.report.heatmap import HeatMap
from ladder_opt.report.robust import robust_text
from ladder_opt.report.sentences import (
    absent_rung_text,
    alternative_text,
    comparison_cells,
    context_lines,
    dead_text,
    evidence_lines,
    forced_text,
    has_prices,
    holdout_text,
    objective_text,
    proof_text,
    rung_name,
    saving_text,
    unlimited_text,
    verdict_text,
)
from ladder_opt.report.uncertainty import uncertainty_text
from ladder_opt.trace.reasons import set_aside_facts
from ladder_opt.trace.summary import TraceSummary
from ladder_opt.units import duration_text, hours_text

_RUNGS_SHOWN = 8

_LADDER_NAMES = ("num_seqs", "num_blocks", "query_lens")


def plan_text(plan: Plan, *, path: str | None = None) -> RenderableType:
    """All that a person should see of a plan."""
    parts: list[RenderableType] = [_headline(plan), "", _ladders(plan)]
    if has_prices(plan):
        parts += [
            *_heat_map(plan),
            *robust_text(plan),
            "",
            _comparison(plan),
            "",
            _waste(plan),
            "",
            _rungs(plan),
            *_lines(dead_text(plan), holdout_text(plan), unlimited_text(plan), alternative_text(plan)),
            *_lines("\n".join(evidence_lines(plan)) or None),
            *uncertainty_text(plan),
        ]
    if plan.result.status != "evaluated" or not plan.num_seqs:
        # Ladders that were only priced are in a file already, or in the user's hands.
        parts += ["", _next_step(plan, path)]
    return Group(*parts)


def replay_text(replay: Replay) -> RenderableType:
    """A replay's totals."""
    table = _facts()
    facts: list[tuple[str, str]] = [
        ("requests replayed", f"{replay.requests:,}"),
        *set_aside_facts(replay.set_aside, replay.requests),
        ("engine steps", f"{replay.engine_steps:,}"),
        ("  with decodes", f"{replay.steps.total_steps:,.0f} in {len(replay.steps):,} cells"),
        ("  prefill only", f"{replay.prefill_only_steps:,}"),
        *(
            []
            if replay.sequences is None
            else [
                (
                    "per-sequence calls",
                    f"{replay.sequences.total_calls:,.0f} in {len(replay.sequences):,} cells",
                )
            ]
        ),
        ("preemptions", f"{replay.preemptions:,}"),
        ("prefill / decode tokens", f"{replay.prefill_tokens:,} / {replay.decode_tokens:,}"),
        *([("tokens from the prefix cache", f"{replay.cached_tokens:,}")] if replay.cached_tokens else []),
        ("busy / idle", f"{duration_text(replay.busy_seconds)} / {duration_text(replay.idle_seconds)}"),
        ("last request ends after", duration_text(replay.end_seconds)),
        ("server time (--span)", duration_text(replay.server_seconds)),
    ]
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def summary_text(summary: TraceSummary, *, path: str) -> RenderableType:
    """A trace's facts."""
    table = _facts()
    table.add_row("file", Text(path))
    table.add_row("format", ", ".join(summary.formats) or "ladder_opt")
    table.add_row("requests", f"{summary.requests:,} of {summary.rows:,} rows")
    for reason, count in set_aside_facts(summary.set_aside, summary.requests):
        table.add_row(reason, Text(count))
    if summary.span_seconds is None:
        table.add_row("arrivals", "none: replay needs --concurrency")
    else:
        rate = summary.requests_per_second
        table.add_row("span", duration_text(summary.span_seconds))
        table.add_row("rate", "unknown" if rate is None else f"{rate:.3g} requests/s")
        table.add_row("inter-arrival CV", _or_unknown(summary.interarrival_cv))
        table.add_row("busiest minute / mean", _or_unknown(summary.busiest_minute_over_mean))
    if summary.tick_seconds is not None:
        table.add_row(
            "arrival ticks", f"{summary.tick_seconds:g} s, {summary.tick_share or 0:.0%} of arrivals"
        )
    table.add_row("Spearman prompt-output", _or_unknown(summary.spearman_prompt_output))
    if summary.cached_share is not None:
        table.add_row("cached share of prompts", f"{summary.cached_share:.1%}")
    if summary.sessions is not None:
        table.add_row("sessions", f"{summary.sessions:,}")
    return Group(table, *_quantiles(summary), *(Text(f"note: {note}") for note in summary.notes))


def _quantiles(summary: TraceSummary) -> list[RenderableType]:
    if not summary.prompt_tokens or not summary.output_tokens:
        return []
    table = Table(box=None, pad_edge=False)
    table.add_column("tokens")
    for name in summary.prompt_tokens:
        table.add_column(name, justify="right")
    for label, values in (("prompt", summary.prompt_tokens), ("output", summary.output_tokens)):
        table.add_row(
            label, *(f"{value:,.1f}" if name == "mean" else f"{value:,.0f}" for name, value in values.items())
        )
    return ["", table]


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _facts() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column()
    return table


def _headline(plan: Plan) -> RenderableType:
    text = Text()
    text.append(verdict_text(plan), style="bold")
    text.append(saving_text(plan))
    for line in context_lines(plan):
        text.append(f"\n{line}")
    return text


def _ladders(plan: Plan) -> RenderableType:
    table = _facts()
    table.add_row("num_seqs", Text(joined(plan.num_seqs)))
    if plan.ragged is None:
        table.add_row("num_blocks", Text(joined(plan.num_blocks)))
    for rung, blocks in (plan.ragged or {}).items():
        table.add_row(f"num_blocks for {rung}", Text(joined(blocks)))
    if plan.query_lens is not None:
        table.add_row("query_lens", Text(joined(plan.query_lens)))
    table.add_row("status", proof_text(plan))
    return table


def _comparison(plan: Plan) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("ladders", no_wrap=True)
    for name in ("rungs", "variants", "warm-up", "step time", "objective", "vs default", "overpay"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, cells in comparison_cells(plan):
        table.add_row(
            Text(row.name),
            *cells,
            "" if row.within_limits else "over limits",
            style="bold" if row.kind == "plan" else None,
        )
    return Group(
        table,
        Text(
            f"{objective_text(plan)}; overpay: pages gathered above the ragged floor; pow2 to uniform: the "
            "Spyre plugin's KV presets as block ladders",
            style="dim",
        ),
    )


def _waste(plan: Plan) -> RenderableType:
    table = _facts()
    ours = plan.result.gathers
    default = plan.default
    table.add_row("pages needed", f"{ours.real:,.0f}")
    table.add_row(
        "ragged floor", f"{ours.ragged_floor:,.0f}  (batches are as long as their longest; no ladder helps)"
    )
    fixable = f"{ours.padded - ours.ragged_floor:,.0f}"
    if default is not None:
        fixable += f"  (default: {default.gathers.padded - default.gathers.ragged_floor:,.0f})"
    table.add_row("padding above it", fixable)
    calls = plan.result.sequences
    if calls is not None:
        table.add_row("per-sequence calls", f"{calls.calls:,.0f}, {duration_text(calls.step_seconds)} in all")
        table.add_row("  pages padded", _padded(calls.gathers))
        table.add_row("  query tokens padded", _padded(calls.query_tokens))
        table.add_row("  variants", f"{calls.num_variants:,} of {plan.result.num_variants:,}")
    return table


def _padded(counted: PlanPadded) -> str:
    share = counted.padded / counted.real - 1 if counted.real else 0.0
    return f"{counted.padded:,.0f} for {counted.real:,.0f}  ({share:+.1%})"


def _rungs(plan: Plan) -> RenderableType:
    lines: list[RenderableType] = []
    for axis in _LADDER_NAMES:
        rungs = [rung for rung in plan.result.rungs if rung.axis == axis]
        earners = sorted((r for r in rungs if not r.forced), key=lambda r: -r.marginal_seconds)
        if earners:
            shown = ", ".join(
                f"{rung_name(r)} ({duration_text(max(0.0, r.marginal_seconds))})"
                for r in earners[:_RUNGS_SHOWN]
            )
            more = f" and {len(earners) - _RUNGS_SHOWN} more" if len(earners) > _RUNGS_SHOWN else ""
            lines.append(Text(f"{axis} rungs by what they save: {shown}{more}"))
        lines += [Text(forced_text(rung)) for rung in rungs if rung.forced and not rung.hits]
    absent = absent_rung_text(plan)
    if absent is not None:
        lines.append(Text(absent))
    return Group(*lines)


def _heat_map(plan: Plan) -> list[RenderableType]:
    heat_map = HeatMap(plan)
    return ["", heat_map] if heat_map else []


def _lines(*texts: str | None) -> list[RenderableType]:
    return [Text(text) for text in texts if text is not None]


def _next_step(plan: Plan, path: str | None) -> RenderableType:
    if plan.verdict == "not-used":
        return Text("next: nothing to load")
    if plan.verdict == "keep-default":
        return Text("next: nothing to change")
    if path is None:
        return Text("next: name a file with -o PLAN.json, then ladder-opt export PLAN.json --format env")
    return Text(f"next: ladder-opt export {path} --format env")


def check_text(report: dict[str, Any]) -> RenderableType:
    """What the bucketer will use."""
    table = _facts()
    table.add_row("source", Text(report["source"]))
    if report["plan_sources"]:
        table.add_row("plan by", Text(report["plan_sources"][0]["source"]))
    table.add_row("num_seqs", Text(joined(report["num_seqs"])))
    if report["ragged"] is None:
        table.add_row("num_blocks", Text(joined(report["num_blocks"])))
    for rung, blocks in (report["ragged"] or {}).items():
        table.add_row(f"num_blocks for {rung}", Text(joined(blocks)))
    table.add_row("variants", f"{report['num_variants']:,}")
    for axis, label in (("kv_tokens", "KV, tokens"), ("query_tokens", "query, tokens")):
        source = report["sources"][axis]
        table.add_row(label, Text(f"{joined(report[axis])}  (per sequence; {source})"))
    table.add_row("per sequence", f"{report['num_sequence_variants']:,} variants")
    return table


_FRONTIER_ROWS = 12


def frontier_text(frontier: Frontier) -> RenderableType:
    """A small table of a frontier: its ends, its knee, the point that the restarts choose, some between."""
    count = len(frontier)
    spread = {round(index * (count - 1) / (_FRONTIER_ROWS - 1)) for index in range(_FRONTIER_ROWS)}
    table = Table(box=None, pad_edge=False)
    for name in ("warm-up", "step time", "variants", "rungs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for index in sorted(spread | {frontier.knee, frontier.chosen}):
        price = frontier.prices[index]
        marks = [
            name for name, at in (("knee", frontier.knee), ("least in all", frontier.chosen)) if at == index
        ]
        table.add_row(
            duration_text(price.warmup_seconds),
            hours_text(price.step_seconds),
            f"{price.num_variants:,}",
            f"{len(price.ladders.num_seqs)} x {len(price.ladders.num_blocks)}",
            ", ".join(marks),
        )
    whole = "complete: no other is left out" if frontier.complete else "the best known, not complete"
    before, after = frontier.minute_before(frontier.chosen), frontier.minute_after(frontier.chosen)
    minutes = []
    if after > 0 or frontier.chosen < count - 1:
        minutes.append(f"the next minute of warm-up would save {duration_text(after)} of step time")
    if before is not None:
        minutes.append(f"the last minute of warm-up saved {duration_text(before)} of step time")
    lines = [
        f"{count:,} Pareto-optimal pairs of ladders ({whole}); {len(table.rows)} of them:",
        f"at {frontier.restarts:.4g} server starts " + ", and ".join(minutes or ["there is one point alone"]),
    ]
    return Group(Text(lines[0]), "", table, "", Text(lines[1]))
