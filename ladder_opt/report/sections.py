"""The sections of a report that the plan alone fills: ladders, comparison, waste, rungs, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ladder_opt.markup import Hover, facts, joined, table, text
from ladder_opt.plan.parts import PlanTraffic
from ladder_opt.plan.plan import Plan
from ladder_opt.plot.ladder_data import RungsData, WasteData
from ladder_opt.report.names import without_folders
from ladder_opt.report.page import Chart, Section, scrolled
from ladder_opt.report.sentences import (
    absent_rung_text,
    alternative_text,
    capital,
    comparison_cells,
    dead_text,
    engines_text,
    evidence_lines,
    forced_text,
    holdout_text,
    objective_text,
    unlimited_text,
)
from ladder_opt.units import duration_text, hours_text


def paragraphs(*sentences: str | None) -> str:
    """Each a paragraph, escaped."""
    return "\n".join(f"<p>{text(capital(each))}</p>" for each in sentences if each)


def ladders_section(plan: Plan) -> Section:
    """The rungs of the plan and of the default ladders."""
    parts = [
        (
            "<p>A decode step is padded up to the next rung of each ladder: "
            "<code>num_seqs</code> counts its decoding sequences, <code>num_blocks</code> the KV blocks "
            f"(of {plan.engine.block_size} tokens) of the longest of them. Steps of fewer than "
            f"{plan.engine.min_batched_seqs} sequences meet no ladder.</p>"
        ),
        "<h3>Plan</h3>",
    ]
    parts.append(_rung_lists(plan.num_seqs, plan.num_blocks, plan.ragged, css="ladder plan"))
    if plan.query_lens is not None:
        parts += [
            "<p>query_lens, tokens</p>",
            _chips(plan.query_lens, "query_lens of the plan", "ladder plan"),
        ]
    default = plan.default
    if default is not None:
        parts.append("<h3>Default</h3>")
        parts.append(_rung_lists(default.num_seqs, default.num_blocks, None, css="ladder"))
    return Section(key="ladders", title="Ladders", body="\n".join(parts))


def _rung_lists(
    num_seqs: Sequence[int],
    num_blocks: Sequence[int],
    ragged: Mapping[str, Sequence[int]] | None,
    *,
    css: str,
) -> str:
    parts = ["<p>num_seqs</p>", _chips(num_seqs, "num_seqs rungs", css)]
    if ragged is None:
        return "\n".join([*parts, "<p>num_blocks</p>", _chips(num_blocks, "num_blocks rungs", css)])
    for rung, blocks in ragged.items():
        parts += [f"<p>num_blocks for {text(rung)}</p>", _chips(blocks, f"num_blocks rungs for {rung}", css)]
    return "\n".join(parts)


def _chips(rungs: Sequence[int], label: str, css: str) -> str:
    if not rungs:
        return "<p>none</p>"
    items = "".join(f"<li>{rung}</li>" for rung in rungs)
    return f'<ul class="{css}" aria-label="{text(label)}">{items}</ul>'


def comparison_section(plan: Plan) -> Section:
    """Plan and baselines, a row each."""
    rows = [
        (row.name if row.within_limits else f"{row.name} (over the limits)", *cells)
        for row, cells in comparison_cells(plan)
    ]
    columns = ("ladders", "rungs", "variants", "warm-up", "step time", "in all", "vs default", "overpay")
    added = f", {engines_text(plan)} added up" if engines_text(plan) != "one engine" else ""
    body = [
        scrolled(table(columns, rows, caption=f"On the same steps{added}"), label="Comparison"),
        paragraphs(
            f"in all: {objective_text(plan).removeprefix('objective = ')}",
            "warm-up: what a server start takes; overpay: padding that ladders can avoid, as a share of the "
            "KV pages that no ladder can; pow2 to uniform: the Spyre plugin's KV presets as block ladders",
            holdout_text(plan),
            unlimited_text(plan),
            alternative_text(plan),
        ),
    ]
    return Section(key="comparison", title="Plan against default and presets", body="\n".join(body))


def robust_section(plan: Plan, names: Mapping[str, str]) -> Section | None:
    """What each workload of a robust plan pays."""
    robust = plan.result.robust
    if robust is None:
        return None
    rows = [
        (
            names.get(each.path, each.path),
            f"{each.restarts:.4g}",
            hours_text(each.objective_seconds),
            hours_text(
                each.optimum_seconds if each.optimum_status == "optimal" else each.optimum_lower_bound_seconds
            )
            + ("" if each.optimum_status == "optimal" else " or more"),
            f"{each.regret:.2%}",
            f"{each.own_plan_worst_regret:.2%}",
        )
        for each in robust.workloads
    ]
    columns = ("workload", "server starts", "in all", "its own best", "regret", "own plan's worst regret")
    lines = ["regret: what a workload pays above its own best ladders; the plan has the least worst regret"]
    if robust.mix is not None and len(robust.workloads) > 1:
        lines.append(
            f"a plan for the sum of the workloads would have a worst regret of {robust.mix.worst_regret:.2%}"
        )
    default = robust.baseline_regret("default")
    if default is not None:
        lines.append(f"the default ladders have a worst regret of {default:.2%}")
    if robust.holdout is not None:
        lines.append(
            f"on the last {robust.holdout.share:.0%} of each trace, which the plan has not seen, the worst "
            f"regret is {robust.holdout.worst_regret:.2%}"
        )
    caption = "The numbers elsewhere in this report are of the workloads' sum."
    body = scrolled(table(columns, rows, caption=caption), label="Workloads") + paragraphs(*lines)
    return Section(key="workloads", title="Workloads", body=body)


def waste_section(plan: Plan, data: WasteData | None) -> Section:
    """Pages needed, up to the ragged floor, and above it."""
    sequences = plan.result.sequences
    extra = ""
    if sequences is not None:
        extra = scrolled(
            table(
                ("per-sequence attention", "real", "padded"),
                [
                    ("KV pages", f"{sequences.gathers.real:,.0f}", f"{sequences.gathers.padded:,.0f}"),
                    (
                        "query tokens",
                        f"{sequences.query_tokens.real:,.0f}",
                        f"{sequences.query_tokens.padded:,.0f}",
                    ),
                ],
                caption=f"{sequences.calls:,.0f} calls, {duration_text(sequences.step_seconds)} in all, "
                f"{sequences.num_variants:,} variants",
            ),
            label="Per-sequence attention",
        )
    body = (
        "<p>A batched step gathers KV pages. Some are <b>needed</b>. As a batch is as long as its longest "
        "sequence, more are gathered up to the <b>ragged floor</b>, which no ladder can go below. Only what "
        "is <b>above the floor</b> is the ladders' to fix.</p>"
    )
    if data is None:
        return Section(key="waste", title="Padding", body=body + extra)
    # Imported late: a report without charts needs no plotly.
    from ladder_opt.plot._plotly import waste_figure  # noqa: PLC0415

    rows = [
        (name, f"{real:,.0f}", f"{ragged:,.0f}", f"{fixable:,.0f}", _share(fixable, real + ragged))
        for name, real, ragged, fixable in zip(data.names, data.real, data.ragged, data.fixable, strict=True)
    ]
    columns = ("ladders", "needed", "to the ragged floor", "above it", "overpay")
    by_name = dict(zip(data.names, data.fixable, strict=True))
    told = f"the plan pads {by_name['plan']:,.0f} pages above the floor"
    default = next(
        (name for name, kind in zip(data.names, data.kinds, strict=True) if kind == "default"), None
    )
    if default is not None:
        told += f", the default ladders {by_name[default]:,.0f}"
    return Section(
        key="waste",
        title="Padding",
        body=body,
        chart=Chart(waste_figure(data), f"Bars of KV pages gathered: {told}.", text(capital(told))),
        table=scrolled(table(columns, rows, caption="KV pages over the batched steps"), label="Pages")
        + extra,
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def rungs_section(plan: Plan, data: RungsData) -> Section:
    """What each rung earns."""
    from ladder_opt.plot._plotly import rungs_figure  # noqa: PLC0415

    rows = [
        (
            f"{axis.axis} {name}",
            f"{'-' if marginal < 0 else ''}{duration_text(abs(marginal))}",
            f"{hits:,.0f}",
            "stays whatever it earns" if forced else "",
        )
        for axis in data.axes
        for name, marginal, hits, forced in zip(
            axis.names, axis.marginal_seconds, axis.hits, axis.forced, strict=True
        )
    ]
    unused = [forced_text(rung) for rung in plan.result.rungs if rung.forced and not rung.hits]
    evidence = evidence_lines(plan)
    body = [paragraphs(absent_rung_text(plan), dead_text(plan), *unused)]
    if evidence:
        items = "".join(f"<li>{text(line.strip())}</li>" for line in evidence[1:])
        body.append(f"<p>{text(capital(evidence[0]))}</p>\n<ul>{items}</ul>")
    return Section(
        key="rungs",
        title="What each rung earns",
        body="\n".join(body),
        chart=Chart(
            rungs_figure(data),
            f"Bars of the time that each of the plan's {len(rows)} rungs saves.",
            "What the traffic would cost more without the rung. A ladder's last rung is the engine's limit "
            "and cannot go; hatched rungs are there whatever they earn.",
        ),
        table=scrolled(table(("rung", "saves", "padded to it", ""), rows), label="Rungs"),
    )


_TRAFFIC_SHARES = (0.05, 0.5, 0.95, 0.99, 1.0)


def traffic_section(traffic: PlanTraffic, notes: Sequence[str], names: Mapping[str, str]) -> Section:
    """The traffic at a glance, from the plan alone."""
    at = [traffic.shares.index(share) for share in _TRAFFIC_SHARES if share in traffic.shares]
    rows = [
        (what, *(f"{values[index]:,}" for index in at))
        for what, values in (
            ("prompt tokens", traffic.prompt_tokens),
            ("output tokens", traffic.output_tokens),
        )
    ]
    columns = ["", *("max" if traffic.shares[i] == 1 else f"p{100 * traffic.shares[i]:g}" for i in at)]
    rate = traffic.requests_per_second
    told = f"{traffic.requests:,.0f} requests that the engines take"
    if rate is not None:
        told += f", {rate:.3g} requests/s on each engine"
    return Section(
        key="trace",
        title="The traffic at a glance",
        body=paragraphs(told, *(without_folders(note, names) for note in notes))
        + scrolled(table(columns, rows), label="Lengths"),
    )


def provenance_section(plan: Plan, names: Mapping[str, str], *, name: str) -> Section:
    """What the plan was made from, by what, asked for what; here alone whole paths, to hover on."""
    made = plan.provenance
    engine = plan.engine.model_dump(exclude_none=True)
    rows: list[tuple[str, object]] = [
        ("plan file", name),
        ("made by", f"ladder_opt {made.version}"),
        ("made at", made.created),
        ("target, structure, kernel", f"{plan.target}, {plan.structure}, {plan.kernel}"),
        ("cost model", f"{made.cost_name or 'unnamed'}, SHA-256 {made.cost_sha256}"),
        ("engine", ", ".join(f"{key} {value}" for key, value in engine.items())),
    ]
    inputs = [
        (Hover(names.get(each.path, each.path), each.path), each.format or "", f"{each.rows:,}", each.sha256)
        for each in made.inputs
    ]
    parts = [f'<div class="wrap">{facts(rows)}</div>']
    if inputs:
        parts.append(
            scrolled(
                table(("input", "format", "rows", "SHA-256"), inputs, caption="Files the plan was made from"),
                label="Input files",
            )
        )
    else:
        parts.append("<p>It names no input files.</p>")
    folded = []
    for caption, part in (("Options of the run", made.asked), ("Totals of the replay", made.replay)):
        if part:
            folded.append(f'<div class="wrap">{facts(_flat(part), caption=caption)}</div>')
    return Section(
        key="provenance",
        title="Where it comes from",
        body="\n".join(parts),
        table="\n".join(folded),
        summary="Options and totals of the run",
    )


_LONGEST_VALUE = 300


def _flat(part: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """A free-form part of the file as rows, nested names joined by dots."""
    rows: list[tuple[str, object]] = []
    for key, value in part.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and all(isinstance(each, int) for each in value):
            rows.append((name, joined(value)))
        elif value is not None:
            shown = f"{value:,.6g}" if isinstance(value, float) else str(value)
            rows.append((name, shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."))
    return rows
