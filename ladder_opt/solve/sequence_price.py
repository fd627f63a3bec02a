"""Price the per-sequence kernel where it shares the num_blocks ladder (target `spyre-env`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.sequences import SequenceHistogram, known_calls


@dataclass(frozen=True, kw_only=True)
class SequencePrice:
    """What the per-sequence kernel costs under ladders.

    Attributes:
        calls: calls of the kernel.
        step_seconds: sum over them.
        num_variants: variants compiled.
        compile_seconds: sum over them.
        gathers_real: pages the sequences hold, over all calls.
        gathers_padded: pages read.
        query_tokens: query tokens scheduled, over all calls.
        query_tokens_padded: those computed.
        hits: float64 (num_blocks rungs, query rungs), calls padded to each pair.
    """

    calls: float
    step_seconds: float
    num_variants: int
    compile_seconds: float
    gathers_real: float
    gathers_padded: float
    query_tokens: float
    query_tokens_padded: float
    hits: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """The numbers of a plan file's `sequences` entries."""
        return {
            "calls": self.calls,
            "step_seconds": self.step_seconds,
            "num_variants": self.num_variants,
            "compile_seconds": self.compile_seconds,
            "gathers": {"real": self.gathers_real, "padded": self.gathers_padded},
            "query_tokens": {"real": self.query_tokens, "padded": self.query_tokens_padded},
        }


def price_sequences(
    calls: SequenceHistogram | None, engine: Engine, cost: CostModel, ladders: Ladders
) -> SequencePrice | None:
    """Price the calls; None where the ladders have no query lengths.

    A variant of m blocks and query rung q above p is compiled where a query of p + 1 tokens fits m blocks,
    and m does not exceed the pages of the KV cache. Source: `variants()` and `_record_all` in
    torch-spyre/spyre-inference.

    Raises:
        UsageError: calls are not known, or one is beyond the ladders.
        InputError: a call is beyond the engine's limits.
    """
    if ladders.query_lens is None:
        return None
    calls = known_calls(calls)
    calls.check_limits(engine)
    blocks, queries = np.array(ladders.num_blocks), np.array(ladders.query_lens)
    for axis, rungs, sizes in (
        ("num_blocks", blocks, calls.num_blocks),
        ("query_lens", queries, calls.query_len),
    ):
        if sizes.max(initial=0) > rungs.max(initial=0):
            raise UsageError(f"{axis}: found {rungs.tolist()}, expected a rung of {sizes.max()} or more")
    hits = np.zeros((len(blocks), len(queries)))
    at = np.searchsorted(blocks, calls.num_blocks), np.searchsorted(queries, calls.query_len)
    np.add.at(hits, at, calls.calls)
    compiled = compiled_sequence_variants(engine, ladders)
    return SequencePrice(
        calls=calls.total_calls,
        step_seconds=float((hits * cost.sequence_call_seconds(blocks[:, None], queries[None, :])).sum()),
        num_variants=int(compiled.sum()),
        compile_seconds=float((cost.sequence_compile_seconds(blocks)[:, None] * compiled).sum()),
        gathers_real=float((calls.calls * calls.num_blocks).sum()),
        gathers_padded=float((hits * blocks[:, None]).sum()),
        query_tokens=float((calls.calls * calls.query_len).sum()),
        query_tokens_padded=float((hits * queries[None, :]).sum()),
        hits=hits,
    )


def compiled_sequence_variants(engine: Engine, ladders: Ladders) -> NDArray[np.bool_]:
    """Bool (num_blocks rungs, query rungs): whether warm-up compiles the pair.

    By the rule of the Spyre plugin's own recorder, which asks neither whether max_model_len leaves room for
    the query nor whether the KV pool ever holds the blocks; `Bucketer.sequence_variants` of a spyre-env plan
    lists the same.
    """
    blocks, queries = np.array(ladders.num_blocks), np.array(ladders.query_lens or ())
    shortest = np.r_[1, queries[:-1] + 1][: len(queries)]
    compiled: NDArray[np.bool_] = blocks[:, None] * engine.block_size >= shortest[None, :]
    return compiled & (blocks <= engine.num_pages)[:, None]
