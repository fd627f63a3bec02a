"""The lists that people set for the Spyre plugin, read by the plugin's own rules.

`SPYRE_ATTN_NUM_SEQS_BUCKETS` (sequences), `SPYRE_ATTN_KV_BUCKETS` (tokens of KV) and
`SPYRE_ATTN_QUERY_BUCKETS` (query tokens) are comma-separated whole numbers. An unset or empty variable is no
list; empty parts are passed over; order and duplicates do not matter; an entry above the limit is dropped
and a limit that is missing is added, each with a warning; an entry below 1 or not a whole number is an
error. Source: torch-spyre/spyre-inference, `spyre_inference/v1/attention/spyre_attn_bucketer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import (
    KV_LIST,
    NUM_SEQS_LIST,
    QUERY_LIST,
    clamp,
    default_query_lens,
    end_on_limit,
    is_integer,
)
from ladder_opt.presets import preset_kv_buckets

ENVIRONMENT_LISTS = (NUM_SEQS_LIST, KV_LIST, QUERY_LIST)


def read_list(environ: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    """The list in a variable, ascending and each entry once; None where it is unset or empty.

    Raises:
        UsageError: an entry is below 1 or not a whole number, or there is none.
    """
    text = environ.get(name)
    if not text:
        return None
    entries = [part.strip() for part in text.split(",") if part.strip()]
    for entry in entries:
        if not is_integer(entry) or int(entry) < 1:
            raise UsageError(f"{name}: found {entry!r} in {text!r}, expected whole numbers of 1 or more")
    if not entries:
        raise UsageError(f"{name}: found {text!r}, expected at least one whole number")
    return tuple(sorted({int(entry) for entry in entries}))


def num_seqs_list(environ: Mapping[str, str], engine: Engine) -> tuple[tuple[int, ...] | None, list[str]]:
    """The num_seqs ladder that the environment asks for, fitted to the engine; None where it asks for none.

    Raises:
        UsageError: as `read_list`.
    """
    entries = read_list(environ, NUM_SEQS_LIST)
    if entries is None:
        return None, []
    rungs, warnings = clamp(entries, "num_seqs", engine)
    return rungs, [f"{NUM_SEQS_LIST}: {warning}" for warning in warnings]


def kv_ladder(
    entries: tuple[int, ...] | None, engine: Engine, *, name: str
) -> tuple[tuple[int, ...], list[str]]:
    """The KV ladder of the per-sequence path, in tokens, ending on max_model_len.

    Args:
        entries: what was asked for; None for powers of two from the first that holds a block.
        engine: the limits.
        name: who asked, for warnings.
    """
    limit = engine.max_model_len
    if entries is None:
        return preset_kv_buckets("pow2", max_model_len=limit, block_size=engine.block_size), []
    return end_on_limit(entries, limit, name=name, source="max_model_len")


def query_ladder(
    entries: tuple[int, ...] | None, engine: Engine, *, name: str
) -> tuple[tuple[int, ...], list[str]]:
    """The query ladder of the per-sequence path, in tokens, from 1 (a decode) to max_num_batched_tokens.

    Args:
        entries: what was asked for; None for the plugin's default.
        engine: the limits.
        name: who asked, for warnings.
    """
    if entries is None:
        return default_query_lens(engine), []
    rungs, warnings = end_on_limit(
        entries, engine.max_num_batched_tokens, name=name, source="max_num_batched_tokens"
    )
    if rungs[0] != 1:
        warnings.append(f"{name}: 1 was missing and was added: a decode's query is never padded")
        rungs = (1, *rungs)
    return rungs, warnings
