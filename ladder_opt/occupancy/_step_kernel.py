"""The replay's step loop in numba: vLLM v1's FCFS scheduling, one engine step an iteration.

The rules (read against vllm 0.28, `vllm/v1/core/sched/scheduler.py`) stand in `replay.py`; its plain
twin is `plain.py`, and tests compare the two, and both with vLLM's own Scheduler.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Slots of the integer state; the loop can stop after any step and go on from here.
(
    RUNNING,  # requests running
    PREEMPTED,  # requests at the front of the waiting queue, a stack
    NEXT,  # first request never scheduled
    ARRIVED,  # first request not arrived yet
    FREE,  # KV blocks free
    DONE,  # requests finished
    STEPS,  # engine steps
    PREFILL_ONLY,  # steps without a decode
    PREEMPTIONS,
    PREFILL_TOKENS,
    DECODE_TOKENS,
    INTEGER_SLOTS,
) = range(12)
# Slots of the float state, in seconds.
NOW, BUSY, IDLE, FLOAT_SLOTS = range(4)
# What the loop returned for.
FINISHED, PAUSED, STUCK, STARVED = range(4)


@njit(cache=True, nogil=True)
def advance(
    arrival: NDArray[np.float64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    limits: NDArray[np.int64],
    seconds: NDArray[np.float64],
    batched_seconds: NDArray[np.float64],
    computed: NDArray[np.int64],
    known: NDArray[np.int64],
    blocks: NDArray[np.int64],
    running: NDArray[np.int64],
    preempted: NDArray[np.int64],
    state: NDArray[np.int64],
    clock: NDArray[np.float64],
    steps: NDArray[np.int64],
    real_blocks: NDArray[np.int64],
    sequences: NDArray[np.int64] | None,
    max_steps: int,
) -> int:
    """Run at most `max_steps` engine steps; return FINISHED, PAUSED, STUCK or STARVED.

    A trace may come in chunks. A step admits at most `max_num_seqs` requests, so as long as that many that
    were never scheduled are loaded, what comes after them cannot change the step: with `reserve` =
    max_num_seqs the loop stops (STARVED) before the first step for which that does not hold.

    Args:
        arrival: (requests,) seconds, ascending; empty for a closed loop.
        prompt: (requests,) prompt tokens.
        output: (requests,) output tokens.
        limits: block_size, max_num_seqs, max_num_batched_tokens, min_batched_seqs, concurrency
            (0: arrivals decide), reserve (0: all requests are loaded).
        seconds: base, per_sequence_gather, per_prefill_token.
        batched_seconds: (max_num_seqs + 1, max_num_blocks + 1), seconds of a batched step by its size.
        computed: (requests,) tokens whose KV is in the pool. Modified in place.
        known: (requests,) prompt tokens plus tokens sampled so far. Modified in place.
        blocks: (requests,) KV blocks held. Modified in place.
        running: (max_num_seqs,) the running requests, oldest first. Modified in place.
        preempted: (requests,) stack of preempted requests. Modified in place.
        state: integer slots above. Modified in place.
        clock: float slots above. Modified in place.
        steps: (max_num_seqs + 1, max_num_blocks + 1) steps by size. Modified in place.
        real_blocks: the same shape, sum of the decodes' own blocks. Modified in place.
        sequences: (max_num_blocks + 1, longest query + 1) calls of the per-sequence path by size, modified in
            place; None where nobody asked: numba then compiles the counting away.
        max_steps: when to pause.
    """
    requests = prompt.size
    block_size, max_num_seqs, max_tokens, min_batched = limits[0], limits[1], limits[2], limits[3]
    concurrency, reserve = limits[4], limits[5]
    num_running = state[RUNNING]
    num_preempted = state[PREEMPTED]
    next_new = state[NEXT]
    arrived = state[ARRIVED]
    free = state[FREE]
    done = state[DONE]
    now = clock[NOW]
    busy = clock[BUSY]
    status = PAUSED
    few_blocks = np.empty(min_batched, np.int64)  # own blocks of the decodes of a step that is not batched
    for _ in range(max_steps):
        if requests - next_new < reserve:
            status = STARVED
            break
        if done == requests:
            status = FINISHED
            break
        if concurrency > 0:
            arrived = min(requests, done + concurrency)
        else:
            if num_running == 0 and num_preempted == 0 and next_new == arrived and arrival[arrived] > now:
                clock[IDLE] += arrival[arrived] - now
                now = arrival[arrived]
            while arrived < requests and arrival[arrived] <= now:
                arrived += 1
        budget = max_tokens
        decodes = 0
        longest = 0
        own_blocks = 0
        evicted = False
        finished = 0
        # 1. Running requests, oldest first, each as far as the budget goes.
        scheduled = 0
        while scheduled < num_running and budget > 0:
            request = running[scheduled]
            before = computed[request]
            tokens = min(known[request] - before, budget)
            held = blocks[request]
            wanted = 0
            if before + tokens > held * block_size:  # a division a token would be half the run time
                wanted = (before + tokens + block_size - 1) // block_size - held
            if wanted > free:
                # The newest running request gives its blocks back, until there is room or it is this one.
                evicted = True
                victim = -1
                while wanted > free and victim != request:
                    num_running -= 1
                    victim = running[num_running]
                    free += blocks[victim]
                    blocks[victim] = 0
                    computed[victim] = 0
                    preempted[num_preempted] = victim
                    num_preempted += 1
                    state[PREEMPTIONS] += 1
                if victim == request:
                    break
            if wanted > 0:
                free -= wanted
                held += wanted
                blocks[request] = held
            computed[request] = before + tokens
            budget -= tokens
            if tokens == 1 and before >= prompt[request]:
                if sequences is not None and decodes < min_batched:
                    few_blocks[decodes] = held
                decodes += 1
                own_blocks += held
                longest = max(longest, held)
            elif sequences is not None:
                sequences[held, tokens] += 1
            # Sampling can be settled here: whoever is preempted later in this step comes later in the queue.
            if before + tokens == known[request]:
                known[request] += 1
                if before + tokens >= prompt[request] + output[request] - 1:
                    finished += 1
            scheduled += 1
        # 2. Waiting requests, those preempted first; a step that preempted admits nobody.
        if not evicted:
            while budget > 0 and num_running < max_num_seqs and (num_preempted > 0 or next_new < arrived):
                request = preempted[num_preempted - 1] if num_preempted > 0 else next_new
                # Admission reserves nothing, but asks that the whole sequence so far would fit.
                if (known[request] + block_size - 1) // block_size > free:
                    break
                tokens = min(known[request], budget)
                wanted = (tokens + block_size - 1) // block_size
                free -= wanted
                blocks[request] = wanted
                computed[request] = tokens
                budget -= tokens
                if sequences is not None:
                    sequences[wanted, tokens] += 1
                if num_preempted > 0:
                    num_preempted -= 1
                else:
                    next_new += 1
                if tokens == known[request]:
                    known[request] += 1
                    if tokens >= prompt[request] + output[request] - 1:
                        finished += 1
                running[num_running] = request
                num_running += 1
                scheduled += 1
        if scheduled == 0 and not evicted:
            status = STUCK
            break
        # 3. The step takes its time.
        prefill_tokens = max_tokens - budget - decodes
        step = seconds[0] + seconds[2] * prefill_tokens
        if decodes >= min_batched:
            step = batched_seconds[decodes, longest] + seconds[2] * prefill_tokens
        else:
            step += seconds[1] * own_blocks
            if sequences is not None:
                for index in range(decodes):
                    sequences[few_blocks[index], 1] += 1
        now += step
        busy += step
        state[STEPS] += 1
        state[PREFILL_TOKENS] += prefill_tokens
        state[DECODE_TOKENS] += decodes
        if decodes > 0:
            steps[decodes, longest] += 1
            real_blocks[decodes, longest] += own_blocks
        else:
            state[PREFILL_ONLY] += 1
        # 4. Whoever has sampled the last token leaves, and gives the blocks back.
        if finished > 0:
            done += finished
            kept = 0
            for index in range(num_running):
                request = running[index]
                if known[request] - prompt[request] == output[request]:
                    free += blocks[request]
                    blocks[request] = 0
                else:
                    running[kept] = request
                    kept += 1
            num_running = kept
    if done == requests and reserve == 0:
        status = FINISHED
    state[RUNNING] = num_running
    state[PREEMPTED] = num_preempted
    state[NEXT] = next_new
    state[ARRIVED] = arrived
    state[FREE] = free
    state[DONE] = done
    clock[NOW] = now
    clock[BUSY] = busy
    return status
