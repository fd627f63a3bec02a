"""Ladders that a plan is given: the user's lists fitted to the engine, and what a target asks of them."""

from __future__ import annotations

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders, clamp, clamp_query_lens, default_query_lens
from ladder_opt.plan.options import SolveOptions

SPYRE_MIN_BATCHED_SEQS = 4
"""`_MIN_BATCHED_SEQS` in torch-spyre/spyre-inference, `v1/attention/spyre_attn_bucketer.py`."""


def pinned_ladders(engine: Engine, cost: CostModel, options: SolveOptions) -> tuple[Ladders, list[str]]:
    """The lists of the options, clamped (empty, or None for query lengths: to be solved for), and warnings.

    Raises:
        UsageError: a list that cannot be used, or an engine that the Spyre plugin would not run so.
    """
    if options.target == "spyre-env":
        _check_spyre(engine, options)
    num_seqs, notes = clamp(options.num_seqs, "num_seqs", engine) if options.num_seqs else ((), [])
    num_blocks, more = clamp(options.num_blocks, "num_blocks", engine) if options.num_blocks else ((), [])
    notes = [*notes, *more]
    query_lens = None
    if options.target == "spyre-env":
        query_lens, more = _query_lens(engine, cost, options)
        notes += more
    return Ladders(num_seqs, num_blocks, query_lens=query_lens), notes


def _check_spyre(engine: Engine, options: SolveOptions) -> None:
    if engine.min_batched_seqs != SPYRE_MIN_BATCHED_SEQS:
        raise UsageError(
            f"min_batched_seqs: found {engine.min_batched_seqs}, expected {SPYRE_MIN_BATCHED_SEQS}, which "
            "the Spyre plugin has built in (--target spyre-env)"
        )
    small = [rung for rung in options.num_seqs if isinstance(rung, int) and 0 < rung < SPYRE_MIN_BATCHED_SEQS]
    if small:
        raise UsageError(
            f"--num-seqs: found {min(small)}, expected {SPYRE_MIN_BATCHED_SEQS} or more: entries "
            "below are those of pooling models, which reuse SPYRE_ATTN_NUM_SEQS_BUCKETS and never decode"
        )


def _query_lens(
    engine: Engine, cost: CostModel, options: SolveOptions
) -> tuple[tuple[int, ...] | None, list[str]]:
    asked = options.query_lens
    if asked == "solve":
        return None, []
    if asked == "default":
        return default_query_lens(engine), []
    if asked is None:
        if cost.per_sequence is not None and cost.per_sequence.per_query_gather > 0:
            return None, []
        return default_query_lens(engine), []
    return clamp_query_lens(asked, engine)
