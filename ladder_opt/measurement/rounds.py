"""Timing points in rounds, beside reference points, so that a machine that drifts does not tilt the fit.

Points are measured one after another, over minutes; other work on the machine, its clock rate and its heat
change meanwhile. So points are timed in rounds, and every round also times a few reference points that were
measured before. With t and a_j the calls of a point and of reference j over the rounds, A_j the seconds of j
as they stand in the file, and Q the lower quartile,

    F = median over j of Q(a_j) / A_j       how slow the machine is now, beside then
    y = Q(t) / F                            the point's seconds, as if it had been timed together with them

A quartile and not the median, for other work can only make a call slower: of calls on a busy machine the fast
ones say what the kernel takes. On a calm machine the two hardly differ. The first points of a file, which
have no references yet, are timed together. Calls within a round are in random order, and each follows a call
of the same point that does not count: caches hold what it left, not what another point did. The spread of
the references' calls over the run is the rows' `noise`: how calm the machine was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ladder_opt.measurement.bench import Bench, Point

REFERENCES = 4
QUANTILE = 0.25
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
        seconds: lower quartile over rounds, the machine's drift taken out.
        low: lower end of a 95 % interval of that quartile.
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
        calls: of each reference, its seconds in every round over A_j.
        wall_ratios: wall time over the clock in use, of every call.
        loads: runnable processes a core, now and then.
    """

    calls: list[float] = field(default_factory=list)
    wall_ratios: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def look(self) -> None:
        """Note the load."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.loads.append(os.getloadavg()[0] / cores)

    @property
    def noise(self) -> float:
        """Relative spread of the references' calls: 80 % of them lie within it."""
        if not self.calls:
            return 0.0
        low, middle, high = np.quantile(self.calls, (0.1, 0.5, 0.9))
        return float((high - low) / middle)

    def warnings(self) -> tuple[str, ...]:
        """Why the seconds may not be this machine's own, a line each."""
        told = []
        if self.noise > _NOISY_SPREAD:
            told.append(
                f"a noisy machine: a tenth of the same calls took {self.noise:.0%} more than another tenth"
            )
        slower = float(np.median(self.wall_ratios)) if self.wall_ratios else 1.0
        if slower > _NOISY_WALL:
            told.append(
                f"a busy machine: calls took {slower:.2f} times their CPU time on the wall; other work "
                "shares its caches and memory too"
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

    def add_reference(self, point: Point, seconds: float) -> None:
        """Take a point that is compiled and measured as a reference, unless there are enough."""
        if len(self.references) < REFERENCES:
            self.references[point] = seconds

    def time(self, points: Sequence[Point]) -> list[StepTiming]:
        """Time compiled points together."""
        others = [each for each in self.references if each not in points]
        every = [*points, *others]
        for each in every:
            for _ in range(_WARM_CALLS):
                self.bench.step(each)
        self.machine.look()
        rounds: list[list[float]] = []
        began = time.perf_counter()
        while len(rounds) < self.repeats:
            late = time.perf_counter() - began > _MOST_SECONDS_A_POINT * len(points)
            if late and len(rounds) >= _FEWEST_ROUNDS:
                break
            rounds.append(self._round(every))
        seconds = np.array(rounds)
        return self._timings(seconds[:, : len(points)], seconds[:, len(points) :], others)

    def _timings(self, own: Floats, theirs: Floats, others: Sequence[Point]) -> list[StepTiming]:
        if others:
            relative = theirs / [self.references[each] for each in others]
            factor = float(np.median(np.quantile(relative, QUANTILE, axis=0)))
        else:
            relative = own / np.quantile(own, QUANTILE, axis=0)
            factor = 1.0
        self.machine.calls += relative.ravel().tolist()
        return [quartile_of(column / factor) for column in own.T]

    def _round(self, points: Sequence[Point]) -> list[float]:
        seconds = [0.0] * len(points)
        for at in self._rng.permutation(len(points)):
            self.bench.step(points[at])
            timed = self.bench.step(points[at])
            seconds[at] = timed.seconds
            self.machine.wall_ratios.append(timed.wall_seconds / max(timed.seconds, 1e-12))
        return seconds


def quartile_of(values: Floats) -> StepTiming:
    """The lower quartile, and the order statistics that hold that of the population in 95 of 100 samples."""
    ordered, count = np.sort(values), len(values)
    middle = QUANTILE * (count - 1)
    half = 1.96 * np.sqrt(count * QUANTILE * (1 - QUANTILE))  # a binomial count's standard deviations
    low, high = max(int(np.floor(middle - half)), 0), min(int(np.ceil(middle + half)), count - 1)
    return StepTiming(float(np.quantile(ordered, QUANTILE)), float(ordered[low]), float(ordered[high]), count)
