"""Paged decode attention as torch functions, which torch.compile specialises on their shapes.

KV pages are one tensor, (pages, num_kv_heads, block_size, 2 * head_size): keys in the first half of the
last axis, values in the second; vLLM's own layout on the CPU. A batch is padded to s sequences of c * k
blocks. The kernel gathers c blocks of every sequence at once, k times (the loop is unrolled), and keeps a
running softmax: with t the largest score so far, w the sum of exp(score - t) and o the sum of
exp(score - t) * value, a chunk with largest score t' gives

    u = max(t, t');  w = w * exp(t - u) + sum exp(score - u);  o = o * exp(t - u) + sum exp(score - u) * value

and in the end attention is o / w. The kernel of one block an iteration (`per_block`) is the case c = 1.

Everything is computed in float32, whatever the pages hold. A token that a query may not see gets the score
`HIDDEN`, which is finite: exp(HIDDEN - u) is 0 next to any real score, and where a whole chunk is hidden, or
a whole padded row, nothing becomes NaN: the next real score wipes it out, or the row is dropped.
"""

from __future__ import annotations

import torch

HIDDEN = -1e30  # below any score; its differences with scores are finite in float32, and exp of them 0


def batched_decode(
    query: torch.Tensor,
    pages: torch.Tensor,
    page_ids: torch.Tensor,
    first_tokens: torch.Tensor,
    end_tokens: torch.Tensor,
    *,
    scale: float,
    logits_soft_cap: float | None,
    blocks_per_chunk: int,
) -> torch.Tensor:
    """Attention of one token of each of s sequences over its KV pages.

    Args:
        query: (s, num_heads, head_size).
        pages: (pages, num_kv_heads, block_size, 2 * head_size); num_heads is a multiple of num_kv_heads.
        page_ids: (s, c * k), int; page of each block, any valid page where a sequence has none.
        first_tokens: (s,), int; the first token that is seen, above 0 under a sliding window.
        end_tokens: (s,), int; tokens before this one are seen; 0 for a padded row, whose result is moot.
        scale: scores are query . key * scale.
        logits_soft_cap: scores become cap * tanh(score / cap); None for no cap.
        blocks_per_chunk: c, a divisor of the blocks.

    Returns:
        (s, num_heads, head_size) of the query's dtype.
    """
    seqs, heads, size = query.shape
    kv_heads, block_size = pages.shape[1], pages.shape[2]
    group, chunk = heads // kv_heads, blocks_per_chunk
    by_chunk = (seqs, chunk, kv_heads, group, -1)
    entries = (query.float() * scale).reshape(seqs, 1, kv_heads, group, size)
    entries = entries.expand(seqs, chunk, kv_heads, group, size).reshape(-1, kv_heads, group, size)
    first = first_tokens.reshape(seqs, 1, 1, 1, 1)
    end = end_tokens.reshape(seqs, 1, 1, 1, 1)
    in_chunk = torch.arange(chunk * block_size, device=query.device).reshape(1, chunk, 1, 1, block_size)
    top = torch.full((seqs, 1, kv_heads, group, 1), HIDDEN, device=query.device)
    weight = torch.zeros_like(top)
    out = torch.zeros((seqs, kv_heads, group, size), device=query.device)
    for start in range(0, page_ids.shape[1], chunk):
        gathered = pages.index_select(0, page_ids[:, start : start + chunk].reshape(-1)).float()
        keys, values = gathered[..., :size], gathered[..., size:]
        scores = soft_capped(entries @ keys.transpose(-1, -2), logits_soft_cap).reshape(by_chunk)
        tokens = in_chunk + start * block_size
        scores = torch.where((tokens >= first) & (tokens < end), scores, HIDDEN)
        new_top = torch.maximum(top, scores.amax((1, 4), keepdim=True))
        kept = torch.exp(top - new_top)
        shares = torch.exp(scores - new_top)
        weight = weight * kept + shares.sum((1, 4), keepdim=True)
        added = (shares.reshape(-1, kv_heads, group, block_size) @ values).reshape(by_chunk).sum(1)
        out = out * kept.squeeze(1) + added
        top = new_top
    return (out / weight.squeeze(1)).reshape(seqs, heads, size).to(query.dtype)


def sequence_attention(
    query: torch.Tensor,
    pages: torch.Tensor,
    page_ids: torch.Tensor,
    seq_len: int,
    *,
    scale: float,
    logits_soft_cap: float | None = None,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Causal attention of the last tokens of one sequence: a prefill chunk, or a decode in a small batch.

    Args:
        query: (tokens, num_heads, head_size), the last `tokens` of the sequence.
        pages: as `batched_decode` takes them.
        page_ids: (blocks,), int; at least ceil(seq_len / block_size) of them.
        seq_len: tokens of the sequence, the query's included.
        scale: scores are query . key * scale.
        logits_soft_cap: as `batched_decode` takes it.
        sliding_window: tokens that a query sees, itself included; None for all before it.

    Returns:
        (tokens, num_heads, head_size) of the query's dtype.
    """
    tokens, heads, size = query.shape
    kv_heads, block_size = pages.shape[1], pages.shape[2]
    gathered = pages.index_select(0, page_ids[: -(-seq_len // block_size)]).float()
    gathered = gathered.transpose(0, 1).reshape(kv_heads, -1, 2 * size)[:, :seq_len]
    keys, values = gathered[..., :size], gathered[..., size:]
    grouped = (query.float() * scale).reshape(tokens, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    scores = soft_capped(grouped @ keys.transpose(-1, -2).unsqueeze(1), logits_soft_cap)
    own = torch.arange(seq_len - tokens, seq_len, device=query.device).unsqueeze(1)
    seen_tokens = torch.arange(seq_len, device=query.device).unsqueeze(0)
    seen = seen_tokens <= own
    if sliding_window is not None:
        seen = seen & (seen_tokens > own - sliding_window)
    shares = torch.softmax(torch.where(seen, scores, HIDDEN), -1)
    out = (shares @ values.unsqueeze(1)).permute(2, 0, 1, 3)
    return out.reshape(tokens, heads, size).to(query.dtype)


def soft_capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Scores bent towards plus and minus `cap`; as they are without one."""
    return scores if cap is None else cap * torch.tanh(scores / cap)
