"""KV caches filled at random, as a paged server would hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cache:
    """Sequences in pages.

    Attributes:
        pages: torch tensor (pages, num_kv_heads, block_size, 2 * head_size); page 0 is nobody's.
        block_table: torch int32 (sequences, width); each sequence's pages, then rubbish.
        seq_lens: tokens of each sequence.
        keys: for each sequence, (tokens, num_kv_heads, head_size).
        values: the same.
    """

    pages: Any
    block_table: Any
    seq_lens: list[int]
    keys: list[NDArray[np.float64]]
    values: list[NDArray[np.float64]]


def make_cache(
    seq_lens: list[int], *, block_size: int, num_kv_heads: int, head_size: int, seed: int, width: int = 0
) -> Cache:
    """Sequences of given lengths, in pages dealt at random; what no sequence holds is large rubbish."""
    import torch

    rng = np.random.default_rng(seed)
    blocks = [-(-tokens // block_size) for tokens in seq_lens]
    width = max(width, *blocks)
    pages = rng.normal(0, 30, (sum(blocks) + 3, num_kv_heads, block_size, 2 * head_size))
    free = list(rng.permutation(np.arange(1, len(pages))))
    block_table = rng.integers(0, len(pages), (len(seq_lens), width)).astype(np.int32)
    contents = [
        rng.normal(size=(2, tokens, num_kv_heads, head_size)).astype(np.float32).astype(np.float64)
        for tokens in seq_lens
    ]
    keys, values = ([content[half] for content in contents] for half in (0, 1))
    for row, tokens in enumerate(seq_lens):
        for block in range(blocks[row]):
            page = free.pop()
            block_table[row, block] = page
            part = slice(block * block_size, min(tokens, (block + 1) * block_size))
            filled = part.stop - part.start
            pages[page, :, :filled, :head_size] = keys[row][part].swapaxes(0, 1)
            pages[page, :, :filled, head_size:] = values[row][part].swapaxes(0, 1)
    return Cache(
        torch.tensor(pages, dtype=torch.float32), torch.tensor(block_table), list(seq_lens), keys, values
    )
