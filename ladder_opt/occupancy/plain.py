"""The replay's plain twin: the rules of `replay.py` in ordinary Python, for tests to compare with.

Slow on purpose, and built differently: queues of objects, no incremental shortcuts.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ladder_opt.engine import Engine
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import Trace


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

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

    @property
    def held_blocks(self) -> int:
        return self.blocks - self.dropped_blocks


@dataclass
class PlainReplay:
    """Counts of the plain replay, steps by (num_seqs, num_blocks) and calls by (num_blocks, query_len)."""

    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    gathers_real: Counter[tuple[int, int]] = field(default_factory=Counter)
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
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
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
        scheduled = _schedule(engine, scheduling, waiting, running, result)
        if not scheduled:
            continue  # a preemption that left nobody to run takes no time
        seconds = _account(engine, scheduled, step_seconds, result)
        now += seconds
        result.busy_seconds += seconds
        for request, tokens in scheduled:
            request.computed_tokens += tokens
            if request.computed_tokens == request.known_tokens:
                request.sampled_tokens += 1
                if request.sampled_tokens == request.output_tokens:
                    running.remove(request)
    result.end_seconds = now
    return result


@dataclass
class _Step:
    engine: Engine
    scheduling: Scheduling
    running: list[_Request]
    tokens_of: dict[_Request, int] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        return self.engine.max_num_batched_tokens - sum(self.tokens_of.values())

    @property
    def free_blocks(self) -> int:
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


def _schedule(
    engine: Engine,
    scheduling: Scheduling,
    waiting: deque[_Request],
    running: list[_Request],
    result: PlainReplay,
) -> list[tuple[_Request, int]]:
    step = _Step(engine, scheduling, running)
    preemptions = _schedule_running(step, waiting)
    result.preemptions += preemptions
    if scheduling.policy == "priority":
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
            victim.blocks = victim.dropped_blocks = victim.computed_tokens = 0
            waiting.appendleft(victim)
            preemptions += 1
        if request not in step.running:
            break
        request.blocks = max(needed, request.blocks)
        step.tokens_of[request] = tokens
    return preemptions


def _schedule_waiting(step: _Step, waiting: deque[_Request]) -> None:
    most_blocks = step.scheduling.most_admission_blocks(step.engine)
    while waiting and step.budget and len(step.running) < step.engine.max_num_seqs:
        request = waiting[0]
        whole = math.ceil(request.known_tokens / step.engine.block_size)
        if min(whole, most_blocks) > step.free_blocks:
            break
        waiting.popleft()
        tokens = step.next_tokens(request)
        request.blocks = math.ceil(tokens / step.engine.block_size)
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
    else:
        result.prefill_only_steps += 1
    return step_seconds(len(decode_blocks), longest, sum(decode_blocks), prefill_tokens)
