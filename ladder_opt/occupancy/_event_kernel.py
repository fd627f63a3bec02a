"""The replay loop in numba, event by event: equal to `_step_kernel.py`, integer by integer, clock and all.

In most steps every decoding sequence computes one token and nothing else happens. So no sequence is touched
in such a step. T counts the steps; a decode that had `computed` tokens at T keeps `start` = T - computed, and

- its tokens are T - start, so its blocks are ceil((T - start) / block_size);
- it needs a new block in the steps whose T is congruent to start modulo block_size: `crossings` counts the
  decodes by that residue, which gives the blocks that a step takes and the sum of all decodes' blocks;
- the longest decode is the one of the smallest `start`;
- it finishes when T = start + prompt + output - 1; the next finish of all is kept.

Between events (an arrival that can be admitted, a prefill chunk, a block crossing, a finish) a step is one
addition to the clock. That addition is made step by step, now += step_seconds, as the step loop makes it: a
product would be quicker still and round otherwise, and the clock decides which step an arrival meets.

Prefill needs one slot: a chunk that does not complete a prompt has used the token budget up, so nothing is
admitted behind it; the running requests are decodes, and at most one more, the newest, amid its prefill.
A step that is short of KV blocks, or whose budget is below its decodes, goes to the step loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.occupancy._loop_state import (
    BASE,
    BLOCK_SIZE,
    CONCURRENCY,
    DECODE_BLOCKS,
    DECODE_TOKENS,
    FINISH,
    FINISHED,
    FIRST_TOKEN,
    IDLE,
    MAX_NUM_SEQS,
    MAX_TOKENS,
    MIN_BATCHED,
    PAUSED,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    PREFILL_ONLY,
    PREFILL_TOKENS,
    RESERVE,
    RUNNING,
    SCHEDULED,
    STARVED,
    STEPS,
    STUCK,
    UNTIL,
    Loaded,
    Progress,
    Rules,
)
from ladder_opt.occupancy._prefix_cache import Pool
from ladder_opt.occupancy._step_kernel import advance as _step_by_step
from ladder_opt.occupancy._step_kernel import mark, restored, save

_NEVER = 1 << 62


@njit(cache=True, nogil=True)
def _load(
    loaded: Loaded,
    progress: Progress,
    start: NDArray[np.int64],
    finish: NDArray[np.int64],
    crossings: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Set the running decodes up at T = 0.

    Returns:
        Decodes, the request amid its prefill or -1, blocks of all decodes, smallest start, next finish.
    """
    prompt, output = loaded.prompt, loaded.output
    computed, known, running = progress.computed, progress.known, progress.running
    block_size = crossings.size
    crossings[:] = 0
    num_running = num_decodes = progress.state[RUNNING]
    prefilling = -1
    if num_running > 0:
        last = running[num_running - 1]
        if computed[last] < prompt[last] or known[last] - computed[last] > 1:
            prefilling = last
            num_decodes -= 1
    own_blocks = 0
    first_start = _NEVER
    next_finish = _NEVER
    for index in range(num_decodes):
        request = running[index]
        start[index] = -computed[request]
        finish[index] = prompt[request] + output[request] - 1 - computed[request]
        crossings[start[index] % block_size] += 1
        own_blocks += (computed[request] + block_size - 1) // block_size
        first_start = min(first_start, start[index])
        next_finish = min(next_finish, finish[index])
    return num_decodes, prefilling, own_blocks, first_start, next_finish


@njit(cache=True, nogil=True)
def _store(
    progress: Progress,
    block_size: int,
    tick: int,
    num_decodes: int,
    prefilling: int,
    start: NDArray[np.int64],
) -> int:
    """Write what the step loop keeps of the running requests; returns how many they are."""
    computed, running = progress.computed, progress.running
    for index in range(num_decodes):
        request = running[index]
        computed[request] = tick - start[index]
        progress.known[request] = computed[request] + 1
        progress.blocks[request] = (computed[request] + block_size - 1) // block_size
    if prefilling < 0:
        return num_decodes
    running[num_decodes] = prefilling
    return num_decodes + 1


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
    """Run at most `max_steps` engine steps; arguments and result are those of `_step_kernel.advance`.

    First come, first served with full attention, without a threshold and, in a closed loop, with one sequence
    a request: what else there is breaks the premise above.
    """
    arrival, prompt, output, supplied = loaded.arrival, loaded.prompt, loaded.output, loaded.supplied
    limits, seconds, batched_seconds = rules
    computed, known, blocks = progress.computed, progress.known, progress.blocks
    running, preempted, state, clock = progress.running, progress.preempted, progress.state, progress.clock
    requests = prompt.size
    block_size, max_num_seqs, max_tokens = limits[BLOCK_SIZE], limits[MAX_NUM_SEQS], limits[MAX_TOKENS]
    min_batched, concurrency, reserve = limits[MIN_BATCHED], limits[CONCURRENCY], limits[RESERVE]
    start = np.empty(max_num_seqs, np.int64)
    finish = np.empty(max_num_seqs, np.int64)
    at_once = np.empty(max_num_seqs, np.int64)  # whose first token is the last
    crossings = np.zeros(block_size, np.int64)
    _, num_preempted, next_new, arrived, free, done, now, busy = restored(state, clock)
    num_decodes, prefilling, own_blocks, first_start, next_finish = _load(
        loaded, progress, start, finish, crossings
    )
    tick = 0
    left = max_steps
    status = PAUSED
    while left > 0:
        if requests - next_new < reserve:
            status = STARVED
            break
        if done == requests:
            status = FINISHED
            break
        if now >= clock[UNTIL]:
            break
        if concurrency > 0:
            arrived = min(requests, done + concurrency)
        else:
            idle = num_decodes == 0 and prefilling < 0 and num_preempted == 0 and next_new == arrived
            if idle and arrival[arrived] > now:
                if arrival[arrived] > clock[UNTIL]:
                    break
                clock[IDLE] += arrival[arrived] - now
                now = arrival[arrived]
            while arrived < requests and arrival[arrived] <= now:
                arrived += 1
        residue = tick % block_size
        crossing = crossings[residue]
        # The request amid its prefill takes what the decodes leave of the budget.
        tokens = 0
        wanted = 0
        if prefilling >= 0:
            before = computed[prefilling]
            tokens = min(known[prefilling] - before, max_tokens - num_decodes)
            if tokens > 0:
                wanted = (before + tokens + block_size - 1) // block_size - blocks[prefilling]
        if num_decodes > max_tokens or crossing + wanted > free:
            num_running = _store(progress, block_size, tick, num_decodes, prefilling, start)
            save(state, clock, num_running, num_preempted, next_new, arrived, free, done, now, busy)
            status = _step_by_step(
                loaded, rules, progress, steps, real_blocks, sequences, totals, marks, pool, 1
            )
            _, num_preempted, next_new, arrived, free, done, now, busy = restored(state, clock)
            if status == STUCK:
                return STUCK
            status = PAUSED
            left -= 1
            tick = 0
            num_decodes, prefilling, own_blocks, first_start, next_finish = _load(
                loaded, progress, start, finish, crossings
            )
            continue
        free -= crossing
        own_blocks += crossing
        longest = 0
        if num_decodes > 0:
            longest = (tick + 1 - first_start + block_size - 1) // block_size
        num_running = num_decodes + (prefilling >= 0)
        budget = max_tokens - num_decodes
        waiting = num_preempted > 0 or next_new < arrived
        admits = False
        if waiting and num_running < max_num_seqs and budget > 0 and tokens < budget:
            request = preempted[num_preempted - 1] if num_preempted > 0 else next_new
            admits = (known[request] + block_size - 1) // block_size <= free - wanted
        if tokens == 0 and not admits and num_decodes > 0:
            # 1. Decodes alone, until the next event.
            step = seconds[BASE]
            if num_decodes >= min_batched:
                step = batched_seconds[num_decodes, longest]
            else:
                step += seconds[PER_SEQUENCE_GATHER] * own_blocks + seconds[PER_SEQ] * num_decodes
            # A waiting request that was not admitted now is not before a finish: free blocks only get fewer.
            watched = np.inf
            if concurrency == 0 and not waiting and arrived < requests and num_running < max_num_seqs:
                watched = arrival[arrived]
            watched = min(watched, clock[UNTIL])
            began = tick
            until = min(next_finish, tick + left)
            while True:
                now += step
                busy += step
                tick += 1
                residue += 1
                if residue == block_size:
                    residue = 0
                if tick >= until or crossings[residue] > 0 or now >= watched:
                    break
            count = tick - began
            left -= count
            state[STEPS] += count
            state[DECODE_TOKENS] += count * num_decodes
            state[DECODE_BLOCKS] += count * own_blocks
            steps[num_decodes, longest] += count
            real_blocks[num_decodes, longest] += count * own_blocks
            if totals is not None:
                totals[num_decodes, own_blocks] += count
            if sequences is not None and num_decodes < min_batched:
                for index in range(num_decodes):
                    sequences[(began + 1 - start[index] + block_size - 1) // block_size, 1] += count
        else:
            # 2. A step with prefill: the one amid it first, then whoever is admitted.
            decodes = num_decodes
            step_blocks = own_blocks
            count = num_decodes
            leaving = 0
            num_at_once = 0
            scheduled = num_decodes
            if tokens > 0:
                request = prefilling
                before = computed[request]
                free -= wanted
                held = blocks[request] + wanted
                blocks[request] = held
                computed[request] = before + tokens
                budget -= tokens
                scheduled += 1
                if tokens == 1 and before >= prompt[request]:
                    decodes += 1
                    step_blocks += held
                    longest = max(longest, held)
                elif sequences is not None:
                    sequences[held, tokens] += 1
                if before + tokens == known[request]:
                    prefilling = -1
                    known[request] += 1
                    if before + tokens >= prompt[request] + output[request] - 1:
                        leaving += held
                        at_once[num_at_once] = request
                        num_at_once += 1
                        blocks[request] = 0
                        done += 1
                    else:
                        running[count] = request
                        count += 1
            in_step = num_running
            while budget > 0 and in_step < max_num_seqs and (num_preempted > 0 or next_new < arrived):
                request = preempted[num_preempted - 1] if num_preempted > 0 else next_new
                if (known[request] + block_size - 1) // block_size > free:
                    break
                before = supplied[request] if supplied.size > 0 else 0
                pool.hits[0] += before
                tokens = min(known[request] - before, budget)
                wanted = (before + tokens + block_size - 1) // block_size
                free -= wanted
                blocks[request] = wanted
                computed[request] = before + tokens
                budget -= tokens
                in_step += 1
                scheduled += 1
                if sequences is not None:
                    sequences[wanted, tokens] += 1
                if marks is not None:
                    mark(marks, SCHEDULED, request, now, busy, state)
                if num_preempted > 0:
                    num_preempted -= 1
                else:
                    next_new += 1
                if before + tokens < known[request]:
                    prefilling = request
                    break
                known[request] += 1
                if before + tokens >= prompt[request] + output[request] - 1:
                    leaving += wanted
                    at_once[num_at_once] = request
                    num_at_once += 1
                    blocks[request] = 0
                    done += 1
                else:
                    running[count] = request
                    count += 1
            if scheduled == 0:
                status = STUCK
                break
            prefill_tokens = max_tokens - budget - decodes
            step = seconds[BASE] + seconds[PER_PREFILL_TOKEN] * prefill_tokens
            if decodes >= min_batched:
                step = batched_seconds[decodes, longest] + seconds[PER_PREFILL_TOKEN] * prefill_tokens
            else:
                step += seconds[PER_SEQUENCE_GATHER] * step_blocks + seconds[PER_SEQ] * decodes
                if sequences is not None:
                    for index in range(num_decodes):
                        sequences[(tick + 1 - start[index] + block_size - 1) // block_size, 1] += 1
                    if decodes > num_decodes:
                        sequences[step_blocks - own_blocks, 1] += 1
            now += step
            busy += step
            tick += 1
            left -= 1
            state[STEPS] += 1
            state[PREFILL_TOKENS] += prefill_tokens
            state[DECODE_TOKENS] += decodes
            state[DECODE_BLOCKS] += step_blocks
            if decodes > 0:
                steps[decodes, longest] += 1
                real_blocks[decodes, longest] += step_blocks
                if totals is not None:
                    totals[decodes, step_blocks] += 1
            else:
                state[PREFILL_ONLY] += 1
            free += leaving
            if marks is not None:
                for index in range(num_at_once):
                    mark(marks, FIRST_TOKEN, at_once[index], now, busy, state)
                    mark(marks, FINISH, at_once[index], now, busy, state)
                for index in range(num_decodes, count):
                    mark(marks, FIRST_TOKEN, running[index], now, busy, state)
            for index in range(num_decodes, count):
                request = running[index]
                start[index] = tick - computed[request]
                finish[index] = start[index] + prompt[request] + output[request] - 1
                crossings[start[index] % block_size] += 1
                own_blocks += blocks[request]
                first_start = min(first_start, start[index])
                next_finish = min(next_finish, finish[index])
            num_decodes = count
        # 3. Whoever has sampled the last token leaves, and gives the blocks back.
        if tick == next_finish:
            kept = 0
            first_start = _NEVER
            next_finish = _NEVER
            for index in range(num_decodes):
                if finish[index] == tick:
                    held = (tick - start[index] + block_size - 1) // block_size
                    free += held
                    own_blocks -= held
                    crossings[start[index] % block_size] -= 1
                    done += 1
                    if marks is not None:
                        mark(marks, FINISH, running[index], now, busy, state)
                else:
                    running[kept] = running[index]
                    start[kept] = start[index]
                    finish[kept] = finish[index]
                    first_start = min(first_start, start[index])
                    next_finish = min(next_finish, finish[index])
                    kept += 1
            num_decodes = kept
    if done == requests and reserve == 0:
        status = FINISHED
    num_running = _store(progress, block_size, tick, num_decodes, prefilling, start)
    save(state, clock, num_running, num_preempted, next_new, arrived, free, done, now, busy)
    return status
