"""`ladder-opt verify`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.bucketer import Bucketer
from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.options import CostOptions, EngineOptions, LoadOptions, ReadOptions, StepsOptions
from ladder_opt.cli.output import print_json, progress_bar, warn
from ladder_opt.cli.traffic import load_traffic
from ladder_opt.errors import UsageError
from ladder_opt.plan.plan import read_plan
from ladder_opt.plan.rounds import Task
from ladder_opt.reference.verify import VerifyOptions, verify_plan

_DEFAULT = VerifyOptions()


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """The model's shape, and how much is tried."""

    num_heads: Annotated[int, typer.Option("--num-heads", help="Query heads of the layer.")] = (
        _DEFAULT.num_heads
    )
    num_kv_heads: Annotated[int, typer.Option("--num-kv-heads", help="KV heads, a divisor of them.")] = (
        _DEFAULT.num_kv_heads
    )
    head_size: Annotated[int, typer.Option("--head-size", help="Width of a head.")] = _DEFAULT.head_size
    compiler: Annotated[
        str, typer.Option("--compiler", help="inductor: compile for this CPU; eager: trace and guard alone.")
    ] = _DEFAULT.compiler
    compile_at_most: Annotated[
        int | None,
        typer.Option("--compile-at-most", help="Variants to compile, largest first; the rest is not tried."),
    ] = None
    runs_per_variant: Annotated[
        int, typer.Option("--runs-per-variant", help="Batches of each variant to run, not only to build.")
    ] = _DEFAULT.runs_per_variant
    seed: Annotated[int, typer.Option("--seed", help="Of lengths and contents.")] = _DEFAULT.seed


def run(
    *,
    engine_options: EngineOptions,
    cost_options: CostOptions,
    steps: StepsOptions,
    read: ReadOptions,
    load: LoadOptions,
    jobs: JobOptions,
    trial: TrialOptions,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE...]", help="Traces to take batches from.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Compile a plan's variants with torch and try its batches: nothing may compile after warm-up.

    Batches come from traces, from a histogram, or, without either, from the corners of every rung pair.
    Ends with code 1 on a late compile, a shape that was not recorded, or a wrong result. Needs torch, and
    no server.
    """
    plan = read_plan(plan_path)
    engine = engine_options.engine(plan.to_engine())
    options = VerifyOptions(**asdict(trial))
    bucketer = Bucketer.from_engine(engine, plan=plan, environ=os.environ, plan_path=str(plan_path))
    warn(bucketer.warnings)
    if not bucketer.batched_variants():
        raise UsageError(f"{plan_path}: found no variant of batched decode, expected one to compile")
    with progress_bar() as progress:
        tried = None
        if traces or steps != StepsOptions():
            traffic = load_traffic(traces, steps, read, load, engine, engine_options=engine_options)
            warn(traffic.notes, label="note")
            warn(traffic.warnings)
            task = Task.of(
                traffic.source,
                cost=cost_options.cost(),
                engine=engine,
                options=None,
                replay_options=load.replay_options(engine_options, jobs),
                progress=progress,
            )
            tried, _ = task.steps_with(bucketer.ladders)
        result = verify_plan(bucketer, tried, options=options, progress=progress)
    if as_json:
        print_json(result.to_dict())
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.verification import verification_text  # noqa: PLC0415

        console().print(verification_text(result.to_dict()))
    return 1 if result.failures else 0
