"""OpenTelemetry spans to rows: OTLP JSON (`resourceSpans`), or one span a record as SDKs print them.

A span is a request when it carries token counts under `gen_ai.usage.*` (both the older names, which
vLLM writes, and the newer), or is named `llm_request`. Other spans are told in a note. Where such a
span encloses another (a client's span around the server's, an agent's around its calls), only the
innermost is a request, or its tokens would count twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ladder_opt.trace.readers.json_file import Record, Records
from ladder_opt.trace.readers.table import MISSING, Problem, RawTable, shown
from ladder_opt.trace.readers.values import nanoseconds_of

_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
)
_SESSION = ("gen_ai.conversation.id", "session.id")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")
_RESOURCES = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_REQUEST_NAMES = frozenset({"llm_request"})
_NO_GENERATION = ("embeddings", "retrieval")
_ERRORS = (2, "2", "ERROR", "STATUS_CODE_ERROR")


@dataclass(frozen=True)
class _Span:
    start: object
    attributes: Record
    failed: bool
    key: object
    parent: object
    name: object
    line: int

    @property
    def is_request(self) -> bool:
        counted = any(key in self.attributes for key in _PROMPT + _OUTPUT)
        generates = self.attributes.get("gen_ai.operation.name") not in _NO_GENERATION
        return (counted and generates) or self.name in _REQUEST_NAMES


def is_span_record(record: Record) -> bool:
    """Whether a JSON object is an OTLP document, or a span with attributes."""
    if _first(record, _RESOURCES) is not MISSING:
        return True
    return "attributes" in record and _first(record, _STARTS) is not MISSING


def span_table(records: Records) -> RawTable:
    """Columns start (ns), prompt, output, cached, session, failed, outer; one row a request span."""
    spans: list[_Span] = []
    broken = records.broken
    first = records.first_broken
    for record, line in zip(records.objects, records.lines, strict=True):
        for entry in _entries(record):
            if isinstance(entry, dict):
                spans.append(_span(entry, line))
            else:
                broken += 1
                first = first or Problem(shown(entry), "a span", line=line)
    requests = [span for span in spans if span.is_request]
    outer = _enclosing(spans, requests)
    others = len(spans) - len(requests)
    attributes = [span.attributes for span in requests]
    return RawTable(
        {
            "start": [span.start for span in requests],
            "prompt": [_first(one, _PROMPT) for one in attributes],
            "output": [_first(one, _OUTPUT) for one in attributes],
            "cached": [_first(one, _CACHED) for one in attributes],
            "session": [_first(one, _SESSION) for one in attributes],
            "failed": [span.failed for span in requests],
            "outer": [span.key in outer for span in requests],
        },
        len(requests),
        lines=[span.line for span in requests],
        broken=broken,
        first_broken=first,
        notes=(f"{others} spans carry no gen_ai.usage token counts and are no requests",) if others else (),
    )


def _entries(record: Record) -> Iterator[object]:
    resources = _first(record, _RESOURCES)
    if resources is MISSING:
        yield record
        return
    for resource in _list(resources):
        for scope in _list(_first(resource, _SCOPES)):
            yield from _list(_first(scope, ("spans",)))


def _span(entry: Record, line: int) -> _Span:
    attributes = entry.get("attributes")
    if not isinstance(attributes, dict):
        pairs = [pair for pair in _list(attributes) if isinstance(pair, dict)]
        attributes = {
            pair["key"]: _plain(pair.get("value")) for pair in pairs if isinstance(pair.get("key"), str)
        }
    start = _first(entry, _STARTS)
    status = entry.get("status")
    code = _first(status, ("code", "status_code", "statusCode")) if isinstance(status, dict) else status
    context = entry.get("context")
    inner = context if isinstance(context, dict) else entry
    nanoseconds = nanoseconds_of(start) if isinstance(start, str) else None
    return _Span(
        start=start if nanoseconds is None else nanoseconds,
        attributes=attributes,
        failed=isinstance(code, int | str) and code in _ERRORS,
        key=_id(_first(inner, ("spanId", "span_id"))),
        parent=_id(_first(entry, ("parentSpanId", "parent_span_id", "parent_id"))),
        name=entry.get("name") if isinstance(entry.get("name"), str) else None,
        line=line,
    )


def _enclosing(spans: list[_Span], requests: list[_Span]) -> set[object]:
    """Ids of the spans that stand above a request span."""
    parents = {span.key: span.parent for span in spans if span.key is not None}
    above: set[object] = set()
    for span in requests:
        key = span.parent
        while key is not None and key not in above:  # a cycle ends where it began
            above.add(key)
            key = parents.get(key)
    return above


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _plain(value: object) -> object:
    """An OTLP AnyValue as the value in it; int64 stands there as text."""
    if not isinstance(value, dict):
        return value
    return _first(
        value, ("intValue", "int_value", "doubleValue", "double_value", "stringValue", "string_value")
    )


def _first(holder: object, keys: tuple[str, ...]) -> object:
    if not isinstance(holder, dict):
        return MISSING
    return next((holder[key] for key in keys if holder.get(key) is not None), MISSING)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
