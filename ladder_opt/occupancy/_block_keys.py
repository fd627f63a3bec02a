"""Which KV blocks of a trace hold the same tokens: the keys that a prefix cache finds them by.

A trace's `hash_ids` name the content of each of its own blocks of `block_tokens` prompt tokens (512 in
Mooncake's traces, 16 in Bailian's); the engine's blocks have another size. Engine block b of a prompt holds
its tokens from b * block_size to (b + 1) * block_size, so its key is made of the key of block b - 1 and the
ids of all trace blocks that those tokens lie in. This is exact where ids name tokens: smaller engine blocks
within one trace block share its id and differ by their place, larger ones take several ids.

What a trace does not say:

- Two prompts that part within a trace block have different ids for it, though they may share engine blocks
  before they part: hits are missed, fewer than block_tokens tokens for each such pair.
- What an output holds. Blocks with output tokens get keys of their own: the request itself finds them again
  after a preemption, and no other request does. A next turn whose prompt repeats the output computes it
  again, as its ids are first seen there; a server may have had it cached.

Keys are 64-bit mixes of all that lies before, made dense: two different prefixes among a million have the
same one with a probability of 3e-8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladder_opt._jit import njit
from ladder_opt.trace.table import HashIds


def block_keys(
    prompt: NDArray[np.int64], output: NDArray[np.int64], hash_ids: HashIds, *, block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys of every full block that each request can come to have.

    Args:
        prompt: (requests,) prompt tokens.
        output: (requests,) output tokens; the last of them is never computed.
        hash_ids: ids of the trace blocks of each prompt.
        block_size: tokens of an engine's block.

    Returns:
        offsets int64 (requests + 1,), and keys int64 from 0 without gaps.
    """
    full = (prompt + output - 1) // block_size
    offsets = np.zeros(len(prompt) + 1, np.int64)
    np.cumsum(full, out=offsets[1:])
    mixed = np.zeros(int(offsets[-1]), np.uint64)
    sizes = np.array([hash_ids.block_tokens, block_size])
    with np.errstate(over="ignore"):  # they wrap around; numpy tells where loops are not compiled
        _fill(prompt, offsets, hash_ids.offsets, hash_ids.values, sizes, mixed)
    dense = np.empty(len(mixed), np.int64)
    _number(mixed, np.full(1 << max(4, 2 * len(mixed) - 1).bit_length(), -1), dense)
    return offsets, dense


@njit(cache=True, nogil=True)
def _scrambled(value: np.uint64) -> np.uint64:
    """One output of SplitMix64 (Steele, Lea, Flood 2014)."""
    value += np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(value ^ (value >> np.uint64(31)))


@njit(cache=True, nogil=True)
def _mix(value: np.uint64, word: np.uint64) -> np.uint64:
    """A chain's next value. The word is scrambled by itself: plain small ones would cancel small values."""
    return np.uint64(_scrambled(value ^ _scrambled(word)))


@njit(cache=True, nogil=True)
def _number(mixed: NDArray[np.uint64], table: NDArray[np.int64], dense: NDArray[np.int64]) -> None:
    """Number values by their first occurrence, in `dense`; `table`, a power of two long, is scratch of -1.

    Open addressing, which leaves sorting a million keys far behind.
    """
    mask = np.uint64(table.size - 1)
    numbers = 0
    for index in range(mixed.size):
        at = np.int64(mixed[index] & mask)
        while table[at] >= 0 and mixed[table[at]] != mixed[index]:
            at = (at + 1) % table.size
        if table[at] < 0:
            table[at] = index
            dense[index] = numbers
            numbers += 1
        else:
            dense[index] = dense[table[at]]


@njit(cache=True, nogil=True)
def _fill(
    prompt: NDArray[np.int64],
    offsets: NDArray[np.int64],
    id_offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    sizes: NDArray[np.int64],
    mixed: NDArray[np.uint64],
) -> None:
    """Fill `mixed`, (offsets[-1],), in place; `sizes` are block_tokens and block_size."""
    block_tokens, block_size = sizes[0], sizes[1]
    for request in range(prompt.size):
        key = np.uint64(1)
        for index in range(offsets[request + 1] - offsets[request]):
            end = (index + 1) * block_size
            if end <= prompt[request]:
                for at in range(index * block_size // block_tokens, (end - 1) // block_tokens + 1):
                    key = _mix(key, np.uint64(ids[id_offsets[request] + at]))
                key = _mix(key, np.uint64(0))
            else:
                key = _mix(_mix(np.uint64(2), np.uint64(request)), np.uint64(index))
            mixed[offsets[request] + index] = key
