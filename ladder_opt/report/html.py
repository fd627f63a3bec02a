"""The HTML report: one file for a person who decides, with the verdict first and the evidence below it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder_opt._version import __version__
from ladder_opt.arguments import checked
from ladder_opt.files import write_text
from ladder_opt.markup import printable, text
from ladder_opt.plan.plan import Plan
from ladder_opt.report.contents import Absent, Contents, as_contents
from ladder_opt.report.drawn import drawn
from ladder_opt.report.page import Section, page
from ladder_opt.report.sections import (
    capital,
    comparison_section,
    ladders_section,
    provenance_section,
    robust_section,
    rungs_section,
    waste_section,
)
from ladder_opt.report.sentences import context_lines, has_prices, saving_text, verdict_text
from ladder_opt.units import duration_text, hours_text


@checked
def write_report(plan: Plan | Contents, path: str | Path, **given: Any) -> Contents:
    """Write a plan's report, whole or not at all: one HTML file that opens anywhere, without a network.

    Args:
        plan: the plan, or contents put together by an earlier call.
        path: where it goes.
        given: what a plan's file does not hold, as `report.contents.gather` takes it: `traces`, `steps`,
            `cost`, `name`, `frontier_seconds`.

    Returns:
        What is in it, and what is not (`absent`), for `write_figures` and for telling.

    Raises:
        InputError: the folder cannot be written, or what is given does not go with the plan.
    """
    contents = as_contents(plan, given)
    write_text(path, report_html(contents))
    return contents


def report_html(contents: Contents) -> str:
    """The report as text."""
    plan = contents.plan
    sections = _sections(contents)
    heading = f"ladder_opt report on {contents.name}"
    return page(
        title=f"{_short_verdict(plan)} ({printable(contents.name)})",
        header="\n".join([f"<h1>{text(heading)}</h1>", _verdict(plan), _cards(plan), _warnings(contents)]),
        sections=sections,
        footer=f"<p>Made by ladder_opt {text(__version__)} from a plan of {text(plan.provenance.created)}. "
        "The file loads nothing from anywhere.</p>",
    )


def _short_verdict(plan: Plan) -> str:
    return capital(verdict_text(plan)).removesuffix(".")


_SAID = {
    "adopt": "Load this plan",
    "keep-default": "Keep the default ladders",
    "not-used": "There is nothing to load",
}


def _verdict(plan: Plan) -> str:
    """The decision in a sentence, and what it is about."""
    result, default = plan.result, plan.default
    robust = result.robust is not None and len(result.robust.workloads) > 1
    if plan.verdict == "not-used":
        said = f"{_SAID[plan.verdict]}: this traffic never reaches the batched kernel"
    elif result.status == "evaluated" or robust:
        subject = _SAID[plan.verdict] if robust else "Evaluated as given"
        said = f"{subject}: {saving_text(plan).removeprefix('; ') or 'nothing to compare it with'}"
    elif default is None or default.objective_seconds <= 0:
        said = f"{_SAID[plan.verdict]}: there are no default ladders to compare it with"
    else:
        said = f"{_SAID[plan.verdict]}: {_why(plan, default.objective_seconds)}"
    spans = "".join(f"<span>{text(capital(line))}</span>" for line in context_lines(plan))
    return f'<p class="verdict">{text(said)}.</p>\n<p class="context">{spans}</p>'


def _why(plan: Plan, default_seconds: float) -> str:
    saved = default_seconds - plan.result.objective_seconds
    amount = f"{duration_text(abs(saved))} ({abs(saved) / default_seconds:.1%})"
    if plan.verdict == "adopt":
        limits = "" if plan.default is None or plan.default.within_limits else ", which are over the limits"
        later = plan.result.warmup_seconds - (plan.default.warmup_seconds if plan.default else 0.0)
        start = f"; a server start takes {duration_text(abs(later))} {'longer' if later > 0 else 'less'}"
        if abs(later) < 1:
            start = ""
        return f"it saves {amount} of what this traffic takes with the default ladders{limits}{start}"
    if saved < 0:
        return f"what was asked for would cost {amount} more"
    return f"the plan would save {amount}, too little to change anything"


def _cards(plan: Plan) -> str:
    """The four numbers that a decision turns on, each with the default's."""
    if not has_prices(plan):
        return ""
    result, default = plan.result, plan.default
    cards = [
        (
            "step time of this traffic",
            hours_text(result.step_seconds),
            default and hours_text(default.step_seconds),
        ),
        (
            "a server start takes",
            duration_text(result.warmup_seconds),
            default and duration_text(default.warmup_seconds),
        ),
        ("kernels compiled", f"{result.num_variants:,}", default and f"{default.num_variants:,}"),
        (
            "padding above the floor",
            f"{result.gathers.overpay:.1%}",
            default and f"{default.gathers.overpay:.1%}",
        ),
    ]
    items = "".join(
        f'<li><span class="what">{text(what)}</span><span class="value">{text(value)}</span>'
        + (f'<span class="before">default: {text(before)}</span>' if before else "")
        + "</li>"
        for what, value, before in cards
    )
    return f'<ul class="cards" aria-label="Key numbers">{items}</ul>'


def _warnings(contents: Contents) -> str:
    if not contents.warnings:
        return ""
    items = "".join(f"<li>{text(line)}</li>" for line in contents.warnings)
    return f'<div class="warnings" role="note"><p>Beware</p><ul>{items}</ul></div>'


def _sections(contents: Contents) -> list[Section]:
    from ladder_opt.report import traffic_sections as traffic  # noqa: PLC0415  (plotly takes half a second)

    plan, ready = contents.plan, drawn(contents)
    sections: list[Section | None] = [ladders_section(plan)]
    if has_prices(plan):
        sections += [comparison_section(plan), robust_section(plan)]
    if ready.occupancy is not None and contents.steps is not None:
        sections.append(traffic.occupancy_section(plan, contents.steps, ready.occupancy))
    if has_prices(plan):
        sections.append(waste_section(plan, ready.waste))
    if ready.frontier is not None and contents.frontier is not None:
        sections.append(traffic.frontier_section(contents.frontier, ready.frontier, plan))
    if ready.rungs is not None:
        sections.append(rungs_section(plan, ready.rungs))
    if ready.step_seconds is not None:
        sections.append(traffic.step_seconds_section(ready.step_seconds))
    if ready.trace is not None:
        sections.append(traffic.trace_section(ready.trace, contents.summaries))
    if ready.cost is not None and contents.cost is not None:
        sections.append(
            traffic.cost_section(
                ready.cost,
                name=contents.cost.name,
                kernel=contents.cost.kernel,
                startup_seconds=contents.cost.startup_seconds_of(plan.target),
            )
        )
    sections.append(provenance_section(plan, name=contents.name))
    if contents.absent:
        sections.append(_absent_section(contents.absent, contents.name))
    return [each for each in sections if each is not None]


def _absent_section(absent: Sequence[Absent], name: str) -> Section:
    items = []
    for each in absent:
        how = "" if each.how is None else f"; <code>{text(absent_command(each, name))}</code> brings it"
        items.append(f"<li><b>{text(each.what)}</b>: {text(each.why)}{how}</li>")
    return Section(key="absent", title="What is not here", body=f"<ul>{''.join(items)}</ul>")


def absent_command(absent: Absent, name: str) -> str:
    """The command that brings what is absent."""
    return f"ladder-opt report {shlex.quote(printable(name))} {absent.how} -o report.html"
