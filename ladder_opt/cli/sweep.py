"""`ladder-opt sweep`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

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
from ladder_opt.cli.scheduling_options import SchedulingOptions
from ladder_opt.cli.traffic import load_traffic
from ladder_opt.errors import UsageError
from ladder_opt.files import check_output, write_csv
from ladder_opt.ladder import parse_rungs
from ladder_opt.plan.sweep import RESULTS, SETTINGS, sweep_rows

_WIDTH_IN_A_PIPE = 160
_AUTO = "auto"
_LIST = "one value, or several: "


@dataclass(frozen=True, kw_only=True)
class GridOptions(SchedulingOptions):
    """The engine's limits and the load, several values of each; every combination is a point."""

    max_num_seqs: Annotated[
        str | None, typer.Option("--max-num-seqs", help=f"Sequences in a step; {_LIST}16,32,64 [32].")
    ] = None
    max_model_len: Annotated[
        str | None,
        typer.Option("--max-model-len", help=f"Tokens of prompt and output; {_LIST}4096,8192 [8192]."),
    ] = None
    block_size: Annotated[
        str | None, typer.Option("--block-size", help=f"Tokens in a KV block; {_LIST}64,128 [128].")
    ] = None
    max_num_batched_tokens: Annotated[
        str | None,
        typer.Option("--max-num-batched-tokens", help=f"Token budget of a step; {_LIST}512,1024 [512]."),
    ] = None
    num_kv_blocks: Annotated[
        str | None,
        typer.Option("--num-kv-blocks", help=f"KV blocks of the pool; {_LIST}513,2049 [auto]."),
    ] = None
    rate_scale: Annotated[
        str | None, typer.Option("--rate-scale", help=f"Arrivals so many times as fast; {_LIST}0.5,1,2 [1].")
    ] = None
    replicas: Annotated[
        str | None, typer.Option("--replicas", help=f"Engines that share the arrivals; {_LIST}8,16 [1].")
    ] = None
    engine_file: Annotated[
        Path | None,
        typer.Option("--engine", help="A vLLM serve YAML or a saved engine JSON; options here win."),
    ] = None
    min_batched_seqs: Annotated[
        int | None,
        typer.Option("--min-batched-seqs", help="Decoding sequences from which steps are batched [4]."),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Closed loop: as many requests in flight, arrivals unused."),
    ] = None
    weights: Annotated[
        str | None, typer.Option("--weights", help="How often each trace counts in the mix: 5,1,1 [1 each].")
    ] = None

    def grid(self) -> dict[str, list[Any]]:
        """The values of each setting that was named, in the order of `SETTINGS`."""
        found: dict[str, list[Any]] = {}
        for name in SETTINGS:
            text: str | None = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            if text is None or (name == "num_kv_blocks" and text == _AUTO):
                continue
            found[name] = (
                _factors(text, option) if name == "rate_scale" else list(parse_rungs(text, option=option))
            )
        return found

    def engine_options(self) -> EngineOptions:
        """What is not varied."""
        return EngineOptions(
            engine_file=self.engine_file,
            min_batched_seqs=self.min_batched_seqs,
            num_kv_blocks=_AUTO if self.num_kv_blocks == _AUTO else None,
        )

    def load_options(self) -> LoadOptions:
        """What is not varied."""
        scheduling = {field.name: getattr(self, field.name) for field in fields(SchedulingOptions)}
        return LoadOptions(concurrency=self.concurrency, weights=self.weights, **scheduling)


def _factors(text: str, option: str) -> list[float]:
    factors = []
    for part in text.split(","):
        try:
            factor = float(part)
        except ValueError:
            factor = math.nan
        if not math.isfinite(factor):
            raise UsageError(
                f"{option}: found {part.strip()!r} in {text!r}, expected numbers such as 0.5,1,2"
            )
        factors.append(factor)
    return factors


def run(
    *,
    grid_options: GridOptions,
    cost_options: CostOptions,
    read: ReadOptions,
    jobs: JobOptions,
    restarts: RestartOptions,
    limits: LimitOptions,
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Request traces.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Every point, as CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every point as JSON.")] = False,
) -> int:
    """Make a plan for every combination of engine settings, and put them side by side."""
    check_output(output, inputs=[*traces, cost_options.file(), grid_options.engine_file])
    grid = grid_options.grid()
    if not grid:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in SETTINGS)
        raise UsageError(f"found no setting to vary, expected values for one or more of {options}")
    asked = solve_options(restarts, limits)
    engine_options = grid_options.engine_options()
    engine = engine_options.engine()
    load = grid_options.load_options()
    with progress_bar() as progress:
        traffic = load_traffic(traces, StepsOptions(), read, load, engine, engine_options=engine_options)
        rows = sweep_rows(
            traffic.source,  # type: ignore[arg-type]  # traces, for no histogram was named
            cost_options.cost(),
            grid=grid,
            engine=engine,
            options=asked,
            replay_options=load.replay_options(engine_options, jobs),
            progress=progress,
        )
    failed = _failed(rows, list(grid))
    if len(failed) == len(rows):
        reasons = list(dict.fromkeys(row["error"] for row in rows))
        more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
        raise UsageError(
            f"found no plan at any of {len(rows)} points, expected one or more: {failed[0]}{more}"
        )
    warnings = [*traffic.warnings, *failed]
    warn(traffic.notes, label="note")
    warn(warnings)
    if output is not None:
        columns = [*SETTINGS, *RESULTS]
        write_csv(output, columns, ([row[name] for name in columns] for row in rows))
    if as_json:
        print_json({"points": rows})
    else:
        from ladder_opt.report.sweep_text import sweep_text  # noqa: PLC0415
        from ladder_opt.report.terminal import console  # noqa: PLC0415

        wide = console()
        if not wide.is_terminal:
            wide.width = _WIDTH_IN_A_PIPE
        wide.print(sweep_text(rows, list(grid)))
    return exit_code(strict=restarts.strict, warnings=warnings)


def _failed(rows: list[dict[str, Any]], varied: list[str]) -> list[str]:
    lines = []
    for row in rows:
        if row["error"] is not None:
            settings = ", ".join(f"{name} {row[name]}" for name in varied)
            lines.append(f"no plan for {settings}: {row['error']}")
    return lines
