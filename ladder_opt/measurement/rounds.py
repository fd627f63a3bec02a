"""Timing points in rounds, beside reference points, so that a machine that drifts does not tilt the fit.

Points are measured one after another, over minutes; other work on the machine, its clock rate and its heat
change meanwhile. So each point is timed in rounds, and every round also times a few reference points that
were compiled before. With a_j(r) a reference's seconds in round r and A_j its own, as they stand in the file,

    f(r) = median over j of a_j(r) / A_j        how slow the machine was in that round
    y    = median over r of t(r) / f(r)         the point's seconds, as if timed together with the references

Calls within a round are in random order. The spread of f is the rows' `noise`: how calm the machine was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ladder_opt.measurement.bench import Bench, Point

MOST_REFERENCES = 4
_WARM_CALLS = 2
_FEWEST_ROUNDS = 9
_MOST_SECONDS_A_POINT = 6.0  # of rounds, once there are `_FEWEST_ROUNDS`
_NOISY_SPREAD = 0.15
_NOISY_WALL = 1.25
_NOISY_LOAD = 1.25  # runnable processes a core

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepTiming:
    """A point's seconds.

    Attributes:
        seconds: median over rounds.
        low: lower end of a 95 % interval of that median.
        high: upper end.
        rounds: how many there were.
    """

    seconds: float
    low: float
    high: float
    rounds: int


@dataclass
class Machine:
    """What was seen of the machine while points were timed.

    Attributes:
        factors: f of every round.
        wall_ratios: wall time over the clock in use, of every call.
        loads: runnable processes a core, now and then.
    """

    factors: list[float] = field(default_factory=list)
    wall_ratios: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def look(self) -> None:
        """Note the load."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.loads.append(os.getloadavg()[0] / cores)

    @property
    def noise(self) -> float:
        """Relative spread of the rounds: 80 % of them lie within it."""
        if not self.factors:
            return 0.0
        low, middle, high = np.quantile(self.factors, (0.1, 0.5, 0.9))
        return float((high - low) / middle)

    def warnings(self) -> tuple[str, ...]:
        """Why the seconds may not be this machine's own, a line each."""
        told = []
        if self.noise > _NOISY_SPREAD:
            told.append(
                f"a noisy machine: the same calls took {self.noise:.0%} more in some rounds than in others"
            )
        slower = float(np.median(self.wall_ratios)) if self.wall_ratios else 1.0
        if slower > _NOISY_WALL:
            told.append(
                f"a busy machine: calls took {slower:.2f} times their CPU time on the wall; other work shares "
                "its caches and memory too"
            )
        load = max(self.loads, default=0.0)
        if load > _NOISY_LOAD:
            told.append(f"a busy machine: up to {load:.1f} runnable processes a core")
        return tuple(told)


class Rounds:
    """Times points of one bench beside its references.

    Attributes:
        machine: what was seen of it.
        references: the points that every round times, and their seconds.
    """

    def __init__(self, bench: Bench, *, repeats: int, seed: int) -> None:
        self.bench, self.repeats = bench, repeats
        self.machine = Machine()
        self.references: dict[Point, float] = {}
        self._rng = np.random.default_rng(seed)

    def add_reference(self, point: Point, seconds: float) -> bool:
        """Take a point that is compiled and measured as a reference; False where there are enough."""
        if len(self.references) >= MOST_REFERENCES or point in self.references:
            return False
        self.references[point] = seconds
        return True

    def time(self, point: Point) -> StepTiming:
        """Time a compiled point."""
        others = [each for each in self.references if each != point]
        for each in (point, *others):
            for _ in range(_WARM_CALLS):
                self.bench.step(each)
        own: list[float] = []
        factors: list[float] = []
        self.machine.look()
        began = time.perf_counter()
        while len(own) < self.repeats:
            if len(own) >= _FEWEST_ROUNDS and time.perf_counter() - began > _MOST_SECONDS_A_POINT:
                break
            seconds = self._round([point, *others])
            own.append(seconds[0])
            ratios = [took / self.references[each] for took, each in zip(seconds[1:], others, strict=True)]
            factors.append(float(np.median(ratios)) if ratios else 1.0)
        if others:
            self.machine.factors += factors
        else:
            self.machine.factors += (np.array(own) / np.median(own)).tolist()
        return median_of(np.array(own) / np.array(factors))

    def _round(self, points: Sequence[Point]) -> list[float]:
        seconds = [0.0] * len(points)
        for at in self._rng.permutation(len(points)):
            timed = self.bench.step(points[at])
            seconds[at] = timed.seconds
            self.machine.wall_ratios.append(timed.wall_seconds / max(timed.seconds, 1e-12))
        return seconds


def median_of(values: Floats) -> StepTiming:
    """The median, with the order statistics that hold that of the population in 95 of 100 samples."""
    ordered = np.sort(values)
    count = len(ordered)
    half = 0.98 * np.sqrt(count)  # 1.96 standard deviations of a binomial count of 1/2
    low = max(int(np.floor(count / 2 - half)), 0)
    high = min(int(np.ceil(count / 2 + half)), count) - 1
    return StepTiming(float(np.median(ordered)), float(ordered[low]), float(ordered[max(high, low)]), count)
