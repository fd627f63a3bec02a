"""A decode step padded onto the ladders, through the bucketer alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ladder_opt.bucketer import BatchedVariant, Bucketer


@dataclass(frozen=True)
class PaddedBatch:
    """Decoding sequences at a rung pair (s, m), ready for the variant that the pair runs.

    Attributes:
        num_decodes: sequences that are real: the first rows.
        rungs: (s, m).
        variant: what is compiled for the pair.
        page_ids: int32 (s, blocks_per_chunk * num_chunks); page 0 where a sequence has no block.
        end_tokens: int32 (s,), KV tokens of each sequence, 0 in padded rows.
    """

    num_decodes: int
    rungs: tuple[int, int]
    variant: BatchedVariant
    page_ids: torch.Tensor
    end_tokens: torch.Tensor

    @torch.inference_mode()
    def to(self, device: torch.device) -> PaddedBatch:
        """The batch with its tensors on a device."""
        return replace(self, page_ids=self.page_ids.to(device), end_tokens=self.end_tokens.to(device))

    @torch.inference_mode()
    def first_tokens(self, sliding_window: int | None) -> torch.Tensor:
        """First KV token that each sequence's query sees, int32 (s,)."""
        if sliding_window is None:
            return torch.zeros_like(self.end_tokens)
        return (self.end_tokens - sliding_window).clamp_(min=0)


class BatchPadder:
    """Pads batches; whether, and to what, the bucketer says."""

    def __init__(self, bucketer: Bucketer) -> None:
        self.bucketer = bucketer

    # As the kernels run: tensors made in inference mode and outside are told apart by a compiled graph.
    @torch.inference_mode()
    def pad(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> PaddedBatch | None:
        """The batch at its rung pair; None for the per-sequence path.

        Args:
            block_table: int (n or more, blocks), the page of each block; past a sequence's own blocks,
                anything.
            seq_lens: int (n,), KV tokens of each decoding sequence, this step's own counted.
        """
        count = len(seq_lens)
        blocks = -(-seq_lens // self.bucketer.engine.block_size)
        longest = int(blocks.max()) if count else 0
        rungs = self.bucketer.dispatch(count, longest)
        if rungs is None:
            return None
        variant = self.bucketer.variant_of(*rungs)
        shape = (variant.num_seqs, variant.blocks_per_chunk * variant.num_chunks)
        page_ids = torch.zeros(shape, dtype=torch.int32)
        own = torch.arange(longest) < blocks.unsqueeze(1)
        page_ids[:count, :longest] = torch.where(own, block_table[:count, :longest], 0)
        end_tokens = torch.zeros(variant.num_seqs, dtype=torch.int32)
        end_tokens[:count] = seq_lens
        return PaddedBatch(count, rungs, variant, page_ids, end_tokens)
