"""What a measurement may be told besides the engine and the model, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ladder_opt.arguments import check_fields
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError

CLOCKS: Final = ("auto", "cpu", "wall")
DEFAULT_POINTS: Final = 20
DEFAULT_REPEATS: Final = 40
_TRACES_ALONE: Final = frozenset({"eager", "aot_eager"})  # backends that write no code
_LIMITS: Final = {
    "points": (1, 100_000),
    "repeats": (1, 10_000),
    "threads": (1, 1_024),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and how.

    Attributes:
        kernels: of `ladder_opt.cost.geometry.KERNELS`.
        points: rung pairs of each kernel, chosen where the fit so far is least sure; of no account with
            `grid` or with two lists of sizes.
        grid: measure every variant of the engine instead.
        num_seqs: with `num_blocks`, measure these pairs instead; empty: not given.
        num_blocks: see `num_seqs`.
        repeats: timed calls of each point.
        device: a torch device: cpu, cuda, or another that torch.compile has.
        compiler: a backend of torch.compile; `eager` traces alone, and its compile seconds say nothing.
        threads: CPU threads that torch computes with.
        clock: `cpu` (CPU time of the one thread), `wall`, or `auto`: `cpu` on the CPU with one thread.
        time_limit_seconds: no further point is begun after it; None for no limit.
        seed: of contents, lengths and the order of calls, 0 or above.
    """

    kernels: tuple[str, ...] = tuple(KERNELS)
    points: int = DEFAULT_POINTS
    grid: bool = False
    num_seqs: tuple[int, ...] = ()
    num_blocks: tuple[int, ...] = ()
    repeats: int = DEFAULT_REPEATS
    device: str = "cpu"
    compiler: str = "inductor"
    threads: int = 1
    clock: str = "auto"
    time_limit_seconds: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"{name}: found {value!r}, expected {least} to {most}")
        if self.time_limit_seconds is not None and not self.time_limit_seconds >= 0:
            raise UsageError(f"time_limit_seconds: found {self.time_limit_seconds}, expected 0 s or more")
        if not self.kernels or len(set(self.kernels)) < len(self.kernels):
            raise UsageError(f"kernels: found {list(self.kernels)}, expected each of them once")
        for kernel in self.kernels:
            if kernel not in KERNELS:
                raise UsageError(f"kernels: found {kernel!r}, expected {', '.join(KERNELS)}")
        if bool(self.num_seqs) != bool(self.num_blocks):
            missing = "num_blocks" if self.num_seqs else "num_seqs"
            raise UsageError(f"{missing}: found none, expected a list of them beside the other axis's")
        if self.num_seqs and self.grid:
            raise UsageError("grid: found num_seqs and num_blocks as well, expected one of the two")
        if self.clock not in CLOCKS:
            raise UsageError(f"clock: found {self.clock!r}, expected {', '.join(CLOCKS)}")
        if self.clock == "cpu" and not self.has_cpu_clock:
            raise UsageError(
                f"clock: found cpu with device {self.device} and {self.threads} threads, expected wall: CPU "
                "time is a step's time where one thread does all of it"
            )

    @property
    def has_cpu_clock(self) -> bool:
        """Whether one thread does all the work."""
        return self.device == "cpu" and self.threads == 1

    @property
    def clock_in_use(self) -> str:
        """`cpu` or `wall`."""
        if self.clock != "auto":
            return self.clock
        return "cpu" if self.has_cpu_clock else "wall"

    @property
    def times_compiles(self) -> bool:
        """Whether compiles are real ones."""
        return self.compiler not in _TRACES_ALONE

    def check(self, engine: Engine) -> None:
        """Whether the engine can run what is asked for.

        Raises:
            UsageError: it batches no decodes, or a pair is beyond its limits.
        """
        if not engine.batches_decodes:
            raise UsageError(
                f"max_num_seqs: found {engine.max_num_seqs}, expected {engine.min_batched_seqs} or more, "
                "from where decodes are batched"
            )
        for name, sizes, low, high in (
            ("num_seqs", self.num_seqs, engine.min_batched_seqs, engine.max_num_seqs),
            ("num_blocks", self.num_blocks, 1, engine.max_num_blocks),
        ):
            for size in sizes:
                if not low <= size <= high:
                    raise UsageError(f"{name}: found {size}, expected {low} to {high}, the engine's limits")
