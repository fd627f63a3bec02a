"""The plan: a versioned JSON file that people keep and the bucketer loads (`ladder_opt/plan/1`).

Keys that a later release adds within version 1 are kept as they are; what is known is checked, and so are
the rules across fields: each ladder ascends and ends exactly on the engine's limit.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from ladder_opt.arguments import checked
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.cost.model import CostModel, cost_model_from_dict
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, one_of
from ladder_opt.extras import data_frame
from ladder_opt.files import read_text, write_text
from ladder_opt.ladder import Ladders
from ladder_opt.markup import facts as fact_table
from ladder_opt.markup import joined, table
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.parts import (
    Part,
    PlanBaseline,
    PlanEngine,
    PlanPrice,
    PlanProvenance,
    PlanResult,
    PlanUncertainty,
    Rung,
    Verdict,
)
from ladder_opt.plan.steps_part import PlanOccupancy, plan_json
from ladder_opt.units import duration_text, hours_text
from ladder_opt.validation import as_input_error, check_schema, load_json_object

if TYPE_CHECKING:
    import pandas as pd

PLAN_SCHEMA = "ladder_opt/plan/1"
MAX_PLAN_FILE_BYTES = 16 << 20
_RUNGS_SHOWN = 40


class Plan(Part):
    """A plan file."""

    schema_: str = Field(PLAN_SCHEMA, alias="schema")
    target: Literal["plugin", "spyre-env"] = "plugin"
    structure: Literal["product", "ragged"] = "product"
    kernel: str
    engine: PlanEngine
    num_seqs: tuple[Rung, ...]
    num_blocks: tuple[Rung, ...]
    query_lens: tuple[Rung, ...] | None = None
    ragged: dict[str, tuple[Rung, ...]] | None = None
    verdict: Verdict
    result: PlanResult
    baselines: tuple[PlanBaseline, ...] = ()
    warnings: tuple[str, ...] = ()
    uncertainty: PlanUncertainty | None = None
    provenance: PlanProvenance
    cost: dict[str, Any] | None = None
    occupancy: PlanOccupancy | None = None

    # Only plans for the Spyre plugin's variables have query lengths, only some were asked how sure they are,
    # and older plans lack what they are made of.
    left_out_where_none = ("query_lens", "uncertainty", "cost", "occupancy")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kernel not in KERNELS:
            raise InputError(repr(self.kernel), one_of(KERNELS, self.kernel), column="kernel")
        engine = Engine.from_dict(self._engine_limits())
        _check_rungs(
            "num_seqs",
            self.num_seqs,
            first=engine.min_batched_seqs,
            last=engine.max_num_seqs if engine.batches_decodes else None,
            source="max_num_seqs",
        )
        _check_rungs(
            "num_blocks",
            self.num_blocks,
            first=1,
            last=engine.max_num_blocks,
            source="ceil(max_model_len / block_size)",
        )
        self._check_ragged(engine)
        self._check_query_lens()
        return self

    def _check_query_lens(self) -> None:
        if (self.query_lens is not None) != (self.target == "spyre-env"):
            given = "without" if self.query_lens is None else "with"
            raise InputError(
                f"target {self.target!r} {given} query_lens",
                "query_lens where, and only where, the target is 'spyre-env'",
                column="query_lens",
            )
        if self.query_lens is None:
            return
        if self.structure == "ragged":
            raise InputError("'ragged'", "'product' with target 'spyre-env'", column="structure")
        if self.query_lens[:1] != (1,):
            raise InputError(f"{list(self.query_lens)}", "a first rung of 1, a decode's", column="query_lens")
        _check_rungs(
            "query_lens",
            self.query_lens,
            first=1,
            last=self.engine.max_num_batched_tokens,
            source="max_num_batched_tokens",
        )

    def _check_ragged(self, engine: Engine) -> None:
        if (self.ragged is not None) != (self.structure == "ragged" and bool(self.num_seqs)):
            given = "without" if self.ragged is None else "with"
            raise InputError(
                f"structure {self.structure!r} {given} ragged ladders",
                "ragged ladders where, and only where, the structure is 'ragged'",
                column="ragged",
            )
        if self.ragged is None:
            return
        if list(self.ragged) != [str(rung) for rung in self.num_seqs]:
            raise InputError(
                f"keys {', '.join(self.ragged)}", f"the num_seqs rungs {list(self.num_seqs)}", column="ragged"
            )
        for rung, blocks in self.ragged.items():
            _check_rungs(
                f"ragged.{rung}",
                blocks,
                first=1,
                last=engine.max_num_blocks,
                source="ceil(max_model_len / block_size)",
            )
        union = sorted({block for blocks in self.ragged.values() for block in blocks})
        if union != list(self.num_blocks):
            raise InputError(
                f"{list(self.num_blocks)}", f"all rungs of the ragged ladders: {union}", column="num_blocks"
            )

    @property
    def ladders(self) -> Ladders:
        """The ladders, ragged ones too."""
        if self.ragged is None:
            return Ladders(self.num_seqs, self.num_blocks, query_lens=self.query_lens)
        return Ladders.from_ragged({int(rung): blocks for rung, blocks in self.ragged.items()})

    def to_engine(self) -> Engine:
        """The engine the plan was made for."""
        return Engine(**self._engine_limits())

    def to_steps(self) -> StepHistogram | None:
        """The steps that the plan is priced on; None where the file does not hold them.

        Raises:
            InputError: one is beyond the engine's limits.
        """
        steps = None if self.occupancy is None else self.occupancy.to_steps()
        if steps is not None:
            steps.check_limits(self.to_engine())
        return steps

    def to_cost_model(self) -> CostModel | None:
        """The prices that the plan was made with; None where the file does not hold them.

        Raises:
            InputError: they are no cost model, or another one than `provenance.cost_sha256` says.
        """
        if self.cost is None:
            return None
        cost = cost_model_from_dict(self.cost)
        if cost.sha256() != self.provenance.cost_sha256:
            raise InputError(
                f"a cost model of digest {cost.sha256()[:12]}...",
                f"that of provenance.cost_sha256, {self.provenance.cost_sha256[:12]}...",
                column="cost",
            )
        return cost

    def _engine_limits(self) -> dict[str, Any]:
        return self.engine.model_dump(include=set(PlanEngine.model_fields))

    @property
    def replicas(self) -> int:
        """Engines that the plan's traffic was dealt to, and whose steps its numbers add up; 1 for steps."""
        asked = (self.provenance.asked or {}).get("replicas", 1)
        return asked if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 1 else 1

    @property
    def default(self) -> PlanBaseline | None:
        """The baseline that the verdict is about."""
        return next((baseline for baseline in self.baselines if baseline.name == "default"), None)

    def to_dict(self) -> dict[str, Any]:
        """The file's JSON object."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self) -> str:
        """The file's text."""
        return plan_json(self.to_dict())

    def _repr_html_(self) -> str:
        priced: list[tuple[str, Plan | PlanBaseline, PlanPrice]] = [("plan", self, self.result)]
        priced += [(baseline.name, baseline, baseline) for baseline in self.baselines]
        rows = [
            (
                name,
                f"{len(each.num_seqs)} x {len(each.num_blocks)}",
                f"{price.num_variants:,}",
                duration_text(price.warmup_seconds),
                hours_text(price.step_seconds),
                hours_text(price.objective_seconds),
                f"{price.gathers.overpay:.1%}",
            )
            for name, each, price in priced
        ]
        columns = ("ladders", "rungs", "variants", "warm-up", "step time", "in all", "overpay")
        facts = [
            ("verdict", f"{self.verdict}, {self.result.status}"),
            ("num_seqs", joined(self.num_seqs, most=_RUNGS_SHOWN)),
            ("num_blocks", joined(self.num_blocks, most=_RUNGS_SHOWN)),
        ]
        return fact_table(facts) + table(columns, rows)

    def to_frame(self) -> pd.DataFrame:
        """Plan and baselines, a row each: warm-up, variants, step seconds, objective, overpay."""
        rows: list[dict[str, Any]] = [_frame_row("plan", self.num_seqs, self.num_blocks, self.result)]
        rows += [_frame_row(b.name, b.num_seqs, b.num_blocks, b) for b in self.baselines]
        return data_frame(rows).set_index("ladders")


def _frame_row(
    name: str, num_seqs: tuple[int, ...], num_blocks: tuple[int, ...], price: PlanPrice
) -> dict[str, Any]:
    return {
        "ladders": name,
        "num_seqs_rungs": len(num_seqs),
        "num_blocks_rungs": len(num_blocks),
        "num_variants": price.num_variants,
        "warmup_seconds": price.warmup_seconds,
        "step_seconds": price.step_seconds,
        "objective_seconds": price.objective_seconds,
        "overpay": price.gathers.overpay,
    }


def _check_rungs(axis: str, rungs: tuple[int, ...], *, first: int, last: int | None, source: str) -> None:
    """Refuse a ladder that does not ascend from `first` and end on `last` (None: that may be empty)."""
    for index, (low, high) in enumerate(pairwise(rungs), start=1):
        if high <= low:
            raise InputError(f"{high} after {low}", "a larger rung", column=f"{axis}[{index}]")
    if rungs and rungs[0] < first:
        raise InputError(str(rungs[0]), f"rungs from min_batched_seqs = {first} on", column=f"{axis}[0]")
    if last is not None and rungs[-1:] != (last,):
        found = str(rungs[-1]) if rungs else "no rung"
        where = f"{axis}[{len(rungs) - 1}]" if rungs else axis
        raise InputError(found, f"a last rung of {source} = {last}", column=where)


def plan_from_dict(data: dict[str, Any], *, path: str | Path | None = None) -> Plan:
    """Check a plan's JSON object.

    Raises:
        InputError: with the key path of the fault.
    """
    check_schema(data, family="ladder_opt/plan", major=1, path=path)
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise as_input_error(error, path=path) from None


@checked
def read_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        InputError: it cannot be read, is no plan, or contradicts itself.
    """
    text = read_text(path, max_bytes=MAX_PLAN_FILE_BYTES, what="a plan")
    return plan_from_dict(load_json_object(text, path=path, what="a plan"), path=path)


@checked
def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file, whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    write_text(path, plan.to_json())
