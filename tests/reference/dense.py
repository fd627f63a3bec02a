"""Attention written plainly in NumPy, in float64, one query at a time: what the paged kernels equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    *,
    scale: float,
    logits_soft_cap: float | None = None,
    sliding_window: int | None = None,
) -> Floats:
    """One token's attention over its sequence, of which it is the last.

    Args:
        query: (num_heads, head_size).
        keys: (tokens, num_kv_heads, head_size).
        values: the same.
    """
    heads, _ = query.shape
    tokens, kv_heads, _ = keys.shape
    first = 0 if sliding_window is None else max(0, tokens - sliding_window)
    out = np.zeros_like(query)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = keys[first:, kv_head] @ query[head] * scale
        if logits_soft_cap is not None:
            scores = logits_soft_cap * np.tanh(scores / logits_soft_cap)
        shares = np.exp(scores - scores.max())
        out[head] = shares @ values[first:, kv_head] / shares.sum()
    return out
