"""The rows of a ladder problem, as arrays over all candidate columns.

**Batched rows** are candidate num_seqs rungs: see `problem`.

**Query rows** come below them where the per-sequence kernel shares the num_blocks ladder (target
`spyre-env`). They are candidate query lengths q of that kernel, which compiles a variant for each pair of a
num_blocks rung m and a query rung q above p that any sequence can ask for: the shortest query padded to q has
p + 1 tokens, and lies in a sequence at least as long, so the variant needs m * block_size >= p + 1. A call of
b blocks and l query tokens is padded to the smallest m >= b and q >= l.

With calls as weights, this *is* the product problem's objective over (query rung, num_blocks rung) pairs, and
both kernels add up over one block ladder. So the rows of both are put one after another on one axis: the
ladder on it has to hold the shortest query length 1 (a decode), the top query length, and the top num_seqs
rung. The rung below the lowest num_seqs rung is then always the top query length, and since cumulative
weights go on from there, every interval of rows lies in one of the two kinds. The solver needs no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError
from ladder_opt.occupancy.sequences import SequenceHistogram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one kind or of both.

    Attributes:
        sizes: int64 (rows,), ascending within a kind.
        cumulative: float64 (rows + 1, columns + 1), from 0; [j, c] = weight of sizes <= sizes[j - 1] and
            num_blocks <= columns[c - 1].
        step_seconds: float64 (rows, columns).
        compile_seconds: float64 (rows, columns).
        first_column: int64 (rows, columns), the lowest column of the pair's variant; -1 where the recorder
            never compiles it.
        reach: int64 (rows, columns), for intervals that start below each row: the highest position of the
            column below at which a variant of the column opens; -1 for none.
        required: bool (rows,), whether the row has to be a rung.
    """

    sizes: Integers
    cumulative: Floats
    step_seconds: Floats
    compile_seconds: Floats
    first_column: Integers
    reach: Integers
    required: NDArray[np.bool_]


def batched_rows(
    totals: Floats,
    sizes: Integers,
    columns: Integers,
    engine: Engine,
    cost: CostModel,
    *,
    pinned: bool,
    any_variant: bool = False,
) -> Rows:
    """Rows of batched decode.

    Args:
        totals: float64 (max_num_seqs + 1, max_num_blocks + 1), steps of at most n sequences and b blocks.
        sizes: candidate num_seqs rungs.
        columns: candidate num_blocks rungs.
        engine: the limits.
        cost: prices.
        pinned: whether every row has to be a rung.
        any_variant: variants are compiled even where the KV pool can hold no batch that is padded to them.
    """
    keys = cost.geometry.variant_key(sizes[:, None], columns[None, :])
    first = _first_sharing(keys)
    # What the pool cannot hold is never batched; what reads all of its pages at once is never recorded.
    below = np.r_[engine.min_batched_seqs - 1, sizes[:-1]] if len(sizes) else sizes
    blocks = engine.usable_kv_blocks - below - 1
    reach = np.searchsorted(np.r_[0, columns], blocks, side="right").astype(np.int64) - 1
    if any_variant:
        reach[:] = len(columns)
    first[cost.geometry.entries(sizes[:, None], columns[None, :]) >= engine.num_pages] = -1
    required = np.full(len(sizes), pinned)
    required[-1:] = True
    return Rows(
        sizes=sizes,
        cumulative=totals[np.r_[0, sizes]][:, np.r_[0, columns]],
        step_seconds=cost.batched_step_seconds(sizes[:, None], columns[None, :]),
        compile_seconds=cost.variant_compile_seconds(sizes[:, None], columns[None, :]),
        first_column=first,
        reach=np.repeat(reach[:, None], len(columns), axis=1),
        required=required,
    )


def query_rows(
    calls: SequenceHistogram,
    sizes: Integers,
    columns: Integers,
    engine: Engine,
    cost: CostModel,
    *,
    pinned: bool,
) -> Rows:
    """Rows of the per-sequence kernel; arguments as for `batched_rows`, `sizes` are query lengths from 1."""
    weights = np.zeros((len(sizes) + 1, len(columns) + 1))
    np.add.at(
        weights,
        (np.searchsorted(sizes, calls.query_len) + 1, np.searchsorted(columns, calls.num_blocks) + 1),
        calls.calls,
    )
    shape = (len(sizes), len(columns))
    shortest = np.r_[1, sizes[:-1] + 1]  # query that any call padded to the row has
    fits = columns[None, :] * engine.block_size >= shortest[:, None]
    first = np.broadcast_to(np.arange(len(columns), dtype=np.int64), shape).copy()
    first[:, columns > engine.num_pages] = -1
    required = np.full(len(sizes), pinned)
    required[[0, -1]] = True
    return Rows(
        sizes=sizes,
        cumulative=weights.cumsum(0).cumsum(1),
        step_seconds=cost.sequence_call_seconds(columns[None, :], sizes[:, None]),
        compile_seconds=np.broadcast_to(cost.sequence_compile_seconds(columns), shape).copy(),
        first_column=first,
        reach=np.where(fits, len(columns), -1),
        required=required,
    )


def stacked(below: Rows, above: Rows) -> Rows:
    """Both kinds on one axis: the rows of `above` go on where those of `below` end."""
    rest = above.cumulative[1:] + below.cumulative[-1] - above.cumulative[0]
    return Rows(
        cumulative=np.concatenate((below.cumulative, rest)),
        **{
            name: np.concatenate((getattr(below, name), getattr(above, name)))
            for name in ("sizes", "step_seconds", "compile_seconds", "first_column", "reach", "required")
        },
    )


def useful_columns(rows: Rows) -> NDArray[np.intp]:
    """Columns that may be needed; the reduction and its proof stand in `problem`."""
    weights = np.diff(np.diff(rows.cumulative, axis=0), axis=1)
    step, price, first = rows.step_seconds, rows.compile_seconds, rows.first_column
    columns = weights.shape[1]
    keep = np.ones(columns, bool)
    for c in range(1, columns - 1):
        if weights[:, c].any():
            continue
        shared_above = first[:, c + 1] <= c
        keep[c] = not (
            (step[:, c - 1] <= step[:, c]).all()
            and (price[:, c - 1] <= price[:, c]).all()
            and (first[shared_above, c + 1] <= c - 1).all()
        )
    return np.flatnonzero(keep)


def useful_rows(rows: Rows, num_query_rows: int) -> NDArray[np.intp]:
    """Rows that may be needed; the reduction and its proof stand in `problem`."""
    weights = np.diff(np.diff(rows.cumulative, axis=0), axis=1)
    step, price, first, reach = rows.step_seconds, rows.compile_seconds, rows.first_column, rows.reach
    keep = np.ones(len(rows.sizes), bool)
    for r in range(1, len(rows.sizes) - 1):
        if rows.required[r] or r == num_query_rows:  # the first batched row has none of its kind below it
            continue
        keep[r] = weights[r].any() or not (
            (step[r - 1] <= step[r]).all()
            and (price[r - 1] <= price[r]).all()
            and (first[r - 1] <= first[r]).all()
            and (reach[r] <= reach[r + 1]).all()
        )
    return np.flatnonzero(keep)


def _first_sharing(keys: Integers) -> Integers:
    """Lowest column of each column's variant; refuses a geometry the solver's sums would misprice."""
    rows, columns = keys.shape
    opens = np.ones((rows, columns), bool)
    opens[:, 1:] = keys[:, 1:] != keys[:, :-1]
    first = np.maximum.accumulate(np.where(opens, np.arange(columns)[None, :], 0), axis=1)
    if int(opens.sum()) != len(np.unique(keys)):
        raise InternalError(
            "the kernel's variants are not consecutive in num_blocks, or shared between num_seqs"
        )
    return first.astype(np.int64)
