"""`ladder-opt calibrate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, warn
from ladder_opt.engine import ServerEngine
from ladder_opt.errors import UsageError
from ladder_opt.files import check_output, write_text


def run(
    *,
    engine_options: EngineOptions,
    measurements: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASUREMENTS...",
            help="Rows of ladder-opt measure, the Spyre plugin's microbenchmark, tables of pairs and "
            "seconds, server logs, per-request records; of any kinds at once.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The cost model: COST.json.")],
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--prefix-caching",
            help="The server caches prefixes, as vllm serve does by default; prompts are taken as distinct "
            "where the records do not say what they hold.",
        ),
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option("--layers", help="Attention layers of the model, where the files time one of them."),
    ] = None,
    graphs_per_variant: Annotated[
        int | None,
        typer.Option(
            "--graphs-per-variant", help="Graphs of a compiled variant [as the files say, else the layers]."
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", help="Whose geometry rung pairs have: chunked or per_block."),
    ] = None,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            help="Tables in place of formulas: auto (where these do not fit), always (measured pairs), "
            "interpolated (between the pairs measured, by how far the formula is off there), never.",
        ),
    ] = "auto",
    name: Annotated[str, typer.Option("--name", help="Name of the cost model.")] = "calibrated",
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cost model as JSON.")] = False,
) -> int:
    """Fit a cost model to measurements; the engine's options are the limits of the server measured.

    Blocks may have any size here (16 tokens are vLLM's default on GPUs). Files of several kinds give one
    model, each term from the files that can tell it.
    """
    check_output(output, inputs=measurements)
    if engine_options.min_batched_seqs is not None:
        raise UsageError(
            "--min-batched-seqs: found with calibrate, expected none: no step is taken to be padded"
        )
    from ladder_opt.calibration.api import calibrate  # noqa: PLC0415  (slow to import)

    engine = engine_options.engine(kind=ServerEngine)
    found = calibrate(
        measurements,
        engine,
        name=name,
        prefix_caching=prefix_caching,
        layers=layers,
        graphs_per_variant=graphs_per_variant,
        kernel=kernel,
        table=table,  # type: ignore[arg-type]  # checked there
    )
    write_text(output, json.dumps(found.cost.to_dict(), indent=2, allow_nan=False) + "\n")
    warn(found.notes, label="note")
    warn(found.warnings)
    if as_json:
        print_json(found.cost.to_dict())
    else:
        from ladder_opt.report.calibration import calibration_text  # noqa: PLC0415
        from ladder_opt.report.terminal import console  # noqa: PLC0415

        console().print(calibration_text(found.cost))
    return exit_code(strict=strict, warnings=found.warnings)
