"""`ladder-opt export`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import completing
from ladder_opt.cli.output import warn
from ladder_opt.errors import UsageError, one_of
from ladder_opt.files import check_output, write_text
from ladder_opt.occupancy.record_file import read_recorded_steps
from ladder_opt.occupancy.totals_file import read_totals
from ladder_opt.plan.capture_sizes import CaptureOptions, capture_sizes
from ladder_opt.plan.export import EXPORT_FORMATS, export_plan
from ladder_opt.plan.gaudi import GaudiOptions, gaudi_buckets
from ladder_opt.plan.outputs import check_not_an_input
from ladder_opt.plan.plan import Plan, read_plan

CAPTURE_SIZES, GAUDI_FILE = "vllm-capture-sizes", "gaudi-file"
_FORMATS = (*EXPORT_FORMATS, CAPTURE_SIZES, GAUDI_FILE)
_OF_CAPTURE_SIZES = {"steps", "eager_seconds", "multiple_of", "compile_sizes"}
_OF_GAUDI = {"total_blocks", "page_seconds", "page_grain"}


@dataclass(frozen=True, kw_only=True)
class OtherEngineOptions:
    """Prices and traffic of engines that pad otherwise; vllm-capture-sizes and gaudi-file alone have them."""

    steps: Annotated[
        list[Path] | None,
        typer.Option(
            "--steps", help="vllm-capture-sizes: the decode steps, as tune takes them [those the plan holds]."
        ),
    ] = None
    total_blocks: Annotated[
        Path | None,
        typer.Option("--total-blocks", help="gaudi-file: the decode steps, from simulate --total-blocks."),
    ] = None
    row_seconds: Annotated[
        float | None, typer.Option("--row-seconds", help="Seconds that a padded sequence adds to a step.")
    ] = None
    page_seconds: Annotated[
        float | None,
        typer.Option("--page-seconds", help="gaudi-file: seconds that a padded KV page adds to a step."),
    ] = None
    graph_seconds: Annotated[
        float | None,
        typer.Option("--graph-seconds", help="Seconds that one graph or bucket takes at each start."),
    ] = None
    eager_seconds: Annotated[
        float | None,
        typer.Option(
            "--eager-seconds",
            help="vllm-capture-sizes: seconds that a step takes longer without a graph [never without].",
        ),
    ] = None
    max_graphs: Annotated[
        int | None,
        typer.Option(
            "--max-graphs",
            help="The most graphs or buckets [of vllm-capture-sizes without --graph-seconds: as vLLM's own].",
        ),
    ] = None
    multiple_of: Annotated[
        int | None,
        typer.Option(
            "--multiple-of",
            help="vllm-capture-sizes: multiples of this alone, as sequence parallelism asks [1].",
        ),
    ] = None
    compile_sizes: Annotated[
        bool, typer.Option("--compile-sizes", help="vllm-capture-sizes: also as sizes for Inductor.")
    ] = False
    page_grain: Annotated[
        int | None,
        typer.Option("--page-grain", help="gaudi-file: pages that buckets are multiples of [as needed]."),
    ] = None
    restarts: Annotated[
        float | None,
        typer.Option("--restarts", help="Server starts that graphs are charged for [the plan's]."),
    ] = None

    def check(self, format_: str) -> None:
        """Refuse options that the format does not look at."""
        foreign = {CAPTURE_SIZES: _OF_GAUDI, GAUDI_FILE: _OF_CAPTURE_SIZES}.get(format_)
        for field in fields(self):
            if getattr(self, field.name) != field.default and (foreign is None or field.name in foreign):
                option = f"--{field.name.replace('_', '-')}"
                formats = [
                    name
                    for name, others in ((CAPTURE_SIZES, _OF_GAUDI), (GAUDI_FILE, _OF_CAPTURE_SIZES))
                    if field.name not in others
                ]
                raise UsageError(f"{option}: found with --format {format_}, expected {' or '.join(formats)}")


def run(
    *,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help=f"One of {', '.join(_FORMATS)}.",
            autocompletion=completing(*_FORMATS),
        ),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file in place of stdout.")] = None,
    others: OtherEngineOptions,
) -> int:
    """Write a plan in the form that a server or a script takes.

    env: lines for a shell. vllm-yaml: a file for vllm serve --config. json: the plan file. Of the plan's
    traffic and limits, for engines that pad otherwise: vllm-capture-sizes (CUDA graphs, for vllm serve
    --config) and gaudi-file (for VLLM_BUCKETING_FROM_FILE).
    """
    if format_ not in _FORMATS:
        raise UsageError(f"--format: found {format_!r}, expected {one_of(_FORMATS, format_)}")
    others.check(format_)
    inputs = [plan_path, *(others.steps or []), others.total_blocks]
    check_output(output, inputs=inputs)
    plan = read_plan(plan_path)
    check_not_an_input(output, plan)
    if format_ == CAPTURE_SIZES:
        text = _capture_sizes(plan, others)
    elif format_ == GAUDI_FILE:
        text = _gaudi_file(plan, others)
    else:
        text = export_plan(plan, format_, path=str(plan_path.resolve()))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
    return 0


def _capture_sizes(plan: Plan, others: OtherEngineOptions) -> str:
    engine = plan.to_engine()
    if others.steps:
        recorded = read_recorded_steps([str(path) for path in others.steps], engine)
        warn(recorded.warnings)
        steps = recorded.steps
    else:
        of_plan = plan.to_steps()
        if of_plan is None:
            raise UsageError(
                "--steps: found none, nor steps in the plan, expected a histogram of decode steps, or a "
                "folder that a server recorded"
            )
        steps = of_plan
    options = CaptureOptions(
        row_seconds=others.row_seconds,
        graph_seconds=others.graph_seconds,
        eager_seconds=others.eager_seconds,
        max_sizes=others.max_graphs,
        multiple_of=1 if others.multiple_of is None else others.multiple_of,
        restarts=_restarts(plan, others),
        compile_sizes=others.compile_sizes,
    )
    return capture_sizes(steps, engine, options).to_yaml()


def _gaudi_file(plan: Plan, others: OtherEngineOptions) -> str:
    engine = plan.to_engine()
    if others.total_blocks is None:
        raise UsageError(
            "--total-blocks: found none, expected the decode steps by the blocks of all sequences, which "
            f"simulate --total-blocks writes (--format {GAUDI_FILE})"
        )
    if others.row_seconds is None or others.page_seconds is None:
        missing = "--row-seconds" if others.row_seconds is None else "--page-seconds"
        raise UsageError(f"{missing}: found none, expected seconds, for --format {GAUDI_FILE} weighs both")
    if others.graph_seconds is None and others.max_graphs is None:
        raise UsageError("--graph-seconds: found none, nor --max-graphs, expected what holds buckets back")
    file = read_totals(others.total_blocks, engine)
    warn(file.warnings)
    options = GaudiOptions(
        row_seconds=others.row_seconds,
        page_seconds=others.page_seconds,
        graph_seconds=others.graph_seconds or 0.0,
        max_buckets=others.max_graphs,
        page_grain=others.page_grain,
        restarts=_restarts(plan, others),
    )
    return gaudi_buckets(file.totals, engine, options).to_text()


def _restarts(plan: Plan, others: OtherEngineOptions) -> float:
    return plan.result.restarts if others.restarts is None else others.restarts
