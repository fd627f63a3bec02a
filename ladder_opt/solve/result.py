"""What a solve says: the ladders, why it stopped, and how far off they can be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ladder_opt.errors import InternalError
from ladder_opt.ladder import Ladders

RELATIVE_TOLERANCE = 1e-9  # "optimal" means proven to this share of the objective


class Status(StrEnum):
    """How good the ladders are."""

    OPTIMAL = "optimal"
    """Proven: no ladders are better by more than RELATIVE_TOLERANCE."""
    FEASIBLE = "feasible"
    """Allowed, and at most `gap` off."""
    EVALUATED = "evaluated"
    """Given, not solved for."""


class StopReason(StrEnum):
    """Why the search ended."""

    PROVEN = "proven"
    TIME_LIMIT = "time limit"
    LEAST_WORST_REGRET = "least worst regret"
    """Another aim than the least cost was asked for, and `RobustResult` says how that ended."""


@dataclass(frozen=True, kw_only=True)
class SolveResult:
    """Ladders and both bounds, in seconds.

    Attributes:
        ladders: the best ones found.
        status: OPTIMAL or FEASIBLE.
        stop_reason: why the search ended.
        objective_seconds: step seconds plus restarts times compile seconds.
        lower_bound_seconds: no ladders within the limits cost less.
        ragged_bound_seconds: the bound before multipliers: every num_seqs rung with a ladder of its own.
        nodes: nodes of the depth-first searches.
        bound_evaluations: relaxations solved.
        solve_seconds: wall-clock time of the solve alone.
    """

    ladders: Ladders
    status: Status
    stop_reason: StopReason
    objective_seconds: float
    lower_bound_seconds: float
    ragged_bound_seconds: float
    nodes: int
    bound_evaluations: int
    solve_seconds: float

    def __post_init__(self) -> None:
        slack = RELATIVE_TOLERANCE * max(1.0, abs(self.objective_seconds))
        if self.lower_bound_seconds > self.objective_seconds + slack:
            raise InternalError(
                f"lower bound {self.lower_bound_seconds!r} above the objective {self.objective_seconds!r}"
            )
        if (self.status is Status.OPTIMAL) != (self.stop_reason is StopReason.PROVEN):
            raise InternalError(f"status {self.status} does not go with stop reason {self.stop_reason}")
        if self.status is Status.OPTIMAL and self.gap > 2 * RELATIVE_TOLERANCE:
            raise InternalError(f"called optimal with a gap of {self.gap!r}")

    @property
    def gap(self) -> float:
        """(objective - lower bound) / objective; 0 where the objective is 0."""
        return relative_gap(self.objective_seconds, self.lower_bound_seconds)


def relative_gap(objective_seconds: float, lower_bound_seconds: float) -> float:
    """How far above the bound an objective can be, as a share of the objective."""
    if objective_seconds <= 0.0:
        return 0.0
    return max(0.0, (objective_seconds - lower_bound_seconds) / objective_seconds)
