"""Made-up machines to measure: seconds from a formula written here, with misfit, noise and drift."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ladder_opt.engine import Engine
from ladder_opt.measurement.bench import Point, Timed
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.measurement.options import MeasureOptions


def geometry(point: Point) -> tuple[int, int]:
    """(iterations, gathers), by the table in docs/files.md."""
    s, m = point.num_seqs, point.num_blocks
    c = 1 if point.kernel == "per_block" else max(1, min(32 // s, m))
    k = -(-m // c)
    return k, s * c * k


@dataclass
class MadeUpMachine:
    """Seconds of the cost model's formula, off it by a smooth share of the sizes, and by noise.

    Attributes:
        misfit: largest relative distance from the formula.
        noise: relative standard deviation of a call.
        drift: relative slowing from one compile to the next.
        before_compile: called with the number of compiles so far, before each.
    """

    misfit: float = 0.0
    noise: float = 0.0
    drift: float = 0.0
    seed: int = 0
    before_compile: Callable[[int], None] = lambda done: None
    compiled: list[Point] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def bend(self, point: Point) -> float:
        waves = np.sin(3 * np.log(point.num_seqs)) + np.cos(2 * np.log(point.num_blocks))
        return 1 + self.misfit * float(waves) / 2

    def step_seconds(self, point: Point) -> float:
        """Without noise and drift."""
        iterations, gathers = geometry(point)
        exact = 3e-4 + 2e-5 * point.num_seqs + 1.5e-4 * iterations + 9e-5 * gathers
        return exact * self.bend(point)

    def compile_seconds(self, point: Point) -> float:
        iterations, _ = geometry(point)
        return (2.0 + 0.5 * iterations + 0.004 * iterations**2) * self.bend(point)

    def compile(self, point: Point) -> Timed:
        self.before_compile(len(self.compiled))
        self.compiled.append(point)
        return self._timed(self.compile_seconds(point))

    def step(self, point: Point) -> Timed:
        assert point in self.compiled, "timed before it was compiled"
        self.steps += 1
        return self._timed(self.step_seconds(point) * (1 + self.drift) ** len(self.compiled))

    def _timed(self, seconds: float) -> Timed:
        noisy = seconds * float(np.exp(self.noise * self.rng.normal()))
        return Timed(noisy, noisy)

    @contextlib.contextmanager
    def opened(self, engine: Engine, shape: ModelShape, options: MeasureOptions) -> Iterator[MadeUpMachine]:
        """For `measure(open_bench=...)`."""
        yield self
