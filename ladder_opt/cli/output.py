"""Where results, warnings and progress go: stdout for results, stderr for the rest."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import typer


def print_json(data: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def warn(lines: Iterable[str], *, label: str = "warning") -> None:
    """One line each on stderr."""
    for line in lines:
        say(f"{label}: {one_line(line)}")


def say(line: str) -> None:
    """A line on stderr, where there is one: whether anyone reads it changes nothing."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        # What is left in the buffer would fail once more at exit, and turn the exit code into 120.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def one_line(text: str) -> str:
    """Text on one line, whatever a file or a file's name put into it; control characters escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split())
    )


def exit_code(*, strict: bool, warnings: Iterable[str]) -> int:
    """1 where `--strict` found a warning."""
    return 1 if strict and any(True for _ in warnings) else 0


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None] | None]:
    """A progress callback for a terminal; None where stderr is none."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    from ladder_opt.report.terminal import console  # noqa: PLC0415

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)

        def report(what: str, share: float) -> None:
            if what == "solve":
                bar.update(task, description=f"solving, gap {share:.4%}", total=None)
            else:
                bar.update(task, description=what, total=1.0, completed=share)

        yield report
