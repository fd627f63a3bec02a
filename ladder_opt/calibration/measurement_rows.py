"""The rows that `ladder-opt measure` writes, and `calibrate` reads: one a variant, of one attention layer.

A CSV file with the columns of `COLUMNS`; an empty cell says "not measured" or "not known". Seconds are of one
layer's call of the batched kernel, and of one graph's compile:

    a model's step spends    step_seconds * layers                   on batched attention
    a variant compiles in    compile_seconds * graphs_per_variant    seconds

`step_seconds` is the lower quartile of the `repeats` calls (other work on a machine only makes calls slower),
`step_seconds_low` and `step_seconds_high` bound it with 95 % confidence. A row
has step seconds, compile seconds or both. Columns of other names are refused: a misspelt one would be lost.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.calibration.delimited import Row, read_table
from ladder_opt.calibration.samples import ATTENTION, COMPILE, Samples
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.errors import InputError
from ladder_opt.files import write_text

WHAT: Final = "rows of ladder-opt measure"
_INTERVAL_SIGMAS: Final = 3.92  # a 95 % interval of a normal distribution, end to end, in standard deviations


@dataclass(frozen=True, kw_only=True)
class MeasurementRow:
    """One variant's measurements; None stands for an empty cell.

    Attributes:
        kernel: whose geometry the pair has.
        num_seqs: padded sequences.
        num_blocks: padded KV blocks of each.
        step_seconds: lower quartile of one layer's call, above 0.
        step_seconds_low: lower end of a 95 % interval of that quartile.
        step_seconds_high: upper end.
        repeats: calls timed.
        compile_seconds: of one graph, above 0.
        layers: attention layers of the model, calls a step; None: not said, one unless calibrate is told.
        graphs_per_variant: graphs that a server compiles for a variant; None: as many as layers.
        block_size: tokens.
        num_query_heads: of the model.
        num_kv_heads: of the model.
        head_size: of the model.
        dtype: of the KV pages, such as float32.
        device: what ran it, in words.
        threads: that computed.
        compiler: backend of torch.compile.
        clock: of the seconds: `cpu` (of the one thread that computes) or `wall`.
        logits_soft_cap: of the layers, if they have one.
        torch_version: of PyTorch.
        noise: relative spread of repeats of one reference call over the whole run: how calm the machine was.
        created: UTC, ISO 8601.
    """

    kernel: str
    num_seqs: int
    num_blocks: int
    step_seconds: float | None = None
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    repeats: int | None = None
    compile_seconds: float | None = None
    layers: int | None = None
    graphs_per_variant: int | None = None
    block_size: int | None = None
    num_query_heads: int | None = None
    num_kv_heads: int | None = None
    head_size: int | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    compiler: str | None = None
    clock: str | None = None
    logits_soft_cap: float | None = None
    torch_version: str | None = None
    noise: float | None = None
    created: str | None = None

    @property
    def graphs(self) -> int:
        """Graphs of a variant."""
        return self.graphs_per_variant or self.layers or 1

    @property
    def step_spread(self) -> float:
        """Relative standard error of `step_seconds`; NaN where its interval is not known."""
        if self.step_seconds is None or self.step_seconds_low is None or self.step_seconds_high is None:
            return math.nan
        return (self.step_seconds_high - self.step_seconds_low) / _INTERVAL_SIGMAS / self.step_seconds


COLUMNS: Final = tuple(field.name for field in fields(MeasurementRow))
REQUIRED: Final = ("kernel", "num_seqs", "num_blocks")
_SIZES = (
    "repeats",
    "layers",
    "graphs_per_variant",
    "block_size",
    "num_query_heads",
    "num_kv_heads",
    "head_size",
    "threads",
)
_SECONDS = ("step_seconds", "step_seconds_low", "step_seconds_high", "compile_seconds")
_TEXTS = ("dtype", "device", "compiler", "clock", "torch_version", "created")


def is_measurement_header(header: Sequence[str]) -> bool:
    """Whether a file's first line names the columns of these rows."""
    timed = {"step_seconds", "compile_seconds"}.intersection(header)
    return set(REQUIRED) <= set(header) and bool(timed)


@checked
def read_measurement_rows(path: str | Path) -> tuple[MeasurementRow, ...]:
    """Read a file of rows.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    table = read_table(path, what=WHAT)
    unknown = next((name for name in table.header if name not in COLUMNS), None)
    if unknown is not None:
        raise InputError(f"column {unknown[:60]!r}", f"columns among {', '.join(COLUMNS)}", path=path, line=1)
    if not is_measurement_header(table.header):
        expected = f"{', '.join(REQUIRED)} and step_seconds or compile_seconds"
        raise InputError(f"columns {', '.join(table.header)[:200]}", expected, path=path, line=1)
    return tuple(_row(row) for row in table.rows)


@checked
def write_measurement_rows(rows: Iterable[MeasurementRow], path: str | Path) -> None:
    """Write a file of rows, whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in asdict(row).items()})
    write_text(path, out.getvalue())


def samples_of(rows: Sequence[MeasurementRow], *, source: str = "") -> Samples:
    """The rows as samples: attention seconds of a model's step, and seconds of one graph's compile."""
    timed = [row for row in rows if row.step_seconds is not None]
    compiled = [row for row in rows if row.compile_seconds is not None]
    return Samples.concat(
        [
            Samples.of(
                quantity=ATTENTION,
                kernel=[row.kernel for row in timed],
                num_seqs=[row.num_seqs for row in timed],
                num_blocks=[row.num_blocks for row in timed],
                seconds=[(row.step_seconds or 0.0) * (row.layers or 1) for row in timed],
                spread=[row.step_spread for row in timed],
                source=source,
            ),
            Samples.of(
                quantity=COMPILE,
                kernel=[row.kernel for row in compiled],
                num_seqs=[row.num_seqs for row in compiled],
                num_blocks=[row.num_blocks for row in compiled],
                seconds=np.array([row.compile_seconds for row in compiled], np.float64),
                source=source,
            ),
        ]
    )


def _row(row: Row) -> MeasurementRow:
    kernel = row.text("kernel")
    if kernel not in KERNELS:
        row.refuse("kernel", f"one of {', '.join(KERNELS)}")
    seconds = {name: row.seconds_or_none(name) for name in _SECONDS}
    if seconds["step_seconds"] is None and seconds["compile_seconds"] is None:
        row.refuse("step_seconds", "step seconds, compile seconds or both")
    low, high = seconds["step_seconds_low"], seconds["step_seconds_high"]
    if (low is not None and low > (seconds["step_seconds"] or 0)) or (
        low is not None and high is not None and low > high
    ):
        row.refuse("step_seconds_low", "at most step_seconds")
    if high is not None and high < (seconds["step_seconds"] or math.inf):
        row.refuse("step_seconds_high", "at least step_seconds")
    # Each group has one type of field, which mypy cannot see.
    sizes: dict[str, Any] = {name: row.size_or_none(name) for name in _SIZES}
    texts: dict[str, Any] = {name: row.cells.get(name) for name in _TEXTS}
    times: dict[str, Any] = dict(seconds)
    return MeasurementRow(
        kernel=kernel,
        num_seqs=row.size("num_seqs"),
        num_blocks=row.size("num_blocks"),
        noise=row.share("noise") if "noise" in row.cells else None,
        logits_soft_cap=row.share("logits_soft_cap") if "logits_soft_cap" in row.cells else None,
        **times,
        **sizes,
        **texts,
    )
