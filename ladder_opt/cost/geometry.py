"""Kernel geometry: what a rung pair (s, m) compiles to, how often it iterates, what it gathers.

| kernel      | variant (what is compiled)                               | iterations | gathers |
|-------------|----------------------------------------------------------|------------|---------|
| `per_block` | (s, m)                                                   | m          | s*m     |
| `chunked`   | (s, c, k), c = max(1, min(32 // s, m)), k = ceil(m / c)  | k          | s*c*k   |

Here s is the padded num_seqs and m the padded num_blocks. Source: the two generations of the batched
decode kernel in torch-spyre/spyre-inference.

**A new kernel** is one subclass of `Kernel` and one line in `KERNELS`. The solver relies on two facts
that hold of all kernels, and `solve.problem` checks them: rung pairs with different s never share a
variant, and for one s the pairs that share a variant are consecutive in m.

`FlatPages` is such a subclass for another engine, vllm-gaudi, whose m counts the pages of all sequences
together. It depends on the engine's limits, so it is in no table: `FlatPages.full_name` says them and
`get_kernel` reads them back. Plans and cost files cannot name it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_opt.errors import UsageError, one_of

Integers = NDArray[np.int64]

MAX_CHUNK_ENTRIES = 32  # sequences times blocks that one chunk of the kernel holds: a backend limit


class Kernel(ABC):
    """One kernel generation. Arguments are arrays of one shape (or that broadcast)."""

    name: ClassVar[str]

    @abstractmethod
    def iterations(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Unrolled iterations of the rung pairs."""

    @abstractmethod
    def gathers(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """KV pages that a step padded to the rung pairs reads."""

    def entries(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """KV pages that one iteration reads; a variant for which they reach the pool's pages is not recorded.

        Source: torch-spyre/spyre-inference, `_record_batched_one` in `v1/attention/backends/spyre_attn.py`.
        """
        return self.gathers(num_seqs, num_blocks) // self.iterations(num_seqs, num_blocks)

    @abstractmethod
    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """A number for each rung pair, equal where (and only where) the compiled variant is."""


class PerBlock(Kernel):
    """The first generation: one iteration for each block."""

    name = "per_block"

    def iterations(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """One for each block of the rung."""
        _, blocks = _pairs(num_seqs, num_blocks)
        return blocks.copy()

    def gathers(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Every sequence reads every block of the rung."""
        seqs, blocks = _pairs(num_seqs, num_blocks)
        return seqs * blocks

    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Each rung pair is a variant of its own."""
        seqs, blocks = _pairs(num_seqs, num_blocks)
        return (seqs << 32) | blocks


class Chunked(Kernel):
    """The second generation: blocks are gathered in chunks of at most 32 entries."""

    name = "chunked"

    def chunk_blocks(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Blocks of each sequence that one iteration gathers (c)."""
        seqs, blocks = _pairs(num_seqs, num_blocks)
        chunk: Integers = np.maximum(1, np.minimum(MAX_CHUNK_ENTRIES // seqs, blocks))
        return chunk

    def iterations(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Chunks that cover the rung's blocks (k)."""
        _, blocks = _pairs(num_seqs, num_blocks)
        return -(-blocks // self.chunk_blocks(num_seqs, num_blocks))

    def gathers(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """Whole chunks are gathered, the last one too."""
        seqs, _ = _pairs(num_seqs, num_blocks)
        return seqs * self.chunk_blocks(num_seqs, num_blocks) * self.iterations(num_seqs, num_blocks)

    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """(s, c, k): rung pairs that differ only in how full the last chunk is are one variant."""
        seqs, _ = _pairs(num_seqs, num_blocks)
        chunk = self.chunk_blocks(num_seqs, num_blocks)  # at most 32: 6 bits
        return (seqs << 38) | (chunk << 32) | self.iterations(num_seqs, num_blocks)


@dataclass(frozen=True)
class FlatPages(Kernel):
    """Decode over a flat list of pages (vllm-gaudi without contiguous paged attention).

    A batch of n sequences with t pages in all is padded to a bucket (s, p): s sequences, p pages. m is the
    page rung in units of `page_grain`. vllm-gaudi leaves buckets with fewer pages than sequences out, and
    cuts pages down to what s sequences can have; so p = min(max(m * page_grain, s), s * max_num_blocks), and
    rung pairs of one s with the same p are one bucket. It reads p pages, however they are spread.

    Source: vllm-project/vllm-gaudi, `generate_buckets` in `vllm_gaudi/extension/bucketing/common.py` and
    `get_habana_paged_attn_buffers` in `vllm_gaudi/v1/worker/hpu_model_runner.py`.

    Attributes:
        max_num_blocks: pages of the longest sequence.
        page_grain: pages that a page rung counts.
    """

    max_num_blocks: int
    page_grain: int = 1

    name: ClassVar[str] = "flat_pages"

    @property
    def full_name(self) -> str:
        """The name that `get_kernel` takes."""
        return f"{self.name}:{self.max_num_blocks}:{self.page_grain}"

    def pages(self, num_seqs: ArrayLike, rungs: ArrayLike) -> Integers:
        """Pages of the buckets (p)."""
        seqs, multiples = _pairs(num_seqs, rungs)
        pages: Integers = np.minimum(
            np.maximum(multiples * self.page_grain, seqs), seqs * self.max_num_blocks
        )
        return pages

    def iterations(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """One."""
        seqs, _ = _pairs(num_seqs, num_blocks)
        return np.ones_like(seqs)

    def gathers(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """The bucket's pages."""
        return self.pages(num_seqs, num_blocks)

    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        """(s, p)."""
        seqs, _ = _pairs(num_seqs, num_blocks)
        return (seqs << 32) | self.pages(num_seqs, num_blocks)


KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (PerBlock(), Chunked())}


def get_kernel(name: str) -> Kernel:
    """The kernel of that name.

    Raises:
        UsageError: there is none.
    """
    try:
        return KERNELS[name]
    except KeyError:
        family, *numbers = name.split(":")
        if family == FlatPages.name and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            return FlatPages(int(numbers[0]), int(numbers[1]))
        raise UsageError(f"kernel: found {name!r}, expected {one_of(KERNELS, name)}") from None


def _pairs(num_seqs: ArrayLike, num_blocks: ArrayLike) -> tuple[Integers, Integers]:
    seqs, blocks = np.broadcast_arrays(np.asarray(num_seqs, np.int64), np.asarray(num_blocks, np.int64))
    return seqs, blocks
