"""Every format read from made-up rows: what each column becomes, and what is told about it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.errors import InputError
from ladder_opt.trace.read import FORMATS, detect_format, read_trace
from ladder_opt.trace.table import Trace, within_limits
from tests.packing import zstd


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def seconds(trace: Trace) -> list[float]:
    assert trace.arrival_seconds is not None
    return list(map(float, trace.arrival_seconds))


def test_azure_2023_keeps_seven_digits_across_crlf_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-01-02 03:04:05.0000001,10,1\r\n2023-01-02 03:04:05.0000003,11,2\r\n"
        "2023-01-03 03:04:05.0000001,12,3",
    )
    trace = read_trace(path)
    assert seconds(trace) == [0.0, 2e-7, 86400.0]
    assert trace.prompt_tokens.tolist() == [10, 11, 12]
    assert trace.output_tokens.tolist() == [1, 2, 3]
    assert (trace.sources[0].rows, trace.sources[0].format, trace.notes) == (3, "azure", ())


def test_azure_2024_reads_offsets_and_whole_seconds(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.250000+00:00,10,1\n2024-05-10 00:00:01+00:00,11,2\n"
        "2024-05-10 02:00:02+02:00,12,3\n2024-05-10 00:00:03,13,4\n",
    )
    trace = read_trace(path)
    assert seconds(trace) == [0.0, 0.75, 1.75, 2.75]
    assert trace.notes == ("1 of the dates in TIMESTAMP carry no zone; read as UTC",)


@pytest.mark.parametrize(
    "text",
    [
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,X,100,10,110,Chat log\n7.5,X,200,0,200,API log\n9,X,300,30,330,Chat log\n"
        ),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5.0,s1,3,X,100,10,110,Chat log\n7.5,s2,3,X,200,0,200,API log\n9.0,s1,4,X,300,30,330,Chat log\n"
        ),
    ],
)
def test_burstgpt_reads_both_column_sets_and_sets_empty_responses_aside(tmp_path: Path, text: str) -> None:
    trace = read_trace(put(tmp_path, "b.csv", text))
    assert seconds(trace) == [0.0, 4.0]
    assert trace.prompt_tokens.tolist() == [100, 300]
    assert dict(trace.set_aside) == {"zero_output": 1}
    assert (trace.session is not None) == ("Session ID" in text)


def test_mooncake_counts_milliseconds_and_bailian_seconds_under_the_same_key(tmp_path: Path) -> None:
    rows = [{"timestamp": 1500 * i, "input_length": 9, "output_length": 1, "hash_ids": [i]} for i in range(3)]
    mooncake = read_trace(put(tmp_path, "m.jsonl", jsonl(*rows)))
    assert (seconds(mooncake), mooncake.sources[0].format) == ([0.0, 1.5, 3.0], "mooncake")
    assert mooncake.notes == ("timestamp holds integers: read as ms (--time-unit to change)",)
    chats = [
        {"chat_id": 7 + i, "parent_chat_id": parent, "timestamp": 1.5 * i, "input_length": 9,
         "output_length": 1, "type": "text", "turn": 1, "hash_ids": [i]}
        for i, parent in enumerate([-1, 7, 8])
    ]  # fmt: skip
    bailian = read_trace(put(tmp_path, "q.jsonl", jsonl(*chats)))
    assert (seconds(bailian), bailian.sources[0].format) == ([0.0, 1.5, 3.0], "qwen_bailian")
    assert bailian.session is not None
    assert bailian.session.tolist() == ["7", "7", "7"]
    assert seconds(read_trace(tmp_path / "m.jsonl", time_unit="us")) == [0.0, 0.0015, 0.003]


def test_timed_trace_with_fractions_is_in_seconds(tmp_path: Path) -> None:
    rows = [{"timestamp": i + 0.25, "input_length": 9, "output_length": 1, "hash_ids": [i]} for i in range(3)]
    trace = read_trace(put(tmp_path, "t.jsonl", jsonl(*rows)))
    assert seconds(trace) == [0.0, 1.0, 2.0]
    assert trace.notes == ("timestamp holds numbers with fractions: read as s (--time-unit to change)",)


def test_one_bad_timestamp_does_not_change_the_unit(tmp_path: Path) -> None:
    rows = [{"timestamp": t, "input_length": 9, "output_length": 1} for t in (0, None, 2000, 4000.5)]
    trace = read_trace(put(tmp_path, "m.jsonl", jsonl(*rows)))
    assert seconds(trace) == [0.0, 2.0, 4.0005]
    assert dict(trace.set_aside) == {"unreadable": 1}


BENCH = {
    "date": "20260101",
    "completed": 2,
    "total_input_tokens": 60,
    "total_output_tokens": 7,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 4],
    "start_times": [100.5, 0.0, 101.0],
    "errors": ["", "Timeout", ""],
}


def test_vllm_bench_result_keeps_failed_requests_in_the_count(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, "r.json", json.dumps(BENCH, indent=1)))
    assert seconds(trace) == [0.0, 0.5]
    assert (trace.prompt_tokens.tolist(), dict(trace.set_aside)) == ([10, 30], {"failed": 1})
    assert (trace.sources[0].rows, trace.sources[0].format) == (3, "vllm_bench")


def test_vllm_bench_without_start_times_is_a_trace_of_lengths(tmp_path: Path) -> None:
    old = {key: value for key, value in BENCH.items() if key != "start_times"}
    trace = read_trace(put(tmp_path, "r.json", jsonl(old, old)))
    assert trace.arrival_seconds is None
    assert len(trace) == 4


def test_vllm_bench_without_details_says_how_to_get_them(tmp_path: Path) -> None:
    path = put(tmp_path, "r.json", json.dumps({k: v for k, v in BENCH.items() if not k.endswith("s")} | {
        "total_input_tokens": 1, "total_output_tokens": 1}))  # fmt: skip
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert str(error.value) == (
        f"{path}:1: input_lens: found no input_lens, expected a list of one input_len a request "
        "(was the result saved with --save-detailed?)"
    )


def test_vllm_requests_use_one_clock_only(tmp_path: Path) -> None:
    rows = [
        {"request_id": "a", "input_toks": 5, "output_toks": 2, "arrival_time": 1.7e9 + 2, "queued_ts": 3.0},
        {"request_id": "b", "input_toks": 6, "output_toks": 3, "arrival_time": 1.7e9, "queued_ts": 9.0},
    ]
    trace = read_trace(put(tmp_path, "v.jsonl", jsonl(*rows)))
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 2.0], [6, 5])


def test_multi_round_qa_has_float_counts_and_no_launch_order(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "q.csv",
        "prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time\n"
        "500.0,10.0,0.1,1.0,2,1,1000.5,1002\n400.0,20.0,0.1,1.0,1,1,1000.0,1003\n",
    )
    trace = read_trace(path)
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 0.5], [400, 500])
    assert trace.session is not None
    assert trace.session.tolist() == ["1", "2"]
    assert trace.notes == (
        f"arrivals were out of order at 1 row (first at {path}:3: '1000.0' after '1000.5'); sorted",
    )


def span(name: str, start: object, attributes: Mapping[str, object], **more: object) -> dict[str, object]:
    pairs = [
        {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in attributes.items()
    ]
    return {"name": name, "startTimeUnixNano": start, "attributes": pairs, **more}


def test_otlp_spans_of_both_generations_count_once(tmp_path: Path) -> None:
    new = {"gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 4}
    old = {"gen_ai.usage.prompt_tokens": 30, "gen_ai.usage.completion_tokens": 3}
    spans = [
        span("chat", "1700000000000000000", new, spanId="c", parentSpanId=""),
        span("HTTP POST", "1700000000000000500", {}, spanId="h", parentSpanId="c"),
        span("llm_request", "1700000000000001000", old, spanId="v", parentSpanId="h"),
        span("llm_request", "1700000002000001000", old, spanId="w"),
        span("llm_request", "1700000003000001000", {}, spanId="x", status={"code": 2}),
        span(
            "embed",
            "1700000003000001000",
            {"gen_ai.usage.input_tokens": 9, "gen_ai.operation.name": "embeddings"},
        ),
    ]
    document = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
    trace = read_trace(put(tmp_path, "o.json", json.dumps(document)))
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 2.0], [30, 30])
    assert dict(trace.set_aside) == {"failed": 1, "outer_span": 1}
    assert (trace.sources[0].rows, trace.sources[0].format) == (4, "otel")
    assert trace.notes == ("2 spans carry no gen_ai.usage token counts and are no requests",)


def test_otel_console_spans_are_documents_one_after_another(tmp_path: Path) -> None:
    spans = [
        {
            "name": "chat m",
            "context": {"trace_id": "0x1", "span_id": f"0x{i}"},
            "parent_id": None,
            "start_time": f"2024-01-01T00:00:0{i}.500000Z",
            "status": {"status_code": "UNSET"},
            "attributes": {
                "gen_ai.usage.input_tokens": 10 + i,
                "gen_ai.usage.output_tokens": 5,
                "gen_ai.usage.cache_read.input_tokens": 8,
                "gen_ai.conversation.id": "t",
            },
        }
        for i in range(3)
    ]
    text = "\n".join(json.dumps(one, indent=4) for one in spans)
    trace = read_trace(put(tmp_path, "o.json", text))
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 1.0, 2.0], [10, 11, 12])
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [8, 8, 8]
    assert trace.session is not None
    assert trace.session.tolist() == ["t"] * 3


LITELLM = [
    {"startTime": "2025-01-01T00:00:02.5Z", "prompt_tokens": 9, "completion_tokens": 2, "session_id": "s"},
    {"startTime": "2025-01-01 00:00:01.000", "prompt_tokens": 8, "completion_tokens": 1, "status": "success"},
    {
        "startTime": "2025-01-01T01:00:03+01:00",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "status": "failure",
    },
    {"startTime": "2025-01-01T00:00:04Z", "prompt_tokens": 7, "completion_tokens": 3, "cache_hit": "True"},
]


@pytest.mark.parametrize("shape", ["list", "jsonl", "csv"])
def test_litellm_spend_logs_in_three_shapes(tmp_path: Path, shape: str) -> None:
    names = ["startTime", "prompt_tokens", "completion_tokens", "status", "cache_hit", "session_id"]
    lines = [",".join(names)] + [",".join(str(row.get(name, "")) for name in names) for row in LITELLM]
    text = {"list": json.dumps(LITELLM, indent=2), "jsonl": jsonl(*LITELLM), "csv": "\n".join(lines)}[shape]
    trace = read_trace(put(tmp_path, "l", text))
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 1.5], [8, 9])
    assert dict(trace.set_aside) == {"failed": 1, "answered_by_proxy_cache": 1}
    assert trace.session is not None
    assert trace.session.tolist() == ["", "s"]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_any_columns_in_any_unit_keep_their_digits(tmp_path: Path, unit: str, scale: int) -> None:
    start = 1_700_000_000 * scale
    path = put(tmp_path, "x.csv", f"t;in;out;id\n{start};5;1;a\n{start + 3};6;2;b\n")
    trace = read_trace(path, columns={"arrival": "t", "prompt": "in", "output": "out"}, time_unit=unit)
    assert seconds(trace) == [0.0, 3 / scale]


def test_columns_of_parquet_with_timestamps_and_nulls(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    dates = np.array(
        ["2024-01-01T00:00:00.000001", "2024-01-01T00:00:01", "2024-01-01T00:00:03", "NaT"], "datetime64[us]"
    )
    pq.write_table(
        pa.table({"t": dates, "in": [5, 6, 7, 8], "out": [1.0, None, 3.0, 4.0]}), tmp_path / "x.parquet"
    )
    trace = read_trace(tmp_path / "x.parquet", columns={"arrival": "t", "prompt": "in", "output": "out"})
    assert (seconds(trace), trace.prompt_tokens.tolist()) == ([0.0, 2.999999], [5, 7])
    assert trace.notes == (
        (
            f"2 unreadable rows set aside; first at {tmp_path / 'x.parquet'}:2: out: "
            "found nothing, expected an integer from 0 to 2147483647"
        ),
    )


def test_a_trace_of_lengths_has_no_arrivals(tmp_path: Path) -> None:
    path = put(tmp_path, "x.jsonl", jsonl({"p": 5, "o": 1}, {"p": 5, "o": 1}))
    trace = read_trace(path, columns={"prompt": "p", "output": "o"})
    assert (trace.arrival_seconds, len(trace), trace.sources[0].format) == (None, 2, "columns")


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    text = b"prompt_tokens,output_tokens,arrival_seconds\n5,1,0\n5,1,0\n"
    trace = read_trace(put(tmp_path, "x", pack(text) + pack(b"7,1,2\n")))
    assert (trace.prompt_tokens.tolist(), seconds(trace)) == ([5, 5, 7], [0.0, 0.0, 2.0])


def test_a_format_may_be_forced_and_its_columns_renamed(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", "Timestamp,Request tokens,Out,Response tokens\n1,5,9,0\n2,5,8,0\n")
    assert read_trace(path, format="burstgpt", columns={"output": "Out"}).output_tokens.tolist() == [9, 8]


def test_detection_names_every_format_it_knows(tmp_path: Path) -> None:
    assert detect_format(put(tmp_path, "r.json", json.dumps(BENCH))) == "vllm_bench"
    assert next(iter(FORMATS)) == "ladder_opt"
    path = put(tmp_path, "u.csv", "a,b\n1,2\n")
    with pytest.raises(InputError) as error:
        detect_format(path)
    assert str(error.value) == (
        f"{path}: found no known format (it has 'a', 'b'), expected one of {', '.join(FORMATS)}; "
        "or --columns arrival=NAME,prompt=NAME,output=NAME"
    )


def test_importing_the_readers_loads_nothing_heavy() -> None:
    heavy = {"pandas", "pyarrow", "scipy"}
    code = f"import sys, ladder_opt.trace.read; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_requests_beyond_the_models_length_are_set_aside(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", "prompt_tokens,output_tokens\n5,5\n5,6\n0,6\n")
    trace = within_limits(read_trace(path), max_model_len=10)
    assert trace.prompt_tokens.tolist() == [5]
    assert dict(trace.set_aside) == {"zero_prompt": 1, "beyond_max_model_len": 1}
