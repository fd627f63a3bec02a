"""`ladder-opt evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.options import (
    CostOptions,
    EngineOptions,
    LoadOptions,
    ReadOptions,
    RestartOptions,
    StepsOptions,
    solve_options,
)
from ladder_opt.cli.output import exit_code, progress_bar, warn
from ladder_opt.cli.traffic import load_traffic, span_note
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders, Target, clamp, clamp_query_lens, default_ladders, parse_rungs
from ladder_opt.plan.plan import Plan, read_plan
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.plan.tune import evaluate


def run(
    *,
    engine_options: EngineOptions,
    cost_options: CostOptions,
    steps: StepsOptions,
    read: ReadOptions,
    load: LoadOptions,
    jobs: JobOptions,
    restarts: RestartOptions,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE...] [PLAN.json]", help="Traces; a plan comes last.")
    ] = None,
    num_seqs: Annotated[
        str | None, typer.Option("--num-seqs", help="The num_seqs ladder, in place of a plan: 4,8,32.")
    ] = None,
    num_blocks: Annotated[
        str | None, typer.Option("--num-blocks", help="The num_blocks ladder, in place of a plan: 3,9,64.")
    ] = None,
    query_lens: Annotated[
        str | None,
        typer.Option(
            "--query-lens",
            help="Query lengths beside ladders given by hand, as --target spyre-env has them: 1,512.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Price a plan, or ladders given by hand, on traffic, beside the default ladders and the presets."""
    traces = list(files or [])
    plan_path = None
    if num_seqs is None and num_blocks is None:
        if not traces:
            raise UsageError("found no ladders, expected PLAN.json, or --num-seqs and --num-blocks")
        plan_path = traces.pop()
    plan = None if plan_path is None else _plan(plan_path)
    engine = engine_options.engine(None if plan is None else plan.to_engine())
    ladders, clamped = _ladders(plan, plan_path, engine, num_seqs, num_blocks)
    if query_lens is not None:
        if plan is not None:
            raise UsageError("--query-lens: found with a plan, expected beside --num-seqs and --num-blocks")
        rungs, told = clamp_query_lens(parse_rungs(query_lens, option="--query-lens"), engine)
        ladders = replace(ladders, query_lens=rungs)
        clamped += told
    target: Target = "plugin" if ladders.query_lens is None else "spyre-env"
    cost = cost_options.cost()
    if plan is not None and plan.provenance.cost_sha256 != cost.sha256():
        clamped.append(
            f"priced with cost model {cost.name} (kernel {cost.kernel}), the plan was made with "
            f"{plan.provenance.cost_name or 'another'} (kernel {plan.kernel})"
        )
    with progress_bar() as progress:
        traffic = load_traffic(
            traces, steps, read, load, engine, engine_options=engine_options, target=target
        )
        result = evaluate(
            traffic.source,
            ladders,
            cost,
            engine=engine,
            options=traffic.given(solve_options(restarts)),
            replay_options=load.replay_options(engine_options, jobs),
            inputs=traffic.inputs,
            warnings=[*traffic.warnings, *clamped],
            progress=progress,
        )
    warn([*traffic.notes, *span_note(traffic, restarts)], label="note")
    warn(result.warnings)
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import plan_text  # noqa: PLC0415

        console().print(plan_text(result, path=None if plan_path is None else str(plan_path)))
    return exit_code(strict=restarts.strict, warnings=result.warnings)


def _plan(path: Path) -> Plan:
    try:
        return read_plan(path)
    except InputError as error:
        raise InputError(
            error.found,
            f"{error.expected} (of the files named, the last is the plan)",
            path=error.path,
            line=error.line,
            column=error.column,
        ) from None


def _ladders(
    plan: Plan | None, plan_path: Path | None, engine: Engine, num_seqs: str | None, num_blocks: str | None
) -> tuple[Ladders, list[str]]:
    if plan is not None:
        resolved = resolve_plan(plan, engine, path=str(plan_path))
        return resolved.ladders, list(resolved.warnings)
    default = default_ladders(engine)
    seqs, blocks = default.num_seqs, default.num_blocks
    told: list[str] = []
    if num_seqs is not None:
        seqs, said = clamp(parse_rungs(num_seqs, option="--num-seqs"), "num_seqs", engine)
        told += said
    if num_blocks is not None:
        blocks, said = clamp(parse_rungs(num_blocks, option="--num-blocks"), "num_blocks", engine)
        told += said
    return Ladders(seqs, blocks), told
