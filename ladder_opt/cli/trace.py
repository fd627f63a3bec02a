"""`ladder-opt trace info|convert|synth`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import ReadOptions, command
from ladder_opt.cli.output import exit_code, print_json, progress_bar, warn
from ladder_opt.cli.usage import Group
from ladder_opt.files import check_output
from ladder_opt.trace.parquet import write_chunks, write_trace
from ladder_opt.trace.reasons import set_aside_lines
from ladder_opt.trace.stream import AnyTrace
from ladder_opt.trace.summary import summarize
from ladder_opt.trace.table import Trace, within_limits

app = typer.Typer(cls=Group, help="Look at, convert and make request traces.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def info(
    *,
    read: ReadOptions,
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A request trace.")],
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Set longer requests aside, as a replay would.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where requests are set aside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> int:
    """Say what a trace holds: counts, rate, lengths, ticks, what cannot be used and why."""
    trace = read.read(path) if max_model_len is not None else read.open(path)
    if isinstance(trace, Trace):
        trace = _limited(trace, max_model_len)
    return _show(trace, path, strict=strict, as_json=as_json)


def convert(
    *,
    read: ReadOptions,
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A request trace.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The canonical Parquet file.")],
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Leave longer requests out.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where requests are set aside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> int:
    """Turn a trace of any format into the canonical Parquet table."""
    check_output(output, inputs=[path])
    trace = _limited(read.read(path), max_model_len)
    write_trace(trace, output)
    return _show(trace, path, strict=strict, as_json=as_json)


def synth(
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The canonical Parquet file.")],
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="Published traffic to resemble: azure2023_conv, azure2023_code, mooncake_conversation.",
        ),
    ] = "azure2023_conv",
    requests: Annotated[int, typer.Option("--requests", help="How many.")] = 20_000,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second [the profile's].")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same trace.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> int:
    """Make a trace that resembles published traffic in its lengths and arrivals."""
    from ladder_opt.trace.open import open_trace  # noqa: PLC0415
    from ladder_opt.trace.synth import (  # noqa: PLC0415  (brings scipy in)
        BLOCK_REQUESTS,
        synthesize,
        synthesize_blocks,
    )

    check_output(output)
    if 1 <= requests <= BLOCK_REQUESTS:
        trace = synthesize(profile, requests=requests, rate=rate, seed=seed)
        write_trace(trace, output)
        return _show(trace, output, strict=False, as_json=as_json)
    blocks = synthesize_blocks(profile, requests=requests, rate=rate, seed=seed)
    with progress_bar() as progress:
        write_chunks(_told(blocks, requests, progress), output)
    if not output.is_file():  # a pipe cannot be read again
        return exit_code(strict=False, warnings=())
    return _show(open_trace(output), output, strict=False, as_json=as_json)


def _told(
    chunks: Iterable[Trace], requests: int, progress: Callable[[str, float], None] | None
) -> Iterator[Trace]:
    """The chunks, and how far they are of all requests."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if progress is not None:
            progress("drawing", done / requests)


def _limited(trace: Trace, max_model_len: int | None) -> Trace:
    return trace if max_model_len is None else within_limits(trace, max_model_len=max_model_len)


def _show(trace: AnyTrace, path: Path, *, strict: bool, as_json: bool) -> int:
    summary = summarize(trace)
    warnings = set_aside_lines(trace.set_aside, len(trace))
    warn(warnings)
    if as_json:
        print_json(summary.to_dict())
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import summary_text  # noqa: PLC0415

        console().print(summary_text(summary, path=str(path)))
    return exit_code(strict=strict, warnings=warnings)


command(app, "info", under="trace")(info)
command(app, "convert", under="trace")(convert)
command(app, "synth", under="trace")(synth)
