"""What is noted of one engine's replay besides its counts: samples over time, and when requests came on.

The loops pause where a sample is due, and mark requests where an array for it is given; nothing else of them
changes, and the replay is the same to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.occupancy import _loop_state as slot
from ladder_opt.occupancy.request_times import FINISH, RequestTimes, closed_loop_arrivals
from ladder_opt.occupancy.timeline import EngineState, Sampler, Timeline


@dataclass(frozen=True)
class Watch:
    """What to note.

    Attributes:
        timeline_seconds: between samples; None for none.
        request_times: whether to note when each request was scheduled, began and finished.
    """

    timeline_seconds: float | None
    request_times: bool


@dataclass(frozen=True)
class Watched:
    """What was noted of one engine; None where it was not asked for."""

    timeline: Timeline | None
    request_times: RequestTimes | None


class EngineWatch:
    """Looks at one engine's replay."""

    def __init__(self, watch: Watch, engine: Engine) -> None:
        self._blocks = engine.usable_kv_blocks
        self._times = watch.request_times
        self._sampler = None if watch.timeline_seconds is None else Sampler(watch.timeline_seconds)
        self._marks: NDArray[np.float64] | None = None
        self._last: tuple[float, EngineState] = (0.0, EngineState())

    def begin(
        self, arrival: NDArray[np.float64], requests: int, clock: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Before the first step: the array that the loops mark requests in (`clock` modified in place)."""
        if self._sampler is not None:
            if len(arrival):
                self._sampler.idle_until(arrival[0], EngineState())
            clock[slot.UNTIL] = self._sampler.next_seconds
        if self._times:
            self._marks = np.full((slot.MARK_KINDS, requests, slot.MARK_VALUES), np.nan)
        return self._marks

    def look(
        self, arrival: NDArray[np.float64], state: NDArray[np.int64], clock: NDArray[np.float64]
    ) -> None:
        """Whenever the loop stops; says in `clock`, modified in place, when it should next."""
        if self._sampler is None:
            return
        now = float(clock[slot.NOW])
        seen = self._state(arrival, state, now)
        self._last = (now, seen)
        self._sampler.busy_until(now, seen)
        following = int(state[slot.NEXT])
        if not seen.running and not seen.waiting and following < len(arrival):
            self._sampler.idle_until(arrival[following], seen)
        clock[slot.UNTIL] = self._sampler.next_seconds

    def _state(self, arrival: NDArray[np.float64], state: NDArray[np.int64], now: float) -> EngineState:
        arrived = int(state[slot.ARRIVED])  # as the last step found it
        if len(arrival):  # no closed loop
            arrived = int(np.searchsorted(arrival, now, side="right"))
        return EngineState(
            running=int(state[slot.RUNNING]),
            waiting=int(state[slot.PREEMPTED] - state[slot.NEXT]) + arrived,
            blocks_in_use=int(self._blocks - state[slot.FREE]),
            steps=int(state[slot.STEPS]),
            decode_steps=int(state[slot.STEPS] - state[slot.PREFILL_ONLY]),
            decode_tokens=int(state[slot.DECODE_TOKENS]),
            prefill_tokens=int(state[slot.PREFILL_TOKENS]),
            preemptions=int(state[slot.PREEMPTIONS]),
        )

    def end(
        self,
        rows: NDArray[np.int64],
        arrival: NDArray[np.float64],
        prompt: NDArray[np.int64],
        output: NDArray[np.int64],
        *,
        concurrency: int,
        children: int,
    ) -> Watched:
        """After the last step; all arrays (requests,), `arrival` empty in a closed loop.

        Args:
            rows: what to call each request.
            arrival: seconds.
            prompt: tokens.
            output: tokens.
            concurrency: requests in flight of a closed loop, else 0.
            children: sequences of each request, next to each other.
        """
        times = None
        if self._marks is not None:
            if concurrency:
                whole = self._marks[FINISH, :, 0].reshape(-1, children).max(axis=1)
                arrival = np.repeat(closed_loop_arrivals(whole, concurrency), children)
            times = RequestTimes.from_marks(
                self._marks, row=rows, arrival_seconds=arrival, prompt_tokens=prompt, output_tokens=output
            )
        return Watched(None if self._sampler is None else self._sampler.finished(*self._last), times)
