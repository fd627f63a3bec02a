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
from ladder_opt.plan.outputs import check_not_an_input
from ladder_opt.plan.plan import Plan
from ladder_opt.report.contents import Absent, Contents, as_contents
from ladder_opt.report.drawn import drawn
from ladder_opt.report.headline import headline, short_verdict
from ladder_opt.report.page import Section, page
from ladder_opt.report.sections import (
    comparison_section,
    ladders_section,
    provenance_section,
    robust_section,
    rungs_section,
    traffic_section,
    waste_section,
)
from ladder_opt.report.sentences import has_prices


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
        InputError: the folder cannot be written, `path` is a file that the plan was made from, or what is
            given does not go with the plan.
    """
    contents = as_contents(plan, given)
    check_not_an_input(path, contents.plan)
    write_text(path, report_html(contents))
    return contents


def report_html(contents: Contents) -> str:
    """The report as text."""
    plan = contents.plan
    sections = _sections(contents)
    return page(
        title=f"{short_verdict(plan)} ({printable(contents.name)})",
        header=headline(contents),
        sections=sections,
        footer=f"<p>Made by ladder_opt {text(__version__)} from a plan of {text(plan.provenance.created)}. "
        "The file loads nothing from anywhere.</p>",
    )


def _sections(contents: Contents) -> list[Section]:
    from ladder_opt.report import traffic_sections as traffic  # noqa: PLC0415  (plotly takes half a second)

    plan, ready = contents.plan, drawn(contents)
    sections: list[Section | None] = [ladders_section(plan)]
    if has_prices(plan):
        sections += [comparison_section(plan), robust_section(plan, contents.names)]
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
        sections.append(traffic.trace_section(ready.trace, contents))
    elif plan.provenance.traffic is not None:
        sections.append(traffic_section(plan.provenance.traffic, contents.notes, contents.names))
    if ready.cost is not None and contents.cost is not None:
        sections.append(
            traffic.cost_section(
                ready.cost,
                name=contents.cost.name,
                kernel=contents.cost.kernel,
                startup_seconds=contents.cost.startup_seconds_of(plan.target),
            )
        )
    sections.append(provenance_section(plan, contents.names, name=contents.name))
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
