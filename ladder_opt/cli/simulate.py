"""`ladder-opt simulate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.options import CostOptions, EngineOptions, LoadOptions, ReadOptions, completing
from ladder_opt.cli.output import exit_code, print_json, progress_bar, warn
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError, one_of
from ladder_opt.files import check_output, is_there
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.replay import load_warnings, scheduling_notes, simulate
from ladder_opt.occupancy.sequences_file import write_sequences
from ladder_opt.occupancy.steps_file import write_steps
from ladder_opt.occupancy.totals_file import write_totals
from ladder_opt.plan.plan import read_plan
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.presets import PRESETS, preset_num_blocks
from ladder_opt.trace.reasons import set_aside_lines


def run(
    *,
    engine_options: EngineOptions,
    cost_options: CostOptions,
    read: ReadOptions,
    load: LoadOptions,
    jobs: JobOptions,
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Request traces.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The histogram: STEPS.csv or STEPS.parquet.")
    ],
    sequences: Annotated[
        Path | None,
        typer.Option(
            "--sequences",
            help="Also write the per-sequence path's calls by num_blocks and query_len: CSV or .parquet.",
        ),
    ] = None,
    total_blocks: Annotated[
        Path | None,
        typer.Option(
            "--total-blocks",
            help="Also write decode steps by num_seqs and the blocks of all sequences together, for "
            "export --format gaudi-file: CSV or .parquet.",
        ),
    ] = None,
    ladders: Annotated[
        str,
        typer.Option(
            "--ladders",
            help="Ladders that step times come from: default, a preset, or PLAN.json.",
            autocompletion=completing("default", *PRESETS),
        ),
    ] = "default",
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> int:
    """Replay traces through vLLM's scheduling rules into a histogram of decode steps."""
    check_output(output, inputs=[*traces, cost_options.file(), engine_options.engine_file])
    _check_outputs({"-o": output, "--sequences": sequences, "--total-blocks": total_blocks}, traces)
    engine = engine_options.engine()
    cost = cost_options.cost()
    options = load.replay_options(engine_options, jobs)
    named, warnings = _named_ladders(ladders, engine)
    warnings += engine_options.scheduling_file().warnings
    with progress_bar() as progress:
        loaded = [read.open(path) for path in traces]
        replay = simulate(
            loaded,
            engine,
            cost,
            ladders=named,
            concurrency=options.concurrency,
            rate_scale=options.rate_scale,
            replicas=options.replicas,
            weights=options.weights,
            executor=options.executor,
            scheduling=options.scheduling,
            per_sequence=sequences is not None,
            total_blocks=total_blocks is not None,
            progress=None if progress is None else lambda share: progress("replay", share),
        )
    write_steps(replay.steps, output)
    if sequences is not None and replay.sequences is not None:
        write_sequences(replay.sequences, sequences)
    if total_blocks is not None and replay.totals is not None:
        write_totals(replay.totals, total_blocks)
    warnings += set_aside_lines(replay.set_aside, replay.requests)
    warnings += load_warnings(replay)
    notes = [note for trace in loaded for note in trace.notes]
    warn([*notes, *scheduling_notes(loaded, options.scheduling)], label="note")
    warn(warnings)
    if as_json:
        print_json(replay.to_dict())
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import replay_text  # noqa: PLC0415

        console().print(replay_text(replay))
    return exit_code(strict=strict, warnings=warnings)


def _check_outputs(outputs: dict[str, Path | None], traces: list[Path]) -> None:
    """Each output can be written, and none is an input or another one."""
    named: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        check_output(path, inputs=traces)
        other = named.setdefault(os.path.realpath(path), option)
        if other != option:
            raise UsageError(f"{option}: found {path}, expected another file than {other} names")


def _named_ladders(name: str, engine: Engine) -> tuple[Ladders, list[str]]:
    default = default_ladders(engine)
    if name == "default":
        return default, []
    if name in PRESETS:
        blocks = preset_num_blocks(
            name,
            max_model_len=engine.max_model_len,
            block_size=engine.block_size,
        )
        return Ladders(default.num_seqs, blocks), []
    if not is_there(name):
        expected = one_of(["default", *PRESETS], name, other=", or a plan file")
        raise UsageError(f"--ladders: found {name!r}, expected {expected}")
    resolved = resolve_plan(read_plan(name), engine, path=name)
    return resolved.ladders, list(resolved.warnings)
