"""Scheduling settings of vLLM 0.28 that change what steps hold, beyond the engine's limits.

Read in the installed source (under `vllm/v1`: `core/sched/scheduler.py`,
`core/single_type_kv_cache_manager.py`, `engine/parallel_sampling.py`), and replayed step for step as its
Scheduler does:

- `policy` "priority": waiting requests are admitted by (priority, arrival), lower first. A request that needs
  a block when none is free preempts the running request of the highest (priority, arrival), be it one that
  this step has scheduled already, whose tokens then go back to the budget. Without a priority it is 0.
- `long_prefill_token_threshold`: no request gets more tokens than this in a step; 0 for no such limit.
- `sliding_window`: every layer attends to the last so many tokens. Before a request is scheduled, its blocks
  that lie wholly before computed tokens - window + 1 are given back; a sequence's blocks are those left, for
  the pool and for the kernel (the Spyre plugin's *active* blocks). Admission asks for the blocks of the whole
  sequence, but at most for ceil((window - 1 + max_num_batched_tokens) / block_size) + 1.
- `n`: sequences of each request. The front end fans a request out into n children that arrive together, each
  with the prompt and the output tokens of the row; a closed loop counts requests, not children.
- `prefix_caching`: a request starts from the leading full blocks that the pool still holds of it, but
  computes at least its last token. Blocks are shared and counted once, keyed as they are scheduled, and
  evicted least recently used first (`_prefix_cache.py`). `_block_keys.py` says what a trace tells of their
  content, and what it cannot. Not with a window, where the last window's blocks alone would be a hit.
  Of a trace without ids of blocks, its `cached_tokens` are what each request starts from, whenever it is
  admitted (`supplied_tokens`), in blocks that no other request shares; its own that the pool still holds are
  found again.

Speculative decoding is none of them: a verify step asks for 1 + num_speculative_tokens tokens of a sequence,
and batched decode takes one (the backend splits off decodes at a threshold of 1), so its steps go through the
per-sequence path and no ladder is met. A serve file that asks for it is refused.

What a setting would change and the replay does not is refused or told: see `engine_file.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import plain_number
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError, did_you_mean

POLICIES = ("fcfs", "priority")
_MOST_CHILDREN = 10_000  # vLLM's own limit is 16384 (VLLM_MAX_N_SEQUENCES)
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """How an engine schedules; the defaults are vLLM's on Spyre.

    Attributes:
        policy: "fcfs" or "priority".
        long_prefill_token_threshold: most tokens of one request in a step; 0 for no limit of its own.
        sliding_window: tokens that each layer attends to; None for all.
        n: sequences of each request.
        prefix_caching: prompts share the KV blocks that they have in common; needs traces with `hash_ids`
            or, in second place, `cached_tokens`.
    """

    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    sliding_window: int | None = None
    n: int = 1
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            hint = did_you_mean(self.policy, POLICIES)
            raise UsageError(
                f"scheduling-policy: found {self.policy!r}, expected {' or '.join(POLICIES)}{hint}"
            )
        for name, value, least, most in (
            ("long-prefill-token-threshold", self.long_prefill_token_threshold, 0, _MOST_TOKENS),
            ("sliding-window", self.sliding_window, 1, _MOST_TOKENS),
            ("n", self.n, 1, _MOST_CHILDREN),
        ):
            if value is None and name == "sliding-window":
                continue
            plain = plain_number(value)
            if isinstance(plain, bool) or not isinstance(plain, int):
                raise UsageError(f"{name}: found {value!r}, expected a whole number")
            if not least <= plain <= most:
                raise UsageError(f"{name}: found {value}, expected {least} to {most}")
            object.__setattr__(self, name.replace("-", "_"), plain)

        if not isinstance(self.prefix_caching, bool):
            raise UsageError(f"prefix-caching: found {self.prefix_caching!r}, expected true or false")
        if self.prefix_caching and self.sliding_window is not None:
            raise UsageError(
                "prefix-caching: found with a sliding window, expected one of the two: hits that reach back "
                "no further than the window are not replayed"
            )

    def check(self, engine: Engine) -> None:
        """Refuse what vLLM refuses with these limits.

        Raises:
            UsageError: the threshold is above max_model_len.
        """
        if self.long_prefill_token_threshold > engine.max_model_len:
            raise UsageError(
                f"long-prefill-token-threshold: found {self.long_prefill_token_threshold}, expected at most "
                f"max_model_len = {engine.max_model_len}"
            )

    def follows_blocks(self, engine: Engine, *, has_hash_ids: bool) -> bool:
        """Whether a replay has to know each block of the pool.

        Without ids of blocks a request finds no blocks but its own, after a preemption, or its siblings';
        where neither can be, counting blocks gives the same replay.
        """
        ample = engine.usable_kv_blocks >= engine.max_num_seqs * engine.max_num_blocks
        return self.prefix_caching and (has_hash_ids or self.n > 1 or not ample)

    def most_admission_blocks(self, engine: Engine) -> int:
        """Blocks that admission asks for at most, however long the sequence is."""
        if self.sliding_window is None:
            return engine.max_num_blocks
        tokens = min(self.sliding_window - 1 + engine.max_num_batched_tokens, engine.max_model_len)
        return -(-tokens // engine.block_size) + 1


def supplied_tokens(
    cached_tokens: NDArray[np.int64], prompt_tokens: NDArray[np.int64], *, block_size: int
) -> NDArray[np.int64]:
    """What an engine would find cached of prompts, of which a server found `cached_tokens`.

    vLLM's hits are whole blocks (its `get_computed_blocks`) and leave at least the last token to compute.

    Returns:
        int64 (requests,), multiples of `block_size`, each below its prompt.
    """
    return np.clip(cached_tokens, 0, prompt_tokens - 1) // block_size * block_size
