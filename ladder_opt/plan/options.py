"""What a plan is asked to be, and how traffic is replayed for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ladder_opt.arguments import check_fields
from ladder_opt.cost.model import CostModel
from ladder_opt.errors import UsageError, did_you_mean
from ladder_opt.executor import Executor
from ladder_opt.ladder import Target
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.solve.api import DEFAULT_TIME_LIMIT_SECONDS, Structure
from ladder_opt.solve.problem import Limits

DEFAULT_UPTIME_SECONDS = 86400.0
DEFAULT_MIN_GAIN = 0.01
MAX_RESTARTS = 1e12  # past this, sums lose the steps


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """What a plan is asked to be.

    Attributes:
        target: "plugin": ladders for our vLLM plugin; "spyre-env": for the Spyre plugin's own environment
            variables, whose block ladder the per-sequence kernel shares.
        structure: "product": two independent ladders, which the vLLM plugin loads; "ragged": a block ladder
            for each num_seqs rung.
        restarts: server starts charged to the traffic; None: its span, times the replicas that serve
            it, / `uptime_seconds`; or 1 where there is no span.
        uptime_seconds: time between server starts.
        span_seconds: time that a histogram covers, where it is known.
        max_variants: limit on distinct variants.
        warmup_budget_seconds: limit on the warm-up, start-up included.
        guard: no size, seen or not, is padded by more than this factor on either axis; None for no limit.
        robust: least worst regret over the traces, each on its own, instead of the least cost of their sum.
        holdout: share of each trace's span, its last, that the plan does not see and is tried on; None: all
            of it is seen.
        num_seqs: pins the axis where not empty.
        num_blocks: pins the axis where not empty.
        query_lens: of the per-sequence kernel, for "spyre-env": a list pins them, "default" pins the Spyre
            plugin's own, "solve" solves for them; None: "solve" where the cost model prices query padding.
        time_limit_seconds: for each solve.
        min_gain: share of the default's objective that a plan has to save to be worth adopting.
        uncertainty_draws: cost models to draw from the fit and solve again, see `plan.uncertainty`; 0: none.
    """

    target: Target = "plugin"
    structure: Structure = "product"
    restarts: float | None = None
    uptime_seconds: float | None = None
    span_seconds: float | None = None
    max_variants: int | None = None
    warmup_budget_seconds: float | None = None
    guard: float | None = None
    robust: bool = False
    holdout: float | None = None
    num_seqs: Sequence[int] = ()
    num_blocks: Sequence[int] = ()
    query_lens: Sequence[int] | Literal["default", "solve"] | None = None
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS
    min_gain: float = DEFAULT_MIN_GAIN
    uncertainty_draws: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for option, found, known in (
            ("--structure", self.structure, get_args(Structure)),
            ("--target", self.target, get_args(Target)),
        ):
            if found not in known:
                raise UsageError(
                    f"{option}: found {found!r}, expected {' or '.join(known)}{did_you_mean(found, known)}"
                )
        for option, value, zero_will_do, expected in (
            ("--restarts", self.restarts, True, "a number of 0 or more"),
            ("--uptime", self.uptime_seconds, False, "more than 0 s"),
            ("--span", self.span_seconds, True, "0 s or more"),
            ("--max-variants", self.max_variants, False, "1 or more"),
            ("--min-gain", self.min_gain, True, "a share of 0 or more"),
        ):
            if value is None or 0 < value < math.inf or (value == 0 and zero_will_do):
                continue
            raise UsageError(f"{option}: found {value}, expected {expected}")
        if not self.time_limit_seconds >= 0:  # not a number neither
            raise UsageError(f"--time-limit: found {self.time_limit_seconds}, expected 0 s or more")
        if self.restarts is not None and self.restarts > MAX_RESTARTS:
            raise UsageError(f"--restarts: found {self.restarts:g}, expected at most {MAX_RESTARTS:g}")
        if self.guard is not None and not 1 <= self.guard < math.inf:
            raise UsageError(f"--guard: found {self.guard}, expected a factor of 1 or more")

        if self.target == "plugin" and self.query_lens is not None:
            raise UsageError("--query-lens: found with --target plugin, expected with spyre-env alone")
        if self.target == "spyre-env" and self.structure == "ragged":
            raise UsageError(
                "--structure: found ragged, expected product: the Spyre plugin has one block ladder for all"
            )
        if self.robust and self.structure != "product":
            raise UsageError(f"--structure: found {self.structure!r}, expected 'product' with --robust")
        _check_draws(self.uncertainty_draws, robust=self.robust)
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise UsageError(f"--holdout: found {self.holdout:g}, expected a share between 0 and 1")

    @property
    def uptime_or_default_seconds(self) -> float:
        """Time between server starts: the one asked for, else a day."""
        return DEFAULT_UPTIME_SECONDS if self.uptime_seconds is None else self.uptime_seconds

    def limits(self, cost: CostModel) -> Limits:
        """The solver's limits: the budget less the start-up that ladders do not change."""
        if self.warmup_budget_seconds is None:
            return Limits(max_variants=self.max_variants, guard=self.guard)
        startup_seconds = cost.startup_seconds_of(self.target)
        if self.warmup_budget_seconds < startup_seconds:
            raise UsageError(
                f"--warmup-budget: found {self.warmup_budget_seconds:g} s, expected more than the "
                f"start-up's {startup_seconds:g} s"
            )
        return Limits(
            max_variants=self.max_variants,
            max_compile_seconds=self.warmup_budget_seconds - startup_seconds,
            startup_seconds=startup_seconds,
            guard=self.guard,
        )

    def restarts_for(self, server_seconds: float | None) -> float:
        """Server starts to charge for traffic that kept servers up for so long (None: not known)."""
        if self.restarts is not None:
            return self.restarts
        seconds = self.span_seconds if self.span_seconds is not None else server_seconds
        if seconds is None:
            return 1.0
        restarts = seconds / self.uptime_or_default_seconds
        if restarts > MAX_RESTARTS:
            raise UsageError(
                f"--uptime: found {restarts:g} server starts in it, expected at most {MAX_RESTARTS:g}"
            )
        return restarts


def _check_draws(draws: int, *, robust: bool) -> None:
    if draws < 0:
        raise UsageError(f"--uncertainty: found {draws}, expected 1 or more draws")
    if draws and robust:
        raise UsageError("--uncertainty: found with --robust, expected one of the two")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How traces are replayed, and where; see `occupancy.replay.simulate`."""

    concurrency: int | None = None
    rate_scale: float = 1.0
    replicas: int = 1
    weights: tuple[float, ...] | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    executor: Executor | None = None

    def __post_init__(self) -> None:
        check_fields(self)
