"""The replay's plain twin: the rules of `replay.py` in ordinary Python, for tests to compare with.

Slow on purpose, and built differently: queues of objects, no incremental shortcuts.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ladder_opt.engine import Engine
from ladder_opt.trace.table import Trace


@dataclass(eq=False)
class _Request:
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int = 0
    sampled_tokens: int = 0
    blocks: int = 0

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens


@dataclass
class PlainReplay:
    """Counts of the plain replay, steps by (num_seqs, num_blocks) and calls by (num_blocks, query_len)."""

    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    gathers_real: Counter[tuple[int, int]] = field(default_factory=Counter)
    sequences: Counter[tuple[int, int]] = field(default_factory=Counter)
    prefill_only_steps: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0
    end_seconds: float = 0.0


def simulate_plain(
    trace: Trace,
    engine: Engine,
    step_seconds: Callable[[int, int, int, int], float],
    *,
    concurrency: int | None = None,
) -> PlainReplay:
    """Replay one trace, every request of which fits the engine.

    Args:
        trace: the requests.
        engine: the limits.
        step_seconds: seconds of a step from (decoding sequences, blocks of the longest, sum of the
            decodes' own blocks, prefill tokens).
        concurrency: requests in flight of a closed loop; None: arrivals decide.
    """
    result = PlainReplay()
    arrivals = [0.0] * len(trace) if trace.arrival_seconds is None else trace.arrival_seconds.tolist()
    coming = deque(
        _Request(arrival, int(prompt), int(output))
        for arrival, prompt, output in zip(arrivals, trace.prompt_tokens, trace.output_tokens, strict=True)
    )
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
    now = 0.0 if concurrency else coming[0].arrival_seconds
    while coming or waiting or running:
        if concurrency:
            while coming and len(waiting) + len(running) < concurrency:
                waiting.append(coming.popleft())
        else:
            if not waiting and not running and coming[0].arrival_seconds > now:
                result.idle_seconds += coming[0].arrival_seconds - now
                now = coming[0].arrival_seconds
            while coming and coming[0].arrival_seconds <= now:
                waiting.append(coming.popleft())
        scheduled = _schedule(engine, waiting, running, result)
        seconds = _account(engine, scheduled, step_seconds, result)
        now += seconds
        result.busy_seconds += seconds
        for request, tokens in scheduled:
            request.computed_tokens += tokens
            if request.computed_tokens == request.known_tokens:
                request.sampled_tokens += 1
                if request.sampled_tokens == request.output_tokens:
                    running.remove(request)
    result.end_seconds = now
    return result


def _schedule(
    engine: Engine, waiting: deque[_Request], running: list[_Request], result: PlainReplay
) -> list[tuple[_Request, int]]:
    budget = engine.max_num_batched_tokens
    scheduled: list[tuple[_Request, int]] = []
    preempted = False

    def free_blocks() -> int:
        return engine.usable_kv_blocks - sum(request.blocks for request in running)

    position = 0
    while position < len(running) and budget:
        request = running[position]
        tokens = min(request.known_tokens - request.computed_tokens, budget)
        needed = math.ceil((request.computed_tokens + tokens) / engine.block_size)
        while needed - request.blocks > free_blocks():
            victim = running.pop()
            victim.blocks = victim.computed_tokens = 0
            waiting.appendleft(victim)
            result.preemptions += 1
            preempted = True
            if victim is request:
                return scheduled
        request.blocks = max(needed, request.blocks)
        scheduled.append((request, tokens))
        budget -= tokens
        position += 1
    while not preempted and waiting and budget and len(running) < engine.max_num_seqs:
        request = waiting[0]
        if math.ceil(request.known_tokens / engine.block_size) > free_blocks():
            break
        waiting.popleft()
        tokens = min(request.known_tokens, budget)
        request.blocks = math.ceil(tokens / engine.block_size)
        running.append(request)
        scheduled.append((request, tokens))
        budget -= tokens
    return scheduled


def _account(
    engine: Engine,
    scheduled: list[tuple[_Request, int]],
    step_seconds: Callable[[int, int, int, int], float],
    result: PlainReplay,
) -> float:
    decode_blocks = []
    for request, tokens in scheduled:
        own_blocks = math.ceil((request.computed_tokens + tokens) / engine.block_size)
        if tokens == 1 and request.computed_tokens >= request.prompt_tokens:
            decode_blocks.append(own_blocks)
        else:
            result.sequences[own_blocks, tokens] += 1
    if len(decode_blocks) < engine.min_batched_seqs:
        result.sequences.update((own_blocks, 1) for own_blocks in decode_blocks)
    prefill_tokens = sum(tokens for _, tokens in scheduled) - len(decode_blocks)
    longest = max(decode_blocks, default=0)
    result.prefill_tokens += prefill_tokens
    if decode_blocks:
        result.steps[len(decode_blocks), longest] += 1
        result.gathers_real[len(decode_blocks), longest] += sum(decode_blocks)
    else:
        result.prefill_only_steps += 1
    return step_seconds(len(decode_blocks), longest, sum(decode_blocks), prefill_tokens)
