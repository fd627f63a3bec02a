"""What a replay looks like over time: samples at a fixed interval, however many steps lie between them.

A sample is what vLLM's own statistics say after a step: who is still running, who waits, which KV blocks are
held. Between samples only totals are kept, so memory follows the number of samples, never that of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import UsageError
from ladder_opt.extras import data_frame

if TYPE_CHECKING:
    import pandas as pd

MOST_SAMPLES = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Samples of a replay; all arrays int64 (samples,), replicas added up.

    Sample k stands at `seconds[k]` = (k + 1) * interval on the trace's clock. `running`, `waiting` and
    `blocks_in_use` are the state after the first step that ends then or later (an idle engine: nothing);
    the other columns count what the steps since the sample before did.

    Attributes:
        interval_seconds: between samples.
        running: requests running.
        waiting: requests that arrived and do not run, preempted ones included.
        blocks_in_use: KV blocks held.
        steps: engine steps that ended.
        decode_steps: those with at least one decode.
        decode_tokens: decodes in them.
        prefill_tokens: tokens scheduled outside decodes, recomputed ones included.
        preemptions: times that a running request lost its blocks.
    """

    interval_seconds: float
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    blocks_in_use: NDArray[np.int64]
    steps: NDArray[np.int64]
    decode_steps: NDArray[np.int64]
    decode_tokens: NDArray[np.int64]
    prefill_tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.running)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """When each sample stands, on the trace's clock: float64 (samples,)."""
        return np.arange(1, len(self) + 1, dtype=np.float64) * self.interval_seconds

    @property
    def decode_batch_size(self) -> NDArray[np.float64]:
        """Mean decodes of the steps with any since the sample before; NaN where there was none."""
        sizes = np.full(len(self), np.nan)
        np.divide(self.decode_tokens, self.decode_steps, out=sizes, where=self.decode_steps > 0)
        return sizes

    def to_frame(self) -> pd.DataFrame:
        """One row a sample, `seconds` first."""
        columns = {"seconds": self.seconds}
        columns |= {name: getattr(self, name) for name in _COLUMNS}
        return data_frame(columns | {"decode_batch_size": self.decode_batch_size})

    @classmethod
    def sum_of(cls, parts: Sequence[Timeline]) -> Timeline | None:
        """Timelines of engines that run side by side, added up; one that ended counts as nothing."""
        if not parts:
            return None
        length = max(len(part) for part in parts)
        total = {name: np.zeros(length, np.int64) for name in _COLUMNS}
        for part in parts:
            for name, column in total.items():
                column[: len(part)] += getattr(part, name)
        return cls(interval_seconds=parts[0].interval_seconds, **total)


_COLUMNS = tuple(field.name for field in fields(Timeline))[1:]


@dataclass(frozen=True)
class EngineState:
    """What a sample is taken from, at the end of a step; the last five are totals since the start."""

    running: int = 0
    waiting: int = 0
    blocks_in_use: int = 0
    steps: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0


class Sampler:
    """Takes the samples of one engine's replay.

    Attributes:
        next_seconds: when the next sample stands.
    """

    def __init__(self, interval_seconds: float) -> None:
        if not 0 < interval_seconds < np.inf:
            raise UsageError(f"timeline_seconds: found {interval_seconds}, expected a number above 0")
        self._interval = interval_seconds
        self._rows: list[tuple[int, ...]] = []
        self._totals = (0,) * 5
        self.next_seconds = interval_seconds

    def busy_until(self, now: float, state: EngineState) -> None:
        """A step ended at `now`: the samples up to then are its state.

        Raises:
            UsageError: there are more samples than memory should hold.
        """
        while self.next_seconds <= now:
            self._add(state)

    def idle_until(self, arrival: float, state: EngineState) -> None:
        """Nothing is to do before `arrival`; the state is that of the last step."""
        while self.next_seconds < arrival:
            self._add(state)

    def finished(self, now: float, state: EngineState) -> Timeline:
        """The timeline; its last sample stands at the end or up to an interval later."""
        self.busy_until(now, state)
        if len(self._rows) * self._interval < now:
            self.busy_until(self.next_seconds, state)
        table = np.array(self._rows, np.int64)
        columns = {name: table[:, column].copy() for column, name in enumerate(_COLUMNS)}
        return Timeline(interval_seconds=self._interval, **columns)

    def _add(self, state: EngineState) -> None:
        if len(self._rows) >= MOST_SAMPLES:
            raise UsageError(
                f"timeline_seconds: found {self._interval:g}, more than {MOST_SAMPLES} samples, expected a "
                "longer interval"
            )
        totals = (
            state.steps,
            state.decode_steps,
            state.decode_tokens,
            state.prefill_tokens,
            state.preemptions,
        )
        since = tuple(new - old for new, old in zip(totals, self._totals, strict=True))
        self._totals = totals
        self._rows.append((state.running, state.waiting, state.blocks_in_use, *since))
        self.next_seconds = (len(self._rows) + 1) * self._interval
