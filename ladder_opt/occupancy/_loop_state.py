"""What the replay's loops share: slots of their state, and the arrays that they go through.

Arrays that a run does not use are empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Slots of the limits.
(
    BLOCK_SIZE,
    MAX_NUM_SEQS,
    MAX_TOKENS,  # max_num_batched_tokens
    MIN_BATCHED,
    CONCURRENCY,  # 0: arrivals decide
    CHILDREN,  # sequences of each request (n), next to each other
    THRESHOLD,  # long_prefill_token_threshold; 0: none
    WINDOW,  # tokens of the sliding window; read where `dropped` is given
    MOST_BLOCKS,  # that admission asks for, whatever the sequence's length
    RESERVE,  # requests never scheduled that a step must have behind it; 0: all are loaded
    CACHING,  # 1: the pool's blocks are followed one by one, in `pool`
    LIMIT_SLOTS,
) = range(12)
# Slots of the integer state; the loop can stop after any step and go on from here.
(
    RUNNING,  # requests running
    PREEMPTED,  # requests on the stack of preempted ones; with priorities: in the heap of all waiting ones
    NEXT,  # first request never scheduled; with priorities: first not in the heap yet
    ARRIVED,  # first request not arrived yet
    FREE,  # KV blocks free
    DONE,  # requests finished
    STEPS,  # engine steps
    PREFILL_ONLY,  # steps without a decode
    PREEMPTIONS,
    PREFILL_TOKENS,
    DECODE_TOKENS,
    WHOLE,  # requests all of whose sequences have finished
    DECODE_BLOCKS,  # blocks of the decodes, summed over steps
    INTEGER_SLOTS,
) = range(14)
# Slots of the float state, in seconds. The loop pauses once NOW reaches UNTIL, or would jump past it idle.
NOW, BUSY, IDLE, UNTIL, FLOAT_SLOTS = range(5)
# Slots of a step's seconds, in the cost file's words; base and prefill tokens are of every step, the other
# two of steps that are not batched.
BASE, PER_SEQUENCE_GATHER, PER_PREFILL_TOKEN, PER_SEQ, SECONDS_SLOTS = range(5)
# What is marked of each request, and what a mark holds: the clock and the totals so far.
SCHEDULED, FIRST_TOKEN, FINISH, MARK_KINDS = range(4)
(
    MARK_NOW,
    MARK_BUSY,
    MARK_STEPS,
    MARK_DECODE_TOKENS,
    MARK_DECODE_BLOCKS,
    MARK_PREFILL_TOKENS,
    MARK_VALUES,
) = range(7)
# What the loop returned for.
FINISHED, PAUSED, STUCK, STARVED = range(4)


class Loaded(NamedTuple):
    """The requests loaded, in the order of their arrival.

    Attributes:
        arrival: (requests,) seconds, ascending; empty for a closed loop.
        prompt: (requests,) prompt tokens.
        output: (requests,) output tokens.
        supplied: (requests,) tokens, whole blocks, that a request starts from whenever it is admitted, in
            blocks of its own; empty: none.
        rank: (requests,) place of each in the order of priority and arrival; empty: first come, first served.
        of_rank: (requests,) the request of each rank.
    """

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    supplied: NDArray[np.int64]
    rank: NDArray[np.int64]
    of_rank: NDArray[np.int64]


class Rules(NamedTuple):
    """What an engine goes by.

    Attributes:
        limits: integer slots above.
        seconds: slots of a step's seconds above; the base of a batched step is in `batched_seconds`.
        batched_seconds: (max_num_seqs + 1, max_num_blocks + 1), seconds of a batched step by its size.
    """

    limits: NDArray[np.int64]
    seconds: NDArray[np.float64]
    batched_seconds: NDArray[np.float64]


class Progress(NamedTuple):
    """How far the requests are. All arrays are modified in place.

    Attributes:
        computed: (requests,) tokens whose KV is in the pool.
        known: (requests,) prompt tokens plus tokens sampled so far.
        blocks: (requests,) KV blocks of the computed tokens.
        dropped: (requests,) leading blocks that left the sliding window and were given back; empty: full
            attention.
        running: (max_num_seqs,) the running requests, oldest first.
        preempted: (requests,) stack of preempted requests, or with priorities the heap of waiting requests'
            ranks.
        unfinished: (requests / children,) sequences that have not finished; empty where nobody waits for all.
        state: integer slots above.
        clock: float slots above.
    """

    computed: NDArray[np.int64]
    known: NDArray[np.int64]
    blocks: NDArray[np.int64]
    dropped: NDArray[np.int64]
    running: NDArray[np.int64]
    preempted: NDArray[np.int64]
    unfinished: NDArray[np.int64]
    state: NDArray[np.int64]
    clock: NDArray[np.float64]
