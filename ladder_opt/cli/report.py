"""`ladder-opt report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import EngineOptions, LoadOptions, ReadOptions, StepsOptions
from ladder_opt.cli.output import progress_bar, warn
from ladder_opt.cli.traffic import Traffic, load_traffic
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.errors import UsageError
from ladder_opt.files import check_output
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay
from ladder_opt.plan.outputs import check_not_an_input
from ladder_opt.plan.plan import Plan, read_plan
from ladder_opt.trace.stream import AnyTrace, traces_of
from ladder_opt.units import parse_duration_seconds


def run(
    *,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    steps: StepsOptions,
    read: ReadOptions,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRACE...]", help="The traces it was made from, for what goes over time."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the report goes.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also each figure as a file of its own, in this folder.")
    ] = None,
    figures_format: Annotated[str, typer.Option("--figures-format", help="svg or png.")] = "svg",
    cost_source: Annotated[
        str | None,
        typer.Option("--cost", help="The cost model it was made with, where the plan does not hold it."),
    ] = None,
    frontier_time: Annotated[
        str, typer.Option("--frontier-time", help="Time to find the frontier in; 0s leaves it out.")
    ] = "20s",
) -> int:
    """Show a plan to people: one HTML file with charts, or figures for slides."""
    if output is None and figures is None:
        raise UsageError("found no output, expected -o REPORT.html, --figures FOLDER, or both")
    if figures is not None:
        pass
    from ladder_opt.report.figures import check_format, write_figures  # noqa: PLC0415
    from ladder_opt.report.html import write_report  # noqa: PLC0415

    check_format(figures_format)
    seconds = parse_duration_seconds(frontier_time, option="--frontier-time")
    check_output(output, inputs=[plan_path, *(traces or []), *steps.files(), steps.sequences, cost_source])
    plan = read_plan(plan_path)
    from ladder_opt.report.contents import gather  # noqa: PLC0415

    check_not_an_input(output, plan)
    traffic = _traffic(plan, traces, steps, read)
    with progress_bar() as progress:
        given, histogram = _given(traffic)
        contents = gather(
            plan,
            name=plan_path.name,  # a report is handed on; where the plan lies is nobody's concern
            traces=given,
            steps=histogram,
            cost=_cost(plan, cost_source),
            inputs=None if traffic is None else traffic.inputs,
            frontier_seconds=seconds,
            progress=progress,
        )
    if output is not None:
        write_report(contents, output)
    drawn = [] if figures is None else write_figures(contents, figures, format=figures_format)
    warn([] if traffic is None else traffic.notes, label="note")
    warn(contents.warnings)
    warn([] if contents.frontier is None else [f"frontier: {line}" for line in contents.frontier.warnings])
    _tell(output, drawn)
    warn((f"{each.what}: {each.why}" for each in contents.absent), label="not in the report")
    return 0


def _given(traffic: Traffic | None) -> tuple[list[AnyTrace], StepHistogram | None]:
    """Traces, or a histogram, or neither."""
    if traffic is None or isinstance(traffic.source, Replay):
        return [], None
    if isinstance(traffic.source, StepHistogram):
        return [], traffic.source
    return traces_of(traffic.source), None


def _tell(output: Path | None, drawn: list[Path]) -> None:
    if output is not None and output.is_file():  # else it went into a pipe, such as stdout
        typer.echo(f"report: {output}, {output.stat().st_size / 1e6:.1f} MB")
    for path in drawn:
        typer.echo(f"figure: {path}")


def _cost(plan: Plan, source: str | None) -> CostModel | None:
    return None if source is None else read_cost_model(source).with_kernel(plan.kernel)


def _traffic(plan: Plan, traces: list[Path] | None, steps: StepsOptions, read: ReadOptions) -> Traffic | None:
    """What was given beside the plan, read for its engine."""
    if not traces and not steps.steps:
        if steps.sequences is not None:
            raise UsageError("--sequences: found without --steps, expected beside it")
        return None
    return load_traffic(
        traces,
        steps,
        read,
        LoadOptions(),
        plan.to_engine(),
        engine_options=EngineOptions(),
        target=plan.target,
    )
