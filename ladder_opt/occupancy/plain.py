"""The replay's plain twin: the rules of `replay.py` in ordinary Python, for tests to compare with.

Slow on purpose, and built differently: queues of objects, no incremental shortcuts.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from ladder_opt.engine import Engine
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import Trace


@dataclass(eq=False)
class _Block:
    users: int = 0
    key: int | None = None


class _Cache:
    """Blocks and the prefix cache over them: the free queue is a list, keys name lists of blocks."""

    def __init__(self, engine: Engine) -> None:
        self.block_size = engine.block_size
        self.free = [_Block() for _ in range(engine.usable_kv_blocks)]
        self.of_key: dict[int, list[_Block]] = {}

    def hits(self, request: _Request) -> list[_Block]:
        found: list[_Block] = []
        for key in request.keys[: (request.known_tokens - 1) // self.block_size]:
            if not self.of_key.get(key):
                break
            found.append(self.of_key[key][0])
        return found

    def share(self, request: _Request, hits: list[_Block]) -> None:
        for block in hits:
            if not block.users:
                self.free.remove(block)
            block.users += 1
            request.table.append(block)

    def grow(self, request: _Request, blocks: int, tokens: int) -> None:
        while len(request.table) < blocks:
            block = self.free.pop(0)
            if block.key is not None:
                self.of_key[block.key].remove(block)
            block.users, block.key = 1, None
            request.table.append(block)
        for block, key in zip(request.table[: tokens // self.block_size], request.keys, strict=False):
            if block.key is None:
                block.key = key
                self.of_key.setdefault(key, []).append(block)

    def let_go(self, request: _Request) -> None:
        without_key: list[_Block] = []
        for block in reversed(request.table):
            block.users -= 1
            if block.users:
                continue
            (without_key if block.key is None else self.free).append(block)
        self.free[:0] = without_key
        request.table.clear()


@dataclass(eq=False)
class _Request:
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    key: tuple[int, int]  # priority, then place in the trace; siblings share it
    parent: int
    child: int
    computed_tokens: int = 0
    sampled_tokens: int = 0
    blocks: int = 0
    dropped_blocks: int = 0
    supplied_blocks: int = 0
    keys: list[int] = field(default_factory=list)
    table: list[_Block] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

    @property
    def held_blocks(self) -> int:
        return self.blocks - self.dropped_blocks


@dataclass(frozen=True)
class PlainStepEnd:
    """A step that ended at `seconds`, and who was left then."""

    seconds: float
    running: int
    blocks: int
    decodes: int


@dataclass
class PlainReplay:
    """Counts of the plain replay, steps by (num_seqs, num_blocks) and calls by (num_blocks, query_len).

    `times` has of each request, in their order, when it was scheduled, had its first token and its last.
    """

    times: list[dict[str, float]] = field(default_factory=list)
    step_ends: list[PlainStepEnd] = field(default_factory=list)

    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    gathers_real: Counter[tuple[int, int]] = field(default_factory=Counter)
    totals: Counter[tuple[int, int]] = field(default_factory=Counter)
    sequences: Counter[tuple[int, int]] = field(default_factory=Counter)
    prefill_only_steps: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0
    end_seconds: float = 0.0


def simulate_plain(
    trace: Trace,
    engine: Engine,
    step_seconds: Callable[[int, int, int, int], float],
    *,
    concurrency: int | None = None,
    scheduling: Scheduling | None = None,
) -> PlainReplay:
    """Replay one trace, every request of which fits the engine.

    Args:
        trace: the requests.
        engine: the limits.
        step_seconds: seconds of a step from (decoding sequences, blocks of the longest, sum of the
            decodes' own blocks, prefill tokens).
        concurrency: requests in flight of a closed loop; None: arrivals decide.
        scheduling: settings besides the limits.
    """
    scheduling = scheduling or Scheduling()
    result = PlainReplay()
    arrivals = [0.0] * len(trace) if trace.arrival_seconds is None else trace.arrival_seconds.tolist()
    priorities = [0] * len(trace) if trace.priority is None else trace.priority.tolist()
    coming = deque(
        _Request(arrivals[row], int(prompt), int(output), (priorities[row], row), row, child)
        for row, (prompt, output) in enumerate(zip(trace.prompt_tokens, trace.output_tokens, strict=True))
        for child in range(scheduling.n)
    )
    result.times = [request.times for request in coming]
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
    cache = None
    if scheduling.prefix_caching:
        cache = _Cache(engine)
        _set_keys(coming, trace, engine.block_size)
    now = 0.0 if concurrency else coming[0].arrival_seconds
    while coming or waiting or running:
        if concurrency:
            while coming:
                in_flight = {request.parent for request in [*waiting, *running]}
                if coming[0].parent not in in_flight and len(in_flight) >= concurrency:
                    break
                waiting.append(coming.popleft())
        else:
            if not waiting and not running and coming[0].arrival_seconds > now:
                result.idle_seconds += coming[0].arrival_seconds - now
                now = coming[0].arrival_seconds
            while coming and coming[0].arrival_seconds <= now:
                waiting.append(coming.popleft())
        scheduled = _schedule(_Step(engine, scheduling, running, cache), waiting, result)
        if not scheduled:
            continue  # a preemption that left nobody to run takes no time
        for request, _ in scheduled:
            request.times.setdefault("scheduled", now)
        before = result.prefill_tokens
        seconds = _account(engine, scheduled, step_seconds, result)
        now += seconds
        result.busy_seconds += seconds
        _sample(scheduled, running, cache, now)
        decodes = sum(tokens for _, tokens in scheduled) - (result.prefill_tokens - before)
        held = sum(request.held_blocks for request in running)
        result.step_ends.append(PlainStepEnd(now, len(running), held, decodes))
    result.end_seconds = now
    return result


def _sample(
    scheduled: list[tuple[_Request, int]], running: list[_Request], cache: _Cache | None, now: float
) -> None:
    for request, tokens in scheduled:
        request.computed_tokens += tokens
        if request.computed_tokens == request.known_tokens:
            request.sampled_tokens += 1
            request.times.setdefault("first_token", now)
            if request.sampled_tokens == request.output_tokens:
                request.times["finish"] = now
                running.remove(request)
                if cache:
                    cache.let_go(request)


def _set_keys(requests: Iterable[_Request], trace: Trace, block_size: int) -> None:
    """Number every prefix of whole blocks by its content; with output tokens it is a number of its own."""
    number: dict[tuple[int, Hashable], int] = {}
    size = 1 if trace.hash_ids is None else trace.hash_ids.block_tokens
    for request in requests:
        ids: list[int] = []
        if trace.hash_ids is None and trace.cached_tokens is not None:
            # Nothing is known but how much was cached: no prompt is like another.
            cached = min(int(trace.cached_tokens[request.parent]), request.prompt_tokens - 1)
            request.supplied_blocks = max(0, cached) // block_size
            ids = [request.parent] * request.prompt_tokens
        elif trace.hash_ids is not None:
            first = trace.hash_ids.offsets[request.parent]
            last = trace.hash_ids.offsets[request.parent + 1]
            ids = trace.hash_ids.values[first:last].tolist()
        key = 0
        for end in range(block_size, request.prompt_tokens + request.output_tokens, block_size):
            content: Hashable = tuple(ids[(end - block_size) // size : (end - 1) // size + 1])
            if end > request.prompt_tokens:
                content = ("output", request.parent, request.child)
            key = number.setdefault((key, content), len(number) + 1)
            request.keys.append(key)


@dataclass
class _Step:
    engine: Engine
    scheduling: Scheduling
    running: list[_Request]
    cache: _Cache | None
    tokens_of: dict[_Request, int] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        return self.engine.max_num_batched_tokens - sum(self.tokens_of.values())

    @property
    def free_blocks(self) -> int:
        if self.cache:
            return len(self.cache.free)
        return self.engine.usable_kv_blocks - sum(request.held_blocks for request in self.running)

    def next_tokens(self, request: _Request) -> int:
        tokens = min(request.known_tokens - request.computed_tokens, self.budget)
        return min(tokens, self.scheduling.long_prefill_token_threshold or tokens)

    def victim(self) -> _Request:
        if self.scheduling.policy == "priority":
            return max(self.running, key=lambda one: one.key)
        return self.running[-1]

    def drop_what_left_the_window(self, request: _Request) -> None:
        if self.scheduling.sliding_window is not None:
            outside = max(0, request.computed_tokens - self.scheduling.sliding_window + 1)
            request.dropped_blocks = outside // self.engine.block_size


def _schedule(step: _Step, waiting: deque[_Request], result: PlainReplay) -> list[tuple[_Request, int]]:
    preemptions = _schedule_running(step, waiting)
    result.preemptions += preemptions
    if step.scheduling.policy == "priority":
        ordered = sorted(waiting, key=lambda one: (one.key, one.child))
        waiting.clear()
        waiting.extend(ordered)
    if not preemptions:
        _schedule_waiting(step, waiting)
    return list(step.tokens_of.items())


def _schedule_running(step: _Step, waiting: deque[_Request]) -> int:
    preemptions = 0
    for request in list(step.running):
        if not step.budget:
            break
        if request not in step.running:
            continue
        tokens = step.next_tokens(request)
        step.drop_what_left_the_window(request)
        needed = math.ceil((request.computed_tokens + tokens) / step.engine.block_size)
        while request in step.running and needed - request.blocks > step.free_blocks:
            victim = step.victim()
            step.running.remove(victim)
            step.tokens_of.pop(victim, None)
            if step.cache:
                step.cache.let_go(victim)
            victim.blocks = victim.dropped_blocks = victim.computed_tokens = 0
            waiting.appendleft(victim)
            preemptions += 1
        if request not in step.running:
            break
        request.blocks = max(needed, request.blocks)
        if step.cache:
            step.cache.grow(request, needed, request.computed_tokens + tokens)
        step.tokens_of[request] = tokens
    return preemptions


def _schedule_waiting(step: _Step, waiting: deque[_Request]) -> None:
    most_blocks = step.scheduling.most_admission_blocks(step.engine)
    while waiting and step.budget and len(step.running) < step.engine.max_num_seqs:
        request = waiting[0]
        whole = math.ceil(request.known_tokens / step.engine.block_size)
        hits = step.cache.hits(request) if step.cache else []
        free_hits = sum(not block.users for block in hits)
        if min(whole, most_blocks) - len(hits) + free_hits > step.free_blocks:
            break
        waiting.popleft()
        request.computed_tokens = max(len(hits), request.supplied_blocks) * step.engine.block_size
        tokens = step.next_tokens(request)
        request.blocks = math.ceil((request.computed_tokens + tokens) / step.engine.block_size)
        if step.cache:
            step.cache.share(request, hits)
            step.cache.grow(request, request.blocks, request.computed_tokens + tokens)
        step.running.append(request)
        step.tokens_of[request] = tokens


def _account(
    engine: Engine,
    scheduled: list[tuple[_Request, int]],
    step_seconds: Callable[[int, int, int, int], float],
    result: PlainReplay,
) -> float:
    decode_blocks = []
    for request, tokens in scheduled:
        own_blocks = (
            math.ceil((request.computed_tokens + tokens) / engine.block_size) - request.dropped_blocks
        )
        if tokens == 1 and request.computed_tokens >= request.prompt_tokens:
            decode_blocks.append(own_blocks)
        else:
            result.sequences[own_blocks, tokens] += 1
    if len(decode_blocks) < engine.min_batched_seqs:
        result.sequences.update((own_blocks, 1) for own_blocks in decode_blocks)
    prefill_tokens = sum(tokens for _, tokens in scheduled) - len(decode_blocks)
    longest = max(decode_blocks, default=0)
    result.prefill_tokens += prefill_tokens
    if decode_blocks:
        result.steps[len(decode_blocks), longest] += 1
        result.gathers_real[len(decode_blocks), longest] += sum(decode_blocks)
        result.totals[len(decode_blocks), sum(decode_blocks)] += 1
    else:
        result.prefill_only_steps += 1
    return step_seconds(len(decode_blocks), longest, sum(decode_blocks), prefill_tokens)
