"""A replay cut into shares: some engines of one trace each, which know nothing of each other.

Every share deals the trace's requests itself and keeps those of its own engines, so it needs the trace and
two numbers, and runs as well in another process as here. Steps are counted in whole numbers and seconds
kept by engine: however a replay is cut, it adds up to the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.executor import Executor, Pool
from ladder_opt.occupancy.engine_run import EngineRun, Tables
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.watch import Watch, Watched
from ladder_opt.trace.stream import CHUNK_REQUESTS, AnyTrace, TraceStream
from ladder_opt.trace.table import Trace, within_limits

BEYOND_KV_POOL = "beyond_kv_pool"
PARALLEL_FROM_REQUESTS = 500_000  # some tenths of a second; one core has done less before others start
LEAST_CHUNK = 1 << 17  # requests; below, what is done once an engine and chunk outweighs the replay

_SHARES_PER_WORKER = 4  # so that one that takes longer keeps nobody waiting for long

Requests = Callable[[int], None]
"""Called with a number of requests that are finished, now and then."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Engines `first` to `stop - 1` of the `replicas` that a trace's requests are dealt to in turn.

    Attributes:
        trace: the trace, or its requests of these engines alone (`replicas` is then their number).
        first: the first engine.
        stop: the engine after the last.
        replicas: how many engines take turns.
        engine: the limits of each.
        cost: what a step costs.
        batched_seconds: seconds of a batched step by its size.
        concurrency: closed loop: requests in flight on each engine; None: arrivals decide.
        rate_scale: arrivals come this many times as fast.
        scheduling: settings besides the limits.
        per_sequence: also count the calls of the per-sequence path.
        total_blocks: also count decode steps by the sum of their sequences' blocks.
        stepwise: run the step loop in place of the event loop.
        watch: what else to note of each engine; the trace then has to be in memory, and the share whole.
    """

    trace: AnyTrace
    first: int
    stop: int
    replicas: int
    engine: Engine
    cost: CostModel
    batched_seconds: NDArray[np.float64]
    concurrency: int | None
    rate_scale: float
    scheduling: Scheduling = field(default_factory=Scheduling)
    per_sequence: bool = False
    total_blocks: bool = False
    stepwise: bool = False
    watch: Watch | None = None

    @property
    def requests(self) -> int:
        """About how many requests it replays: what progress is counted in."""
        return len(self.trace) * (self.stop - self.first) // self.replicas


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a share gave.

    Attributes:
        tables: the counts by size.
        engines: of each engine that had requests, in order, the numbers that add up.
        set_aside: the whole trace's requests that are not replayed, by reason.
        last_arrival_seconds: the whole trace's last arrival among those replayed, on the trace's clock.
        watched: what was noted of each engine, where it was asked for.
    """

    tables: Tables
    engines: tuple[dict[str, float], ...]
    set_aside: dict[str, int]
    last_arrival_seconds: float
    watched: tuple[Watched, ...] = ()


def cut(share: Share, parts: int) -> list[Share]:
    """A share's engines in at most `parts` shares, in order and as even as can be.

    A trace in memory is dealt here, so that no part carries the requests of another. A stream stays
    whole: each part reads the file for itself.
    """
    count = share.stop - share.first
    edges = [share.first + count * part // parts for part in range(parts + 1)]
    ranges = [(first, stop) for first, stop in itertools.pairwise(edges) if first < stop]
    if len(ranges) <= 1:
        return [share]
    if not isinstance(share.trace, Trace):
        # Parts have a chunk each in memory; smaller ones keep the sum of them.
        most = min(share.trace.chunk_requests, max(LEAST_CHUNK, CHUNK_REQUESTS // len(ranges)))
        stream = replace(share.trace, chunk_requests=most)
        return [replace(share, trace=stream, first=first, stop=stop) for first, stop in ranges]
    trace = that_fit(share.trace, share.engine, share.scheduling)
    turn = np.arange(len(trace)) % share.replicas
    return [
        replace(
            share,
            trace=_bare(trace.take((turn >= first) & (turn < stop)), share.scheduling),
            first=0,
            stop=stop - first,
            replicas=stop - first,
        )
        for first, stop in ranges
    ]


def _bare(trace: Trace, scheduling: Scheduling) -> Trace:
    keeps_cached = scheduling.prefix_caching and not trace.has_hash_ids
    return replace(
        trace,
        cached_tokens=trace.cached_tokens if keeps_cached else None,
        hash_ids=trace.hash_ids if scheduling.prefix_caching else None,
        session=None,
        sources=(),
        notes=(),
    )


def run_share(share: Share, progress: Requests | None = None) -> Counted:
    """Replay a share's engines, chunk by chunk."""
    tables = Tables.empty(share.engine, per_sequence=share.per_sequence, total_blocks=share.total_blocks)
    engines = range(share.first, share.stop)
    runs: dict[int, EngineRun] = {}
    totals: dict[int, dict[str, float]] = {}
    watched: list[Watched] = []
    set_aside: dict[str, int] = {}
    dealt = 0
    last_arrival = 0.0
    caching, has_hash_ids = share.scheduling.prefix_caching, share.trace.has_hash_ids
    with_cached_tokens = caching and not has_hash_ids
    chunks = share.trace.chunks(with_cached_tokens=with_cached_tokens)
    for chunk, more_to_come in _and_whether_more(chunks):
        fitting = that_fit(chunk, share.engine, share.scheduling)
        numbers = np.flatnonzero(fits(chunk, share.engine, share.scheduling)) if share.watch else None
        for reason, count in fitting.set_aside.items():
            set_aside[reason] = set_aside.get(reason, 0) + count
        arrivals = None if share.concurrency else fitting.arrival_seconds
        for number in engines:
            rows = slice((number - dealt) % share.replicas, None, share.replicas)
            run = runs.get(number)
            if run is None:
                if len(fitting) <= rows.start:
                    continue  # no requests yet
                run = runs[number] = EngineRun(
                    share.engine,
                    share.cost,
                    share.batched_seconds,
                    tables,
                    concurrency=share.concurrency,
                    scheduling=share.scheduling,
                    stepwise=share.stepwise,
                    watch=share.watch,
                    has_hash_ids=has_hash_ids,
                )
            run.feed(
                None if arrivals is None else arrivals[rows] / share.rate_scale,
                fitting.prompt_tokens[rows],
                fitting.output_tokens[rows],
                priority=None if fitting.priority is None else fitting.priority[rows],
                hash_ids=fitting.hash_ids.take(np.arange(len(fitting))[rows])
                if fitting.hash_ids is not None and caching
                else None,
                cached_tokens=fitting.cached_tokens[rows]
                if fitting.cached_tokens is not None and with_cached_tokens
                else None,
            )
            run.advance(more_to_come=more_to_come, progress=progress)
            if not more_to_come:
                totals[number] = run.totals()
                if numbers is not None:
                    watched.append(run.watched(numbers[rows]))
                del runs[number]  # a trace in memory comes in one chunk: its engines run one after another
        dealt += len(fitting)
        if fitting.arrival_seconds is not None and len(fitting):
            last_arrival = float(fitting.arrival_seconds[-1])
    return Counted(
        tables=tables,
        engines=tuple(totals[number] for number in engines if number in totals),
        set_aside=set_aside,
        last_arrival_seconds=last_arrival,
        watched=tuple(watched),
    )


def run_shares(
    whole: Sequence[Share], executor: Executor, progress: Callable[[float], None] | None = None
) -> list[list[Counted]]:
    """Replay whole traces, each cut into as many shares as keep the executor busy.

    Returns:
        For each trace what its shares gave, in order.
    """
    requests = [share.requests for share in whole]
    if executor.dask is None and sum(requests) < PARALLEL_FROM_REQUESTS:
        executor = Executor(jobs=1)
    with executor.open() as pool:
        cuts = [cut(share, _parts(share, sum(requests), pool)) for share in whole]
        shares = [share for parts in cuts for share in parts]
        results = iter(
            pool.map(run_share, shares, sizes=[share.requests for share in shares], progress=progress)
        )
    return [[next(results) for _ in parts] for parts in cuts]


def _parts(share: Share, total: int, pool: Pool) -> int:
    """Shares to cut a trace into: by its part of the work, a stream in fewer (each reads the whole file)."""
    if pool.workers == 1 and not pool.is_remote:
        return 1
    each = pool.workers if isinstance(share.trace, TraceStream) else pool.workers * _SHARES_PER_WORKER
    return max(1, round(each * share.requests / max(1, total)))


def fits(trace: Trace, engine: Engine, scheduling: Scheduling) -> NDArray[np.bool_]:
    """Which requests the engine can finish."""
    tokens = trace.prompt_tokens + trace.output_tokens
    # The last token that is sampled never gets a KV slot.
    blocks = np.minimum(-(-(tokens - 1) // engine.block_size), scheduling.most_admission_blocks(engine))
    return np.asarray((tokens <= engine.max_model_len) & (blocks <= engine.usable_kv_blocks))


def that_fit(trace: Trace, engine: Engine, scheduling: Scheduling) -> Trace:
    """Set aside what the engine could never finish."""
    fitting = within_limits(trace, max_model_len=engine.max_model_len)
    return fitting.take(fits(fitting, engine, scheduling), reason=BEYOND_KV_POOL)


def added(parts: Sequence[Counted]) -> Counted:
    """Shares of one trace, in the order they were cut, as one."""
    counted = [part.tables.sequences for part in parts if part.tables.sequences is not None]
    totals = [part.tables.totals for part in parts if part.tables.totals is not None]
    return replace(
        parts[0],
        tables=Tables(
            np.sum([part.tables.steps for part in parts], axis=0),
            np.sum([part.tables.real_blocks for part in parts], axis=0),
            np.sum(counted, axis=0) if counted else None,
            np.sum(totals, axis=0) if totals else None,
        ),
        engines=tuple(engine for part in parts for engine in part.engines),
        last_arrival_seconds=max(part.last_arrival_seconds for part in parts),
    )


def _and_whether_more(chunks: Iterable[Trace]) -> Iterator[tuple[Trace, bool]]:
    waiting: Trace | None = None
    for chunk in chunks:
        if waiting is not None:
            yield waiting, True
        waiting = chunk
    if waiting is not None:
        yield waiting, False
