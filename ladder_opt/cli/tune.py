"""`ladder-opt tune`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.options import (
    CostOptions,
    EngineOptions,
    LimitOptions,
    LoadOptions,
    ReadOptions,
    RestartOptions,
    StepsOptions,
    solve_options,
)
from ladder_opt.cli.output import exit_code, progress_bar, warn
from ladder_opt.cli.traffic import load_traffic, span_note
from ladder_opt.files import check_output
from ladder_opt.plan.plan import write_plan
from ladder_opt.plan.tune import tune


def run(
    *,
    engine_options: EngineOptions,
    cost_options: CostOptions,
    steps: StepsOptions,
    read: ReadOptions,
    load: LoadOptions,
    jobs: JobOptions,
    restarts: RestartOptions,
    limits: LimitOptions,
    traces: Annotated[list[Path] | None, typer.Argument(metavar="TRACE...", help="Request traces.")] = None,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust", help="Least worst regret over the traces, each against its own best, not least cost."
        ),
    ] = False,
    uncertainty: Annotated[
        int,
        typer.Option(
            "--uncertainty",
            metavar="DRAWS",
            help="Draw as many cost models from what the cost model's fit leaves open, solve under each, and "
            "say how sure the plan is (40 take seconds).",
        ),
    ] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the plan goes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> int:
    """Make a plan: the best pair of ladders for the traffic, with a proof or a stated gap."""
    inputs = [
        *(traces or []),
        *steps.files(),
        steps.sequences,
        cost_options.file(),
        engine_options.engine_file,
    ]
    check_output(output, inputs=inputs)
    engine = engine_options.engine()
    cost = cost_options.cost()
    options = replace(solve_options(restarts, limits), robust=robust, uncertainty_draws=uncertainty)
    with progress_bar() as progress:
        traffic = load_traffic(
            traces, steps, read, load, engine, engine_options=engine_options, target=limits.target
        )
        plan = tune(
            traffic.source,
            cost,
            engine=engine,
            options=traffic.given(options),
            replay_options=load.replay_options(engine_options, jobs),
            inputs=traffic.inputs,
            warnings=traffic.warnings,
            progress=progress,
        )
    warn([*traffic.notes, *span_note(traffic, restarts)], label="note")
    warn(plan.warnings)
    if output is not None:
        write_plan(plan, output)
    if as_json:
        typer.echo(plan.to_json(), nl=False)
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import plan_text  # noqa: PLC0415

        console().print(plan_text(plan, path=None if output is None else str(output)))
    return exit_code(strict=restarts.strict, warnings=plan.warnings)
