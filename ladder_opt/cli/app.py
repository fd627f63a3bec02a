"""The application: commands put together, and the one place where errors become messages and codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ladder_opt._version import __version__
from ladder_opt.cli import (
    calibrate,
    check,
    drift,
    evaluate,
    export,
    frontier,
    measure,
    report,
    simulate,
    sweep,
    trace,
    tune,
    verify,
)
from ladder_opt.cli.options import ENGINE_OF_A_PLAN, ENGINE_OF_THE_PLAN, command
from ladder_opt.cli.output import one_line, say
from ladder_opt.cli.usage import Group
from ladder_opt.errors import InternalError, LadderOptError

EXIT_DONE, EXIT_WARNED, EXIT_BAD_INPUT, EXIT_OUR_BUG, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
_INTERRUPTED = "interrupted"

app = typer.Typer(
    name="ladder-opt",
    cls=Group,
    help="Bucket ladders for vLLM's batched decode attention on IBM Spyre, proven from request traces.",
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
command(app, "tune")(tune.run)
command(app, "evaluate", defaults=ENGINE_OF_A_PLAN)(evaluate.run)
command(app, "simulate")(simulate.run)
command(app, "frontier")(frontier.run)
command(app, "sweep")(sweep.run)
command(app, "calibrate")(calibrate.run)
command(app, "measure")(measure.run)
command(app, "check", defaults=ENGINE_OF_A_PLAN)(check.run)
command(app, "export")(export.run)
command(app, "verify", defaults=ENGINE_OF_THE_PLAN)(verify.run)
command(app, "drift", defaults=drift.OF_THE_PLAN)(drift.run)
command(app, "report")(report.run)
app.add_typer(trace.app, name="trace")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"ladder-opt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    0: done. 1: done, but `--strict` found a warning, or a check failed. 2: bad usage or bad input, one
    line on stderr. 3: a bug of ours, one line too. 130: interrupted.
    """
    if arguments is None:
        _let_odd_names_through()
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        if sys.stdout is not None:  # it is None where it was closed before we started
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and not end.code:
            raise  # shell completion
        # Whoever read our output has enough (typer and rich tell of it with a SystemExit of 1); what is
        # left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (KeyboardInterrupt, typer.Abort):
        return _complain(_INTERRUPTED, EXIT_INTERRUPTED)
    except Exception as error:
        message, code = _explain(error)
        if message is None:
            raise
        return _complain(message, code)
    if code == EXIT_INTERRUPTED:  # recent typer makes this of Ctrl-C
        return _complain(_INTERRUPTED, EXIT_INTERRUPTED)
    return code if isinstance(code, int) else EXIT_DONE


def _let_odd_names_through() -> None:
    """File names that are no UTF-8 leave as the bytes they came as; what else cannot be said, escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def _explain(error: Exception) -> tuple[str | None, int]:
    """What to say of an error, and the exit code; (None, ...) for what nobody foresaw."""
    if isinstance(error, InternalError):
        return f"{error} (a bug of ladder-opt: please report it)", EXIT_OUR_BUG
    if isinstance(error, LadderOptError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {error.strerror or error}", EXIT_BAD_INPUT
    if isinstance(error, MemoryError):
        return "out of memory", EXIT_BAD_INPUT
    # Typer's own usage errors: its classes moved between releases, what they offer did not.
    format_message = getattr(error, "format_message", None)
    return (None if format_message is None else str(format_message())), EXIT_BAD_INPUT


def _complain(message: str, code: int) -> int:
    say(f"ladder-opt: {one_line(message)}")
    return code
