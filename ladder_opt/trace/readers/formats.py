"""The formats as data: which columns hold what, in which unit, and what sets a request aside.

A format is found by the names a file carries (CSV header, JSON keys, Parquet columns), never by the
file's own name. Adding one is adding a `Format` here; only shapes that are not one row a request
(OTLP spans, parallel arrays) need code, and that turns them into rows first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ladder_opt.trace.readers.table import MISSING
from ladder_opt.trace.table import BEYOND_MAX_MODEL_LEN

ZERO_OUTPUT = "zero_output"
ZERO_PROMPT = "zero_prompt"
FAILED = "failed"
UNREADABLE = "unreadable"
ANSWERED_BY_PROXY = "answered_by_proxy_cache"
OUTER_SPAN = "outer_span"

REASONS: Mapping[str, str] = {
    ZERO_OUTPUT: "produced no output token",
    ZERO_PROMPT: "had no prompt token",
    FAILED: "failed, as its record says",
    UNREADABLE: "a value is missing or no number (the note names the first)",
    BEYOND_MAX_MODEL_LEN: "prompt + output is beyond max_model_len",
    ANSWERED_BY_PROXY: "answered from the proxy's cache and never reached an engine",
    OUTER_SPAN: "a span around other spans with token counts, which would count twice",
}

COLUMN_ROLES = ("arrival", "prompt", "output", "cached", "session", "priority")


@dataclass(frozen=True)
class Drop:
    """A column whose value sets a request aside.

    Attributes:
        column: read where the file has it.
        reason: one of `REASONS`.
        when: whether a cell does.
    """

    column: str
    reason: str
    when: Callable[[object], bool]


@dataclass(frozen=True)
class Format:
    """One trace format.

    Attributes:
        name: what `--format` takes.
        description: one line for `--help`.
        signature: names a file has to carry, all of them.
        columns: role ("arrival", "prompt", ...) to column name; a role may be left out, and a column
            of a role other than prompt and output may be absent from the file.
        unit: of the arrivals; None reads dates, or seconds when they are numbers.
        integers_are: the unit when all arrivals are integers, where that differs from `unit`.
        launch_order: rows stand in order of arrival.
        drops: what sets a request aside, first match wins.
        parent: column holding the id of an earlier row of the same session, with -1 for none.
        timings: role (see `ladder_opt.trace.timings`) to column name, for records of what a server did.
    """

    name: str
    description: str
    signature: frozenset[str]
    columns: Mapping[str, str]
    unit: str | None = None
    integers_are: str | None = None
    launch_order: bool = True
    drops: tuple[Drop, ...] = ()
    parent: str | None = None
    timings: Mapping[str, str] = field(default_factory=dict)


def _is_text(cell: object) -> bool:
    return cell is not MISSING and cell is not None and str(cell).strip() != ""


def _says(*words: str) -> Callable[[object], bool]:
    return lambda cell: isinstance(cell, str | bool) and str(cell).strip().lower() in words


LADDER_OPT = "ladder_opt"
PRIORITY = "priority"  # read from any table of requests that has such a column
COLUMNS = "columns"
VLLM_BENCH = "vllm_bench"
OTEL = "otel"

FORMAT_LIST: tuple[Format, ...] = (
    Format(
        LADDER_OPT,
        "canonical Parquet written by `trace convert`",
        frozenset(),
        {},
    ),
    Format(
        "azure",
        "Azure LLM inference trace, CSV (2023 and 2024)",
        frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"},
    ),
    Format(
        "burstgpt",
        "BurstGPT, CSV (with or without Session ID)",
        frozenset({"Timestamp", "Request tokens", "Response tokens"}),
        {
            "arrival": "Timestamp",
            "prompt": "Request tokens",
            "output": "Response tokens",
            "session": "Session ID",
        },
        unit="s",
    ),
    Format(
        "qwen_bailian",
        "Qwen-Bailian usage trace, JSONL (timestamp in seconds)",
        frozenset({"chat_id", "timestamp", "input_length", "output_length"}),
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "session": "chat_id"},
        unit="s",
        integers_are="s",
        parent="parent_chat_id",
    ),
    Format(
        "mooncake",
        "Mooncake or vLLM timed_trace, JSONL (timestamp in integer ms; with fractions: seconds)",
        frozenset({"timestamp", "input_length", "output_length"}),
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length"},
        unit="s",
        integers_are="ms",
    ),
    Format(
        VLLM_BENCH,
        "vLLM `bench serve --save-detailed` result, JSON",
        frozenset({"input_lens", "output_lens"}),
        {"arrival": "start_times", "prompt": "input_lens", "output": "output_lens"},
        unit="s",
        launch_order=False,
        drops=(Drop("errors", FAILED, _is_text),),
        timings={"to_first_token": "ttfts", "between_tokens": "itls"},
    ),
    Format(
        "vllm_requests",
        "vLLM per-request records, JSONL or CSV (input_toks, output_toks, arrival_time)",
        frozenset({"input_toks", "output_toks", "arrival_time"}),
        {"arrival": "arrival_time", "prompt": "input_toks", "output": "output_toks"},
        unit="s",
        launch_order=False,
        timings={
            "queued": "queued_ts",
            "scheduled": "scheduled_ts",
            "first_token": "first_token_ts",
            "last_token": "last_token_ts",
        },
    ),
    Format(
        "multi_round_qa",
        "multi-round-qa summary, CSV (launch_time, float token counts)",
        frozenset({"prompt_tokens", "generation_tokens", "launch_time"}),
        {
            "arrival": "launch_time",
            "prompt": "prompt_tokens",
            "output": "generation_tokens",
            "session": "user_id",
        },
        unit="s",
        launch_order=False,
        timings={"to_first_token": "ttft", "between_tokens": "generation_time"},
    ),
    Format(
        OTEL,
        "OpenTelemetry spans with gen_ai.usage counts, OTLP JSON or one span a record",
        frozenset(),
        {
            "arrival": "start",
            "prompt": "prompt",
            "output": "output",
            "cached": "cached",
            "session": "session",
        },
        unit="ns",
        launch_order=False,
        drops=(Drop("failed", FAILED, _says("true")), Drop("outer", OUTER_SPAN, _says("true"))),
    ),
    Format(
        "litellm",
        "LiteLLM spend logs, JSON, JSONL or CSV",
        frozenset({"startTime", "prompt_tokens", "completion_tokens"}),
        {
            "arrival": "startTime",
            "prompt": "prompt_tokens",
            "output": "completion_tokens",
            "session": "session_id",
        },
        launch_order=False,
        drops=(
            Drop("status", FAILED, _says("failure", "failed", "error")),
            Drop("cache_hit", ANSWERED_BY_PROXY, _says("true", "1")),
        ),
    ),
    Format(
        "table",
        "plain table with the canonical names: prompt_tokens, output_tokens, optional arrival_seconds, ...",
        frozenset({"prompt_tokens", "output_tokens"}),
        {
            "arrival": "arrival_seconds",
            "prompt": "prompt_tokens",
            "output": "output_tokens",
            "cached": "cached_tokens",
            "session": "session",
        },
        unit="s",
        timings={
            "scheduled": "scheduled_seconds",
            "first_token": "first_token_seconds",
            "last_token": "last_token_seconds",
        },
    ),
    Format(
        COLUMNS,
        "any CSV, JSON, JSONL or Parquet, with --columns arrival=...,prompt=...,output=...",
        frozenset(),
        {},
    ),
)
BY_NAME: Mapping[str, Format] = {one.name: one for one in FORMAT_LIST}


def match(names: frozenset[str]) -> Format | None:
    """The first format all of whose names are there, or None."""
    return next((one for one in FORMAT_LIST if one.signature and one.signature <= names), None)
