"""The tab-separated rows of the Spyre plugin's attention microbenchmark.

Source: torch-spyre/spyre-inference, `scripts/microbench/spyre_attn_microbench.py` and its README. A row is
one shape; `ms` (with `min_ms`, `max_ms`) is the median device time of one attention layer in milliseconds,
over ten profiled calls unless told otherwise. What is used of it:

* rows on the batched path (`attn_path` "batched") give attention seconds at the rung pair `padded_num_seqs`,
  `num_kv_blocks_iterated`, if `blocks_per_chunk` is what the chunked kernel takes for that pair;
* rows of one decoding sequence on the per-sequence path give seconds for each of its
  `num_kv_blocks_iterated` blocks.

Versions before the batched kernel have neither `attn_path` nor `padded_num_seqs`; all their rows are of the
per-sequence path, and `num_reqs` says how many. Rows that the benchmark itself doubts (`error`,
`late_compile`, not `allclose_pass`, not `fallback_clean`, no `ms`) are set aside and counted.

Device time leaves out what the host does between calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ladder_opt.calibration.delimited import Row, read_table
from ladder_opt.calibration.evidence import PER_SEQUENCE_GATHER, SEQUENCE_CALL, Equations, Evidence, Source
from ladder_opt.calibration.samples import ATTENTION, Samples
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.errors import InputError

KIND: Final = "spyre_microbenchmark"
_REQUIRED: Final = ("ms", "num_kv_blocks_iterated", "num_reqs")
# Of ten normal values the range is 3.08 standard deviations, and their median is off by 0.37.
_SPREAD_OF_RANGE: Final = 0.37 / 3.08
_FALSE: Final = ("False", "false", "0")
_TRUE: Final = ("True", "true", "1")
_ABSENT: Final = ("", "-1", "nan", "NaN")


def is_microbenchmark(header: Sequence[str]) -> bool:
    """Whether a file's first line names the columns of this benchmark."""
    return set(_REQUIRED) <= set(header)


def read_microbenchmark(path: str | Path) -> Evidence:
    """Read one file.

    Raises:
        InputError: a cell that is no number, or no row that can be used.
    """
    table = read_table(path, what="rows of the Spyre plugin's microbenchmark")
    set_aside: Counter[str] = Counter()
    pairs: list[tuple[int, int, float, float]] = []
    sequences: list[tuple[int, float, float]] = []
    for row in table.rows:
        reason = _doubt(row)
        if reason is not None:
            set_aside[reason] += 1
            continue
        seconds, spread = row.seconds("ms", unit_seconds=1e-3), _spread(row)
        blocks = row.size("num_kv_blocks_iterated")
        path_taken = row.text("attn_path") or ("batched" if _is_batched(row) else "per_seq")
        if path_taken == "batched":
            if not _is_batched(row):
                row.refuse("padded_num_seqs", "the padded sequences of a batched row")
            seqs = row.size("padded_num_seqs")
            chunk = int(KERNELS["chunked"].entries(seqs, blocks)) // seqs
            if row.text("blocks_per_chunk") not in _ABSENT and row.size("blocks_per_chunk") != chunk:
                set_aside["blocks_per_chunk other than the chunked kernel's"] += 1
                continue
            pairs.append((seqs, blocks, seconds, spread))
        elif path_taken == "per_seq" and row.size("num_reqs") == 1 and _is_decode(row):
            sequences.append((blocks, seconds, spread))
        else:
            set_aside["neither batched decode nor one decoding sequence"] += 1
    if not pairs and not sequences:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(set_aside.items()))
        raise InputError(f"no usable row ({reasons})", "rows of batched decode", path=path)
    return Evidence(
        layer_samples=Samples.of(
            quantity=ATTENTION,
            kernel="chunked",
            num_seqs=[pair[0] for pair in pairs],
            num_blocks=[pair[1] for pair in pairs],
            seconds=[pair[2] for pair in pairs],
            spread=[pair[3] for pair in pairs],
            source=str(path),
        ),
        layer_steps=_sequence_rows(sequences, str(path)),
        sources=(Source(str(path), table.sha256, len(pairs) + len(sequences), KIND),),
        notes=tuple(
            f"{path}: {count} rows set aside: {reason}" for reason, count in sorted(set_aside.items())
        ),
    )


def _sequence_rows(sequences: Sequence[tuple[int, float, float]], path: str) -> tuple[Equations, ...]:
    if not sequences:
        return ()
    blocks, seconds, spread = (np.array(each, np.float64) for each in zip(*sequences, strict=True))
    columns = {SEQUENCE_CALL: np.ones(len(blocks)), PER_SEQUENCE_GATHER: blocks}
    return (Equations(columns, seconds, spread, path),)


def _doubt(row: Row) -> str | None:
    """Why the benchmark's own columns say that a row is not to be trusted."""
    if row.text("error"):
        return "with an error"
    if row.text("ms") in _ABSENT:
        return "without a time"
    if row.text("late_compile") in _TRUE:
        return "with a compile inside"
    if row.text("allclose_pass") in _FALSE:
        return "with wrong results"
    if row.text("fallback_clean") in _FALSE:
        return "with a fallback to the CPU"
    return None


def _is_batched(row: Row) -> bool:
    return row.text("padded_num_seqs") not in _ABSENT


def _is_decode(row: Row) -> bool:
    return row.text("capture_type", "decode") == "decode" and row.text("capture_max_query_len", "1") == "1"


def _spread(row: Row) -> float:
    if row.text("min_ms") in _ABSENT or row.text("max_ms") in _ABSENT:
        return math.nan
    low, high = row.seconds("min_ms"), row.seconds("max_ms")
    if low > high:
        row.refuse("min_ms", "at most max_ms")
    return (high - low) * _SPREAD_OF_RANGE / row.seconds("ms")
