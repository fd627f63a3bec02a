"""vLLM's own scheduler as the oracle of the replay: no model, no worker, no code of this package.

`replay_with_vllm` feeds requests to `vllm.v1.core.sched.scheduler.Scheduler` and plays the model
runner: every request that has computed all its tokens gets one more token, after as many seconds
as the caller's `step_seconds` says. What each step asked of the attention kernel is noted as a
`StepLoad`.

vLLM is imported inside the functions, so the module itself loads anywhere; whoever calls them first puts
`VLLM_ENVIRONMENT` in place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

# What vLLM reads as it is imported: an `empty` build knows no device of its own.
VLLM_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

# vLLM checks lengths against the model's own limit; this one is above any trace used here.
_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 128,
    "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKEN = 7  # any token, where prefix caching is off: nothing stops early


@dataclass(frozen=True)
class StepLoad:
    """What one scheduled step asks of the model.

    Attributes:
        num_decodes: sequences whose query is one token past their prompt.
        max_blocks: the largest ceil(kv_len / block_size) among the decodes; 0 without decodes.
        decode_blocks: the decodes' own blocks, summed.
        num_prefill_tokens: scheduled tokens of everything that is not a decode.
        decodes: own blocks of each decode.
        prefills: own blocks and scheduled tokens of everything that is not a decode.
    """

    num_decodes: int
    max_blocks: int
    decode_blocks: int
    num_prefill_tokens: int
    decodes: tuple[int, ...] = ()
    prefills: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class OracleReplay:
    """A whole replay.

    Attributes:
        loads: one `StepLoad` a step, in order.
        end_seconds: the clock after the last step.
        preemptions: how many times a running request lost its blocks.
        finish_seconds: per request, the clock after the step that gave its last token.
        cached_tokens: per request, tokens that its first sequence did not compute as it was first admitted.
    """

    loads: list[StepLoad]
    end_seconds: float
    preemptions: int
    finish_seconds: list[float]
    cached_tokens: list[int]


def replay_with_vllm(
    arrival_seconds: Sequence[float] | None,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    *,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    num_gpu_blocks: int,
    step_seconds: Callable[[StepLoad], float],
    concurrency: int | None = None,
    priorities: Sequence[int] | None = None,
    policy: Literal["fcfs", "priority"] = "fcfs",
    long_prefill_token_threshold: int = 0,
    sliding_window: int | None = None,
    n: int = 1,
    prefix_caching: bool = False,
    prompts: Sequence[Sequence[int]] | None = None,
    supplied_tokens: Sequence[int] | None = None,
) -> OracleReplay:
    """Replays requests, in the order given, through vLLM's scheduler.

    A request joins the waiting queue once its arrival is no later than the clock. With
    `concurrency` arrivals do not count: that many requests are in flight from the start, and as one
    finishes the next joins, so that the next step can schedule it. Of a request with `n` sequences each
    is a request of its own to the scheduler, as vLLM's front end fans them out; a request has finished when
    they all have. A step that only preempts, and schedules nothing, takes no time.
    With `prefix_caching` the tokens of the `prompts` count, and no two sequences generate the same ones.
    `supplied_tokens` of each request, whole blocks, are cached elsewhere: a KV connector loads them at once,
    into blocks that are the request's own.

    Raises:
        RuntimeError: the scheduler has requests and schedules none, as one outgrows the pool.
    """
    scheduler = _scheduler(
        block_size,
        max_num_seqs,
        max_model_len,
        max_num_batched_tokens,
        num_gpu_blocks,
        policy=policy,
        long_prefill_token_threshold=long_prefill_token_threshold,
        sliding_window=sliding_window,
        prefix_caching=prefix_caching,
        supplied_tokens=supplied_tokens,
    )
    requests = len(prompt_tokens)
    cached_tokens = [0] * requests
    loads: list[StepLoad] = []
    finish_seconds = [0.0] * requests
    unfinished = [n] * requests
    now, added, finished, preemptions = 0.0, 0, 0, 0

    def has_come(request: int) -> bool:
        if concurrency is not None:
            return request - finished < concurrency
        assert arrival_seconds is not None, "an open loop needs arrivals"
        return arrival_seconds[request] <= now

    while finished < requests:
        while added < requests and has_come(added):
            for child in range(n):
                priority = 0 if priorities is None else priorities[added]
                scheduler.add_request(
                    _request(
                        f"{added:06}-{child:06}",
                        arrival_time=float(added),
                        prompt=[_TOKEN] * prompt_tokens[added] if prompts is None else list(prompts[added]),
                        output_tokens=output_tokens[added],
                        priority=priority,
                        hash_block_size=block_size if prefix_caching else None,
                    )
                )
            added += 1
        if added == finished:
            assert arrival_seconds is not None, "a closed loop never idles"
            now = arrival_seconds[added]
            continue
        scheduled = scheduler.schedule()
        if not scheduled.num_scheduled_tokens and scheduled.preempted_req_ids:
            preemptions += len(scheduled.preempted_req_ids)
            _sample(scheduler, scheduled)
            continue
        if not scheduled.num_scheduled_tokens:
            raise RuntimeError(f"nothing scheduled at {now} s with {added - finished} requests in flight")
        preemptions += len(scheduled.preempted_req_ids or ())
        _note_hits(scheduled, cached_tokens)
        loads.append(_step_load(scheduler, scheduled, block_size, sliding_window))
        now += step_seconds(loads[-1])
        for request in _sample(scheduler, scheduled):
            finish_seconds[request] = now
            unfinished[request] -= 1
            finished += unfinished[request] == 0
    return OracleReplay(loads, now, preemptions, finish_seconds, cached_tokens)


def _note_hits(scheduled: Any, cached_tokens: list[int]) -> None:
    for first in scheduled.scheduled_new_reqs:
        request, _, child = first.req_id.partition("-")
        if not int(child):
            cached_tokens[int(request)] = first.num_computed_tokens


class _Supplier:
    """What the scheduler asks of a KV connector, of which it needs no more than how much it has."""

    supports_divergent_local_hybrid_hits = False

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def on_new_request(self, request: Any) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self.tokens[int(request.request_id.partition("-")[0])]
        return max(0, tokens - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> None:
        pass

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def get_kv_connector_stats(self) -> None:
        pass

    def take_events(self) -> tuple[()]:
        return ()


def _step_load(scheduler: Any, scheduled: Any, block_size: int, sliding_window: int | None) -> StepLoad:
    """The load of a step, read from the requests as `schedule()` left them."""
    null_block = scheduler.kv_cache_manager.block_pool.null_block

    def own_blocks(request_id: str, kv_tokens: int) -> int:
        (held,) = scheduler.kv_cache_manager.get_blocks(request_id).blocks
        own = sum(block is not null_block for block in held)
        assert sliding_window is not None or own == -(-kv_tokens // block_size)
        return own

    blocks = []
    prefills = []
    for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        # schedule() has already moved num_computed_tokens on by this step's tokens.
        num_computed_tokens = request.num_computed_tokens - num_tokens
        if num_tokens == 1 and num_computed_tokens >= request.num_prompt_tokens:
            blocks.append(own_blocks(request_id, num_computed_tokens + 1))
        else:
            prefills.append((own_blocks(request_id, num_computed_tokens + num_tokens), num_tokens))
    num_prefill_tokens = sum(num_tokens for _, num_tokens in prefills)
    return StepLoad(
        len(blocks), max(blocks, default=0), sum(blocks), num_prefill_tokens, tuple(blocks), tuple(prefills)
    )


def _sample(scheduler: Any, scheduled: Any) -> list[int]:
    """Gives one token to every request that is due one; returns the requests that this finished."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(scheduled.num_scheduled_tokens)
    requests = [scheduler.requests[request_id] for request_id in ids]
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[
            [_own_token(r)] if r.num_computed_tokens >= r.num_tokens else [] for r in requests
        ],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    by_client = scheduler.update_from_output(scheduled, output)
    return [
        int(output.request_id.partition("-")[0])
        for outputs in by_client.values()
        for output in outputs.outputs
        if output.finish_reason is not None
    ]


def _own_token(request: Any) -> int:
    """A token that no other sequence has: prefixes with it are nobody else's."""
    number, _, child = request.request_id.partition("-")
    return 1_000_000_000 + int(number) * 1_000 + int(child)


def _request(
    request_id: str,
    *,
    arrival_time: float,
    prompt: list[int],
    output_tokens: int,
    priority: int,
    hash_block_size: int | None,
) -> Any:
    """A request whose arrival time is its place in the order, since no two arrive at the very same time."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    hasher = None
    if hash_block_size is not None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        hasher = get_request_block_hasher(hash_block_size, sha256)
    return Request(
        request_id=request_id,
        priority=priority,
        arrival_time=arrival_time,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0),
        pooling_params=None,
        block_hasher=hasher,
    )


def _scheduler(
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    num_gpu_blocks: int,
    *,
    policy: Literal["fcfs", "priority"],
    long_prefill_token_threshold: int,
    sliding_window: int | None,
    prefix_caching: bool,
    supplied_tokens: Sequence[int] | None,
) -> Any:
    """A scheduler set as on Spyre: chunked prefill on, async scheduling off."""
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    if prefix_caching:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)  # the root of every chain of hashes, another one at each call
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(_MODEL_CONFIG))
        config = VllmConfig(
            model_config=ModelConfig(
                model=model,
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=max_model_len,
                enforce_eager=True,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
                policy=policy,
                long_prefill_token_threshold=long_prefill_token_threshold,
            ),
            cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=prefix_caching),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
        )
    config.cache_config.num_gpu_blocks = num_gpu_blocks  # the engine's memory profiling would set it
    shape: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 64,
        "dtype": torch.float32,
    }
    spec = (
        FullAttentionSpec(**shape)
        if sliding_window is None
        else SlidingWindowSpec(**shape, sliding_window=sliding_window)
    )
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )
    if supplied_tokens is not None:
        cast("Any", scheduler).connector = _Supplier(supplied_tokens)
    return scheduler
