"""The options that say where replays run; part of every command that replays traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ladder_opt.executor import Executor


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Where replays run; the result is the same wherever."""

    jobs: Annotated[int | None, typer.Option("--jobs", help="Replays at a time [one a core].")] = None
    executor_name: Annotated[
        str,
        typer.Option(
            "--executor", help="local, or dask://HOST:PORT of a Dask scheduler whose workers see the traces."
        ),
    ] = "local"

    def executor(self) -> Executor:
        """For the library."""
        return Executor.named(self.executor_name, jobs=self.jobs)
