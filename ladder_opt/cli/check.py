"""`ladder-opt check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, warn
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.plan.plan import read_plan
from ladder_opt.plan.resolve import resolve_plan


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
    seqs = np.array(resolved.ladders.num_seqs, np.int64)
    blocks = np.array(resolved.ladders.num_blocks, np.int64)
    variants = np.unique(get_kernel(plan.kernel).variant_key(seqs[:, None], blocks[None, :]))
    report = {
        "source": resolved.source,
        "kernel": plan.kernel,
        "engine": engine.to_dict(),
        "num_seqs": list(resolved.ladders.num_seqs),
        "num_blocks": list(resolved.ladders.num_blocks),
        "num_variants": len(variants),
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
