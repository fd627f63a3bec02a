"""New traffic with a part of it as it was when the plan was made: the traffic that never was.

Of a trace, the *rate* is swapped by letting arrivals come faster or slower, and the *lengths* by moving each
prompt and each output to the quantile of the old ones at which it stands among the new ones: order, bursts
and which long prompt goes with which output (the *mix*) stay those of the new trace. Of a histogram, batch
sizes stand for the rate and blocks for the lengths: one marginal is moved onto the old one, rank by rank, and
the order of ranks between the axes stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.parts import PlanTraffic
from ladder_opt.plan.traffic import Floats, Integers, length_at
from ladder_opt.trace.table import HashIds, Trace

_SEED = 20261130
_Quantiles = tuple[Sequence[float], Sequence[int]]


def with_lengths_of(
    traces: Sequence[Trace], now: PlanTraffic, then: PlanTraffic, engine: Engine
) -> list[Trace]:
    """The traces with the lengths of older traffic; each length keeps its rank.

    A length moves by the difference of the two quantile functions at its rank, so that traffic of the same
    lengths stays exactly as it is. Equal lengths share their ranks by lot, of a fixed seed. A pair that is
    longer than the engine takes has its output cut, then its prompt. Requests that are too long as they are
    stay so.
    """
    fits = [trace.prompt_tokens + trace.output_tokens <= engine.max_model_len for trace in traces]
    rng = np.random.default_rng(_SEED)
    prompts = _moved(
        [trace.prompt_tokens[rows] for trace, rows in zip(traces, fits, strict=True)],
        (now.shares, now.prompt_tokens),
        (then.shares, then.prompt_tokens),
        rng,
    )
    outputs = _moved(
        [trace.output_tokens[rows] for trace, rows in zip(traces, fits, strict=True)],
        (now.shares, now.output_tokens),
        (then.shares, then.output_tokens),
        rng,
    )
    moved = []
    for trace, rows, prompt, output in zip(traces, fits, prompts, outputs, strict=True):
        prompt_tokens, output_tokens = trace.prompt_tokens.copy(), trace.output_tokens.copy()
        prompt_tokens[rows] = np.minimum(prompt, engine.max_model_len - 1)
        output_tokens[rows] = np.minimum(output, engine.max_model_len - prompt_tokens[rows])
        moved.append(
            replace(
                trace,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                cached_tokens=None
                if trace.cached_tokens is None
                else np.minimum(trace.cached_tokens, prompt_tokens),
                hash_ids=None if trace.hash_ids is None else _resized(trace.hash_ids, prompt_tokens),
            )
        )
    return moved


def _moved(
    lengths: Sequence[Integers], now: _Quantiles, then: _Quantiles, rng: np.random.Generator
) -> list[Integers]:
    together = np.concatenate(lengths)
    order = np.lexsort((rng.permutation(len(together)), together))
    share = np.empty(len(together))
    share[order] = (np.arange(len(together)) + 0.5) / max(1, len(together))
    shift = length_at(share, *then) - length_at(share, *now)
    moved = np.maximum(1, np.rint(together + shift)).astype(np.int64)
    return np.split(moved, np.cumsum([len(each) for each in lengths])[:-1])


def _resized(ids: HashIds, prompt_tokens: Integers) -> HashIds:
    """Ids of prompts that became shorter, or longer by tokens that no other request has."""
    counts = -(-prompt_tokens // ids.block_tokens)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    fresh = int(ids.values.max(initial=-1)) + 1
    values = np.arange(fresh, fresh + int(offsets[-1]), dtype=np.int64)
    kept = np.minimum(counts, np.diff(ids.offsets))
    for row, count in enumerate(kept):
        values[offsets[row] : offsets[row] + count] = ids.values[ids.offsets[row] : ids.offsets[row] + count]
    return HashIds(ids.block_tokens, offsets, values)


def with_batches_of(now: StepHistogram, then: StepHistogram, engine: Engine) -> StepHistogram:
    """The histogram with the batch sizes of an older one."""
    return _with_marginal_of(now, then, engine, axis=0)


def with_blocks_of(now: StepHistogram, then: StepHistogram, engine: Engine) -> StepHistogram:
    """The histogram with the lengths of an older one, each batch's longest."""
    return _with_marginal_of(now, then, engine, axis=1)


def _with_marginal_of(now: StepHistogram, then: StepHistogram, engine: Engine, *, axis: int) -> StepHistogram:
    """Batched steps with one marginal moved, rank by rank, onto that of the older batched steps.

    Steps of the per-sequence path stay, and what the pool cannot hold is made shorter.
    """
    seqs, blocks, steps = _batched(now, engine)
    old_seqs, old_blocks, old_steps = _batched(then, engine)
    if not len(steps) or not len(old_steps):
        return now
    keys = (seqs, blocks)[axis]
    order = np.argsort(keys, kind="stable")
    size, part = _coupled(steps[order], (old_seqs, old_blocks)[axis], old_steps)
    row = order[part[0]]
    moved = [seqs[row], blocks[row]]
    moved[axis] = size
    if axis == 1:  # a longer sequence than the pool can hold beside the others
        moved[1] = np.minimum(moved[1], np.maximum(1, engine.usable_kv_blocks - moved[0] + 1))
    else:
        moved[0] = np.minimum(moved[0], np.maximum(1, engine.usable_kv_blocks - moved[1] + 1))
    small = ~now.batched(engine)
    return StepHistogram(
        np.concatenate([moved[0], now.num_seqs[small]]),
        np.concatenate([moved[1], now.num_blocks[small]]),
        np.concatenate([part[1], now.steps[small]]),
        sequences=now.sequences,
    )


def _batched(steps: StepHistogram, engine: Engine) -> tuple[Integers, Integers, Floats]:
    rows = steps.batched(engine)
    return steps.num_seqs[rows], steps.num_blocks[rows], steps.steps[rows]


def _coupled(
    weights: Floats, sizes: Integers, old_weights: Floats
) -> tuple[Integers, tuple[NDArray[np.intp], Floats]]:
    """Pieces of ranked rows cut where the old sizes' shares end.

    Returns:
        The size of each piece; the row that it is of, and its weight. Weights of one row add up to its own.
    """
    distinct, where = np.unique(sizes, return_inverse=True)
    ends_old = np.cumsum(np.bincount(where.ravel(), old_weights)) / old_weights.sum()
    ends = np.cumsum(weights) / weights.sum()
    ends[-1] = ends_old[-1] = 1.0
    cuts = np.unique(np.concatenate([ends, ends_old]))
    middles = cuts - np.diff(cuts, prepend=0.0) / 2
    weight = np.diff(cuts, prepend=0.0) * weights.sum()
    keep = weight > 1e-12 * weights.sum()
    row = np.minimum(np.searchsorted(ends, middles[keep]), len(ends) - 1)
    size = distinct[np.minimum(np.searchsorted(ends_old, middles[keep]), len(distinct) - 1)]
    return size, (row, weight[keep])
