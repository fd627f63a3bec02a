"""The traffic that a command works on: traces, streams or histograms, whichever was given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path

from ladder_opt.cli.options import EngineOptions, LoadOptions, ReadOptions, RestartOptions, StepsOptions
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.files import is_folder, sha256_of
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.record_file import read_recorded_steps
from ladder_opt.occupancy.replay import scheduling_notes
from ladder_opt.occupancy.sequences_file import read_sequences
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.rounds import Source
from ladder_opt.trace.stream import AnyTrace
from ladder_opt.trace.table import TraceSource
from ladder_opt.units import duration_text


def span_note(traffic: Traffic, restarts: RestartOptions) -> list[str]:
    """A histogram need not say how long it took: tell what is charged for it."""
    if (
        not isinstance(traffic.source, StepHistogram)
        or restarts.restarts is not None
        or restarts.span is not None
    ):
        return []
    if traffic.span_seconds is not None:
        return [f"the steps cover {duration_text(traffic.span_seconds)} of a server, as their records say"]
    return ["one server start is charged: --span says how long the histogram took, --restarts how many"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a command works on.

    Attributes:
        source: traces, or a histogram.
        inputs: the files it came from.
        warnings: what a plan should carry.
        notes: what a person should know.
        span_seconds: server time that a histogram covers, where its records say so.
    """

    source: Source
    inputs: tuple[TraceSource, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    span_seconds: float | None = None

    def given(self, options: SolveOptions) -> SolveOptions:
        """The options, with the time that recorded steps cover where none is given."""
        if self.span_seconds is None or options.span_seconds is not None:
            return options
        return dataclasses.replace(options, span_seconds=self.span_seconds)


def _inputs(path: Path, trace: AnyTrace) -> list[TraceSource]:
    """The file that was read, though a canonical one names those it was made from; of a folder, its files."""
    if is_folder(path) or (len(trace.sources) == 1 and trace.sources[0].path == str(path)):
        return list(trace.sources)
    rows = len(trace) + sum(trace.set_aside.values())
    return [TraceSource(path=str(path), sha256=sha256_of(path), rows=rows, format="ladder_opt")]


def _histogram(steps: StepsOptions, engine: Engine, target: str) -> Traffic:
    recorded = read_recorded_steps(steps.files(), engine)
    inputs = [
        TraceSource(path=file.path, sha256=file.sha256, rows=file.rows, format="steps")
        for file in recorded.files
    ]
    warnings = list(recorded.warnings)
    histogram = recorded.steps
    if target == "plugin":
        if steps.sequences is not None:
            raise UsageError("--sequences: found with --target plugin, expected with spyre-env alone")
    elif steps.sequences is None:
        histogram = replace(histogram, sequences=histogram.decode_calls(engine))
        warnings.append(
            "without --sequences, per-sequence attention counts only in steps below min_batched_seqs, each "
            "sequence as long as the longest: prefill is left out"
        )
    else:
        more = read_sequences(steps.sequences, engine)
        histogram = replace(histogram, sequences=more.sequences)
        inputs.append(TraceSource(path=more.path, sha256=more.sha256, rows=more.rows, format="sequences"))
        warnings += more.warnings
    return Traffic(
        source=histogram,
        inputs=tuple(inputs),
        warnings=tuple(warnings),
        notes=(),
        span_seconds=recorded.seconds,
    )


def load_traffic(
    traces: list[Path] | None,
    steps: StepsOptions,
    read: ReadOptions,
    load: LoadOptions,
    engine: Engine,
    *,
    engine_options: EngineOptions,
    target: str = "plugin",
) -> Traffic:
    """Read traces or a histogram, whichever was given, with what the target needs to know.

    Raises:
        UsageError: neither or both, or a histogram with options that only traces have.
        InputError: a file that cannot be used.
    """
    if bool(traces) == bool(steps.steps):
        raise UsageError(f"found {'both' if traces else 'neither'}, expected trace files or --steps")
    if steps.steps:
        for given in (read, load):
            for field in dataclasses.fields(given):
                if getattr(given, field.name) != field.default:
                    option = f"--{field.name.strip('_').replace('_', '-')}"
                    raise UsageError(f"{option}: found with --steps, expected with traces alone")
        return _histogram(steps, engine, target)
    if steps.sequences is not None:
        raise UsageError("--sequences: found with traces, expected with --steps alone")
    loaded = [read.open(path) for path in traces or []]
    return Traffic(
        source=loaded,
        inputs=tuple(
            source
            for path, trace in zip(traces or [], loaded, strict=True)
            for source in _inputs(path, trace)
        ),
        warnings=engine_options.scheduling_file().warnings,
        notes=(
            *(note for trace in loaded for note in trace.notes),
            *scheduling_notes(loaded, load.scheduling(engine_options)),
        ),
    )
