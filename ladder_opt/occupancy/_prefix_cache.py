"""vLLM's prefix cache over its block pool, for the step loop: blocks, their keys, and the order of eviction.

As in `vllm/v1/core/block_pool.py` of vllm 0.28: a block that is full gets its key as it is scheduled; a key
may have several blocks, of which the oldest is hit; free blocks form a queue, those without a key in front
(last in, first out), those with one at the back (least recently used first), a sequence's last blocks before
its first. A block leaves the cache when it is taken from the queue for something else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit


class Pool(NamedTuple):
    """The cache's state; all arrays are int64 and modified in place, and empty where there is no cache.

    Attributes:
        offsets: (requests + 1,) where each request's keys begin.
        keys: the key of each full block that a request can have, prompt and output, 0 to keys - 1.
        table: (max_num_seqs, blocks of a sequence) pool blocks of the running requests.
        slot_of: (requests,) the row of `table` that a running request has.
        spare: (max_num_seqs + 1,) rows without a request; the last element counts them.
        behind: (blocks + 2,) next in the free queue; its front and back are the last two elements.
        ahead: (blocks + 2,) the one before.
        users: (blocks,) running requests that hold a block.
        key_of: (blocks,) its key, -1 without.
        oldest: (keys,) first block of the key, -1 without.
        newest: (keys,) last block of the key.
        younger: (blocks,) next block of the same key, -1 for the last.
        older: (blocks,) the one before.
        keyed: (requests,) leading blocks of a running request that have their key.
        hits: (1,) tokens that the cache supplied.
    """

    offsets: NDArray[np.int64]
    keys: NDArray[np.int64]
    table: NDArray[np.int64]
    slot_of: NDArray[np.int64]
    spare: NDArray[np.int64]
    behind: NDArray[np.int64]
    ahead: NDArray[np.int64]
    users: NDArray[np.int64]
    key_of: NDArray[np.int64]
    oldest: NDArray[np.int64]
    newest: NDArray[np.int64]
    younger: NDArray[np.int64]
    older: NDArray[np.int64]
    keyed: NDArray[np.int64]
    hits: NDArray[np.int64]


def make_pool(
    offsets: NDArray[np.int64], keys: NDArray[np.int64], *, num_blocks: int, max_num_seqs: int
) -> Pool:
    """A pool whose blocks are all free and without a key."""
    requests = len(offsets) - 1
    longest = int(np.diff(offsets).max(initial=0)) + 1
    num_keys = int(keys.max(initial=-1)) + 1
    around = np.arange(num_blocks + 2)
    behind, ahead = around + 1, around - 1
    front, back = num_blocks, num_blocks + 1
    behind[front], ahead[back] = (0, num_blocks - 1) if num_blocks else (back, front)
    if num_blocks:
        ahead[0], behind[num_blocks - 1] = front, back
    spare = np.arange(max_num_seqs + 1)
    return Pool(
        offsets=offsets,
        keys=keys,
        table=np.zeros((max_num_seqs, longest), np.int64),
        slot_of=np.zeros(requests, np.int64),
        spare=spare,
        behind=behind,
        ahead=ahead,
        users=np.zeros(num_blocks, np.int64),
        key_of=np.full(num_blocks, -1),
        oldest=np.full(num_keys, -1),
        newest=np.full(num_keys, -1),
        younger=np.full(num_blocks, -1),
        older=np.full(num_blocks, -1),
        keyed=np.zeros(requests, np.int64),
        hits=np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def _link(pool: Pool, before: int, block: int) -> None:
    after = pool.behind[before]
    pool.behind[before], pool.ahead[block] = block, before
    pool.behind[block], pool.ahead[after] = after, block


@njit(cache=True, nogil=True)
def _unlink(pool: Pool, block: int) -> None:
    before, after = pool.ahead[block], pool.behind[block]
    pool.behind[before], pool.ahead[after] = after, before


@njit(cache=True, nogil=True)
def _forget(pool: Pool, block: int) -> None:
    """Take a block out of the cache."""
    key, younger, older = pool.key_of[block], pool.younger[block], pool.older[block]
    if older < 0:
        pool.oldest[key] = younger
    else:
        pool.younger[older] = younger
    if younger < 0:
        pool.newest[key] = older
    else:
        pool.older[younger] = older
    pool.key_of[block] = -1


@njit(cache=True, nogil=True)
def cached_blocks(pool: Pool, request: int, tokens: int, block_size: int) -> tuple[int, int]:
    """Leading blocks of a sequence of so many tokens that are cached, and how many of them are free.

    At least one token is left to compute.
    """
    first = pool.offsets[request]
    hits = 0
    free = 0
    while hits < (tokens - 1) // block_size:
        block = pool.oldest[pool.keys[first + hits]]
        if block < 0:
            break
        free += pool.users[block] == 0
        hits += 1
    return hits, free


@njit(cache=True, nogil=True)
def admit(pool: Pool, request: int, hits: int) -> None:
    """Give a request a row of the table, with the cached blocks that it starts from."""
    pool.spare[-1] -= 1
    slot = pool.spare[pool.spare[-1]]
    pool.slot_of[request] = slot
    pool.keyed[request] = hits
    for index in range(hits):
        block = pool.oldest[pool.keys[pool.offsets[request] + index]]
        if pool.users[block] == 0:
            _unlink(pool, block)
        pool.users[block] += 1
        pool.table[slot, index] = block


@njit(cache=True, nogil=True)
def extend(pool: Pool, request: int, held: int, wanted: int, tokens: int, block_size: int) -> None:
    """Take `wanted` blocks from the front of the queue, and key those that `tokens` fill."""
    slot = pool.slot_of[request]
    front = pool.users.size
    for index in range(held, held + wanted):
        block = pool.behind[front]
        _unlink(pool, block)
        if pool.key_of[block] >= 0:
            _forget(pool, block)
        pool.users[block] = 1
        pool.table[slot, index] = block
    for index in range(pool.keyed[request], tokens // block_size):
        block = pool.table[slot, index]
        key = pool.keys[pool.offsets[request] + index]
        newest = pool.newest[key]
        pool.key_of[block], pool.younger[block], pool.older[block] = key, -1, newest
        if newest < 0:
            pool.oldest[key] = block
        else:
            pool.younger[newest] = block
        pool.newest[key] = block
    pool.keyed[request] = max(pool.keyed[request], tokens // block_size)


@njit(cache=True, nogil=True)
def release(pool: Pool, request: int, held: int) -> int:
    """Let go of a request's blocks, the last first; returns how many of them nobody else holds."""
    slot = pool.slot_of[request]
    front = pool.users.size
    back = front + 1
    last_front = front  # blocks without a key go to the front in the order they are let go
    freed = 0
    for index in range(held - 1, -1, -1):
        block = pool.table[slot, index]
        pool.users[block] -= 1
        if pool.users[block] > 0:
            continue
        freed += 1
        if pool.key_of[block] < 0:
            _link(pool, last_front, block)
            last_front = block
        else:
            _link(pool, pool.ahead[back], block)
    pool.spare[pool.spare[-1]] = slot
    pool.spare[-1] += 1
    return freed
