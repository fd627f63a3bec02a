"""One engine's replay, carried over from one chunk of its requests to the next.

Only requests that wait or run are carried: whoever is finished leaves the arrays. The loop stops before
any step for which a request that is not loaded yet could matter (see `_step_kernel.advance`), so the
chunks' borders change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError
from ladder_opt.occupancy import _loop_state as slot
from ladder_opt.occupancy._loop_state import Loaded, Progress, Rules
from ladder_opt.occupancy.scheduling import Scheduling, supplied_tokens
from ladder_opt.occupancy.sequences import dense_table_shape
from ladder_opt.occupancy.totals import totals_table_shape
from ladder_opt.occupancy.watch import EngineWatch, Watch, Watched
from ladder_opt.trace.table import HashIds

STEPS_BETWEEN_PROGRESS = 2_000_000

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """What engines count, by size; they add to it.

    Attributes:
        steps: int64 (max_num_seqs + 1, max_num_blocks + 1), decode steps.
        real_blocks: the same shape, sum of the decodes' own blocks.
        sequences: int64, calls of the per-sequence path, in the shape of `sequences.dense_table_shape`; None:
            not counted.
        totals: int64 (max_num_seqs + 1, max_num_seqs * max_num_blocks + 1), decode steps by the sum of the
            decodes' own blocks; None: not counted.
    """

    steps: Integers
    real_blocks: Integers
    sequences: Integers | None
    totals: Integers | None = None

    @classmethod
    def empty(cls, engine: Engine, *, per_sequence: bool, total_blocks: bool = False) -> Tables:
        """Tables of zeros."""
        shape = (engine.max_num_seqs + 1, engine.max_num_blocks + 1)
        sequences = np.zeros(dense_table_shape(engine), np.int64) if per_sequence else None
        totals = np.zeros(totals_table_shape(engine), np.int64) if total_blocks else None
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), sequences, totals)


class EngineRun:
    """A replay that goes on: `feed` it requests, `advance` it as far as they reach.

    Attributes:
        requests: requests fed so far.
        finished: requests finished so far.
    """

    def __init__(
        self,
        engine: Engine,
        cost: CostModel,
        batched_seconds: NDArray[np.float64],
        tables: Tables,
        *,
        concurrency: int | None = None,
        scheduling: Scheduling | None = None,
        stepwise: bool = False,
        watch: Watch | None = None,
        has_hash_ids: bool = True,
    ) -> None:
        """Start an idle engine.

        Args:
            engine: the limits.
            cost: what a step costs.
            batched_seconds: (max_num_seqs + 1, max_num_blocks + 1), see `replay.step_seconds_by_size`.
            tables: where it counts; engines may share one.
            concurrency: closed loop: as many requests in flight; None: arrivals decide.
            scheduling: settings besides the limits; default: vLLM's on Spyre.
            stepwise: run the step loop in place of the event loop.
            watch: what else to note; all requests have to be fed at once.
            has_hash_ids: whether `feed` will say what prompts hold; read where prefixes are cached.
        """
        scheduling = scheduling or Scheduling()
        self._scheduling = scheduling
        self._follows_blocks = scheduling.follows_blocks(engine, has_hash_ids=has_hash_ids)
        self._engine = engine
        self._advance = _load_loop(
            replace(scheduling, prefix_caching=self._follows_blocks),
            closed=concurrency is not None,
            stepwise=stepwise,
        )
        # A later request may come before an earlier one, or siblings have to stay side by side.
        self._needs_all = scheduling.policy == "priority" or scheduling.n > 1 or self._follows_blocks
        self._hash_ids: HashIds | None = None
        self._pool: Any = None
        self._max_num_seqs = engine.max_num_seqs
        self._tables = (tables.steps, tables.real_blocks, tables.sequences, tables.totals)
        limits = np.zeros(slot.LIMIT_SLOTS, np.int64)
        limits[slot.BLOCK_SIZE] = engine.block_size
        limits[slot.MAX_NUM_SEQS] = engine.max_num_seqs
        limits[slot.MAX_TOKENS] = engine.max_num_batched_tokens
        limits[slot.MIN_BATCHED] = engine.min_batched_seqs
        limits[slot.CONCURRENCY] = concurrency or 0
        limits[slot.CHILDREN] = scheduling.n
        limits[slot.THRESHOLD] = scheduling.long_prefill_token_threshold
        limits[slot.WINDOW] = scheduling.sliding_window or 0
        limits[slot.MOST_BLOCKS] = scheduling.most_admission_blocks(engine)
        limits[slot.CACHING] = self._follows_blocks
        seconds = np.zeros(slot.SECONDS_SLOTS)
        seconds[slot.BASE] = cost.step_seconds.base
        seconds[slot.PER_SEQUENCE_GATHER] = cost.replay_seconds.per_sequence_gather
        seconds[slot.PER_PREFILL_TOKEN] = cost.replay_seconds.per_prefill_token
        seconds[slot.PER_SEQ] = cost.replay_seconds.per_seq
        self._rules = Rules(limits, seconds, batched_seconds)
        none = np.zeros(0, np.int64)
        state, clock = np.zeros(slot.INTEGER_SLOTS, np.int64), np.zeros(slot.FLOAT_SLOTS)
        state[slot.FREE] = engine.usable_kv_blocks
        clock[slot.UNTIL] = np.inf
        self._loaded = Loaded(np.zeros(0), none, none, none, none, none)
        running = np.zeros(engine.max_num_seqs, np.int64)
        self._progress = Progress(none, none, none, none, running, none, none, state, clock)
        self._priority = none
        self._watch = None if watch is None else EngineWatch(watch, engine)
        self._marks: NDArray[np.float64] | None = None
        self._left = 0  # requests that are finished and no longer in the arrays
        self.requests = 0

    @property
    def finished(self) -> int:
        """Requests finished so far."""
        return self._left + int(self._progress.state[slot.DONE])

    def feed(
        self,
        arrival_seconds: NDArray[np.float64] | None,
        prompt: Integers,
        output: Integers,
        *,
        priority: Integers | None = None,
        hash_ids: HashIds | None = None,
        cached_tokens: Integers | None = None,
    ) -> None:
        """Load the next requests, each (requests,); arrivals as the engine's clock has them, or None.

        With `cached_tokens`, which all loads have or none, there are no `hash_ids`.

        Raises:
            InternalError: a second load with, or after, one whose blocks are followed, or of a watched
                engine.
        """
        if not len(prompt):
            return
        if self.requests and self._watch is not None:
            raise InternalError("found a second chunk for a watched engine, expected all requests at once")
        if self.requests and not self._needs_all:
            self._drop_finished()
        elif not self.requests and arrival_seconds is not None:
            self._progress.clock[slot.NOW] = arrival_seconds[0]
        self._feed_what_is_cached(prompt, hash_ids, cached_tokens)
        children = self._scheduling.n
        if children > 1:
            prompt, output = np.repeat(prompt, children), np.repeat(output, children)
            priority = None if priority is None else np.repeat(priority, children)
            arrival_seconds = None if arrival_seconds is None else np.repeat(arrival_seconds, children)
        self.requests += len(prompt)
        none = np.zeros(len(prompt), np.int64)
        full_attention = self._scheduling.sliding_window is None
        loaded, progress = self._loaded, self._progress
        if arrival_seconds is not None:
            loaded = loaded._replace(arrival=np.concatenate((loaded.arrival, arrival_seconds)))
        self._loaded = loaded._replace(
            prompt=np.concatenate((loaded.prompt, prompt)), output=np.concatenate((loaded.output, output))
        )
        self._progress = progress._replace(
            known=np.concatenate((progress.known, prompt)),
            computed=np.concatenate((progress.computed, none)),
            blocks=np.concatenate((progress.blocks, none)),
            preempted=np.concatenate((progress.preempted, none)),
            dropped=progress.dropped if full_attention else np.concatenate((progress.dropped, none)),
        )
        if self._scheduling.policy == "priority":
            self._priority = np.concatenate((self._priority, none if priority is None else priority))

    def _feed_what_is_cached(
        self, prompt: Integers, hash_ids: HashIds | None, cached_tokens: Integers | None
    ) -> None:
        block_size, children = self._engine.block_size, self._scheduling.n
        supplied = np.zeros(0, np.int64)
        if cached_tokens is not None:
            supplied = supplied_tokens(cached_tokens, prompt, block_size=block_size)
            hash_ids = _unlike_ids(prompt, block_size) if self._follows_blocks else None
        if self.requests and (hash_ids is not None or self._hash_ids is not None):
            raise InternalError("found a second chunk with hash_ids, expected all requests at once")
        if hash_ids is not None and children > 1:
            hash_ids = hash_ids.take(np.repeat(np.arange(len(prompt)), children))
        self._hash_ids = hash_ids
        supplied = np.concatenate((self._loaded.supplied, np.repeat(supplied, children)))
        self._loaded = self._loaded._replace(supplied=supplied)

    def _drop_finished(self) -> None:
        """Keep those that wait or run; requests in flight come first, then those never scheduled."""
        loaded, progress, state = self._loaded, self._progress, self._progress.state
        num_running, num_preempted = int(state[slot.RUNNING]), int(state[slot.PREEMPTED])
        running, preempted = progress.running[:num_running], progress.preempted[:num_preempted]
        in_flight = np.concatenate((running, preempted))
        kept = np.concatenate((in_flight, np.arange(state[slot.NEXT], len(loaded.prompt))))
        self._loaded = loaded._replace(
            arrival=loaded.arrival[kept] if len(loaded.arrival) else loaded.arrival,
            prompt=loaded.prompt[kept],
            output=loaded.output[kept],
            supplied=loaded.supplied[kept] if len(loaded.supplied) else loaded.supplied,
        )
        still_preempted = np.zeros(len(kept), np.int64)
        still_preempted[:num_preempted] = np.arange(num_running, len(in_flight))
        running[:] = np.arange(num_running)
        self._progress = progress._replace(
            computed=progress.computed[kept],
            known=progress.known[kept],
            blocks=progress.blocks[kept],
            dropped=progress.dropped[kept] if len(progress.dropped) else progress.dropped,
            preempted=still_preempted,
        )
        done = int(state[slot.DONE])
        self._left += done
        state[slot.DONE] = 0
        state[slot.NEXT] -= done
        state[slot.ARRIVED] -= done

    def advance(self, *, more_to_come: bool, progress: Callable[[int], None] | None = None) -> None:
        """Run as far as the requests loaded reach: to the end, or to where the next ones could matter.

        Args:
            more_to_come: whether `feed` will be called again.
            progress: called with the requests finished since it was last called.
        """
        reserve = self._max_num_seqs if more_to_come else 0
        if (more_to_come and self._needs_all) or not self.requests:
            return
        if len(self._loaded.prompt) - self._progress.state[slot.NEXT] < reserve:
            return
        self._rules.limits[slot.RESERVE] = reserve
        if self._pool is None:
            self._pool = self._make_pool()
        self._set_extras()
        loaded, state, clock = self._loaded, self._progress.state, self._progress.clock
        told = self.finished
        if self._watch is not None:
            self._marks = self._watch.begin(loaded.arrival, len(loaded.prompt), clock)
        while True:
            status = self._advance(
                loaded,
                self._rules,
                self._progress,
                *self._tables,
                self._marks,
                self._pool,
                STEPS_BETWEEN_PROGRESS,
            )
            if self._watch is not None:
                self._watch.look(loaded.arrival, state, clock)
            if progress is not None:
                progress(self.finished - told)
                told = self.finished
            if status != slot.PAUSED:
                break
        if status == slot.STUCK:
            raise InternalError(f"the replay stood still after {self.finished} of {self.requests} requests")

    def _set_extras(self) -> None:
        """Arrays that only some settings need, made once all requests are there."""
        children = self._scheduling.n
        if self._scheduling.policy == "priority":
            of_rank = np.argsort(self._priority, kind="stable")
            rank = np.empty(len(of_rank), np.int64)
            rank[of_rank] = np.arange(len(of_rank))
            self._loaded = self._loaded._replace(rank=rank, of_rank=of_rank)
        if children > 1 and self._rules.limits[slot.CONCURRENCY]:
            unfinished = np.full(len(self._loaded.prompt) // children, children)
            self._progress = self._progress._replace(unfinished=unfinished)

    def _make_pool(self) -> Any:
        """What the loops keep of the prefix cache; an empty one where there is none."""
        from ladder_opt.occupancy import _block_keys, _prefix_cache  # noqa: PLC0415  (they bring numba)

        if self._hash_ids is None or not self._follows_blocks:
            return _prefix_cache.make_pool(
                np.zeros(1, np.int64), np.zeros(0, np.int64), num_blocks=0, max_num_seqs=0
            )
        offsets, keys = _block_keys.block_keys(
            self._loaded.prompt, self._loaded.output, self._hash_ids, block_size=self._engine.block_size
        )
        return _prefix_cache.make_pool(
            offsets, keys, num_blocks=self._engine.usable_kv_blocks, max_num_seqs=self._max_num_seqs
        )

    def watched(self, rows: Integers) -> Watched:
        """What was noted of the replay, now that it is over.

        Args:
            rows: (requests fed,), what each request is called.

        Raises:
            InternalError: it was not watched.
        """
        if self._watch is None:
            raise InternalError("found an engine that was not watched, expected one that was")
        rows = np.repeat(rows, self._scheduling.n)
        return self._watch.end(
            rows,
            self._loaded.arrival,
            self._loaded.prompt,
            self._loaded.output,
            concurrency=int(self._rules.limits[slot.CONCURRENCY]),
            children=self._scheduling.n,
        )

    def totals(self) -> dict[str, float]:
        """What `Replay` adds up, by its names there, and `end_seconds`; integers are exact."""
        state, clock = self._progress.state, self._progress.clock
        return {
            "requests": self.requests,
            "engine_steps": int(state[slot.STEPS]),
            "prefill_only_steps": int(state[slot.PREFILL_ONLY]),
            "preemptions": int(state[slot.PREEMPTIONS]),
            "prefill_tokens": int(state[slot.PREFILL_TOKENS]),
            "decode_tokens": int(state[slot.DECODE_TOKENS]),
            "cached_tokens": 0 if self._pool is None else int(self._pool.hits[0]),
            "busy_seconds": float(clock[slot.BUSY]),
            "idle_seconds": float(clock[slot.IDLE]),
            "end_seconds": float(clock[slot.NOW]),
        }


def _unlike_ids(prompt: Integers, block_size: int) -> HashIds:
    """Ids of prompts that have nothing in common."""
    offsets = np.zeros(len(prompt) + 1, np.int64)
    np.cumsum(-(-prompt // block_size), out=offsets[1:])
    return HashIds(block_size, offsets, np.arange(offsets[-1]))


def _load_loop(scheduling: Scheduling, *, closed: bool, stepwise: bool) -> Callable[..., int]:
    """The loop that can run these settings."""
    from ladder_opt.occupancy import _event_kernel, _step_kernel  # noqa: PLC0415  (numba loads on first use)

    by_event = not stepwise and replace(scheduling, n=1) == Scheduling() and (scheduling.n == 1 or not closed)
    loop: Callable[..., int] = _event_kernel.advance if by_event else _step_kernel.advance
    return loop
