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
        from ladder_opt.occupancy import _step_kernel  # noqa: PLC0415  (numba loads on first use)

        self._kernel = _step_kernel  # names of the slots, which both loops share
        self._advance, self._takes_extras = _load_loop(
            replace(scheduling, prefix_caching=self._follows_blocks),
            closed=concurrency is not None,
            stepwise=stepwise,
        )
        # A later request may come before an earlier one, or siblings have to stay side by side.
        self._needs_all = scheduling.policy == "priority" or scheduling.n > 1 or self._follows_blocks
        self._hash_ids: HashIds | None = None
        self._pool: Any = None
        self._max_num_seqs = engine.max_num_seqs
        self._batched_seconds = batched_seconds
        self._tables = (tables.steps, tables.real_blocks, tables.sequences, tables.totals)
        limits = np.zeros(self._kernel.LIMIT_SLOTS, np.int64)
        limits[self._kernel.BLOCK_SIZE] = engine.block_size
        limits[self._kernel.MAX_NUM_SEQS] = engine.max_num_seqs
        limits[self._kernel.MAX_TOKENS] = engine.max_num_batched_tokens
        limits[self._kernel.MIN_BATCHED] = engine.min_batched_seqs
        limits[self._kernel.CONCURRENCY] = concurrency or 0
        limits[self._kernel.CHILDREN] = scheduling.n
        limits[self._kernel.THRESHOLD] = scheduling.long_prefill_token_threshold
        limits[self._kernel.WINDOW] = scheduling.sliding_window or 0
        limits[self._kernel.MOST_BLOCKS] = scheduling.most_admission_blocks(engine)
        limits[self._kernel.CACHING] = self._follows_blocks
        self._limits = limits
        self._seconds = np.array(
            [
                cost.step_seconds.base,
                cost.replay_seconds.per_sequence_gather,
                cost.replay_seconds.per_prefill_token,
                cost.replay_seconds.per_seq,
            ]
        )
        self._state = np.zeros(self._kernel.INTEGER_SLOTS, np.int64)
        self._state[self._kernel.FREE] = engine.usable_kv_blocks
        self._clock = np.zeros(self._kernel.FLOAT_SLOTS)
        self._clock[self._kernel.UNTIL] = np.inf
        self._watch = None if watch is None else EngineWatch(watch, self._kernel, engine)
        self._marks: NDArray[np.float64] | None = None
        self._running = np.zeros(engine.max_num_seqs, np.int64)
        self._arrival = np.zeros(0)
        self._prompt, self._output, self._computed, self._known, self._blocks, self._preempted = (
            np.zeros(0, np.int64) for _ in range(6)
        )
        self._priority, self._dropped, self._supplied = (np.zeros(0, np.int64) for _ in range(3))
        self._left = 0  # requests that are finished and no longer in the arrays
        self.requests = 0

    @property
    def finished(self) -> int:
        """Requests finished so far."""
        return self._left + int(self._state[self._kernel.DONE])

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
            self._clock[self._kernel.NOW] = arrival_seconds[0]
        self._feed_what_is_cached(prompt, hash_ids, cached_tokens)
        children = self._scheduling.n
        if children > 1:
            prompt, output = np.repeat(prompt, children), np.repeat(output, children)
            priority = None if priority is None else np.repeat(priority, children)
            arrival_seconds = None if arrival_seconds is None else np.repeat(arrival_seconds, children)
        self.requests += len(prompt)
        none = np.zeros(len(prompt), np.int64)
        if arrival_seconds is not None:
            self._arrival = np.concatenate((self._arrival, arrival_seconds))
        self._prompt = np.concatenate((self._prompt, prompt))
        self._output = np.concatenate((self._output, output))
        self._known = np.concatenate((self._known, prompt))
        self._computed = np.concatenate((self._computed, none))
        self._blocks = np.concatenate((self._blocks, none))
        self._preempted = np.concatenate((self._preempted, none))
        if self._scheduling.policy == "priority":
            self._priority = np.concatenate((self._priority, none if priority is None else priority))
        if self._scheduling.sliding_window is not None:
            self._dropped = np.concatenate((self._dropped, none))

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
        self._supplied = np.concatenate((self._supplied, np.repeat(supplied, children)))

    def _drop_finished(self) -> None:
        """Keep those that wait or run; requests in flight come first, then those never scheduled."""
        state, kernel = self._state, self._kernel
        num_running, num_preempted = int(state[kernel.RUNNING]), int(state[kernel.PREEMPTED])
        running, preempted = self._running[:num_running], self._preempted[:num_preempted]
        in_flight = np.concatenate((running, preempted))
        kept = np.concatenate((in_flight, np.arange(state[kernel.NEXT], len(self._prompt))))
        if len(self._arrival):
            self._arrival = self._arrival[kept]
        self._prompt, self._output = self._prompt[kept], self._output[kept]
        self._computed, self._known = self._computed[kept], self._known[kept]
        self._blocks = self._blocks[kept]
        if len(self._dropped):
            self._dropped = self._dropped[kept]
        if len(self._supplied):
            self._supplied = self._supplied[kept]
        self._running[:num_running] = np.arange(num_running)
        self._preempted = np.zeros(len(kept), np.int64)
        self._preempted[:num_preempted] = np.arange(num_running, len(in_flight))
        done = int(state[kernel.DONE])
        self._left += done
        state[kernel.DONE] = 0
        state[kernel.NEXT] -= done
        state[kernel.ARRIVED] -= done

    def advance(self, *, more_to_come: bool, progress: Callable[[int], None] | None = None) -> None:
        """Run as far as the requests loaded reach: to the end, or to where the next ones could matter.

        Args:
            more_to_come: whether `feed` will be called again.
            progress: called with the requests finished since it was last called.
        """
        reserve = self._max_num_seqs if more_to_come else 0
        if (more_to_come and self._needs_all) or not self.requests:
            return
        if len(self._prompt) - self._state[self._kernel.NEXT] < reserve:
            return
        self._limits[self._kernel.RESERVE] = reserve
        if self._pool is None:
            self._pool = self._make_pool()
        extras = (*(self._extras() if self._takes_extras else ()), self._supplied, self._pool)
        told = self.finished
        if self._watch is not None:
            self._marks = self._watch.begin(self._arrival, len(self._prompt), self._clock)
        while True:
            status = self._advance(
                self._arrival,
                self._prompt,
                self._output,
                self._limits,
                self._seconds,
                self._batched_seconds,
                self._computed,
                self._known,
                self._blocks,
                self._running,
                self._preempted,
                self._state,
                self._clock,
                *self._tables,
                self._marks,
                *extras,
                STEPS_BETWEEN_PROGRESS,
            )
            if self._watch is not None:
                self._watch.look(self._arrival, self._state, self._clock)
            if progress is not None:
                progress(self.finished - told)
                told = self.finished
            if status != self._kernel.PAUSED:
                break
        if status == self._kernel.STUCK:
            raise InternalError(f"the replay stood still after {self.finished} of {self.requests} requests")

    def _extras(self) -> tuple[Integers, Integers, Integers, Integers]:
        """What only some settings need: rank, of_rank, dropped, unfinished of `_step_kernel.advance`."""
        rank = of_rank = unfinished = np.zeros(0, np.int64)
        if self._scheduling.policy == "priority":
            of_rank = np.argsort(self._priority, kind="stable")
            rank = np.empty(len(of_rank), np.int64)
            rank[of_rank] = np.arange(len(of_rank))
        if self._scheduling.n > 1:
            unfinished = np.full(len(self._prompt) // self._scheduling.n, self._scheduling.n)
        return rank, of_rank, self._dropped, unfinished

    def _make_pool(self) -> Any:
        """What the loops keep of the prefix cache; an empty one where there is none."""
        from ladder_opt.occupancy import _block_keys, _prefix_cache  # noqa: PLC0415  (they bring numba)

        if self._hash_ids is None or not self._follows_blocks:
            return _prefix_cache.make_pool(
                np.zeros(1, np.int64), np.zeros(0, np.int64), num_blocks=0, max_num_seqs=0
            )
        offsets, keys = _block_keys.block_keys(
            self._prompt, self._output, self._hash_ids, block_size=self._engine.block_size
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
            self._arrival,
            self._prompt,
            self._output,
            concurrency=int(self._limits[self._kernel.CONCURRENCY]),
            children=self._scheduling.n,
        )

    def totals(self) -> dict[str, float]:
        """What `Replay` adds up, by its names there, and `end_seconds`; integers are exact."""
        state, clock, kernel = self._state, self._clock, self._kernel
        return {
            "requests": self.requests,
            "engine_steps": int(state[kernel.STEPS]),
            "prefill_only_steps": int(state[kernel.PREFILL_ONLY]),
            "preemptions": int(state[kernel.PREEMPTIONS]),
            "prefill_tokens": int(state[kernel.PREFILL_TOKENS]),
            "decode_tokens": int(state[kernel.DECODE_TOKENS]),
            "cached_tokens": 0 if self._pool is None else int(self._pool.hits[0]),
            "busy_seconds": float(clock[kernel.BUSY]),
            "idle_seconds": float(clock[kernel.IDLE]),
            "end_seconds": float(clock[kernel.NOW]),
        }


def _unlike_ids(prompt: Integers, block_size: int) -> HashIds:
    """Ids of prompts that have nothing in common."""
    offsets = np.zeros(len(prompt) + 1, np.int64)
    np.cumsum(-(-prompt // block_size), out=offsets[1:])
    return HashIds(block_size, offsets, np.arange(offsets[-1]))


def _load_loop(scheduling: Scheduling, *, closed: bool, stepwise: bool) -> tuple[Callable[..., int], bool]:
    """The loop that can run these settings, and whether it takes extra arrays."""
    from ladder_opt.occupancy import _event_kernel, _step_kernel  # noqa: PLC0415  (numba loads on first use)

    if not stepwise and replace(scheduling, n=1) == Scheduling() and (scheduling.n == 1 or not closed):
        return _event_kernel.advance, False
    return _step_kernel.advance, True
