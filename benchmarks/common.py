"""What the benchmarks share: options, traces, the machine, tables. Imports nothing heavy by itself."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ladder_opt.bucketer import Bucketer
    from ladder_opt.engine import Engine
    from ladder_opt.ladder import Ladders
    from ladder_opt.trace.table import Trace

REPOSITORY: Final = Path(__file__).resolve().parent.parent
README: Final = REPOSITORY / "README.md"
SAMPLE: Final = REPOSITORY / "traces" / "sample.parquet"
PUBLIC_TRACES: Final = {
    "azure-conv": "AzureLLMInferenceTrace_conv.csv.gz",
    "mooncake": "mooncake_conversation_trace.jsonl.gz",
}
TRACE_LABELS: Final = {
    "azure-conv": "Azure conversation 2023",
    "mooncake": "Mooncake conversation",
    "sample": "bundled sample",
}

Row = Mapping[str, object]


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; the module's docstring is its help."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the machine and the results there")
    made.add_argument(
        "--shared",
        type=Path,
        metavar="FOLDER",
        default=os.environ.get("LADDER_OPT_SHARED", REPOSITORY.parent / "shared"),
        help="folder of public traces, or of a traces/ folder with them [LADDER_OPT_SHARED, else ../shared]",
    )
    return made


def trace_path(name: str, shared: Path) -> Path | None:
    """Where a trace lies: `sample`, or a public one; None where it is absent."""
    if name == "sample":
        return SAMPLE
    for folder in (shared / "traces", shared):
        path = folder / PUBLIC_TRACES[name]
        if path.is_file():
            return path
    return None


def read_traces(names: Sequence[str], shared: Path) -> dict[str, Trace]:
    """Read traces by name; of absent ones the printed line says so, and the sample stands in."""
    from ladder_opt.trace.read import read_trace

    traces: dict[str, Trace] = {}
    for name in names:
        path = trace_path(name, shared)
        if path is None:
            print(f"note: no {PUBLIC_TRACES[name]} under {shared}; the bundled sample stands in for it")
            name, path = "sample", SAMPLE  # noqa: PLW2901
        if name not in traces:
            traces[name] = read_trace(path)
    return traces


def squeezed(trace: Trace, engine: Engine, requests: int, span_seconds: float) -> Trace:
    """The first requests that fit the engine, arriving within a span."""
    import numpy as np

    from ladder_opt.trace.table import within_limits

    fitting = within_limits(trace, max_model_len=engine.max_model_len)
    fitting = fitting.take(np.arange(min(requests, len(fitting))))
    assert fitting.arrival_seconds is not None, "the trace has no arrivals"
    arrivals = fitting.arrival_seconds - fitting.arrival_seconds[0]
    return replace(fitting, arrival_seconds=arrivals * (span_seconds / max(float(arrivals[-1]), 1e-9)))


def bucketer_of(ladders: Ladders, engine: Engine, kernel: str = "chunked") -> Bucketer:
    """What a server with these ladders dispatches by."""
    from ladder_opt.bucketer import Bucketer

    return Bucketer(engine, ladders, kv_tokens=(engine.max_model_len,), query_tokens=(1,), kernel=kernel)


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("ladder-opt", "numpy", "numba", "scipy", "vllm")},
    }


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_line() -> str:
    """The machine on one line."""
    return "; ".join(f"{key} {value}" for key, value in machine().items() if value is not None)


def write_json(path: Path | None, benchmark: str, results: object) -> None:
    """Write machine and results, where a file was asked for."""
    if path is None:
        return
    data: dict[str, Any] = {"benchmark": benchmark, "machine": machine(), "results": results}
    path.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")


def text_table(rows: Sequence[Row]) -> str:
    """Rows of one set of columns, aligned; numbers are to be texts already."""
    cells = _cells(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def markdown_table(rows: Sequence[Row]) -> str:
    """The same as Markdown, figures to the right."""
    cells = _cells(rows)
    ruler = ["---"] + ["---:"] * (len(cells[0]) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], ruler, *cells[1:]])


def between(text: str, begin: str, end: str, body: str) -> str:
    """The text with a body of its own lines between two markers.

    Raises:
        ValueError: the markers are not there once each, in order.
    """
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended or begin in rest or end in after:
        msg = f"found no single pair of markers, expected {begin} and then {end}"
        raise ValueError(msg)
    return f"{before}{begin}\n{body}\n{end}{after}"


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    header = list(dict.fromkeys(name for row in rows for name in row))
    return [header] + [[str(row.get(name, "")) for name in header] for row in rows]
