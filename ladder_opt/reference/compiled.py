"""Compiled variants of the batched kernel, each in a region of its own, and a count of compiles.

Dynamo keeps the graphs of one code object in a list, walks it at every call, and past 8 of them runs eagerly
without a word. Here every (variant, layer) has a region with a list of its own; a call that would need more
graphs than `GRAPHS_PER_REGION` there raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config
from torch._dynamo.utils import counters

from ladder_opt.reference.batch import PaddedBatch
from ladder_opt.reference.kernels import batched_decode, sequence_attention

GRAPHS_PER_REGION = 8
# Dynamo's cap over all regions, 256 by default: fewer than a dense ladder's variants.
_GRAPHS_IN_ALL = 1 << 16

Region = tuple[tuple[int, int, int], "AttentionLayer"]


@dataclass(frozen=True)
class AttentionLayer:
    """What a graph is specialised on besides its variant; layers that are equal here share their graphs.

    Attributes:
        num_heads: query heads.
        head_size: width of a head.
        scale: of the scores.
        logits_soft_cap: None for no cap.
    """

    num_heads: int
    head_size: int
    scale: float
    logits_soft_cap: float | None = None


class CompiledKernels:
    """The batched kernel, compiled where a variant is first run.

    Attributes:
        recorded: regions that were run before `seal`.
        compiles: graphs compiled in all.
        late_compiles: graphs compiled after `seal`, by region.
        unrecorded: runs after `seal` of regions that were not recorded.
    """

    def __init__(self, *, compiler: str = "inductor", warn: Callable[[str], None] | None = None) -> None:
        """No variant is compiled yet.

        Args:
            compiler: a backend of torch.compile: `inductor`, or `eager` to trace and guard alone.
            warn: told, in a line, of each late compile.
        """
        self.compiler = compiler
        self._warn = warn
        self.recorded: frozenset[Region] = frozenset()
        self.compiles = 0
        self.late_compiles: Counter[Region] = Counter()
        self.unrecorded: Counter[Region] = Counter()
        self._regions: dict[Region, Callable[..., torch.Tensor]] = {}
        self._sealed = False
        limit = torch._dynamo.config.accumulated_recompile_limit  # noqa: SLF001 - where torch keeps it
        torch._dynamo.config.accumulated_recompile_limit = max(limit, _GRAPHS_IN_ALL)  # noqa: SLF001

    def seal(self) -> None:
        """End the warm-up: what was run so far is recorded, and further compiles are late."""
        self.recorded = frozenset(self._regions)
        self._sealed = True

    @torch.inference_mode()
    def run(
        self,
        batch: PaddedBatch,
        layer: AttentionLayer,
        query: torch.Tensor,
        pages: torch.Tensor,
        *,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Attention of a padded batch.

        Args:
            batch: the batch, on the device of the query and the pages.
            layer: the layer's shape.
            query: (num_decodes or more, num_heads, head_size); rows past num_decodes are not read.
            pages: the layer's KV pages, as `kernels.batched_decode` takes them.
            sliding_window: tokens that a query sees, itself included; None for all.

        Returns:
            (num_decodes, num_heads, head_size).
        """
        shape = (batch.variant.num_seqs, layer.num_heads, layer.head_size)
        padded = torch.zeros(shape, dtype=query.dtype, device=query.device)
        padded[: batch.num_decodes] = query[: batch.num_decodes]
        region = (batch.variant.key, layer)
        if self._sealed and region not in self.recorded:
            self.unrecorded[region] += 1
        before = graphs_compiled()
        out = self._kernel(region)(
            padded,
            pages,
            batch.page_ids,
            batch.first_tokens(sliding_window),
            batch.end_tokens,
            scale=layer.scale,
            logits_soft_cap=layer.logits_soft_cap,
            blocks_per_chunk=batch.variant.blocks_per_chunk,
        )
        made = graphs_compiled() - before
        self.compiles += made
        if made and self._sealed:
            self.late_compiles[region] += made
            if self._warn is not None:
                self._warn(f"compiled after warm-up: {shape_text(batch.variant.key)}")
        return out[: batch.num_decodes]

    def _kernel(self, region: Region) -> Callable[..., torch.Tensor]:
        kernel = self._regions.get(region)
        if kernel is None:
            regional: Any = torch.compile  # its overloads do not know the last two options
            kernel = self._regions[region] = regional(
                batched_decode,
                fullgraph=True,
                dynamic=False,
                backend=self.compiler,
                recompile_limit=GRAPHS_PER_REGION,
                isolate_recompiles=True,
            )
        return kernel


@torch.inference_mode()
def run_sequences(
    layer: AttentionLayer,
    query: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    *,
    query_starts: list[int],
    seq_lens: list[int],
    sliding_window: int | None = None,
) -> torch.Tensor:
    """The per-sequence path: attention of each sequence's query tokens, never compiled.

    Args:
        layer: the layer's shape.
        query: (tokens, num_heads, head_size), of one sequence after the other.
        pages: the layer's KV pages.
        block_table: int (sequences, blocks).
        query_starts: first row of each sequence in `query`, and the end of the last one.
        seq_lens: KV tokens of each sequence.
        sliding_window: as `CompiledKernels.run` takes it.

    Returns:
        As `query`, up to the last sequence's end.
    """
    out = torch.empty_like(query[: query_starts[-1]])
    for row, tokens in enumerate(seq_lens):
        own = slice(query_starts[row], query_starts[row + 1])
        out[own] = sequence_attention(
            query[own],
            pages,
            block_table[row],
            tokens,
            scale=layer.scale,
            logits_soft_cap=layer.logits_soft_cap,
            sliding_window=sliding_window,
        )
    return out


def shape_text(key: tuple[int, int, int]) -> str:
    """A variant's key, for people."""
    seqs, per_chunk, chunks = key
    return f"num_seqs {seqs}, blocks_per_chunk {per_chunk}, num_chunks {chunks}"


def graphs_compiled() -> int:
    """Graphs that Dynamo has compiled in this process."""
    return int(counters["stats"]["unique_graphs"])
