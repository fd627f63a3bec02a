"""The facts of `summary` for a stream: two passes over its chunks, memory for one chunk and some counts.

The first pass counts tokens, minutes and gaps. The second multiplies ranks, which are known only then. Every
fact is what `summarize` says of the same trace in memory, but for the ticks, which are looked for in the
first chunk alone, and for sessions and cached tokens, which streams do not carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ladder_opt.trace.clock import Ticks, find_ticks
from ladder_opt.trace.stream import TraceStream

_MINUTE_SECONDS = 60.0


@dataclass
class Counts:
    """Whole numbers and how often each came, the numbers ascending.

    Attributes:
        values: int64 (distinct,).
        times: int64 (distinct,).
    """

    values: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    times: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Count more of them."""
        values, times = np.unique(numbers, return_counts=True)
        merged, where = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, where, np.concatenate((self.times, times)))
        self.values, self.times = merged.astype(np.int64), total

    @property
    def total(self) -> int:
        """How many were counted."""
        return int(self.times.sum())

    def mean(self) -> float:
        """Their mean."""
        return float((self.values * self.times).sum()) / self.total

    def at(self, share: float) -> float:
        """The first of them at or above position share * (total - 1) of the sorted ones."""
        position = math.ceil(share * (self.total - 1))
        return float(self.values[np.searchsorted(np.cumsum(self.times), position, side="right")])

    def ranks(self) -> NDArray[np.float64]:
        """Ranks of the values, ties at their mean rank, less the mean of all ranks; float64 (distinct,)."""
        ends = np.cumsum(self.times)
        centred: NDArray[np.float64] = ends - (self.times - 1) / 2 - (self.total + 1) / 2
        return centred


@dataclass
class Spread:
    """Mean and sum of squared deviations of numbers that come in pieces (Chan, Golub and LeVeque, 1983)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Take more of them in."""
        if not len(numbers):
            return
        mean = float(numbers.mean())
        squares = float(((numbers - mean) ** 2).sum())
        total = self.count + len(numbers)
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.count * len(numbers) / total
        self.mean += apart * len(numbers) / total
        self.count = total

    def variation(self) -> float | None:
        """Standard deviation over mean; None where the mean is 0."""
        return math.sqrt(self.squares / self.count) / self.mean if self.mean > 0 else None


@dataclass
class StreamFacts:
    """What two passes found out.

    Attributes:
        prompt: prompt tokens.
        output: output tokens.
        minutes: whole minutes since the first arrival, one for each request.
        gaps: seconds between arrivals.
        ticks: the grid that arrivals of the first chunk sit on.
        spearman: rank correlation of prompt and output tokens.
    """

    prompt: Counts = field(default_factory=Counts)
    output: Counts = field(default_factory=Counts)
    minutes: Counts = field(default_factory=Counts)
    gaps: Spread = field(default_factory=Spread)
    ticks: Ticks | None = None
    spearman: float | None = None

    def busiest_minute(self) -> float | None:
        """Most requests in one whole minute over their mean; the last minute is cut short and left out."""
        if not len(self.minutes.values) or not self.minutes.values[-1]:
            return None
        times = self.minutes.times[:-1]
        return float(times.max()) * float(self.minutes.values[-1]) / float(times.sum())


def facts_of(stream: TraceStream) -> StreamFacts:
    """Read a stream twice."""
    facts = StreamFacts()
    last: NDArray[np.float64] | None = None
    for chunk in stream.chunks():
        facts.prompt.add(chunk.prompt_tokens)
        facts.output.add(chunk.output_tokens)
        arrivals = chunk.arrival_seconds
        if arrivals is None or not len(arrivals):
            continue
        if last is None:
            facts.ticks = find_ticks(arrivals)
        facts.minutes.add(np.floor(arrivals / _MINUTE_SECONDS).astype(np.int64))
        facts.gaps.add(np.diff(arrivals if last is None else np.concatenate((last, arrivals))))
        last = arrivals[-1:]
    facts.spearman = _spearman(stream, facts)
    return facts


def _spearman(stream: TraceStream, facts: StreamFacts) -> float | None:
    sides = (facts.prompt, facts.output)
    if any(len(side.values) < 2 for side in sides):
        return None  # fewer than 2 rows, or a constant side
    ranks = [side.ranks() for side in sides]
    product = 0.0
    for chunk in stream.chunks():
        prompt = ranks[0][np.searchsorted(facts.prompt.values, chunk.prompt_tokens)]
        product += float(prompt @ ranks[1][np.searchsorted(facts.output.values, chunk.output_tokens)])
    squares = [float(side.times @ rank**2) for side, rank in zip(sides, ranks, strict=True)]
    return product / math.sqrt(squares[0] * squares[1])
