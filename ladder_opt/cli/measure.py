"""`ladder-opt measure`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, progress_bar, warn
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.errors import UsageError
from ladder_opt.ladder import parse_rungs
from ladder_opt.measurement.model_shape import ModelShape, read_model_shape
from ladder_opt.measurement.options import DEFAULT_POINTS, MeasureOptions
from ladder_opt.units import parse_duration_seconds

_DEFAULT = MeasureOptions()
_SHAPE = ModelShape()
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model's shape."""

    model: Annotated[
        Path | None,
        typer.Option("--model", help="A Hugging Face config.json, or its folder; options here win."),
    ] = None
    num_query_heads: Annotated[
        int | None,
        typer.Option("--num-query-heads", help=f"Query heads of a layer [{_SHAPE.num_query_heads}]."),
    ] = None
    num_kv_heads: Annotated[
        int | None,
        typer.Option("--num-kv-heads", help=f"KV heads, a divisor of them [{_SHAPE.num_kv_heads}]."),
    ] = None
    head_size: Annotated[
        int | None, typer.Option("--head-size", help=f"Width of a head [{_SHAPE.head_size}].")
    ] = None
    layers: Annotated[
        int | None, typer.Option("--layers", help=f"Attention layers of the model [{_SHAPE.layers}].")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help=f"float32, bfloat16 or float16, of queries and pages [{_SHAPE.dtype}]."),
    ] = None

    def shape(self) -> ModelShape:
        """For the library."""
        base = _SHAPE if self.model is None else read_model_shape(self.model)
        try:
            return base.with_options(
                num_query_heads=self.num_query_heads,
                num_kv_heads=self.num_kv_heads,
                head_size=self.head_size,
                layers=self.layers,
                dtype=self.dtype,
            )
        except UsageError as error:
            raise _named_as_option(error) from None


@dataclass(frozen=True, kw_only=True)
class PointOptions:
    """Which rung pairs are measured."""

    kernel: Annotated[
        str, typer.Option("--kernel", help="The kernel to measure: chunked, per_block or both.")
    ] = "both"
    points: Annotated[
        int | None,
        typer.Option(
            "--points",
            help=f"Rung pairs of each kernel, chosen where the fit so far is least sure [{DEFAULT_POINTS}].",
        ),
    ] = None
    grid: Annotated[bool, typer.Option("--grid", help="Measure every variant of the engine instead.")] = False
    num_seqs: Annotated[
        str | None, typer.Option("--num-seqs", help="With --num-blocks: measure all pairs of two lists.")
    ] = None
    num_blocks: Annotated[str | None, typer.Option("--num-blocks", help="The other list: 1,2,4,8.")] = None
    repeats: Annotated[int, typer.Option("--repeats", help="Timed calls of each point.")] = _DEFAULT.repeats
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", help="Begin no further point after this time: 10m.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What it is measured on."""

    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or another device that torch.compile has here.")
    ] = _DEFAULT.device
    compiler: Annotated[
        str,
        typer.Option(
            "--compiler",
            help="A backend of torch.compile; eager, the quick one, traces alone: no compile is recorded.",
        ),
    ] = _DEFAULT.compiler
    threads: Annotated[int, typer.Option("--threads", help="CPU threads that torch computes with.")] = (
        _DEFAULT.threads
    )
    clock: Annotated[
        str,
        typer.Option(
            "--clock",
            help="cpu: CPU time of the one thread that computes; wall; auto: cpu on the CPU with one thread.",
        ),
    ] = _DEFAULT.clock
    seed: Annotated[int, typer.Option("--seed", help="Of contents, lengths and the order of calls.")] = 0


def run(
    *,
    engine_options: EngineOptions,
    model_options: ModelOptions,
    point_options: PointOptions,
    device_options: DeviceOptions,
    output: Annotated[Path, typer.Option("-o", "--output", help="The rows: MEASUREMENTS.csv.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> int:
    """Time the batched decode kernel and its compiles on this machine, for calibrate; needs torch.

    Rows are written one by one: a run that was ended goes on with the same command.
    """
    from ladder_opt.measurement.api import measure  # noqa: PLC0415  (slow to import)

    engine, shape = engine_options.engine(), model_options.shape()
    try:
        options = _options(point_options, device_options)
        options.check(engine)
    except UsageError as error:
        raise _named_as_option(error) from None
    with progress_bar() as progress:
        found = measure(output, engine, shape, options=options, progress=progress)
    if model_options == ModelOptions():
        warn(["no model was named (--model): these are the seconds of a made-up layer"], label="note")
    warn(found.notes, label="note")
    warn(found.warnings)
    if as_json:
        print_json(found.to_dict())
    else:
        from ladder_opt.report.measurement import measurement_text  # noqa: PLC0415
        from ladder_opt.report.terminal import console  # noqa: PLC0415

        console().print(measurement_text(found.to_dict(), engine), soft_wrap=True)  # paths stay whole
    if found.stopped == "interrupted":
        return _INTERRUPTED
    return exit_code(strict=strict, warnings=found.warnings)


def _options(points: PointOptions, device: DeviceOptions) -> MeasureOptions:
    limit = points.time_limit
    if points.points is not None and (points.grid or points.num_seqs is not None):
        instead = "--grid" if points.grid else "--num-seqs and --num-blocks"
        raise UsageError(
            f"--points: found {points.points} with {instead}, expected one of them: these measure all pairs"
        )
    return MeasureOptions(
        kernels=tuple(KERNELS) if points.kernel == "both" else (points.kernel,),
        points=DEFAULT_POINTS if points.points is None else points.points,
        grid=points.grid,
        num_seqs=_sizes(points.num_seqs, option="--num-seqs"),
        num_blocks=_sizes(points.num_blocks, option="--num-blocks"),
        repeats=points.repeats,
        time_limit_seconds=None if limit is None else parse_duration_seconds(limit, option="--time-limit"),
        device=device.device,
        compiler=device.compiler,
        threads=device.threads,
        clock=device.clock,
        seed=device.seed,
    )


def _sizes(text: str | None, *, option: str) -> tuple[int, ...]:
    return () if text is None else tuple(parse_rungs(text, option=option))


def _named_as_option(error: UsageError) -> UsageError:
    """The library names a field, the command line its option."""
    name, colon, rest = str(error).partition(": ")
    if name.startswith("--") or not name.isidentifier():
        return error
    option = {"kernels": "kernel"}.get(name, name).replace("_", "-")
    return UsageError(f"--{option}{colon}{rest}")
