"""When a replay came to each request: scheduled, first token, finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ladder_opt.extras import data_frame

if TYPE_CHECKING:
    import pandas as pd

TOTALS = ("busy_seconds", "steps", "decode_tokens", "decode_blocks", "prefill_tokens")
"""What `RequestTimes.totals` holds, in the order of its last axis."""
SCHEDULED, FIRST_TOKEN, FINISH = range(3)


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """One row a request that was replayed, in the trace's order; all times in seconds on its clock.

    Attributes:
        row: int64 (requests,), the request's row in the trace given.
        arrival_seconds: float64 (requests,); in a closed loop when another request made room.
        scheduled_seconds: when the step began that first scheduled it.
        first_token_seconds: when the step ended that sampled its first token.
        finish_seconds: when the step ended that sampled its last.
        prompt_tokens: int64 (requests,).
        output_tokens: int64 (requests,).
        totals: float64 (3, requests, 5), what its engine had done by those three moments: see `TOTALS`.
            `decode_blocks` is the sum over steps of the decodes' own KV blocks.
    """

    row: NDArray[np.int64]
    arrival_seconds: NDArray[np.float64]
    scheduled_seconds: NDArray[np.float64]
    first_token_seconds: NDArray[np.float64]
    finish_seconds: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    totals: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def time_to_first_token_seconds(self) -> NDArray[np.float64]:
        """From arrival to the first token, the time in the queue included: float64 (requests,)."""
        return self.first_token_seconds - self.arrival_seconds

    @property
    def time_per_output_token_seconds(self) -> NDArray[np.float64]:
        """Mean time between two tokens: float64 (requests,), NaN for outputs of one token."""
        gaps = (self.output_tokens - 1).astype(np.float64)
        gaps[gaps == 0] = np.nan
        return np.asarray((self.finish_seconds - self.first_token_seconds) / gaps)

    def to_frame(self) -> pd.DataFrame:
        """One row a request, the totals left out."""
        names = [name for name in self.__dataclass_fields__ if name != "totals"]
        names += ["time_to_first_token_seconds", "time_per_output_token_seconds"]
        return data_frame({name: getattr(self, name) for name in names})

    @classmethod
    def from_marks(
        cls,
        marks: NDArray[np.float64],
        *,
        row: NDArray[np.int64],
        arrival_seconds: NDArray[np.float64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
    ) -> RequestTimes:
        """From what the kernel marked: (3, requests, 1 + len(TOTALS)), the clock first."""
        return cls(
            row=row,
            arrival_seconds=arrival_seconds,
            scheduled_seconds=marks[SCHEDULED, :, 0].copy(),
            first_token_seconds=marks[FIRST_TOKEN, :, 0].copy(),
            finish_seconds=marks[FINISH, :, 0].copy(),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            totals=marks[:, :, 1:].copy(),
        )

    @classmethod
    def sum_of(cls, parts: Sequence[RequestTimes]) -> RequestTimes | None:
        """The requests of several engines in the trace's order."""
        if not parts:
            return None
        order = np.argsort(np.concatenate([part.row for part in parts]), kind="stable")
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])[order]
            for name in cls.__dataclass_fields__
            if name != "totals"
        }
        totals = np.concatenate([part.totals for part in parts], axis=1)[:, order]
        return cls(**columns, totals=totals)


def closed_loop_arrivals(finish_seconds: NDArray[np.float64], concurrency: int) -> NDArray[np.float64]:
    """When each request of a closed loop came: at 0, or with the finish that made room for it."""
    arrivals = np.zeros(len(finish_seconds))
    arrivals[concurrency:] = np.sort(finish_seconds)[: len(arrivals[concurrency:])]
    return arrivals
