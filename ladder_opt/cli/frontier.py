"""`ladder-opt frontier`."""

from __future__ import annotations

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
from ladder_opt.cli.output import exit_code, print_json, progress_bar, warn
from ladder_opt.cli.traffic import load_traffic, span_note
from ladder_opt.files import check_output, write_csv
from ladder_opt.plan.frontier import frontier


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
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Every point, as CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every point as JSON.")] = False,
) -> int:
    """Every pair of ladders that none beats in both warm-up and step time."""
    options = solve_options(restarts, limits)
    engine = engine_options.engine()
    inputs = [
        *(traces or []),
        *steps.files(),
        steps.sequences,
        cost_options.file(),
        engine_options.engine_file,
    ]
    check_output(output, inputs=inputs)
    with progress_bar() as progress:
        traffic = load_traffic(
            traces, steps, read, load, engine, engine_options=engine_options, target=limits.target
        )
        found = frontier(
            traffic.source,
            cost_options.cost(),
            engine=engine,
            options=traffic.given(options),
            replay_options=load.replay_options(engine_options, jobs),
            warnings=traffic.warnings,
            progress=progress,
        )
    warn([*traffic.notes, *span_note(traffic, restarts)], label="note")
    warn(found.warnings)
    if output is not None:
        columns = found.to_columns()
        write_csv(output, list(columns), zip(*columns.values(), strict=True))
    if as_json:
        print_json(found.to_dict())
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import frontier_text  # noqa: PLC0415

        console().print(frontier_text(found))
    return exit_code(strict=restarts.strict, warnings=found.warnings)
