"""`ladder-opt export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ladder_opt.files import check_output, write_text
from ladder_opt.plan.export import EXPORT_FORMATS, export_plan
from ladder_opt.plan.plan import read_plan


def run(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan.")],
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(EXPORT_FORMATS)}.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file in place of stdout.")] = None,
) -> int:
    """Write a plan in the form that a server or a script takes."""
    check_output(output, inputs=[plan_path])
    text = export_plan(read_plan(plan_path), format_, path=str(plan_path.resolve()))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
    return 0
