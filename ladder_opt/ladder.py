"""Ladders: sorted, checked rungs, and the pair of them that a decode step is padded to."""

from __future__ import annotations

import bisect
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ladder_opt.arguments import checked, plain_number
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError

Axis = Literal["num_seqs", "num_blocks"]
Target = Literal["plugin", "spyre-env"]
"""What loads the ladders: our vLLM plugin, or the Spyre plugin's own environment variables."""
NUM_SEQS_LIST = "SPYRE_ATTN_NUM_SEQS_BUCKETS"
KV_LIST = "SPYRE_ATTN_KV_BUCKETS"
QUERY_LIST = "SPYRE_ATTN_QUERY_BUCKETS"
"""The Spyre plugin's environment variables for lists of rungs: sequences, tokens of KV, query tokens."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
AXES: tuple[Axis, Axis] = ("num_seqs", "num_blocks")


@dataclass(frozen=True)
class Ladder:
    """Rungs of one axis: distinct whole numbers, ascending, from 1. May be empty."""

    rungs: tuple[int, ...]

    def __post_init__(self) -> None:
        rungs = self.rungs
        if all(type(rung) is int for rung in rungs) and all(map(operator.lt, (0, *rungs), rungs)):
            return
        for low, high in zip((0, *self.rungs), self.rungs, strict=False):
            if isinstance(high, bool) or not isinstance(high, int) or high <= low:
                raise UsageError(
                    f"ladder {list(self.rungs)}: found {high!r} after {low}, expected a larger integer"
                )

    def smallest_at_least(self, size: int) -> int | None:
        """The rung that `size` is padded to; None past the last one."""
        index = bisect.bisect_left(self.rungs, size)
        return self.rungs[index] if index < len(self.rungs) else None


@dataclass(frozen=True)
class Ladders:
    """The ladders of batched decode: two independent ones, or (ragged) a block ladder for each num_seqs rung.

    Attributes:
        num_seqs: rungs from min_batched_seqs on; the last is max_num_seqs. Empty where no step is batched.
        num_blocks: rungs from 1 on; the last is ceil(max_model_len / block_size). Of ragged ladders: all
            the rungs that any of them has.
        ragged: the block ladder of each num_seqs rung, in their order; None for two independent ladders.
        query_lens: padded query lengths of per-sequence attention, from 1 to max_num_batched_tokens, where
            it shares the num_blocks ladder (target `spyre-env`); None where it has a ladder of its own.
    """

    num_seqs: tuple[int, ...]
    num_blocks: tuple[int, ...]
    ragged: tuple[tuple[int, ...], ...] | None = None
    query_lens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_seqs", "num_blocks", "query_lens"):
            rungs = getattr(self, name)
            if rungs is None or (type(rungs) is tuple and all(type(rung) is int for rung in rungs)):
                continue
            object.__setattr__(self, name, tuple(map(plain_number, rungs)))  # lists and arrays do as well
        Ladder(self.num_seqs)
        Ladder(self.num_blocks)
        if self.query_lens is not None:
            Ladder(self.query_lens)
            if self.ragged is not None:
                raise UsageError("ragged: found with query_lens, expected one block ladder for all")
        if self.ragged is None:
            return
        if len(self.ragged) != len(self.num_seqs):
            raise UsageError(
                f"ragged: found {len(self.ragged)} block ladders, "
                f"expected {len(self.num_seqs)}, one for each num_seqs rung"
            )
        for blocks in self.ragged:
            Ladder(blocks)
            if not blocks or not set(blocks) <= set(self.num_blocks) or blocks[-1] != self.num_blocks[-1]:
                raise UsageError(
                    f"ragged: found {list(blocks)}, expected rungs of {list(self.num_blocks)} up to the last"
                )

    def blocks_of(self, index: int) -> tuple[int, ...]:
        """The block ladder of the num_seqs rung at an index."""
        return self.num_blocks if self.ragged is None else self.ragged[index]

    def blocks_by_rung(self) -> dict[int, tuple[int, ...]]:
        """{num_seqs rung: its block ladder}."""
        return {rung: self.blocks_of(index) for index, rung in enumerate(self.num_seqs)}

    def ragged_dict(self) -> dict[str, list[int]] | None:
        """What files hold as `ragged`: {num_seqs rung: its block ladder}; None of two independent ladders."""
        if self.ragged is None:
            return None
        return {str(rung): list(blocks) for rung, blocks in self.blocks_by_rung().items()}

    def with_num_seqs(self, rungs: tuple[int, ...]) -> Ladders:
        """These ladders with other num_seqs rungs; of ragged ones each takes the block ladder next above it.

        A rung past the last takes the last one's. Without rungs, none is ragged.
        """
        if self.ragged is None or not rungs:
            return replace(self, num_seqs=rungs, ragged=None)
        last = len(self.num_seqs) - 1
        return Ladders.from_ragged(
            {rung: self.blocks_of(min(bisect.bisect_left(self.num_seqs, rung), last)) for rung in rungs}
        )

    @classmethod
    def from_ragged(cls, ladders: Mapping[int, Sequence[int]]) -> Ladders:
        """Ragged ladders from {num_seqs rung: block ladder}."""
        rungs = tuple(sorted(ladders))
        blocks = tuple(tuple(ladders[rung]) for rung in rungs)
        return cls(rungs, tuple(sorted({rung for ladder in blocks for rung in ladder})), blocks)


def powers_of_two(start: int, limit: int) -> tuple[int, ...]:
    """`start`, doubled while below `limit`, then `limit`; empty where `limit` is below `start`."""
    if limit < start:
        return ()
    rungs = []
    rung = start
    while rung < limit:
        rungs.append(rung)
        rung *= 2
    return (*rungs, limit)


@checked
def default_ladders(engine: Engine) -> Ladders:
    """The ladders the bucketer uses without a plan: powers of two, then the limit."""
    return Ladders(
        powers_of_two(engine.min_batched_seqs, engine.max_num_seqs),
        powers_of_two(1, engine.max_num_blocks),
    )


DEFAULT_QUERY_STEP_TOKENS = 512


def default_query_lens(engine: Engine) -> tuple[int, ...]:
    """The Spyre plugin's query lengths without SPYRE_ATTN_QUERY_BUCKETS: 1, multiples of a step, the limit.

    Source: torch-spyre/spyre-inference, `v1/attention/spyre_attn_bucketer.py`.
    """
    top = engine.max_num_batched_tokens
    step = min(DEFAULT_QUERY_STEP_TOKENS, top)
    return tuple(sorted({1, *range(step, top + 1, step), top}))


def clamp_query_lens(query_lens: Sequence[int], engine: Engine) -> tuple[tuple[int, ...], list[str]]:
    """Fit a list of query lengths to an engine: from 1 (a decode) to max_num_batched_tokens.

    Returns:
        The rungs, and a warning for each change.

    Raises:
        UsageError: an entry below 1 or not an integer, or an empty list.
    """
    top = engine.max_num_batched_tokens
    if not query_lens:
        raise UsageError("query_lens: found an empty list, expected at least one rung")
    for rung in query_lens:
        if isinstance(rung, bool) or not isinstance(rung, int) or rung < 1:
            raise UsageError(f"query_lens: found {rung!r}, expected integers of 1 or more")
    kept = {rung for rung in query_lens if rung <= top}
    warnings = [
        f"query_lens: {rung} is above max_num_batched_tokens = {top} and was dropped"
        for rung in sorted(set(query_lens) - kept)
    ]
    for rung, what in ((1, "1, the length of a decode,"), (top, f"max_num_batched_tokens = {top}")):
        if rung not in kept:
            warnings.append(f"query_lens: {what} was missing and was added")
    return tuple(sorted(kept | {1, top})), warnings


def is_integer(text: str) -> bool:
    """Whether a text is a whole number in plain digits; int() would also take 1_000 and other scripts'."""
    return _INTEGER.fullmatch(text) is not None


def parse_rungs(text: str, *, option: str) -> list[int]:
    """Read `4,8,32`.

    Raises:
        UsageError: an entry is not an integer, or there is none.
    """
    rungs = []
    for part in text.replace("[", "").replace("]", "").split(","):
        entry = part.strip()
        if not is_integer(entry):
            raise UsageError(f"{option}: found {entry!r} in {text!r}, expected integers such as 4,8,32")
        rungs.append(int(entry))
    return rungs


def clamp(rungs: Sequence[int], axis: Axis, engine: Engine) -> tuple[tuple[int, ...], list[str]]:
    """Fit a user's list to an engine: sort, de-duplicate, drop what is past the limit, end on it.

    Returns:
        The rungs, and a warning for each change (sorting and de-duplicating are no change of meaning
        but are told too).

    Raises:
        UsageError: an entry below 1 or not an integer, or an empty list.
    """
    limit = engine.max_num_seqs if axis == "num_seqs" else engine.max_num_blocks
    source = "max_num_seqs" if axis == "num_seqs" else "ceil(max_model_len / block_size)"
    floor = engine.min_batched_seqs if axis == "num_seqs" else 1
    if not rungs:
        raise UsageError(f"{axis}: found an empty list, expected at least one rung")
    for rung in rungs:
        if isinstance(rung, bool) or not isinstance(rung, int) or rung < 1:
            raise UsageError(f"{axis}: found {rung!r}, expected integers of 1 or more")
    if limit < floor:
        return (), [f"{axis}: max_num_seqs {limit} is below min_batched_seqs {floor}: the list is not used"]
    warnings = []
    if list(rungs) != sorted(set(rungs)):
        warnings.append(f"{axis}: {list(rungs)} was sorted and freed of duplicates")
    entries = sorted(set(rungs))
    warnings += [
        f"{axis}: {rung} is below min_batched_seqs = {floor} and was dropped"
        for rung in entries
        if rung < floor
    ]
    kept, told = end_on_limit([rung for rung in entries if rung >= floor], limit, name=axis, source=source)
    return kept, [*warnings, *told]


def end_on_limit(
    rungs: Sequence[int], limit: int, *, name: str, source: str
) -> tuple[tuple[int, ...], list[str]]:
    """Drop rungs past a limit and end on it.

    Args:
        rungs: distinct, ascending.
        limit: the last rung to be.
        name: the list, for warnings.
        source: what the limit is, for warnings.

    Returns:
        The rungs, and a warning for each change.
    """
    warnings = [
        f"{name}: {rung} is above {source} = {limit} and was dropped" for rung in rungs if rung > limit
    ]
    kept = tuple(rung for rung in rungs if rung <= limit)
    if kept[-1:] != (limit,):
        warnings.append(f"{name}: {source} = {limit} was missing and was added as the top rung")
        kept = (*kept, limit)
    return kept, warnings
