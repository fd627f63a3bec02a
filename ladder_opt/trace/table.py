"""The canonical request trace: checked columns, one row a request, sorted by arrival.

Every reader ends in a `Trace`, and everything downstream starts from one. Values that a replay
cannot use never get this far: readers count them in `set_aside` by reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ladder_opt.errors import InputError
from ladder_opt.extras import data_frame
from ladder_opt.markup import facts as fact_table
from ladder_opt.trace.reasons import set_aside_facts
from ladder_opt.units import duration_text

if TYPE_CHECKING:
    import pandas as pd

BEYOND_MAX_MODEL_LEN = "beyond_max_model_len"


_FRAME_COLUMNS = ("arrival_seconds", "prompt_tokens", "output_tokens", "cached_tokens", "priority", "session")


@dataclass(frozen=True)
class TraceSource:
    """Where rows came from.

    Attributes:
        path: the file as the user named it.
        sha256: digest of the file's bytes as stored (compressed, if it is).
        rows: data rows found in it, used or not.
        format: name of the format it was read as.
    """

    path: str
    sha256: str
    rows: int
    format: str


@dataclass(frozen=True)
class HashIds:
    """What the prompts of a trace hold, block by block: equal ids stand for equal tokens.

    Attributes:
        block_tokens: tokens of a block; the last block of a prompt may be shorter.
        offsets: int64 (requests + 1,), where each request's ids begin in `values`.
        values: int64 (ids,), >= 0; ceil(prompt_tokens / block_tokens) for each request.
    """

    block_tokens: int
    offsets: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], block_tokens: int) -> HashIds:
        """From a list of ids for each request."""
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum([len(one) for one in ids], out=offsets[1:])
        values = np.fromiter((value for one in ids for value in one), np.int64, count=int(offsets[-1]))
        return cls(block_tokens, offsets, values)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> HashIds:
        """Those of the given rows (indices, or a mask)."""
        index = np.arange(len(self.offsets) - 1)[rows]
        counts = self.offsets[index + 1] - self.offsets[index]
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], counts)
        return HashIds(self.block_tokens, offsets, self.values[at])


@dataclass(frozen=True)
class Trace:
    """A request trace.

    Attributes:
        arrival_seconds: float64 (requests,), from 0, not decreasing; None when the trace holds
            lengths alone (then it can only be replayed at a fixed concurrency).
        prompt_tokens: int64 (requests,), >= 1.
        output_tokens: int64 (requests,), >= 1.
        cached_tokens: int64 (requests,) or None; prompt tokens that a prefix cache supplied.
        priority: int64 (requests,) or None; vLLM's request priority, the lower the sooner.
        hash_ids: ids of what each prompt's blocks hold, or None.
        session: object (requests,) of str or None; the conversation a request belongs to.
        sources: the files it was read from.
        set_aside: requests that were found but cannot be used, counted by reason.
        notes: what a person should know about the data (ticks, a mended clock), one line each.
    """

    arrival_seconds: NDArray[np.float64] | None
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    hash_ids: HashIds | None = None
    session: NDArray[np.object_] | None = None
    sources: tuple[TraceSource, ...] = ()
    set_aside: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prompt = _as_int64(self.prompt_tokens, "prompt_tokens")
        output = _as_int64(self.output_tokens, "output_tokens")
        if len(prompt) != len(output):
            raise InputError(f"{len(output)} output_tokens", f"{len(prompt)}, one for each prompt_tokens")
        for name, tokens in (("prompt_tokens", prompt), ("output_tokens", output)):
            if len(tokens) and tokens.min() < 1:
                raise InputError(
                    f"{tokens.min()}", "at least 1 token", line=int(tokens.argmin()) + 1, column=name
                )
        object.__setattr__(self, "prompt_tokens", prompt)
        object.__setattr__(self, "output_tokens", output)
        for name in ("cached_tokens", "priority"):
            values = getattr(self, name)
            if values is not None:
                checked = _as_int64(values, name)
                if len(checked) != len(prompt):
                    raise InputError(f"{len(checked)} {name}", f"{len(prompt)}, one for each prompt_tokens")
                object.__setattr__(self, name, checked)
        if self.hash_ids is not None:
            _check_hash_ids(self.hash_ids, prompt)
        if self.arrival_seconds is not None:
            object.__setattr__(self, "arrival_seconds", _as_arrivals(self.arrival_seconds, len(prompt)))
        object.__setattr__(self, "set_aside", MappingProxyType(dict(self.set_aside)))

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [("requests", f"{len(self):,}")]
        if self.arrival_seconds is not None:
            facts.append(("span", duration_text(self.span_seconds)))
        for name in ("prompt_tokens", "output_tokens"):
            tokens = getattr(self, name)
            if len(tokens):
                median = float(np.median(tokens))
                facts.append((name, f"{tokens.min():,} to {tokens.max():,}, median {median:,.0f}"))
        facts += set_aside_facts(self.set_aside, len(self))
        facts += [("file", source.path) for source in self.sources]
        facts += [("note", note) for note in self.notes]
        return fact_table(facts, caption="Trace")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "set_aside": dict(self.set_aside)}  # a read-only view is not to be pickled

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, set_aside=MappingProxyType(state["set_aside"]))  # type: ignore[arg-type]

    def to_frame(self) -> pd.DataFrame:
        """A row for each request, in the order of arrival; columns that the trace lacks are left out.

        `hash_ids` are left out too: they are of another length for each request.
        """
        columns = {name: getattr(self, name) for name in _FRAME_COLUMNS}
        return data_frame({name: values for name, values in columns.items() if values is not None})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Self:
        """Read the columns of `to_frame`, sorted by arrival; other columns are left alone.

        Raises:
            InputError: a column is missing, or holds what a trace cannot.
        """
        missing = [name for name in ("prompt_tokens", "output_tokens") if name not in frame]
        if missing:
            raise InputError(f"columns {', '.join(map(str, frame.columns))}", f"{missing[0]} among them")
        if "arrival_seconds" in frame:
            frame = frame.sort_values("arrival_seconds", kind="stable")
        columns: dict[str, Any] = {name: frame[name].to_numpy() for name in _FRAME_COLUMNS if name in frame}
        arrivals = columns.pop("arrival_seconds", None)
        if arrivals is not None and len(frame):
            arrivals = arrivals - arrivals[0]
        return cls(arrival_seconds=arrivals, **columns)

    @property
    def has_arrivals(self) -> bool:
        """Whether it says when requests came."""
        return self.arrival_seconds is not None

    @property
    def has_priority(self) -> bool:
        """Whether it says how requests are ranked."""
        return self.priority is not None

    @property
    def has_hash_ids(self) -> bool:
        """Whether it says what prompts hold."""
        return self.hash_ids is not None

    @property
    def has_cached_tokens(self) -> bool:
        """Whether it says how much of each prompt was cached."""
        return self.cached_tokens is not None

    def whole(self) -> Trace:
        """Itself, for those who take streams too."""
        return self

    def chunks(self, *, with_cached_tokens: bool = False) -> Iterator[Trace]:  # noqa: ARG002  (all is here)
        """The whole of it at once, for those who take streams too (see `trace.stream`)."""
        yield self

    @property
    def span_seconds(self) -> float:
        """Seconds from the first arrival to the last; 0 without arrivals."""
        if self.arrival_seconds is None or not len(self):
            return 0.0
        return float(self.arrival_seconds[-1])

    def split_by_time(self, share: float) -> tuple[Trace, Trace]:
        """The trace before and from the moment when the last `share` of its span begins.

        The second part's arrivals count from 0 again. Without arrivals, rows take the place of time.
        What was set aside stays with the first part.
        """
        if self.arrival_seconds is None:
            cut = len(self) - round(len(self) * share)
        else:
            cut = int(np.searchsorted(self.arrival_seconds, self.span_seconds * (1 - share)))
        rows = np.arange(len(self))
        rest = replace(self.take(rows[cut:]), set_aside={})
        if rest.arrival_seconds is not None and len(rest):
            rest = replace(rest, arrival_seconds=rest.arrival_seconds - rest.arrival_seconds[0])
        return self.take(rows[:cut]), rest

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_], *, reason: str | None = None) -> Trace:
        """The trace of the given rows (indices in ascending order, or a mask).

        With a `reason` the rows left out are added to `set_aside` under it.
        """
        kept = replace(
            self,
            arrival_seconds=None if self.arrival_seconds is None else self.arrival_seconds[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            cached_tokens=None if self.cached_tokens is None else self.cached_tokens[rows],
            priority=None if self.priority is None else self.priority[rows],
            hash_ids=None if self.hash_ids is None else self.hash_ids.take(rows),
            session=None if self.session is None else self.session[rows],
        )
        left_out = len(self) - len(kept)
        if reason is None or not left_out:
            return kept
        counts = dict(self.set_aside)
        counts[reason] = counts.get(reason, 0) + left_out
        return replace(kept, set_aside=counts)


def within_limits(trace: Trace, *, max_model_len: int) -> Trace:
    """The requests whose prompt + output fits `max_model_len` tokens; the others are set aside."""
    fits = trace.prompt_tokens + trace.output_tokens <= max_model_len
    return trace.take(fits, reason=BEYOND_MAX_MODEL_LEN)


def _as_int64(values: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{name} of type {array.dtype}, {array.ndim} axes", "one axis of integers")
    return np.ascontiguousarray(array, dtype=np.int64)


def _check_hash_ids(hash_ids: HashIds, prompt: NDArray[np.int64]) -> None:
    if hash_ids.block_tokens < 1:
        raise InputError(f"{hash_ids.block_tokens}", "blocks of 1 token or more", column="hash_ids")
    if len(hash_ids.offsets) != len(prompt) + 1:
        found = len(hash_ids.offsets) - 1
        raise InputError(f"hash_ids of {found} requests", f"those of {len(prompt)}", column="hash_ids")
    counts = np.diff(hash_ids.offsets)
    off = np.flatnonzero(counts != -(-prompt // hash_ids.block_tokens))
    if len(off):
        row = int(off[0])
        expected = f"ceil({prompt[row]} / {hash_ids.block_tokens}), one for each block of the prompt"
        raise InputError(f"{counts[row]} hash_ids", expected, line=row + 1, column="hash_ids")
    if len(hash_ids.values) and hash_ids.values.min() < 0:
        raise InputError(f"{hash_ids.values.min()}", "ids of 0 or more", column="hash_ids")


def _as_arrivals(values: NDArray[np.float64], requests: int) -> NDArray[np.float64]:
    array = np.ascontiguousarray(values, dtype=np.float64)
    if array.shape != (requests,):
        raise InputError(f"{array.shape} arrival_seconds", f"{requests}, one for each request")
    if requests and not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(
            f"{array[bad]}", "a finite number of seconds", line=bad + 1, column="arrival_seconds"
        )
    if requests and array[0] < 0:
        raise InputError(f"{array[0]}", "arrivals from 0 on", line=1, column="arrival_seconds")
    falls = np.flatnonzero(np.diff(array) < 0)
    if len(falls):
        raise InputError(
            f"{array[falls[0] + 1]} after {array[falls[0]]}",
            "arrivals in ascending order",
            line=int(falls[0]) + 2,
            column="arrival_seconds",
        )
    return array
