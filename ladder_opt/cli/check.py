"""`ladder-opt check`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.environment import ENVIRONMENT_LISTS
from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, warn
from ladder_opt.plan.plan import read_plan


def run(
    engine_options: EngineOptions,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Say what the bucketer will really use of a plan on an engine, every clamp included.

    Engine options that are not given are the plan's own. The Spyre plugin's variables
    SPYRE_ATTN_NUM_SEQS_BUCKETS, SPYRE_ATTN_KV_BUCKETS and SPYRE_ATTN_QUERY_BUCKETS count as they do in a
    server: set here, they win.
    """
    plan = read_plan(plan_path)
    engine = engine_options.engine(plan.to_engine())
    bucketer = Bucketer.from_engine(engine, plan=plan, environ=os.environ, plan_path=str(plan_path))
    ladders = bucketer.ladders
    report = {
        "source": bucketer.source,
        "sources": dict(bucketer.sources),
        "kernel": plan.kernel,
        "engine": engine.to_dict(),
        "num_seqs": list(ladders.num_seqs),
        "num_blocks": list(ladders.num_blocks),
        "ragged": ladders.ragged_dict(),
        "kv_tokens": list(bucketer.kv_tokens.rungs),
        "query_tokens": list(bucketer.query_tokens.rungs),
        "num_variants": len(bucketer.batched_variants()),
        "num_sequence_variants": len(bucketer.sequence_variants()),
        "environment": {name: os.environ[name] for name in ENVIRONMENT_LISTS if os.environ.get(name)},
        "verdict": plan.verdict,
        "warnings": list(bucketer.warnings),
    }
    warn(bucketer.warnings)
    if as_json:
        print_json(report)
    else:
        from ladder_opt.report.text import check_text, console  # noqa: PLC0415

        console().print(check_text(report))
    return exit_code(strict=strict, warnings=bucketer.warnings)
