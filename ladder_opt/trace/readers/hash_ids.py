"""The `hash_ids` of Mooncake and Bailian traces: what each block of a prompt holds, as ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ladder_opt.trace.readers.table import MISSING, Cells, shown
from ladder_opt.trace.table import HashIds

NAME = "hash_ids"
# Mooncake's blocks have 512 tokens, Bailian's 16; the others are what engines use.
_BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024, 8, 4, 1)


def hash_ids_of(
    cells: Cells, prompt_tokens: NDArray[np.int64], rows: NDArray[np.intp]
) -> tuple[HashIds | None, str | None]:
    """The ids of the given rows, with the block size that their number tells; or why there are none.

    Args:
        cells: the column, a list of whole numbers in each row.
        prompt_tokens: int64 (rows,), of the rows that are kept.
        rows: which rows those are, in their order.

    Returns:
        The ids or None, and a note where there is a column that is not used.
    """
    lists = [cells[row] for row in rows]
    if all(one is None or one is MISSING for one in lists):
        return None, None
    ids: list[Sequence[int]] = []
    for row, one in zip(rows.tolist(), lists, strict=True):
        if not isinstance(one, list):
            return None, f"{NAME} left aside: row {row + 1} holds {shown(one)}, expected a list of ids"
        ids.append(one)
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in chain.from_iterable(ids)):
        return None, f"{NAME} left aside: expected whole numbers of 0 or more, of 63 bits, in every list"
    counts = np.fromiter(map(len, ids), np.int64, count=len(ids))
    for block_tokens in _BLOCK_TOKENS:
        if (counts == -(-prompt_tokens // block_tokens)).all():
            return HashIds.of(ids, block_tokens), None
    off = int(np.flatnonzero(counts != -(-prompt_tokens // _BLOCK_TOKENS[0]))[0])
    return None, (
        f"{NAME} left aside: row {rows[off] + 1} has {counts[off]} for {prompt_tokens[off]} prompt tokens, "
        "and no size of block fits all rows"
    )
