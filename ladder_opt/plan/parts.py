"""The parts of a plan file, checked one by one; `plan.Plan` puts them together.

Keys that a later release adds within version 1 are kept as they are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ladder_opt.errors import InputError

Verdict = Literal["adopt", "keep-default", "not-used"]
StatusName = Literal["optimal", "feasible", "evaluated"]

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Rung = Annotated[int, Field(ge=1, strict=True)]


class Part(BaseModel):
    """An object in a plan file; what `left_out_where_none` names stands there only where it is known."""

    model_config = ConfigDict(frozen=True, extra="allow")
    left_out_where_none: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for name in self.left_out_where_none:
            if written.get(name) is None:
                written.pop(name, None)
        return written


class PlanGathers(Part):
    """KV pages over the batched steps."""

    real: Amount
    ragged_floor: Amount
    padded: Amount

    @property
    def overpay(self) -> float:
        """Pages above the ragged floor, as a share of it: what ladders can fix."""
        return (self.padded - self.ragged_floor) / self.ragged_floor if self.ragged_floor else 0.0


class PlanSteps(Part):
    """Decode steps; `batched` ones reach the ladders."""

    total: Amount
    batched: Amount
    per_sequence: Amount


class PlanPadded(Part):
    """Something counted as it is and as it is padded."""

    real: Amount
    padded: Amount


class PlanSequences(Part):
    """The per-sequence kernel's part, where it shares the block ladder; see `solve.sequence_price`."""

    calls: Amount
    step_seconds: Amount
    num_variants: Count
    compile_seconds: Amount
    gathers: PlanPadded
    query_tokens: PlanPadded


class PlanPrice(Part):
    """What ladders cost: the numbers that a plan's result and its baselines share."""

    objective_seconds: Amount
    restarts: Amount
    step_seconds: Amount
    warmup_seconds: Amount
    num_variants: Count
    gathers: PlanGathers
    steps: PlanSteps
    sequences: PlanSequences | None = None

    left_out_where_none = ("sequences",)


class PlanRung(Part):
    """One rung; see `solve.price.RungValue`."""

    axis: Literal["num_seqs", "num_blocks", "query_lens"]
    rung: Rung
    hits: Amount
    forced: bool
    marginal_seconds: Number
    of_num_seqs: Rung | None = None  # only rungs of ragged ladders say whose they are

    left_out_where_none = ("of_num_seqs",)


class PlanPadding(Part):
    """The size that ladders pad the most on one axis; see `solve.evidence.WorstPadding`."""

    axis: Literal["num_seqs", "num_blocks"]
    size: Rung
    rung: Rung
    factor: Amount
    unseen_from: Rung | None = None
    unseen_to: Rung | None = None


class PlanGuard(Part):
    """What a guard costs, and what it saves where traffic never was."""

    factor: Amount
    cost_seconds: Number
    worst_padding_without: tuple[PlanPadding, ...] = ()


class PlanEvidence(Part):
    """Where the traffic says nothing."""

    unseen_share: Amount
    worst_padding: tuple[PlanPadding, ...] = ()
    guard: PlanGuard | None = None


class PlanHoldout(Part):
    """The plan on the last part of the traces, which it has not seen, beside the optimum there."""

    share: Amount
    steps: PlanSteps
    restarts: Amount
    objective_seconds: Amount
    default_seconds: Amount | None = None
    optimum_seconds: Amount
    optimum_lower_bound_seconds: Amount
    regret_seconds: Number
    regret: Number


class PlanWorkload(Part):
    """One workload of a robust plan; see `solve.robust.WorkloadRegret`.

    `own_plan_worst_regret` is the worst regret over all workloads of the plan made for this one alone.
    """

    path: str
    restarts: Amount
    objective_seconds: Amount
    optimum_seconds: Amount
    optimum_lower_bound_seconds: Amount
    optimum_status: StatusName
    regret: Amount
    own_plan_worst_regret: Amount


class PlanMix(Part):
    """The plan for the sum of the workloads, in place of the worst of them."""

    num_seqs: tuple[Rung, ...]
    num_blocks: tuple[Rung, ...]
    query_lens: tuple[Rung, ...] | None = None
    objective_seconds: Amount
    worst_regret: Amount


class PlanBaselineRegret(Part):
    """The worst regret of a baseline."""

    name: str
    worst_regret: Amount


class PlanWorkloadHoldout(PlanHoldout):
    """`PlanHoldout` of one workload."""

    path: str


class PlanRobustHoldout(Part):
    """A robust plan on the last part of each trace, which it has not seen."""

    share: Amount
    worst_regret: Amount
    workloads: tuple[PlanWorkloadHoldout, ...] = ()


class PlanRobust(Part):
    """The least worst regret over several workloads; see `solve.robust.RobustResult`."""

    status: StatusName
    stop_reason: str | None = None
    worst_regret: Amount
    lower_bound: Amount
    gap: Amount
    workloads: tuple[PlanWorkload, ...]
    mix: PlanMix | None = None
    baselines: tuple[PlanBaselineRegret, ...] = ()
    holdout: PlanRobustHoldout | None = None

    def baseline_regret(self, name: str) -> float | None:
        """The worst regret of a baseline; None where it was not priced."""
        return next((each.worst_regret for each in self.baselines if each.name == name), None)


class PlanAbsentRung(Part):
    """The rung not in the plan that comes closest to paying for itself; see `solve.price.AbsentRung`."""

    axis: Literal["num_seqs", "num_blocks", "query_lens"]
    rung: Rung
    saves_step_seconds: Number
    costs_seconds: Number
    num_variants: int


class PlanAlternative(Part):
    """What the other structure would cost on the same steps, within the same limits."""

    structure: Literal["product", "ragged"]
    status: StatusName
    objective_seconds: Amount
    saves_seconds: Number
    warmup_seconds: Amount
    num_variants: Count


class PlanUnlimited(Part):
    """What the best ladders without --max-variants and --warmup-budget would cost on the same steps."""

    objective_seconds: Amount
    saves_seconds: Number
    warmup_seconds: Amount
    num_variants: Count


class PlanResult(PlanPrice):
    """The plan's price, and how good it is known to be."""

    status: StatusName
    lower_bound_seconds: Amount
    gap: Amount
    stop_reason: str | None = None
    rungs: tuple[PlanRung, ...] = ()
    dead_variants: tuple[tuple[Rung, Rung], ...] = ()
    evidence: PlanEvidence | None = None
    alternative: PlanAlternative | None = None
    unlimited: PlanUnlimited | None = None
    best_absent_rung: PlanAbsentRung | None = None
    holdout: PlanHoldout | None = None
    robust: PlanRobust | None = None

    @model_validator(mode="after")
    def _bound_is_one(self) -> Self:
        if self.lower_bound_seconds > self.objective_seconds * (1 + 1e-9) + 1e-9:
            raise InputError(
                f"{self.lower_bound_seconds:g}",
                f"at most objective_seconds = {self.objective_seconds:g}",
                column="result.lower_bound_seconds",
            )
        return self


class PlanBaseline(PlanPrice):
    """Other ladders, priced on the same steps."""

    name: str
    num_seqs: tuple[Rung, ...]
    num_blocks: tuple[Rung, ...]
    within_limits: bool = True


class PlanRungShare(Part):
    """A rung, and the share of the draws in whose best ladders it is."""

    axis: Literal["num_seqs", "num_blocks", "query_lens"]
    rung: Rung
    share: Amount


class PlanBestOnAverage(Part):
    """The ladders that cost the least on average over the draws, and what they save beside the plan."""

    num_seqs: tuple[Rung, ...]
    num_blocks: tuple[Rung, ...]
    query_lens: tuple[Rung, ...] | None = None
    ragged: dict[str, tuple[Rung, ...]] | None = None
    is_plan: bool
    saves_seconds: Number
    saves: Number
    status: StatusName

    left_out_where_none = ("query_lens", "ragged")


class PlanUncertainty(Part):
    """What the cost model's own uncertainty does to the plan; see `plan.uncertainty`.

    Spreads are percentiles over the draws: `gain` and `saves_seconds` against the default ladders, `regret`
    against each draw's own best ladders.
    """

    draws: Rung
    seed: Count
    source: str
    gain: dict[str, Number] | None = None
    saves_seconds: dict[str, Number] | None = None
    beats_default: Amount | None = None
    regret: dict[str, Number] | None = None
    stays_best: Amount | None = None
    over_limits: Amount = 0.0
    unsolved: Count = 0
    rungs: tuple[PlanRungShare, ...] = ()
    other_rungs: tuple[PlanRungShare, ...] = ()
    best_on_average: PlanBestOnAverage | None = None


class PlanInput(Part):
    """A file that the plan was made from."""

    path: str
    sha256: str
    rows: Count
    format: str | None = None

    left_out_where_none = ("format",)


class PlanTraffic(Part):
    """The requests that the plan was made for; see `plan.traffic`.

    `requests_per_second` are those of one engine, None for a closed loop; the token columns are quantiles at
    `shares`.
    """

    requests: Amount
    requests_per_second: Amount | None = None
    shares: tuple[Amount, ...]
    prompt_tokens: tuple[Rung, ...]
    output_tokens: tuple[Rung, ...]

    @model_validator(mode="after")
    def _quantiles_ascend(self) -> Self:
        for name, values in (
            ("shares", self.shares),
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
        ):
            column = f"provenance.traffic.{name}"
            if len(values) != len(self.shares) or len(values) < 2:
                raise InputError(f"{len(values)} of them", "as many as shares, and 2 or more", column=column)
            if any(high < low for low, high in pairwise(values)):
                raise InputError("a fall", "quantiles in ascending order", column=column)
        if (self.shares[0], self.shares[-1]) != (0.0, 1.0):
            raise InputError(
                f"{self.shares[0]:g} to {self.shares[-1]:g}",
                "shares from 0 to 1",
                column="provenance.traffic",
            )
        return self


class PlanProvenance(Part):
    """What the plan was made from, and by which release.

    `notes` are the traces' own: that they are synthetic, that arrivals sit on a coarse grid, and the like.
    """

    version: str
    created: str
    inputs: tuple[PlanInput, ...] = ()
    cost_sha256: str
    cost_name: str | None = None
    replay: dict[str, Any] | None = None
    traffic: PlanTraffic | None = None
    notes: tuple[str, ...] | None = None
    asked: dict[str, Any] | None = None

    left_out_where_none = ("traffic", "notes")


class PlanEngine(Part):
    """The engine the plan was made for."""

    block_size: Rung
    max_num_seqs: Rung
    max_model_len: Rung
    max_num_batched_tokens: Rung
    num_kv_blocks: Rung | None = None
    min_batched_seqs: Rung = 4
