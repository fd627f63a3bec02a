"""What a measurement asks of whatever is timed: so that a test can put a made-up machine in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, order=True)
class Point:
    """One thing to measure: a kernel padded to the rung pair (num_seqs, num_blocks)."""

    kernel: str
    num_seqs: int
    num_blocks: int


@dataclass(frozen=True)
class Timed:
    """One timing.

    Attributes:
        seconds: by the clock in use.
        wall_seconds: by the wall's.
    """

    seconds: float
    wall_seconds: float


class Bench(Protocol):
    """Compiles points and times steps at them."""

    def compile(self, point: Point) -> Timed:
        """Compile the kernel of a point, once for each kind of layer; the seconds of one graph."""

    def step(self, point: Point) -> Timed:
        """Run the attention of a decode step at a point that was compiled; one layer's share of it."""
