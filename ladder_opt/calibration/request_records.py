"""Per-request records of a server: lengths, and when each request was queued, began and ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.shares import fits
from ladder_opt.trace.read import read_timed_trace
from ladder_opt.trace.table import HashIds, Trace
from ladder_opt.trace.timings import Timings

WITHOUT_TIMINGS = "without_timings"
LEAST_REQUESTS = 8


@dataclass(frozen=True)
class RequestRecords:
    """What a server did, one row a request, in the order in which they reached the engine.

    Attributes:
        trace: the requests; `arrival_seconds` is when each reached the engine, where the record says so.
        timings: the same rows; first and last token are there for all, `scheduled_seconds` may be NaN.
    """

    trace: Trace
    timings: Timings

    def __len__(self) -> int:
        return len(self.trace)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> RequestRecords:
        """The given rows, in ascending order; the clock stays."""
        return RequestRecords(self.trace.take(rows), self.timings.take(rows))


@checked
def read_request_records(path: str | Path) -> RequestRecords:
    """Read the per-request records of one run of a server.

    Requests whose timings are missing or run backwards are set aside as `without_timings`.

    Raises:
        InputError: no such records (see `ladder_opt.trace.read.read_timed_trace`), or hardly any usable one.
    """
    trace, timings = read_timed_trace(path)
    return request_records(trace, timings, path=path)


def request_records(trace: Trace, timings: Timings, *, path: str | Path | None = None) -> RequestRecords:
    """Records from a trace and what the server did to each request.

    Raises:
        InputError: hardly any request has usable timings.
    """
    queued, first, last = timings.queued_seconds, timings.first_token_seconds, timings.last_token_seconds
    with np.errstate(invalid="ignore"):
        usable = (first > queued) & (last >= first) & np.isfinite(last)
    if usable.sum() < LEAST_REQUESTS:
        raise InputError(
            f"{int(usable.sum())} of {len(trace)} requests with timings that can be",
            f"at least {LEAST_REQUESTS}",
            path=path,
        )
    trace = trace.take(usable, reason=WITHOUT_TIMINGS)
    timings = timings.take(usable)
    order = np.argsort(timings.queued_seconds, kind="stable")
    timings = timings.take(order)
    trace = replace(trace, arrival_seconds=None).take(order)  # the engine's order may not be the arrivals'
    trace = replace(trace, arrival_seconds=np.maximum(timings.queued_seconds, 0.0))
    return RequestRecords(trace, timings)


def with_distinct_prompts(records: RequestRecords, *, block_tokens: int) -> RequestRecords:
    """The records with `hash_ids` that no two prompts share, for a replay with prefix caching.

    What a prefix cache then finds is a preempted request's own blocks. Prompts that really share a prefix are
    computed as if they did not.
    """
    if records.trace.has_hash_ids:
        return records
    blocks = -(-records.trace.prompt_tokens // block_tokens)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(blocks)])
    ids = HashIds(block_tokens, offsets, np.arange(offsets[-1]))
    return RequestRecords(replace(records.trace, hash_ids=ids), records.timings)


def that_fit(records: RequestRecords, engine: Engine, *, path: str | Path | None = None) -> RequestRecords:
    """The records, all of which an engine with these limits can serve.

    Raises:
        InputError: there are requests that it cannot, though the server did.
    """
    served = fits(records.trace, engine, Scheduling())
    if not served.all():
        tokens = records.trace.prompt_tokens + records.trace.output_tokens
        raise InputError(
            f"{int((~served).sum())} requests beyond the engine's limits (up to {int(tokens.max())} tokens)",
            f"the limits of the server that was measured; these are max_model_len {engine.max_model_len} and "
            f"{engine.usable_kv_blocks} KV blocks of {engine.block_size}",
            path=path,
        )
    return records
