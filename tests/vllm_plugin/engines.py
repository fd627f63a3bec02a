"""vLLM's settings object as far as the plugin reads it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

_instances = itertools.count()


def make_vllm_config(
    *,
    additional_config: Any = None,
    block_size: int | None = 128,
    max_num_seqs: int = 8,
    max_model_len: int = 2048,
    max_num_batched_tokens: int = 512,
    num_gpu_blocks: int | None = None,
    runner_type: str = "generate",
    rank: int = 0,
) -> Any:
    """An engine of the limits that `tests.plan.plans` has its plans for; a server of its own each time."""
    return SimpleNamespace(
        additional_config={} if additional_config is None else additional_config,
        cache_config=SimpleNamespace(block_size=block_size, num_gpu_blocks=num_gpu_blocks),
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
        model_config=SimpleNamespace(max_model_len=max_model_len, runner_type=runner_type),
        parallel_config=SimpleNamespace(rank=rank, data_parallel_rank=0),
        instance_id=f"test{next(_instances)}",
    )
