"""Everything that reads a file, with files that it reads well: a line for each loader and kind of file."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ladder_opt.bucketer import Bucketer
from ladder_opt.calibration.api import calibrate
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine, read_engine_settings
from ladder_opt.errors import LadderOptError, SolveError
from ladder_opt.occupancy.engine_file import read_scheduling_settings
from ladder_opt.occupancy.record_file import read_recorded_steps
from ladder_opt.occupancy.sequences_file import read_sequences
from ladder_opt.occupancy.steps_file import read_steps
from ladder_opt.plan.plan import read_plan
from ladder_opt.plan.resolve import resolve_plan
from ladder_opt.trace.read import detect_format, holds_timings, read_timed_trace, read_trace
from ladder_opt.trace.stream import stream_of
from tests.packing import zstd
from tests.plan.plans import ENGINE, make_cost, make_plan, make_spyre_plan

SMALL = Engine(max_num_seqs=8, max_model_len=2048)


def _trace(path: Path) -> None:
    trace = read_trace(path)
    rows = sum(source.rows for source in trace.sources)
    assert rows == len(trace) + sum(trace.set_aside.values()), "rows were lost"


def _stream(path: Path) -> None:
    stream = stream_of(path, stream_from=0, chunk_requests=3)
    if stream is not None:
        assert sum(len(chunk) for chunk in stream.chunks()) == len(stream), "rows were lost"


def _plan(path: Path) -> None:
    plan = read_plan(path)
    assert json.loads(plan.to_json()) == plan.to_dict()
    resolve_plan(plan, plan.to_engine())
    if plan.engine.max_num_seqs <= 64 and len(plan.num_blocks) <= 64:
        bucketer = Bucketer.from_engine(plan.to_engine(), plan=plan, environ={})
        for num_seqs in bucketer.ladders.num_seqs[:3]:
            bucketer.dispatch(num_seqs, 1)


def _engine_file(path: Path) -> None:
    read_scheduling_settings(path)
    Engine(**read_engine_settings(path))  # type: ignore[arg-type]  # whole numbers, but for one None


def _record(path: Path) -> None:
    steps = path.with_name("steps-1-i-rank0.csv")
    steps.write_text("num_seqs,num_blocks,steps\n5,3,100\n", encoding="utf-8")
    path.rename(steps.with_suffix(".json"))
    try:
        read_recorded_steps([path.parent], SMALL)
    finally:
        steps.with_suffix(".json").rename(path)


LOADERS: Mapping[str, Callable[[Path], object]] = {
    "trace": _trace,
    "stream": _stream,
    "timed_trace": read_timed_trace,
    "holds_timings": holds_timings,
    "detect_format": detect_format,
    "calibrate": lambda path: calibrate(path, SMALL, layers=2),
    "steps": lambda path: read_steps(path, SMALL),
    "steps_without_engine": read_steps,
    "sequences": lambda path: read_sequences(path, SMALL),
    "cost": read_cost_model,
    "plan": _plan,
    "engine": _engine_file,
    "record": _record,
}

TRACES = ("trace", "stream", "timed_trace", "holds_timings", "detect_format")


@dataclass(frozen=True)
class Seed:
    """A file that is read well.

    Attributes:
        content: its bytes.
        loaders: what may be given it: names of `LOADERS`.
    """

    content: bytes
    loaders: tuple[str, ...]


def _parquet(frame: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.to_parquet(sink, index=False)
    return sink.getvalue()


def _lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _span(start: int) -> dict[str, Any]:
    usage = {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3}
    attributes = [{"key": key, "value": {"intValue": str(value)}} for key, value in usage.items()]
    return {"name": "llm", "startTimeUnixNano": str(start), "spanId": "a", "attributes": attributes}


def _iteration(index: int) -> str:
    return (
        f"INFO Iteration({index}): {index % 2} context requests, {64 * (index % 2)} context tokens, "
        f"{index} generation requests, {index} generation tokens, iteration elapsed time: {5 + index}.25 ms, "
        f"GPU KV cache usage: {index}.0%\n"
    )


_TABLE = pd.DataFrame(
    {"arrival_seconds": [0.0, 0.5, 2.0], "prompt_tokens": [5, 6, 7], "output_tokens": [1, 2, 3]}
)
_STEPS = pd.DataFrame({"num_seqs": [2, 5, 8], "num_blocks": [1, 3, 9], "steps": [7.0, 100.5, 3.0]})
_CALLS = pd.DataFrame({"num_blocks": [1, 9], "query_len": [1, 512], "calls": [3.0, 7.0]})
_TIMED = {"input_toks": 10, "output_toks": 3, "arrival_time": 5.0, "queued_ts": 5.0, "scheduled_ts": 5.1,
          "first_token_ts": 5.2}  # fmt: skip
_RECORD = {
    "schema": "ladder_opt/record/1", "instance": "i", "rank": 0, "started": "x", "seconds": 60.5,
    "engine": SMALL.to_dict(), "kernel": "chunked", "source": "p", "steps": {"batched": 1, "per_sequence": 0},
}  # fmt: skip


def seeds() -> dict[str, Seed]:
    """One file of every kind by name."""
    csv = _TABLE.to_csv(index=False).encode()
    mooncake = _lines(
        *({"timestamp": t, "input_length": 9, "output_length": 2, "hash_ids": [t]} for t in (0, 7))
    )
    plain = {
        "table.csv": csv,
        "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.25+00:00,9,1\n"
        b"2024-05-10 00:00:01,9,2\n",
        "burstgpt.csv": b"Timestamp,Model,Request tokens,Response tokens,Log Type\n5,X,9,1,C\n",
        "mooncake.jsonl": mooncake,
        "bailian.jsonl": _lines(
            {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 9, "output_length": 2},
            {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, "input_length": 9, "output_length": 2},
        ),
        "bench.json": json.dumps(
            {"input_lens": [9, 8], "output_lens": [2, 1], "start_times": [0.0, 1.5], "errors": ["", ""],
             "ttfts": [0.1, 0.2], "itls": [[0.1], []]}
        ).encode(),
        "otel.json": _lines({"resourceSpans": [{"scopeSpans": [{"spans": [_span(5), _span(9)]}]}]}),
        "litellm.jsonl": _lines(
            {"startTime": "2024-01-01T00:00:00Z", "prompt_tokens": 5, "completion_tokens": 2, "status": "ok"}
        ),
        "records.jsonl": _lines(*(_TIMED | {"last_token_ts": end} for end in (6, 7))),
        "list.json": json.dumps(_TABLE.to_dict("records"), indent=1).encode(),
        "table.parquet": _parquet(_TABLE),
        "table.csv.gz": gzip.compress(csv, mtime=0),
        "mooncake.jsonl.zst": zstd(mooncake),
    }  # fmt: skip
    found = {name: Seed(content, (*TRACES, "calibrate")) for name, content in plain.items()}
    measured = {
        "rows.csv": "kernel,num_seqs,num_blocks,step_seconds,compile_seconds,layers\nchunked,4,1,0.01,9,2\n"
        "chunked,4,8,0.02,9,2\nchunked,8,1,0.02,9,2\nchunked,8,8,0.04,11,2\n",
        "pairs.csv": "num_seqs,num_blocks,seconds,compile_seconds\n4,1,0.1,9\n4,8,0.2,9\n8,1,1,9\n8,8,1,8\n",
        "micro.tsv": "ms\tmin_ms\tmax_ms\tnum_kv_blocks_iterated\tnum_reqs\tattn_path\tpadded_num_seqs\t"
        "blocks_per_chunk\n1.5\t1.4\t1.6\t8\t8\tbatched\t8\t4\n0.5\t0.4\t0.6\t2\t1\tper_seq\t1\t1\n",
        "server.log": "INFO Attention graph recording complete: 8 graphs in 90.5s\n"
        "INFO [1/2] recorded (8, 4, 2) in 5.50s\nINFO [2/2] recorded (4, 8, 2) in 6.25s\n"
        + "".join(map(_iteration, range(1, 8))),
    }
    found |= {name: Seed(text.encode(), ("calibrate",)) for name, text in measured.items()}
    found |= {
        "steps.csv": Seed(_STEPS.to_csv(index=False).encode(), ("steps", "steps_without_engine")),
        "steps.parquet": Seed(_parquet(_STEPS), ("steps", "steps_without_engine")),
        "calls.csv": Seed(_CALLS.to_csv(index=False).encode(), ("sequences",)),
        "cost.json": Seed(
            json.dumps(
                make_cost(step_table=[[s, m, 0.5] for s in (4, 8) for m in (1, 16)]).to_dict()
            ).encode(),
            ("cost",),
        ),
        "plan.json": Seed(make_plan().to_json().encode(), ("plan", "engine")),
        "ragged.json": Seed(make_plan(structure="ragged").to_json().encode(), ("plan",)),
        "spyre.json": Seed(make_spyre_plan().to_json().encode(), ("plan",)),
        "serve.yaml": Seed(
            b"model: m\nmax-num-seqs: 16\nmax_model_len: 8k\nblock-size: 128\nscheduling-policy: priority\n"
            b"compilation: {level: 3, sizes: [1, 2]}\nextra: &a\n  x: 1\nmore: *a\n",
            ("engine",),
        ),
        "engine.json": Seed(json.dumps(ENGINE.to_dict()).encode(), ("engine",)),
        "record.json": Seed(json.dumps(_RECORD).encode(), ("record",)),
    }
    return found


def judge(name: str, path: Path) -> str:
    """Give a file to a loader; say how it ended ("read", or the message).

    Raises:
        AssertionError: a message that is not one line of what was found and what was expected.
        Exception: whatever else the loader let out, which is a bug.
    """
    told: LadderOptError | None = None
    try:
        LOADERS[name](path)
    except LadderOptError as error:
        told = error
    if told is None:
        return "read"
    message = str(told)
    assert "\n" not in message, f"more than one line: {message!r}"
    assert len(message) < 2000, f"a message of {len(message)} characters"
    if not isinstance(told, SolveError):
        assert "found " in message, f"nothing found: {message}"
        assert "expected " in message, f"nothing expected: {message}"
    return message
