"""Which ladders a server with these limits will really use: the plan's, clamped as the bucketer clamps.

A plan made for another block_size is refused: its num_blocks rungs count other pages. Other limits may
differ; each ladder is then fitted as a user's list would be, and each change is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders, clamp, clamp_query_lens, default_ladders
from ladder_opt.plan.plan import Plan


@dataclass(frozen=True)
class Resolved:
    """Ladders in use.

    Attributes:
        ladders: the rungs.
        source: where they come from.
        warnings: each clamp, one line.
    """

    ladders: Ladders
    source: str
    warnings: tuple[str, ...]


@checked
def resolve_plan(plan: Plan | None, engine: Engine, *, path: str | None = None) -> Resolved:
    """Fit a plan to an engine; without a plan, the default ladders.

    Raises:
        InputError: the plan was made for another block_size.
    """
    if plan is None:
        return Resolved(default_ladders(engine), "the default ladders", ())
    if plan.engine.block_size != engine.block_size:
        raise InputError(
            f"a plan for block_size {plan.engine.block_size}",
            f"the engine's {engine.block_size}",
            path=path,
            column="engine.block_size",
        )
    warnings: list[str] = []
    if plan.engine.min_batched_seqs != engine.min_batched_seqs:
        warnings.append(
            f"the plan counts batches from {plan.engine.min_batched_seqs} sequences on, "
            f"the engine from {engine.min_batched_seqs}"
        )
    if not plan.num_seqs:
        default = default_ladders(engine).num_seqs
        if default:
            warnings.append("the plan has no num_seqs ladder: the default one is used")
        num_blocks, told = clamp(plan.num_blocks, "num_blocks", engine)
        query_lens, more = _query_lens(plan, engine)
        ladders = Ladders(default, num_blocks, query_lens=query_lens)
        return Resolved(ladders, path or "the plan", (*warnings, *told, *more))
    ladders = plan.ladders
    num_seqs, told = clamp(plan.num_seqs, "num_seqs", engine)
    warnings += told
    num_blocks, told = clamp(plan.num_blocks, "num_blocks", engine)
    warnings += told
    if ladders.ragged is None or not num_seqs:
        query_lens, told = _query_lens(plan, engine)
        ladders = Ladders(num_seqs, num_blocks, query_lens=query_lens)
        return Resolved(ladders, path or "the plan", (*warnings, *told))
    by_rung = ladders.with_num_seqs(num_seqs).blocks_by_rung()
    ragged = {rung: clamp(blocks, "num_blocks", engine)[0] for rung, blocks in by_rung.items()}
    return Resolved(Ladders.from_ragged(ragged), path or "the plan", tuple(warnings))


def _query_lens(plan: Plan, engine: Engine) -> tuple[tuple[int, ...] | None, list[str]]:
    return (None, []) if plan.query_lens is None else clamp_query_lens(plan.query_lens, engine)
