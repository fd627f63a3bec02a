"""A sweep as text for a terminal: a row for each point, its plan beside the default ladders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_HEADERS = {
    "max_num_seqs": "max_num\n_seqs",
    "max_model_len": "max_model\n_len",
    "block_size": "block\n_size",
    "max_num_batched_tokens": "max_num_\nbatched\n_tokens",
    "num_kv_blocks": "num_kv\n_blocks",
    "rate_scale": "rate\n_scale",
}
_RESULTS = (
    "rungs",
    "warm-up\nmin",
    "default",
    "steps\nhours",
    "default",
    "overpay",
    "default",
    "saved",
)


def sweep_text(rows: Sequence[Mapping[str, Any]], varied: list[str]) -> RenderableType:
    """A table of the settings that vary, rungs, warm-up, step time and overpay, plan and default."""
    columns = [name for name in varied if len({row[name] for row in rows}) > 1]
    fixed = [f"{name} {rows[0][name]:g}" for name in varied if name not in columns]
    table = Table(box=None, pad_edge=False)
    for name in (*(_HEADERS.get(name, name) for name in columns), *_RESULTS):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    marks = set()
    for row in rows:
        cells, mark = _cells(row)
        marks.add(mark)
        table.add_row(*(f"{row[name]:g}" for name in columns), *cells, mark)
    lines: list[RenderableType] = [table]
    if fixed:
        lines = [Text(f"all points: {', '.join(fixed)}"), "", *lines]
    if "*" in marks:
        lines += ["", Text("* more traffic than these engines keep up with: batches are always full")]
    return Group(*lines)


def _cells(row: Mapping[str, Any]) -> tuple[list[str], str]:
    if isinstance(row["error"], str):
        return [""] * len(_RESULTS), "no plan"
    rungs = f"{len(row['num_seqs'].split())} x {len(row['num_blocks'].split())}"
    cells = [
        "ragged" if ":" in row["num_blocks"] else rungs,
        _number(row["warmup_seconds"], 60),
        _number(row["default_warmup_seconds"], 60),
        _number(row["step_seconds"], 3600),
        _number(row["default_step_seconds"], 3600),
        _share(row["overpay"]),
        _share(row["default_overpay"]),
        _share(row["saved"]),
    ]
    told = "" if row["verdict"] == "adopt" else row["verdict"]
    return cells, "*" if row["falls_behind"] and not told else told


def _known(value: Any) -> bool:
    return value is not None and value == value  # noqa: PLR0124  (NaN is not itself)


def _number(seconds: Any, unit: float) -> str:
    if not _known(seconds):
        return "-"
    value = seconds / unit
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:.3g}"


def _share(value: Any) -> str:
    return f"{value:.1%}" if _known(value) else "-"
