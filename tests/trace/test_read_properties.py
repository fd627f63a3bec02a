"""Laws of the readers: only InputError gets out, and no row is lost."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ladder_opt.errors import InputError
from ladder_opt.trace.clock import CLOCK_CHOICES
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.read import FORMATS, read_trace
from ladder_opt.trace.table import Trace

CELLS = st.one_of(
    st.integers(-3, 3000).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", "0", "nan", "1e18", '"', '"a\nb"', "=1", "2024-01-01 00:00:01", "2024-01-01T00:00:00.5+02:00"]
    ),
    st.text(max_size=5),
)
NUMBERS = st.one_of(st.integers(-5, 10**20), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
JSON = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
KEYS = st.sampled_from(
    [
        "timestamp",
        "input_length",
        "output_length",
        "chat_id",
        "parent_chat_id",
        "input_lens",
        "output_lens",
        "start_times",
        "errors",
        "resourceSpans",
        "scopeSpans",
        "spans",
        "attributes",
        "start_time",
        "gen_ai.usage.input_tokens",
        "startTime",
        "prompt_tokens",
        "completion_tokens",
        "output_tokens",
        "arrival_seconds",
        "cached_tokens",
    ]
)


def read(content: bytes, **options: Any) -> Trace | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            return read_trace(path, **options)
    return None


def conserves_rows(trace: Trace | None) -> None:
    if trace is not None:
        assert trace.sources[0].rows == len(trace) + sum(trace.set_aside.values())
        if trace.arrival_seconds is not None and len(trace):
            assert trace.arrival_seconds[0] == 0


@given(st.binary(), st.sampled_from([None, *FORMATS]))
@example(b"PAR1PAR1", None)
@example(b"\xff\xfe\x00", None)
@example(b"(\xb5/\xfd", None)
@example(b"\x1f\x8b", None)
def test_any_bytes(content: bytes, name: str | None) -> None:
    conserves_rows(read(content, format=name))


@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=12),
    st.sampled_from(CLOCK_CHOICES),
    st.booleans(),
    st.sampled_from([None, "s", "ns"]),
)
def test_any_csv(rows: list[list[str]], clock: str, spread: bool, unit: str | None) -> None:
    text = "prompt_tokens,output_tokens,arrival_seconds\n" + "\n".join(map(",".join, rows))
    content = text.encode("utf-8", "surrogatepass")
    conserves_rows(read(content, clock=clock, spread_ticks=spread, time_unit=unit))


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=6) | JSON, max_size=6), st.booleans())
def test_any_json(records: list[object], as_list: bool) -> None:
    text = json.dumps(records) if as_list else "\n".join(map(json.dumps, records))
    conserves_rows(read(text.encode()))


ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cached_tokens", "x"]
    ),
    JSON,
)
SPANS = st.fixed_dictionaries(
    {"attributes": ATTRIBUTES | JSON},
    optional={
        "startTimeUnixNano": st.integers(0, 10**19).map(str) | JSON,
        "name": st.just("llm_request") | JSON,
        "spanId": st.sampled_from("abc") | JSON,
        "parentSpanId": st.sampled_from("abc") | JSON,
        "status": st.fixed_dictionaries({"code": JSON}) | JSON,
    },
)


@given(st.lists(SPANS | JSON, max_size=8))
def test_any_spans(spans: list[object]) -> None:
    scopes = [{"spans": spans}, 1, None, {"spans": {}}]
    conserves_rows(read(json.dumps({"resourceSpans": [{"scopeSpans": scopes}, []]}).encode()))


@given(
    st.dictionaries(
        st.sampled_from(["input_lens", "output_lens", "start_times", "errors"]), st.lists(JSON) | JSON
    )
)
@example({"input_lens": [5], "output_lens": [1], "start_times": [None], "errors": [{}]})
def test_any_result(result: dict[str, object]) -> None:
    conserves_rows(read(json.dumps(result).encode(), format="vllm_bench"))


@given(st.lists(st.tuples(st.integers(-2, 5), st.integers(-2, 5)), min_size=1, max_size=8))
def test_any_chain_of_chats_has_roots(chats: list[tuple[int, int]]) -> None:
    rows = [
        {"chat_id": one, "parent_chat_id": parent, "timestamp": 0.5, "input_length": 5, "output_length": 1}
        for one, parent in chats
    ]
    trace = read("\n".join(map(json.dumps, rows)).encode())
    assert trace is not None
    assert trace.session is not None
    root = dict(zip([str(one) for one, _ in chats], trace.session, strict=True))
    for one, parent in dict(chats).items():
        if str(parent) in root:
            assert root[str(one)] == root[str(parent)]


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 900), st.floats(0, 1e6)), min_size=1, max_size=40
    ),
    st.booleans(),
)
def test_every_row_is_a_request_or_counted_and_the_round_trip_is_equal(
    rows: list[tuple[int, int, float]], spread: bool
) -> None:
    text = "prompt_tokens,output_tokens,arrival_seconds,session\n"
    text += "".join(f"{p},{o},{t!r},s{p % 3}\n" for p, o, t in rows)
    trace = read(text.encode(), clock="sort", spread_ticks=spread)
    assert trace is not None
    conserves_rows(trace)
    assert len(trace) == sum(p > 0 and o > 0 for p, o, _ in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        write_trace(trace, path)
        again = read_trace(path)
    for name in ("arrival_seconds", "prompt_tokens", "output_tokens", "session"):
        assert getattr(again, name).tolist() == getattr(trace, name).tolist()
    assert (again.sources, again.set_aside, again.notes) == (trace.sources, trace.set_aside, trace.notes)
