"""The replay's step loop in numba: vLLM v1's scheduling, one engine step an iteration.

The rules (read against vllm 0.28, `vllm/v1/core/sched/scheduler.py`) stand in `replay.py` and
`scheduling.py`; its plain twin is `plain.py`, and tests compare the two, and both with vLLM's own Scheduler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.occupancy._loop_state import (
    ARRIVED,
    BASE,
    BLOCK_SIZE,
    BUSY,
    CACHING,
    CHILDREN,
    CONCURRENCY,
    DECODE_BLOCKS,
    DECODE_TOKENS,
    DONE,
    FINISH,
    FINISHED,
    FIRST_TOKEN,
    FREE,
    IDLE,
    MARK_BUSY,
    MARK_DECODE_BLOCKS,
    MARK_DECODE_TOKENS,
    MARK_NOW,
    MARK_PREFILL_TOKENS,
    MARK_STEPS,
    MAX_NUM_SEQS,
    MAX_TOKENS,
    MIN_BATCHED,
    MOST_BLOCKS,
    NEXT,
    NOW,
    PAUSED,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL_ONLY,
    PREFILL_TOKENS,
    RESERVE,
    RUNNING,
    SCHEDULED,
    STARVED,
    STEPS,
    STUCK,
    THRESHOLD,
    UNTIL,
    WHOLE,
    WINDOW,
    Loaded,
    Progress,
    Rules,
)
from ladder_opt.occupancy._prefix_cache import Pool, admit, cached_blocks, extend, release


@njit(cache=True, nogil=True)
def push(heap: NDArray[np.int64], size: int, rank: int) -> None:
    """Add a rank to a binary heap of `size` ranks, the smallest on top. Modified in place."""
    at = size
    while at > 0 and heap[(at - 1) // 2] > rank:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = rank


@njit(cache=True, nogil=True)
def pop(heap: NDArray[np.int64], size: int) -> None:
    """Take the smallest rank off a binary heap of `size` ranks. Modified in place."""
    rank = heap[size - 1]
    at = 0
    while 2 * at + 1 < size - 1:
        child = 2 * at + 1
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= rank:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = rank


@njit(cache=True, nogil=True)
def _lowest_priority(
    running: NDArray[np.int64], num_running: int, rank: NDArray[np.int64], children: int
) -> int:
    """Where the running request of the highest rank stands; of siblings, which share one, the oldest."""
    at = 0
    for slot in range(1, num_running):
        if rank[running[slot]] // children > rank[running[at]] // children:
            at = slot
    return at


@njit(cache=True, nogil=True)
def mark(
    marks: NDArray[np.float64],
    kind: int,
    request: int,
    now: float,
    busy: float,
    state: NDArray[np.int64],
) -> None:
    """Write the clock and the totals down where a request comes to `kind` for the first time."""
    values = marks[kind, request]
    if np.isnan(values[MARK_NOW]):
        values[MARK_NOW] = now
        values[MARK_BUSY] = busy
        values[MARK_STEPS] = state[STEPS]
        values[MARK_DECODE_TOKENS] = state[DECODE_TOKENS]
        values[MARK_DECODE_BLOCKS] = state[DECODE_BLOCKS]
        values[MARK_PREFILL_TOKENS] = state[PREFILL_TOKENS]


@njit(cache=True, nogil=True)
def restored(
    state: NDArray[np.int64], clock: NDArray[np.float64]
) -> tuple[int, int, int, int, int, int, float, float]:
    """What `save` wrote, in the order of its arguments: a loop goes faster on variables of its own."""
    return (
        state[RUNNING],
        state[PREEMPTED],
        state[NEXT],
        state[ARRIVED],
        state[FREE],
        state[DONE],
        clock[NOW],
        clock[BUSY],
    )


@njit(cache=True, nogil=True)
def save(
    state: NDArray[np.int64],
    clock: NDArray[np.float64],
    num_running: int,
    num_preempted: int,
    next_new: int,
    arrived: int,
    free: int,
    done: int,
    now: float,
    busy: float,
) -> None:
    """Write down where a loop stops."""
    state[RUNNING] = num_running
    state[PREEMPTED] = num_preempted
    state[NEXT] = next_new
    state[ARRIVED] = arrived
    state[FREE] = free
    state[DONE] = done
    clock[NOW] = now
    clock[BUSY] = busy


@njit(cache=True, nogil=True)
def advance(
    loaded: Loaded,
    rules: Rules,
    progress: Progress,
    steps: NDArray[np.int64],
    real_blocks: NDArray[np.int64],
    sequences: NDArray[np.int64] | None,
    totals: NDArray[np.int64] | None,
    marks: NDArray[np.float64] | None,
    pool: Pool,
    max_steps: int,
) -> int:
    """Run at most `max_steps` engine steps; return FINISHED, PAUSED, STUCK or STARVED.

    A trace may come in chunks. A step admits at most `max_num_seqs` requests, so as long as that many that
    were never scheduled are loaded, what comes after them cannot change the step: with RESERVE = max_num_seqs
    the loop stops (STARVED) before the first step for which that does not hold. Not so with priorities.

    Args:
        loaded: the requests.
        rules: what the engine goes by.
        progress: how far the requests are, the engine's state and its clock. Modified in place.
        steps: (max_num_seqs + 1, max_num_blocks + 1) steps by size. Modified in place.
        real_blocks: the same shape, sum of the decodes' own blocks. Modified in place.
        sequences: (max_num_blocks + 1, longest query + 1) calls of the per-sequence path by size, modified in
            place; None where nobody asked.
        totals: (max_num_seqs + 1, max_num_seqs * max_num_blocks + 1) steps by decodes and the sum of their
            blocks, modified in place; None likewise.
        marks: (MARK_KINDS, requests, MARK_VALUES), NaN until marked, modified in place; or None likewise.
        pool: the prefix cache; modified in place.
        max_steps: when to pause.
    """
    arrival, prompt, output, supplied, rank, of_rank = loaded
    limits, seconds, batched_seconds = rules
    computed, known, blocks, dropped, running, preempted, unfinished, state, clock = progress
    requests = prompt.size
    block_size, max_num_seqs, max_tokens = limits[BLOCK_SIZE], limits[MAX_NUM_SEQS], limits[MAX_TOKENS]
    min_batched, concurrency, children = limits[MIN_BATCHED], limits[CONCURRENCY], limits[CHILDREN]
    threshold, window, most_blocks = limits[THRESHOLD], limits[WINDOW], limits[MOST_BLOCKS]
    reserve = limits[RESERVE]
    by_priority, windowed, fans_out = rank.size > 0, dropped.size > 0, unfinished.size > 0
    caching = limits[CACHING] > 0
    num_running, num_preempted, next_new, arrived, free, done, now, busy = restored(state, clock)
    status = PAUSED
    taken = np.empty(max_num_seqs, np.int64)  # tokens of each running request in this step
    few_blocks = np.empty(min_batched, np.int64)  # own blocks of the decodes of a step that is not batched
    for _ in range(max_steps):
        if requests - next_new < reserve:
            status = STARVED
            break
        if done == requests:
            status = FINISHED
            break
        if now >= clock[UNTIL]:
            break
        if concurrency > 0:
            complete = state[WHOLE] if fans_out else done
            arrived = min(requests, (complete + concurrency) * children)
        else:
            if num_running == 0 and num_preempted == 0 and next_new == arrived and arrival[arrived] > now:
                if arrival[arrived] > clock[UNTIL]:
                    break
                clock[IDLE] += arrival[arrived] - now
                now = arrival[arrived]
            while arrived < requests and arrival[arrived] <= now:
                arrived += 1
        if by_priority:
            while next_new < arrived:
                push(preempted, num_preempted, rank[next_new])
                num_preempted += 1
                next_new += 1
        budget = max_tokens
        evicted = False
        # 1. Running requests, oldest first, each as far as the budget goes.
        scheduled = 0
        while scheduled < num_running and budget > 0:
            request = running[scheduled]
            before = computed[request]
            tokens = known[request] - before
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
            if windowed:
                outside = max(0, before - window + 1) // block_size
                if outside > dropped[request]:
                    free += outside - dropped[request]
                    dropped[request] = outside
            held = blocks[request]
            wanted = 0
            if before + tokens > held * block_size:  # a division a token would be half the run time
                wanted = (before + tokens + block_size - 1) // block_size - held
            victim = -1
            while wanted > free and victim != request:
                # The newest running request, or the one of lowest priority, gives its blocks back, until
                # there is room or it is this one.
                evicted = True
                last = num_running - 1
                if by_priority:
                    last = _lowest_priority(running, num_running, rank, children)
                victim = running[last]
                free += release(pool, victim, blocks[victim]) if caching else blocks[victim]
                blocks[victim] = 0
                computed[victim] = 0
                if windowed:
                    free -= dropped[victim]
                    dropped[victim] = 0
                if by_priority:
                    if last < scheduled:  # it was scheduled already
                        budget += taken[last]
                        scheduled -= 1
                    num_running -= 1
                    for slot in range(last, num_running):
                        running[slot] = running[slot + 1]
                        taken[slot] = taken[slot + 1]
                    push(preempted, num_preempted, rank[victim])
                else:
                    num_running -= 1
                    preempted[num_preempted] = victim
                num_preempted += 1
                state[PREEMPTIONS] += 1
            if victim == request:
                break
            free -= wanted
            blocks[request] = held + wanted
            # Only a step that takes a block or fills the last one: a call costs more than a decode.
            if caching and (wanted > 0 or before + tokens == held * block_size):
                extend(pool, request, held, wanted, before + tokens, block_size)
            taken[scheduled] = tokens
            budget -= tokens
            scheduled += 1
        # 2. Waiting requests, those preempted first; a step that preempted admits nobody.
        if not evicted:
            while budget > 0 and num_running < max_num_seqs and (num_preempted > 0 or next_new < arrived):
                request = next_new
                if num_preempted > 0:
                    request = preempted[num_preempted - 1]
                    if by_priority:
                        request = of_rank[preempted[0]]
                hits, free_hits = 0, 0
                if caching:
                    hits, free_hits = cached_blocks(pool, request, known[request], block_size)
                # Admission reserves nothing, but asks that the whole sequence so far would fit.
                whole = min((known[request] + block_size - 1) // block_size, most_blocks)
                if whole - hits + free_hits > free:
                    break
                before = hits * block_size
                if supplied.size > 0:
                    before = max(before, supplied[request])
                tokens = known[request] - before
                if 0 < threshold < tokens:
                    tokens = threshold
                tokens = min(tokens, budget)
                wanted = (before + tokens + block_size - 1) // block_size - hits
                free -= wanted + free_hits
                blocks[request] = hits + wanted
                computed[request] = before
                if caching:
                    admit(pool, request, hits)
                    extend(pool, request, hits, wanted, before + tokens, block_size)
                pool.hits[0] += before
                budget -= tokens
                if marks is not None:
                    mark(marks, SCHEDULED, request, now, busy, state)
                if by_priority:
                    pop(preempted, num_preempted)
                if num_preempted > 0:
                    num_preempted -= 1
                else:
                    next_new += 1
                running[num_running] = request
                taken[num_running] = tokens
                num_running += 1
                scheduled += 1
        if scheduled == 0:
            if evicted:
                continue  # the lowest priority was first in line: an empty step, which takes no time
            status = STUCK
            break
        # 3. What the step asks of the kernel, and who samples a token.
        decodes = 0
        longest = 0
        own_blocks = 0
        finished = 0
        for slot in range(scheduled):
            request = running[slot]
            tokens = taken[slot]
            before = computed[request]
            held = blocks[request]
            if windowed:
                held -= dropped[request]
            if tokens == 1 and before >= prompt[request]:
                if sequences is not None and decodes < min_batched:
                    few_blocks[decodes] = held
                decodes += 1
                own_blocks += held
                longest = max(longest, held)
            elif sequences is not None:
                sequences[held, tokens] += 1
            computed[request] = before + tokens
            if before + tokens == known[request]:
                known[request] += 1
                if before + tokens >= prompt[request] + output[request] - 1:
                    finished += 1
        # 4. The step takes its time.
        prefill_tokens = max_tokens - budget - decodes
        step = seconds[BASE] + seconds[PER_PREFILL_TOKEN] * prefill_tokens
        if decodes >= min_batched:
            step = batched_seconds[decodes, longest] + seconds[PER_PREFILL_TOKEN] * prefill_tokens
        else:
            step += seconds[PER_SEQUENCE_GATHER] * own_blocks + seconds[PER_SEQ] * decodes
            if sequences is not None:
                for index in range(decodes):
                    sequences[few_blocks[index], 1] += 1
        now += step
        busy += step
        state[STEPS] += 1
        state[PREFILL_TOKENS] += prefill_tokens
        state[DECODE_TOKENS] += decodes
        state[DECODE_BLOCKS] += own_blocks
        if decodes > 0:
            steps[decodes, longest] += 1
            real_blocks[decodes, longest] += own_blocks
            if totals is not None:
                totals[decodes, own_blocks] += 1
        else:
            state[PREFILL_ONLY] += 1
        if marks is not None:
            for slot in range(num_running):
                request = running[slot]
                if known[request] > prompt[request]:
                    mark(marks, FIRST_TOKEN, request, now, busy, state)
                if known[request] - prompt[request] == output[request]:
                    mark(marks, FINISH, request, now, busy, state)
        # 5. Whoever has sampled the last token leaves, and gives the blocks back.
        if finished > 0:
            done += finished
            kept = 0
            for slot in range(num_running):
                request = running[slot]
                if known[request] - prompt[request] == output[request]:
                    free += release(pool, request, blocks[request]) if caching else blocks[request]
                    blocks[request] = 0
                    if windowed:
                        free -= dropped[request]
                        dropped[request] = 0
                    if fans_out:
                        unfinished[request // children] -= 1
                        if unfinished[request // children] == 0:
                            state[WHOLE] += 1
                else:
                    running[kept] = request
                    kept += 1
            num_running = kept
    if done == requests and reserve == 0:
        status = FINISHED
    save(state, clock, num_running, num_preempted, next_new, arrived, free, done, now, busy)
    return status
