"""Traffic as callers hand it over: a steps file as read is its histogram, its origin and its warnings."""

from __future__ import annotations

from collections.abc import Sequence

from ladder_opt.occupancy.steps_file import StepsFile
from ladder_opt.plan.rounds import Source
from ladder_opt.trace.table import TraceSource

Given = Source | StepsFile


def taken(
    given: Given, inputs: Sequence[TraceSource] | None, warnings: Sequence[str]
) -> tuple[Source, Sequence[TraceSource] | None, Sequence[str]]:
    """The traffic itself, the files it came from, and what was warned of when they were read.

    Args:
        given: traces, a replay, a histogram, or a steps file as `read_steps` returns it.
        inputs: the files, where the caller names them; they go before the steps file's own.
        warnings: from reading them.
    """
    if not isinstance(given, StepsFile):
        return given, inputs, warnings
    own = TraceSource(path=given.path, sha256=given.sha256, rows=given.rows, format="steps")
    return given.steps, inputs or (own,), (*given.warnings, *warnings)
