"""What a drift is: frozen numbers, as a table, as JSON, as a line of a history."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ladder_opt.extras import data_frame
from ladder_opt.ladder import Ladders
from ladder_opt.monitor.parts import Parts
from ladder_opt.monitor.prices import MovedTerm, Prediction
from ladder_opt.monitor.wear import DeadRung, FarSize
from ladder_opt.plan.plan import Plan
from ladder_opt.trace.table import TraceSource

if TYPE_CHECKING:
    import pandas as pd

DRIFT_SCHEMA = "ladder_opt/drift/1"


@dataclass(frozen=True, kw_only=True)
class WorkloadDrift:
    """The plan on one workload: all the new traffic, or, of a robust plan, each trace.

    Attributes:
        name: of the workload.
        regret: (objective - optimum) / optimum.
        objective_seconds: of the plan's ladders.
        optimum_seconds: of the best ladders on the same steps, within the same limits.
        optimum_lower_bound_seconds: what none costs less than.
        default_seconds: of the default ladders; None with a measured table, which does not price them.
        restarts: server starts charged.
        steps: decode steps.
        batched_steps: those that reach the ladders.
        requests: replayed; None of a histogram.
        overpay: pages above the ragged floor, as a share of it.
    """

    name: str
    regret: float
    objective_seconds: float
    optimum_seconds: float
    optimum_lower_bound_seconds: float
    default_seconds: float | None
    restarts: float
    steps: float
    batched_steps: float
    requests: int | None
    overpay: float

    @property
    def regret_seconds(self) -> float:
        """Objective - optimum."""
        return self.objective_seconds - self.optimum_seconds


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a plan has come from the optimum.

    Attributes:
        plan_digest: SHA-256 of the plan's content.
        plan_created: when it was made.
        max_regret: what it may come to.
        cost_name: of the prices in use.
        cost_changed: whether these are others than the plan's.
        workloads: one, or of a robust plan one for each trace.
        ladders: those in use, clamped to the engine.
        optimum_ladders: the best for the worst workload; None where no ladder is to be chosen.
        optimum_status: "optimal" or "feasible".
        dead_rungs: rungs that lost all their steps.
        dead_variants: the lowest rung pair of each compiled variant that no step is padded to.
        far_sizes: sizes that are no rung, the dearest first.
        parts: what changed; None where `parts_note` says why not.
        parts_note: what to know of the parts, or why there are none.
        terms: of the cost model that moved.
        predictions: new measurements beside the plan's prices.
        promised_regret: the plan's regret on its own traffic; None where it is not known.
        inputs: files of the new traffic.
        warnings: one line each.
    """

    plan_digest: str
    plan_created: str
    max_regret: float
    cost_name: str
    cost_changed: bool
    workloads: tuple[WorkloadDrift, ...]
    ladders: Ladders
    optimum_ladders: Ladders | None
    optimum_status: str | None
    dead_rungs: tuple[DeadRung, ...]
    dead_variants: tuple[tuple[int, int], ...]
    far_sizes: tuple[FarSize, ...]
    parts: Parts | None
    parts_note: str | None
    terms: tuple[MovedTerm, ...]
    predictions: tuple[Prediction, ...]
    promised_regret: float | None
    inputs: tuple[TraceSource, ...]
    warnings: tuple[str, ...]

    @property
    def worst(self) -> WorkloadDrift:
        """The workload of the largest regret."""
        return max(self.workloads, key=lambda each: each.regret)

    @property
    def regret(self) -> float:
        """Of the worst workload."""
        return self.worst.regret

    @property
    def regret_seconds(self) -> float:
        """Of the worst workload."""
        return self.worst.regret_seconds

    @property
    def is_over(self) -> bool:
        """Whether the regret is more than it may be."""
        return self.regret > self.max_regret

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON (`ladder_opt/drift/1`)."""
        best = self.optimum_ladders
        return {
            "schema": DRIFT_SCHEMA,
            "plan": {"sha256": self.plan_digest, "created": self.plan_created, **_ladders(self.ladders)},
            "regret": self.regret,
            "regret_seconds": self.regret_seconds,
            "max_regret": self.max_regret,
            "is_over": self.is_over,
            "promised_regret": self.promised_regret,
            "cost": {"name": self.cost_name, "changed": self.cost_changed},
            "workloads": [asdict(each) | {"regret_seconds": each.regret_seconds} for each in self.workloads],
            "optimum": None if best is None else {"status": self.optimum_status, **_ladders(best)},
            "parts": None if self.parts is None else asdict(self.parts) | {"largest": self.parts.largest},
            "parts_note": self.parts_note,
            "dead_rungs": [asdict(each) for each in self.dead_rungs],
            "dead_variants": [list(pair) for pair in self.dead_variants],
            "far_sizes": [asdict(each) for each in self.far_sizes],
            "terms": [asdict(each) for each in self.terms],
            "predictions": [asdict(each) for each in self.predictions],
            "inputs": [asdict(each) for each in self.inputs],
            "warnings": list(self.warnings),
        }

    def to_frame(self) -> pd.DataFrame:
        """The workloads, a row each: regret, cost, optimum, the default ladders' cost, steps."""
        rows = [asdict(each) | {"regret_seconds": each.regret_seconds} for each in self.workloads]
        return data_frame(rows).set_index("name")


def digest_of(plan: Plan) -> str:
    """SHA-256 of a plan's content, whatever its file's spacing."""
    return hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).hexdigest()


def _ladders(ladders: Ladders) -> dict[str, Any]:
    query_lens = ladders.query_lens
    return {
        "num_seqs": list(ladders.num_seqs),
        "num_blocks": list(ladders.num_blocks),
        "ragged": ladders.ragged_dict(),
        "query_lens": None if query_lens is None else list(query_lens),
    }
