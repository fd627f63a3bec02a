"""`ladder-opt check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, warn
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.plan.plan import read_plan
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.solve.price import distinct_variants


def run(
    engine_options: EngineOptions,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Say what the bucketer will really use of a plan on an engine, every clamp included.

    Engine options that are not given are the plan's own.
    """
    plan = read_plan(plan_path)
    engine = engine_options.engine(plan.to_engine())
    resolved = resolve_plan(plan, engine, path=str(plan_path))
    ladders = resolved.ladders
    ragged = None
    if ladders.ragged is not None:
        ragged = {str(rung): list(blocks) for rung, blocks in ladders.blocks_by_rung().items()}
    report = {
        "source": resolved.source,
        "kernel": plan.kernel,
        "engine": engine.to_dict(),
        "num_seqs": list(ladders.num_seqs),
        "num_blocks": list(ladders.num_blocks),
        "ragged": ragged,
        "num_variants": distinct_variants(ladders, engine, get_kernel(plan.kernel)),
        "verdict": plan.verdict,
        "warnings": list(resolved.warnings),
    }
    warn(resolved.warnings)
    if as_json:
        print_json(report)
    else:
        from ladder_opt.report.text import check_text, console  # noqa: PLC0415

        console().print(check_text(report))
    return exit_code(strict=strict, warnings=resolved.warnings)
