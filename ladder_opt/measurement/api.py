"""`measure`: rows of step and compile seconds of this machine, at points that are chosen as they come in."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.calibration.measurement_rows import MeasurementRow
from ladder_opt.calibration.term_fit import TermFit, fit_terms
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.measurement.bench import Bench, Point
from ladder_opt.measurement.design import NOISE, Candidates, expected_error, next_point
from ladder_opt.measurement.model_shape import ModelShape, read_model_shape
from ladder_opt.measurement.options import MeasureOptions
from ladder_opt.measurement.rounds import REFERENCES, Rounds
from ladder_opt.measurement.row_file import RowFile

Progress = Callable[[str, float], None]
Stop = Literal["done", "time limit", "interrupted"]
OpenBench = Callable[[Engine, ModelShape, MeasureOptions], contextlib.AbstractContextManager[Bench]]
_GRAPHS_PER_VARIANT = 1  # layers of one kind share the reference kernel's graph


@dataclass(frozen=True)
class Measurements:
    """What a run measured.

    Attributes:
        path: the file.
        rows: all of the file's rows, those of earlier runs first.
        new: how many of them are this run's.
        stopped: `done`, or why it ended before.
        left: points that were asked for and are not measured.
        expected_errors: for each kernel and quantity ("step", "compile") median and 90th percentile of
            the relative errors to expect over all of the engine's variants; absent where rows are too few.
        notes: remarks, a line each.
        warnings: what not to rely on, a line each.
    """

    path: Path
    rows: tuple[MeasurementRow, ...]
    new: int
    stopped: Stop
    left: int
    expected_errors: dict[str, dict[str, tuple[float, float]]]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "path": str(self.path),
            "rows": len(self.rows),
            "kernels": sorted({row.kernel for row in self.rows}),
            "new": self.new,
            "stopped": self.stopped,
            "left": self.left,
            "expected_errors": {
                kernel: {name: {"median": middle, "p90": high} for name, (middle, high) in errors.items()}
                for kernel, errors in self.expected_errors.items()
            },
            "warnings": list(self.warnings),
        }


@checked
def measure(
    output: str | Path,
    engine: Engine | None = None,
    model: ModelShape | str | Path | None = None,
    *,
    options: MeasureOptions | None = None,
    progress: Progress | None = None,
    open_bench: OpenBench | None = None,
) -> Measurements:
    """Time the batched decode kernel on this machine, and its compiles, into a file that `calibrate` reads.

    A row is written, whole, as soon as its point is measured. With a file that is there already, of the same
    settings, the run goes on where that one ended. Ctrl-C ends it with what is finished.

    Args:
        output: the file of rows, CSV.
        engine: its limits are the sizes to choose from; None for the default ones.
        model: the layers' shape, or a Hugging Face config.json (or its folder); None for a small made-up one.
        options: what is measured, and how.
        progress: told what is being done, and the share done.
        open_bench: what is timed in place of torch's kernels, for tests.

    Raises:
        UsageError: an option that the engine or this machine cannot meet, or a file of other settings.
        InputError: a file that holds something else.

    Example:
        >>> measure("rows.csv", Engine(max_model_len=2048))  # doctest: +SKIP
    """
    engine = engine or Engine()
    options = options or MeasureOptions()
    options.check(engine)
    shape = (
        model if isinstance(model, ModelShape) else ModelShape() if model is None else read_model_shape(model)
    )
    opened = open_bench or kernel_bench
    candidates = {kernel: _candidates(engine, kernel, options) for kernel in options.kernels}
    settings = _settings(engine, shape, options, with_torch=open_bench is None)
    with RowFile(output, settings) as file:
        run = _Run(file, candidates, options, settings, progress or _quiet)
        run.notes += file.notes
        if shape.max_position_embeddings is not None and shape.max_position_embeddings < engine.max_model_len:
            run.notes.append(
                f"max_model_len {engine.max_model_len} is beyond the model's {shape.max_position_embeddings} "
                "positions"
            )
        started = len(file.rows)
        stopped: Stop = "done"
        try:
            if run.next_point() is not None:
                run.progress("starting the compiler", 0.0)
                with opened(engine, shape, options) as bench:
                    stopped = run.measure(bench)
        except KeyboardInterrupt:
            stopped = "interrupted"
        rows = tuple(file.rows)
    return Measurements(
        path=Path(output),
        rows=rows,
        new=len(rows) - started,
        stopped=stopped,
        left=run.left(),
        expected_errors=run.expected_errors(),
        notes=tuple(run.notes),
        warnings=run.warnings(),
    )


class _Run:
    """One run on one file."""

    def __init__(
        self,
        file: RowFile,
        candidates: dict[str, Candidates],
        options: MeasureOptions,
        settings: dict[str, Any],
        progress: Progress,
    ) -> None:
        self.file, self.candidates, self.options = file, candidates, options
        self.settings, self.progress = settings, progress
        self.notes: list[str] = []
        self.rounds: Rounds | None = None
        self.wanted = {
            kernel: len(each) if options.grid or options.num_seqs else min(options.points, len(each))
            for kernel, each in candidates.items()
        }

    def measured(self, kernel: str) -> list[MeasurementRow]:
        return [row for row in self.file.rows if row.kernel == kernel and row.step_seconds is not None]

    def left(self) -> int:
        return sum(max(self._left_of(kernel), 0) for kernel in self.wanted)

    def _left_of(self, kernel: str) -> int:
        if self.options.grid or self.options.num_seqs:
            done = {_point(row) for row in self.measured(kernel)}
            every = self.candidates[kernel]
            return sum(every.point(at) not in done for at in range(len(every)))
        return self.wanted[kernel] - len({_point(row) for row in self.measured(kernel)})

    def next_point(self, waiting: Iterable[Point] = ()) -> Point | None:
        """Of the kernel with the most left to do; None where all is done, or waits to be timed."""
        compiled = {kernel: [each for each in waiting if each.kernel == kernel] for kernel in self.wanted}
        kernel = max(self.wanted, key=lambda name: self._left_of(name) - len(compiled[name]))
        if self._left_of(kernel) - len(compiled[kernel]) < 1:
            return None
        points = dict.fromkeys([*(_point(row) for row in self.measured(kernel)), *compiled[kernel]])
        return next_point(
            self.candidates[kernel], list(points), self.fits(kernel), noise=self._noise_of(kernel)
        )

    def _noise_of(self, kernel: str) -> float:
        """Relative standard error of a measured point."""
        spreads = [row.step_spread for row in self.measured(kernel)]
        return max(NOISE, float(np.nanmedian(spreads))) if np.isfinite(spreads).any() else NOISE

    def fits(self, kernel: str) -> dict[str, TermFit]:
        """Of the rows so far: `step`, and `compile` where compiles were timed."""
        return {name: _fit(kernel, name, rows) for name, rows in self._rows_of_fits(kernel).items()}

    def _rows_of_fits(self, kernel: str) -> dict[str, list[MeasurementRow]]:
        timed = self.measured(kernel)
        rows = {"step": timed, "compile": [row for row in timed if row.compile_seconds is not None]}
        return {name: each for name, each in rows.items() if each}

    def expected_errors(self) -> dict[str, dict[str, tuple[float, float]]]:
        """See `Measurements`."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for kernel, every in self.candidates.items():
            noise = self._noise_of(kernel)
            for name, rows in self._rows_of_fits(kernel).items():
                fit = _fit(kernel, name, rows)
                if fit.rows > len(fit.names):
                    points = list(dict.fromkeys(map(_point, rows)))
                    deviations = expected_error(every, points, name, fit, noise=noise)
                    deviations *= _surprise(kernel, name, rows, noise)
                    errors = np.quantile(_half_normal(deviations), (0.5, 0.9))
                    found.setdefault(kernel, {})[name] = (float(errors[0]), float(errors[1]))
        return found

    def warnings(self) -> tuple[str, ...]:
        return () if self.rounds is None else self.rounds.machine.warnings()

    def measure(self, bench: Bench) -> Stop:
        """Measure what is left, within the time limit."""
        began = time.monotonic()
        rounds = self.rounds = Rounds(bench, repeats=self.options.repeats, seed=self.options.seed)
        self._take_up_references(bench, rounds)
        total = max(self.left(), 1)
        waiting: dict[Point, float] = {}
        while (point := self.next_point(waiting)) is not None:
            limit = self.options.time_limit_seconds
            if limit is not None and time.monotonic() - began >= limit:
                if waiting:
                    self._time(rounds, waiting)
                return "time limit"
            done = 1 - (self.left() - len(waiting)) / total
            at = f"{point.kernel} {point.num_seqs} x {point.num_blocks}"
            self.progress(f"compiling {at}", done)
            waiting[point] = bench.compile(point).seconds
            if not rounds.references and len(waiting) < min(REFERENCES, self.left()):
                continue  # the first points are timed together: there is nothing yet to time them beside
            self.progress(f"timing {at}", done)
            self._time(rounds, waiting)
        return "done"

    def _time(self, rounds: Rounds, waiting: dict[Point, float]) -> None:
        """Time the points that wait, write their rows, and let them wait no longer."""
        for (point, compile_seconds), timing in zip(waiting.items(), rounds.time(list(waiting)), strict=True):
            row = MeasurementRow(
                kernel=point.kernel,
                num_seqs=point.num_seqs,
                num_blocks=point.num_blocks,
                step_seconds=timing.seconds,
                step_seconds_low=timing.low,
                step_seconds_high=timing.high,
                repeats=timing.rounds,
                compile_seconds=compile_seconds if self.options.times_compiles else None,
                noise=round(rounds.machine.noise, 4),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                **self.settings,
            )
            self.file.append(row)
            rounds.add_reference(point, timing.seconds)
        waiting.clear()

    def _take_up_references(self, bench: Bench, rounds: Rounds) -> None:
        """Of a file that is gone on with: the points that compile the fastest, to be timed again."""
        rows = [row for row in self.file.rows if row.step_seconds is not None]
        for row in sorted(rows, key=lambda each: each.compile_seconds or 0.0)[: REFERENCES - 1]:
            point = _point(row)
            self.progress(f"compiling {point.num_seqs} x {point.num_blocks} again", 0.0)
            bench.compile(point)
            rounds.add_reference(point, row.step_seconds or 0.0)


def _fit(kernel: str, name: str, rows: Sequence[MeasurementRow]) -> TermFit:
    """Of steps' or compiles' seconds to the terms of the rows' sizes."""
    terms = Candidates(kernel, np.empty(0, np.int64), np.empty(0, np.int64)).with_points(
        [_point(row) for row in rows]
    )
    if name == "step":
        seconds = [row.step_seconds or 0.0 for row in rows]
        return fit_terms(terms.step_terms(), seconds, spread=[row.step_spread for row in rows], bootstraps=0)
    return fit_terms(terms.compile_terms(), [row.compile_seconds or 0.0 for row in rows], bootstraps=0)


def _surprise(kernel: str, name: str, rows: Sequence[MeasurementRow], noise: float) -> float:
    """How many times their expected size the errors are of each row told by the others; at least 1."""
    squares = []
    for at, row in enumerate(rows):
        others = [*rows[:at], *rows[at + 1 :]]
        fit = _fit(kernel, name, others)
        if fit.rows <= len(fit.names):
            return 1.0
        one = Candidates(kernel, np.array([row.num_seqs]), np.array([row.num_blocks]))
        expected = expected_error(one, list(dict.fromkeys(map(_point, others))), name, fit, noise=noise)
        terms = one.step_terms() if name == "step" else one.compile_terms()
        seconds = row.step_seconds if name == "step" else row.compile_seconds
        error = (seconds or 0.0) / max(float(fit.predict(terms)[0]), 1e-300) - 1
        squares.append(error**2 / (float(expected[0]) ** 2 + noise**2))
    return max(1.0, math.sqrt(float(np.mean(squares))))


def _point(row: MeasurementRow) -> Point:
    return Point(row.kernel, row.num_seqs, row.num_blocks)


def _half_normal(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sizes of normal errors of these standard deviations: of each its distribution, at ten quantiles."""
    normal = np.array([0.0627, 0.1891, 0.3186, 0.4538, 0.5978, 0.7554, 0.9346, 1.1503, 1.4395, 1.9600])
    return np.asarray(deviations[:, None] * normal).ravel()


def _candidates(engine: Engine, kernel: str, options: MeasureOptions) -> Candidates:
    if options.grid:
        return Candidates.of(engine, kernel, most=engine.max_num_seqs * engine.max_num_blocks)
    if not options.num_seqs:
        found = Candidates.of(engine, kernel)
        if not len(found):
            raise UsageError(
                f"num_kv_blocks: found {engine.num_kv_blocks}, expected a pool that some kernel fits into"
            )
        return found
    pairs = np.meshgrid(np.unique(options.num_seqs), np.unique(options.num_blocks), indexing="ij")
    seqs, blocks = (axis.ravel().astype(np.int64) for axis in pairs)
    entries = get_kernel(kernel).entries(seqs, blocks)
    largest = int(np.argmax(entries))
    if entries[largest] >= engine.num_pages:
        raise UsageError(
            f"num_kv_blocks: found {engine.num_kv_blocks}, expected more than the {entries[largest]} pages "
            f"that {kernel} {seqs[largest]} x {blocks[largest]} reads at once"
        )
    return Candidates(kernel, seqs, blocks)


def _settings(
    engine: Engine, shape: ModelShape, options: MeasureOptions, *, with_torch: bool
) -> dict[str, Any]:
    """What every row of the file has to say."""
    if with_torch and importlib.util.find_spec("torch") is None:
        raise UsageError("found no torch, expected it for measure: pip install 'ladder-opt[torch]'")
    return {
        "layers": shape.layers,
        "graphs_per_variant": _GRAPHS_PER_VARIANT,
        "block_size": engine.block_size,
        "num_query_heads": shape.num_query_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "dtype": shape.dtype,
        "logits_soft_cap": shape.logits_soft_cap,
        "device": _device_words(options) if with_torch else options.device,
        "threads": options.threads,
        "compiler": options.compiler,
        "clock": options.clock_in_use,
        "torch_version": importlib.metadata.version("torch") if with_torch else None,
    }


def _device_words(options: MeasureOptions) -> str:
    """The device and its make; the compiler is looked for too, before any file is made."""
    from ladder_opt.measurement.kernel_bench import (  # noqa: PLC0415 - needs torch
        check_compiler,
        device_name,
        find_device,
    )

    check_compiler(options.compiler)
    name = " ".join(device_name(find_device(options.device)).split()) or platform.machine()
    return f"{options.device} ({name})"


@contextlib.contextmanager
def kernel_bench(engine: Engine, shape: ModelShape, options: MeasureOptions) -> Iterator[Bench]:
    """What `measure` times: the reference kernel on the device, with a cache and threads of its own."""
    from ladder_opt.measurement.kernel_bench import (  # noqa: PLC0415 - needs torch
        BenchOptions,
        KernelBench,
        find_device,
    )

    bench_options = BenchOptions(
        device=find_device(options.device),
        compiler=options.compiler,
        threads=options.threads,
        clock=options.clock_in_use,
        seed=options.seed,
    )
    with KernelBench.opened(engine, shape, bench_options) as bench:
        yield bench


def _quiet(what: str, share: float) -> None:
    """No one is told."""
