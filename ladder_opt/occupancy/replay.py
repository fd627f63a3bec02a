"""Replay a request trace through vLLM v1's scheduling rules, into a histogram of decode steps.

The rules, as read in vllm 0.28 (`vllm/v1/core/sched/scheduler.py`) for FCFS scheduling with chunked
prefill, without prefix caching, speculative decoding or async scheduling (`scheduling.py` has the settings
that change them):

1. An arrival counts once arrival <= now. An idle engine jumps to the next arrival.
2. Running requests are scheduled first, oldest first, each up to what is left of
   `max_num_batched_tokens`.
3. A running request that needs a KV block when none is free preempts the newest running request (itself
   at last): its blocks are freed, its computed tokens go to 0, it goes to the front of the waiting queue,
   and this step admits nobody.
4. Waiting requests follow while token budget, `max_num_seqs` and blocks allow. A request is admitted only
   if blocks for its whole prompt, and what it has generated so far, are free; it takes only those of the
   tokens scheduled.
5. A request is a *decode* in a step that schedules one token of it and in which its whole prompt was
   computed before; its KV length is then the computed tokens + 1. The one-token tail of a chunked prefill
   is no decode.
6. A request that has computed every known token samples one; with its last one it is finished.
7. A step takes the cost model's seconds; the ladders named decide which rung pair a batch is padded to.

Requests that no pool of this size can ever hold are set aside first (vLLM would never schedule them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, InternalError, UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.sequences import SequenceHistogram, dense_table_shape
from ladder_opt.trace.table import Trace, within_limits

if TYPE_CHECKING:
    from types import ModuleType

BEYOND_KV_POOL = "beyond_kv_pool"

_STEPS_BETWEEN_PROGRESS = 2_000_000
_MOST = 1_000_000_000  # of anything that is counted or scaled; past it there is a typing mistake

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What one or more independent replays gave; counts and seconds add up over them.

    Attributes:
        steps: the decode steps.
        sequences: calls of the per-sequence path; None where they were not asked for.
        requests: requests replayed.
        set_aside: requests found but not replayed, by reason (those of the trace included).
        engine_steps: steps of any kind.
        prefill_only_steps: steps without a decode (not in `steps`).
        preemptions: times that a running request lost its blocks.
        prefill_tokens: tokens scheduled outside decodes, recomputed ones included.
        decode_tokens: decodes scheduled, over all steps.
        cached_tokens: tokens that the prefix cache supplied.
        busy_seconds: sum of all steps' times.
        idle_seconds: time in which nothing was to do.
        end_seconds: when the last request finished (the latest replica's).
        span_seconds: the time that the traffic covers: from the first to the last arrival, or, for a
            closed loop, until the end; several traces' spans add up.
        longest_span_seconds: the longest of several traces' spans.
        server_seconds: the span times the replicas: the time that server starts are charged for.
    """

    steps: StepHistogram
    sequences: SequenceHistogram | None = None
    requests: int
    set_aside: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    engine_steps: int
    prefill_only_steps: int
    preemptions: int
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int = 0
    busy_seconds: float
    idle_seconds: float
    end_seconds: float
    span_seconds: float
    server_seconds: float
    longest_span_seconds: float

    @property
    def all_steps(self) -> StepHistogram:
        """The decode steps, with the calls of the per-sequence path where they were counted."""
        return self.steps if self.sequences is None else replace(self.steps, sequences=self.sequences)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the histograms, for `--json`."""
        left_out = ("steps", "sequences", "set_aside")
        names = [name for name in self.__dataclass_fields__ if name not in left_out]
        totals = {name: getattr(self, name) for name in names} | {
            "set_aside": dict(self.set_aside),
            "decode_steps": self.steps.total_steps,
        }
        if self.sequences is not None:
            totals["per_sequence_calls"] = self.sequences.total_calls
        return totals


def simulate(
    traces: Trace | Sequence[Trace],
    engine: Engine,
    cost: CostModel,
    *,
    ladders: Ladders | None = None,
    concurrency: int | None = None,
    rate_scale: float = 1.0,
    replicas: int = 1,
    weights: Sequence[float] | None = None,
    scheduling: Scheduling | None = None,
    per_sequence: bool = False,
    stepwise: bool = False,
    progress: Progress | None = None,
) -> Replay:
    """Replay traces, each on engines of its own, and add the histograms up.

    Args:
        traces: one trace, or several that are replayed independently of each other.
        engine: the limits of each engine.
        cost: what a step costs.
        ladders: the ladders that step times are taken from; default: the default ladders.
        concurrency: closed loop: as many requests in flight, arrivals unused, on each replica.
        rate_scale: arrivals come this many times as fast.
        replicas: engines that arrivals are dealt to in turn (round robin).
        weights: how often each trace's steps and seconds count in the mix; default: once each. Requests,
            tokens and other totals are counted once whatever the weights.
        scheduling: settings besides the limits; default: vLLM's on Spyre. Of a request with `n` sequences
            each counts as a request in the result.
        per_sequence: also count the calls of the per-sequence path (`Replay.sequences`).
        stepwise: run the plain step loop in place of the event loop: the same result, more slowly.
        progress: called with the share done, 0 to 1, now and then.

    Raises:
        UsageError: an option is out of range, `per_sequence` needs too large a table, or a trace without
            arrivals has no `concurrency`.
        InputError: no request can be replayed.
    """
    inputs = [traces] if isinstance(traces, Trace) else list(traces)
    _check_options(inputs, concurrency=concurrency, rate_scale=rate_scale, replicas=replicas)
    mix = _checked_weights(weights, len(inputs))
    scheduling = scheduling or Scheduling()
    scheduling.check(engine)
    if scheduling.prefix_caching and any(trace.hash_ids is None for trace in inputs):
        raise UsageError(
            "prefix-caching: found a trace without hash_ids, expected the ids of each prompt's blocks, as in "
            "Mooncake and Bailian traces"
        )
    if per_sequence:
        dense_table_shape(engine)  # refuse before the work
    seconds = step_seconds_by_size(engine, cost, ladders or default_ladders(engine))
    fitting = [_that_fit(trace, engine, scheduling) for trace in inputs]
    requests = sum(len(trace) for trace in fitting)
    set_aside = _add_counts([trace.set_aside for trace in fitting])
    if not requests:
        counts = ", ".join(f"{count} {reason}" for reason, count in set_aside.items())
        raise InputError(f"no request to replay ({counts or 'the trace is empty'})", "at least one")
    parts: list[Replay] = []
    spans: list[float] = []
    done = 0
    for trace, weight in zip(fitting, mix, strict=True):
        ends = [0.0]
        for first in range(min(replicas, len(trace))):
            share = trace.take(np.arange(first, len(trace), replicas))
            part = _replay_one(
                share,
                engine,
                cost,
                seconds,
                concurrency=concurrency,
                rate_scale=rate_scale,
                scheduling=scheduling,
                per_sequence=per_sequence,
                stepwise=stepwise,
                progress=None
                if progress is None
                else _scaled(progress, done / requests, len(share) / requests),
            )
            ends.append(part.end_seconds)
            parts.append(part if weight == 1 else _weighted(part, weight))
            done += len(share)
        spans.append(max(ends) if concurrency else trace.span_seconds / rate_scale)
    weighted = sum(span * weight for span, weight in zip(spans, mix, strict=True))
    return replace(
        _sum_of(parts),
        set_aside=MappingProxyType(set_aside),
        span_seconds=weighted,
        server_seconds=weighted * replicas,
        longest_span_seconds=max(spans),
    )


def sum_of_replays(replays: Sequence[Replay]) -> Replay:
    """What `simulate` gives for all of the traces at once, from a replay of each."""
    return replace(
        _sum_of(replays),
        set_aside=MappingProxyType(_add_counts([each.set_aside for each in replays])),
        span_seconds=sum(each.span_seconds for each in replays),
        server_seconds=sum(each.server_seconds for each in replays),
        longest_span_seconds=max(each.longest_span_seconds for each in replays),
    )


def _checked_weights(weights: Sequence[float] | None, traces: int) -> list[float]:
    mix = [1.0] * traces if weights is None else [float(weight) for weight in weights]
    if len(mix) != traces:
        raise UsageError(f"weights: found {len(mix)}, expected {traces}, one for each trace")
    for weight in mix:
        if not 1 / _MOST <= weight <= _MOST:
            raise UsageError(f"weights: found {weight}, expected numbers from {1 / _MOST:g} to {_MOST:g}")
    return mix


def _weighted(part: Replay, weight: float) -> Replay:
    return replace(
        part,
        steps=part.steps.scaled(weight),
        sequences=None if part.sequences is None else part.sequences.scaled(weight),
        busy_seconds=part.busy_seconds * weight,
        idle_seconds=part.idle_seconds * weight,
    )


def step_seconds_by_size(engine: Engine, cost: CostModel, ladders: Ladders) -> NDArray[np.float64]:
    """Seconds of a batched step of n sequences, the longest of b blocks, padded onto the ladders.

    Returns:
        float64 (max_num_seqs + 1, max_num_blocks + 1); rows below min_batched_seqs and column 0 are 0.
    """
    table = np.zeros((engine.max_num_seqs + 1, engine.max_num_blocks + 1))
    b = np.arange(1, engine.max_num_blocks + 1)
    below = engine.min_batched_seqs - 1
    for index, rung in enumerate(ladders.num_seqs):
        blocks = np.array(ladders.blocks_of(index), np.int64)
        table[below + 1 : rung + 1, 1:] = cost.batched_step_seconds(rung, blocks)[np.searchsorted(blocks, b)]
        below = rung
    return table


def _check_options(
    inputs: Sequence[Trace], *, concurrency: int | None, rate_scale: float, replicas: int
) -> None:
    if concurrency is not None and not 1 <= concurrency <= _MOST:
        raise UsageError(f"concurrency: found {concurrency}, expected 1 to {_MOST}")
    if not 1 / _MOST <= rate_scale <= _MOST:
        raise UsageError(f"rate_scale: found {rate_scale}, expected a number from {1 / _MOST:g} to {_MOST:g}")
    if not 1 <= replicas <= _MOST:
        raise UsageError(f"replicas: found {replicas}, expected 1 to {_MOST}")
    if concurrency is None and any(trace.arrival_seconds is None for trace in inputs):
        raise UsageError(
            "--concurrency: found none, expected a number, for the trace holds lengths without arrivals"
        )


def _that_fit(trace: Trace, engine: Engine, scheduling: Scheduling) -> Trace:
    """Set aside what the engine could never finish."""
    fitting = within_limits(trace, max_model_len=engine.max_model_len)
    # The last token that is sampled never gets a KV slot.
    blocks = -(-(fitting.prompt_tokens + fitting.output_tokens - 1) // engine.block_size)
    blocks = np.minimum(blocks, scheduling.most_admission_blocks(engine))
    return fitting.take(blocks <= engine.usable_kv_blocks, reason=BEYOND_KV_POOL)


def _replay_one(
    trace: Trace,
    engine: Engine,
    cost: CostModel,
    batched_seconds: NDArray[np.float64],
    *,
    concurrency: int | None,
    rate_scale: float,
    scheduling: Scheduling,
    per_sequence: bool,
    stepwise: bool,
    progress: Progress | None,
) -> Replay:
    trace = trace.take(np.repeat(np.arange(len(trace)), scheduling.n)) if scheduling.n > 1 else trace
    requests = len(trace)
    arrival = np.zeros(0)
    if concurrency is None and trace.arrival_seconds is not None:
        arrival = trace.arrival_seconds / rate_scale
    kernel, advance, extras = _loop_for(
        trace, engine, scheduling, closed=concurrency is not None, stepwise=stepwise
    )
    limits = np.zeros(kernel.LIMIT_SLOTS, np.int64)
    limits[kernel.BLOCK_SIZE] = engine.block_size
    limits[kernel.MAX_NUM_SEQS] = engine.max_num_seqs
    limits[kernel.MAX_TOKENS] = engine.max_num_batched_tokens
    limits[kernel.MIN_BATCHED] = engine.min_batched_seqs
    limits[kernel.CONCURRENCY] = concurrency or 0
    limits[kernel.CHILDREN] = scheduling.n
    limits[kernel.THRESHOLD] = scheduling.long_prefill_token_threshold
    limits[kernel.WINDOW] = scheduling.sliding_window or 0
    limits[kernel.MOST_BLOCKS] = scheduling.most_admission_blocks(engine)
    limits[kernel.CACHING] = scheduling.prefix_caching
    seconds = np.array(
        [
            cost.step_seconds.base,
            cost.replay_seconds.per_sequence_gather,
            cost.replay_seconds.per_prefill_token,
        ]
    )
    state = np.zeros(kernel.INTEGER_SLOTS, np.int64)
    state[kernel.FREE] = engine.usable_kv_blocks
    clock = np.zeros(kernel.FLOAT_SLOTS)
    if len(arrival):
        clock[kernel.NOW] = arrival[0]
    counts = np.zeros(batched_seconds.shape, np.int64)
    real = np.zeros(batched_seconds.shape, np.int64)
    sequences = np.zeros(dense_table_shape(engine), np.int64) if per_sequence else None
    work = [
        np.zeros(requests, np.int64),
        trace.prompt_tokens.copy(),
        np.zeros(requests, np.int64),
        np.zeros(engine.max_num_seqs, np.int64),
        np.zeros(requests, np.int64),
    ]
    while True:
        status = advance(
            arrival,
            trace.prompt_tokens,
            trace.output_tokens,
            limits,
            seconds,
            batched_seconds,
            *work,
            state,
            clock,
            counts,
            real,
            sequences,
            *extras,
            _STEPS_BETWEEN_PROGRESS,
        )
        if progress is not None:
            progress(state[kernel.DONE] / requests)
        if status != kernel.PAUSED:
            break
    if status == kernel.STUCK:
        raise InternalError(f"the replay stood still after {state[kernel.DONE]} of {requests} requests")
    num_seqs, num_blocks = np.nonzero(counts)
    return Replay(
        steps=StepHistogram(
            num_seqs,
            num_blocks,
            counts[num_seqs, num_blocks].astype(np.float64),
            real[num_seqs, num_blocks].astype(np.float64),
        ),
        sequences=None if sequences is None else SequenceHistogram.from_counts(sequences),
        requests=requests,
        engine_steps=int(state[kernel.STEPS]),
        prefill_only_steps=int(state[kernel.PREFILL_ONLY]),
        preemptions=int(state[kernel.PREEMPTIONS]),
        prefill_tokens=int(state[kernel.PREFILL_TOKENS]),
        decode_tokens=int(state[kernel.DECODE_TOKENS]),
        cached_tokens=int(extras[-1].hits[0]),
        busy_seconds=float(clock[kernel.BUSY]),
        idle_seconds=float(clock[kernel.IDLE]),
        end_seconds=float(clock[kernel.NOW]),
        span_seconds=0.0,
        server_seconds=0.0,
        longest_span_seconds=0.0,
    )


def _sum_of(parts: Sequence[Replay]) -> Replay:
    names = (
        "requests",
        "engine_steps",
        "prefill_only_steps",
        "preemptions",
        "prefill_tokens",
        "decode_tokens",
        "cached_tokens",
        "busy_seconds",
        "idle_seconds",
    )
    tables = [part.sequences for part in parts if part.sequences is not None]
    return replace(
        parts[0],
        **{name: sum(getattr(part, name) for part in parts) for name in names},
        steps=StepHistogram.sum_of(part.steps for part in parts),
        sequences=SequenceHistogram.sum_of(tables) if len(tables) == len(parts) else None,
        end_seconds=max(part.end_seconds for part in parts),
    )


def _add_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in counts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _scaled(progress: Progress, start: float, share: float) -> Progress:
    return lambda done: progress(start + share * done)


def _loop_for(
    trace: Trace, engine: Engine, scheduling: Scheduling, *, closed: bool, stepwise: bool
) -> tuple[ModuleType, Callable[..., int], tuple[Any, ...]]:
    """The module of the slots, the loop that can run these settings, and the arrays that only some need."""
    from ladder_opt.occupancy import (  # noqa: PLC0415  (numba loads on first use)
        _block_keys,
        _event_kernel,
        _prefix_cache,
        _step_kernel,
    )

    nothing = np.empty(0, np.int64)
    pool = _prefix_cache.make_pool(np.zeros(1, np.int64), nothing, num_blocks=0, max_num_seqs=0)
    if not stepwise and replace(scheduling, n=1) == Scheduling() and (scheduling.n == 1 or not closed):
        return _step_kernel, _event_kernel.advance, (pool,)
    rank = of_rank = dropped = unfinished = nothing
    if scheduling.policy == "priority":
        priority = np.zeros(len(trace), np.int64) if trace.priority is None else trace.priority
        of_rank = np.argsort(priority, kind="stable")
        rank = np.empty(len(trace), np.int64)
        rank[of_rank] = np.arange(len(trace))
    if scheduling.sliding_window is not None:
        dropped = np.zeros(len(trace), np.int64)
    if scheduling.n > 1:
        unfinished = np.full(len(trace) // scheduling.n, scheduling.n)
    if scheduling.prefix_caching and trace.hash_ids is not None:
        offsets, keys = _block_keys.block_keys(
            trace.prompt_tokens, trace.output_tokens, trace.hash_ids, block_size=engine.block_size
        )
        pool = _prefix_cache.make_pool(
            offsets, keys, num_blocks=engine.usable_kv_blocks, max_num_seqs=engine.max_num_seqs
        )
    return _step_kernel, _step_kernel.advance, (rank, of_rank, dropped, unfinished, pool)
