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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.executor import Executor
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.request_times import RequestTimes
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.sequences import SequenceHistogram, dense_table_shape
from ladder_opt.occupancy.shares import Counted, Share, added, run_share, run_shares
from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.occupancy.totals import TotalsHistogram, totals_table_shape
from ladder_opt.occupancy.watch import Watch
from ladder_opt.trace.stream import AnyTrace, traces_of

_BEHIND_SHARE, _BEHIND_SECONDS = 1.25, 60.0  # an end this far past the last arrival is no longer a tail
_MOST = 1_000_000_000  # of anything that is counted or scaled; past it there is a typing mistake

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What one or more independent replays gave; counts and seconds add up over them.

    Attributes:
        steps: the decode steps.
        sequences: calls of the per-sequence path; None where they were not asked for.
        totals: decode steps by the blocks of all their sequences together; None likewise.
        requests: requests replayed.
        set_aside: requests found but not replayed, by reason (those of the trace included).
        engine_steps: steps of any kind.
        prefill_only_steps: steps without a decode (not in `steps`).
        preemptions: times that a running request lost its blocks.
        prefill_tokens: tokens scheduled outside decodes, recomputed ones included.
        decode_tokens: decodes scheduled, over all steps.
        cached_tokens: tokens that the prefix cache supplied, again after each preemption.
        busy_seconds: sum of all steps' times.
        idle_seconds: time in which nothing was to do.
        end_seconds: when the last request finished (the latest replica's).
        span_seconds: the time that the traffic covers: from the first to the last arrival, or, for a
            closed loop, until the end; several traces' spans add up.
        longest_span_seconds: the longest of several traces' spans.
        server_seconds: the span times the replicas: the time that server starts are charged for.
        timeline: samples over time; None where they were not asked for.
        request_times: when each request was scheduled, began and finished; None likewise.
    """

    steps: StepHistogram
    sequences: SequenceHistogram | None = None
    totals: TotalsHistogram | None = None
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
    timeline: Timeline | None = None
    request_times: RequestTimes | None = None

    @property
    def falls_behind(self) -> bool:
        """Whether the traffic is more than the engines keep up with."""
        return falls_behind(self.end_seconds, self.longest_span_seconds)

    @property
    def all_steps(self) -> StepHistogram:
        """The decode steps, with the calls of the per-sequence path where they were counted."""
        return self.steps if self.sequences is None else replace(self.steps, sequences=self.sequences)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the histograms, for `--json`."""
        left_out = ("steps", "sequences", "totals", "set_aside", "timeline", "request_times")
        names = [name for name in self.__dataclass_fields__ if name not in left_out]
        totals = {name: getattr(self, name) for name in names} | {
            "set_aside": dict(self.set_aside),
            "decode_steps": self.steps.total_steps,
        }
        if self.sequences is not None:
            totals["per_sequence_calls"] = self.sequences.total_calls
        return totals


def falls_behind(end_seconds: float, span_seconds: float) -> bool:
    """Whether traffic is more than engines keep up with: they end well after its last arrival.

    Args:
        end_seconds: when the last request finished.
        span_seconds: from the first arrival to the last; 0 where there is none, and nothing to fall behind.
    """
    return span_seconds > 0 and end_seconds > _BEHIND_SHARE * span_seconds + _BEHIND_SECONDS


@checked
def simulate(
    traces: AnyTrace | Sequence[AnyTrace],
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
    total_blocks: bool = False,
    timeline_seconds: float | None = None,
    request_times: bool = False,
    stepwise: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Replay traces, each on engines of its own, and add the histograms up.

    Args:
        traces: one trace, or several that are replayed independently of each other; in memory, or streams
            (which are read once, or once by each job).
        engine: the limits of each engine.
        cost: what a step costs.
        ladders: the ladders that step times are taken from; default: the default ladders.
        concurrency: closed loop: as many requests in flight, arrivals unused, on each replica.
        rate_scale: arrivals come this many times as fast.
        replicas: engines that arrivals are dealt to in turn (round robin).
        weights: how often each trace's steps and seconds count in the mix; default: once each. Requests,
            tokens and other totals are counted once whatever the weights.
        scheduling: settings besides the limits; default: vLLM's on Spyre. Of a request with `n` sequences
            each counts as a request in the result. With priorities, or more than one sequence a request, an
            engine's part of a stream is loaded whole; with prefix caching, all of it, but for a trace of
            `cached_tokens` alone on a pool that is never short.
        per_sequence: also count the calls of the per-sequence path (`Replay.sequences`).
        total_blocks: also count decode steps by the sum of their sequences' blocks (`Replay.totals`).
        timeline_seconds: also sample what runs and waits, this many seconds apart (`Replay.timeline`). This
            and `request_times` load a stream whole and replay in this process alone.
        request_times: also note when each request was scheduled, began and finished
            (`Replay.request_times`).
        stepwise: run the plain step loop in place of the event loop: the same result, more slowly.
        executor: where engines are replayed; default: on all cores here. The result is the same
            to the bit wherever it is.
        progress: called with the share done, 0 to 1, now and then.

    Raises:
        UsageError: an option is out of range, `per_sequence` or `total_blocks` needs too large a table, a
            trace without arrivals has no `concurrency`, with `prefix_caching` one says nothing of what is
            cached, or several traces were to have one timeline.
        InputError: no request can be replayed.
    """
    inputs = traces_of(traces)
    _check_options(inputs, concurrency=concurrency, rate_scale=rate_scale, replicas=replicas)
    watch = Watch(timeline_seconds, request_times) if timeline_seconds is not None or request_times else None
    if watch is not None and len(inputs) > 1:
        raise UsageError(
            f"{'request_times' if timeline_seconds is None else 'timeline_seconds'}: found {len(inputs)} "
            "traces, expected one, for each is replayed on a clock of its own"
        )
    mix = _checked_weights(weights, len(inputs))
    scheduling = scheduling or Scheduling()
    scheduling.check(engine)
    if scheduling.prefix_caching:
        inputs = [_with_what_is_cached(trace, engine, scheduling) for trace in inputs]
    if watch is not None:
        inputs = [trace.whole() for trace in inputs]
    if per_sequence:
        dense_table_shape(engine)  # refuse before the work
    if total_blocks:
        totals_table_shape(engine)
    seconds = step_seconds_by_size(engine, cost, ladders or default_ladders(engine))
    whole = [
        Share(
            trace=trace,
            first=0,
            stop=max(1, min(replicas, len(trace))),
            replicas=replicas,
            engine=engine,
            cost=cost,
            batched_seconds=seconds,
            concurrency=concurrency,
            rate_scale=rate_scale,
            scheduling=scheduling,
            per_sequence=per_sequence,
            total_blocks=total_blocks,
            stepwise=stepwise,
            watch=watch,
        )
        for trace in inputs
    ]
    if watch is None:
        counted = [added(parts) for parts in run_shares(whole, executor or Executor(), progress)]
    else:
        counted = [run_share(share) for share in whole]
    if progress is not None:
        progress(1.0)  # what is set aside was never done
    set_aside = _add_counts([part.set_aside for part in counted])
    if not any(part.engines for part in counted):
        counts = ", ".join(f"{count} {reason}" for reason, count in set_aside.items())
        raise InputError(f"no request to replay ({counts or 'the trace is empty'})", "at least one")
    spans = [
        max((engine["end_seconds"] for engine in part.engines), default=0.0)
        if concurrency
        else part.last_arrival_seconds / rate_scale
        for part in counted
    ]
    weighted = sum(span * weight for span, weight in zip(spans, mix, strict=True))
    return Replay(
        **_totals(counted, mix),
        steps=StepHistogram.sum_of(
            _histogram(part, weight) for part, weight in zip(counted, mix, strict=True)
        ),
        sequences=_calls(counted, mix) if per_sequence else None,
        totals=_total_blocks(counted, mix) if total_blocks else None,
        set_aside=MappingProxyType(set_aside),
        span_seconds=weighted,
        server_seconds=weighted * replicas,
        longest_span_seconds=max(spans),
        timeline=Timeline.sum_of([one.timeline for one in counted[0].watched if one.timeline is not None]),
        request_times=RequestTimes.sum_of(
            [one.request_times for one in counted[0].watched if one.request_times is not None]
        ),
    )


def sum_of_replays(replays: Sequence[Replay]) -> Replay:
    """What `simulate` gives for all of the traces at once, from a replay of each."""
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
        "span_seconds",
        "server_seconds",
    )
    tables = [each.sequences for each in replays if each.sequences is not None]
    totals = [each.totals for each in replays if each.totals is not None]
    return Replay(
        **{name: sum(getattr(each, name) for each in replays) for name in names},
        steps=StepHistogram.sum_of(each.steps for each in replays),
        sequences=SequenceHistogram.sum_of(tables) if len(tables) == len(replays) else None,
        totals=TotalsHistogram.sum_of(totals) if len(totals) == len(replays) else None,
        set_aside=MappingProxyType(_add_counts([each.set_aside for each in replays])),
        end_seconds=max(each.end_seconds for each in replays),
        longest_span_seconds=max(each.longest_span_seconds for each in replays),
    )


def load_warnings(replay: Replay) -> list[str]:
    """One line where the engines cannot keep up with the arrivals."""
    if not replay.falls_behind:
        return []
    span = replay.longest_span_seconds
    times = replay.end_seconds / span
    ends = f"the last request ends {times:.{0 if times > 10 else 1}f} times the trace's span after its start"
    enough = math.ceil(replay.busy_seconds / span)
    charged = "and server starts are charged for that span alone"
    return [f"the engine falls behind: {ends}, {charged}; it would take about --replicas {enough} to keep up"]


def scheduling_notes(traces: AnyTrace | Sequence[AnyTrace], scheduling: Scheduling) -> list[str]:
    """What a person should know of how these traces go with the settings, a line each."""
    inputs = traces_of(traces)
    return [*_priority_notes(inputs, scheduling), *prefix_caching_notes(inputs, scheduling)]


def _priority_notes(inputs: Sequence[AnyTrace], scheduling: Scheduling) -> list[str]:
    without = sum(not trace.has_priority for trace in inputs)
    if scheduling.policy != "priority" or not without:
        return []
    which = "no trace has" if without == len(inputs) else f"{without} of {len(inputs)} traces have no"
    return [f"scheduling-policy priority: {which} priorities: requests without one have 0, and come in turn"]


def prefix_caching_notes(traces: AnyTrace | Sequence[AnyTrace], scheduling: Scheduling) -> list[str]:
    """What a person should know of a replay of these traces, where it goes by their `cached_tokens`."""
    inputs = traces_of(traces)
    counted = sum(not trace.has_hash_ids and trace.has_cached_tokens for trace in inputs)
    if not scheduling.prefix_caching or not counted:
        return []
    return [
        (
            f"prefix-caching: {counted} of {len(inputs)} traces say by cached_tokens alone what a server had "
            "cached: requests start from as much, which another pool or load would change, and share no KV "
            "blocks, so the pool fills sooner than on a server"
        )
    ]


def _with_what_is_cached(trace: AnyTrace, engine: Engine, scheduling: Scheduling) -> AnyTrace:
    """The trace; in memory where the pool's blocks are followed, as all requests are loaded at once then."""
    if not trace.has_hash_ids and not trace.has_cached_tokens:
        raise UsageError(
            "--prefix-caching: found a trace without hash_ids or cached_tokens, expected the ids of each "
            "prompt's blocks, as in Mooncake and Bailian traces, or how much of each prompt was cached "
            "(--no-prefix-caching replays without, whatever an engine file says)"
        )
    return trace.whole() if scheduling.follows_blocks(engine, has_hash_ids=trace.has_hash_ids) else trace


def _histogram(part: Counted, weight: float) -> StepHistogram:
    num_seqs, num_blocks = np.nonzero(part.tables.steps)
    steps = StepHistogram(
        num_seqs,
        num_blocks,
        part.tables.steps[num_seqs, num_blocks].astype(np.float64),
        part.tables.real_blocks[num_seqs, num_blocks].astype(np.float64),
    )
    return steps if weight == 1 else steps.scaled(weight)


def _calls(counted: Sequence[Counted], mix: Sequence[float]) -> SequenceHistogram:
    tables = [
        SequenceHistogram.from_counts(part.tables.sequences).scaled(weight)
        for part, weight in zip(counted, mix, strict=True)
        if part.tables.sequences is not None
    ]
    return SequenceHistogram.sum_of(tables)


def _total_blocks(counted: Sequence[Counted], mix: Sequence[float]) -> TotalsHistogram:
    return TotalsHistogram.sum_of(
        TotalsHistogram.from_counts(part.tables.totals).scaled(weight)
        for part, weight in zip(counted, mix, strict=True)
        if part.tables.totals is not None
    )


def _totals(counted: Sequence[Counted], mix: Sequence[float]) -> dict[str, Any]:
    """Numbers of all engines, added in the order of traces and engines; seconds by the traces' weights."""
    totals: dict[str, Any] = {}
    for part, weight in zip(counted, mix, strict=True):
        for engine in part.engines:
            for name, value in engine.items():
                if name == "end_seconds":
                    totals[name] = max(totals.get(name, 0.0), value)
                else:
                    times = weight if isinstance(value, float) else 1
                    totals[name] = totals.get(name, 0) + value * times
    return totals


def _checked_weights(weights: Sequence[float] | None, traces: int) -> list[float]:
    mix = [1.0] * traces if weights is None else [float(weight) for weight in weights]
    if len(mix) != traces:
        raise UsageError(f"--weights: found {len(mix)}, expected {traces}, one for each trace")
    for weight in mix:
        if not 1 / _MOST <= weight <= _MOST:
            raise UsageError(f"--weights: found {weight}, expected numbers from {1 / _MOST:g} to {_MOST:g}")
    return mix


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
    inputs: Sequence[AnyTrace], *, concurrency: int | None, rate_scale: float, replicas: int
) -> None:
    if concurrency is not None and not 1 <= concurrency <= _MOST:
        raise UsageError(f"--concurrency: found {concurrency}, expected 1 to {_MOST}")
    if not 1 / _MOST <= rate_scale <= _MOST:
        raise UsageError(
            f"--rate-scale: found {rate_scale}, expected a number from {1 / _MOST:g} to {_MOST:g}"
        )
    if not 1 <= replicas <= _MOST:
        raise UsageError(f"--replicas: found {replicas}, expected 1 to {_MOST}")
    if concurrency is None and not all(trace.has_arrivals for trace in inputs):
        raise UsageError(
            "--concurrency: found none, expected a number, for the trace holds lengths without arrivals"
        )


def _add_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in counts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return total
