"""The kinds of measurement files that `calibrate` takes: one reader each, tried in order.

Another kind is another `Kind` here: whether a file is of it, and a function from its files to `Evidence`.
Files of several kinds may be mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder_opt.calibration.delimited import header_of
from ladder_opt.calibration.evidence import Evidence
from ladder_opt.calibration.measurement_rows import is_measurement_header
from ladder_opt.calibration.measurements import read_measurements
from ladder_opt.calibration.pair_table import is_pair_table, read_pair_table
from ladder_opt.calibration.result import CalibrationOptions
from ladder_opt.calibration.server_log import is_server_log, read_server_log
from ladder_opt.calibration.server_records import request_evidence
from ladder_opt.calibration.spyre_microbenchmark import is_microbenchmark, read_microbenchmark
from ladder_opt.engine import Engine
from ladder_opt.files import open_to_read
from ladder_opt.trace.read import TIMED_FORMATS, holds_timings

_HEADER_BYTES = 1 << 16
_DEFAULT_KERNEL = "chunked"

Reader = Callable[[Sequence[Path], Engine, CalibrationOptions], Sequence[Evidence]]


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        name: short.
        description: what a message says that calibrate accepts.
        recognises: whether a file is of this kind; a look at its names, not at its values.
        read: files of this kind, with the engine's limits and options.
    """

    name: str
    description: str
    recognises: Callable[[Path], bool]
    read: Reader


def _header(path: Path) -> tuple[str, ...]:
    with open_to_read(path) as stream:
        start = stream.read(_HEADER_BYTES).decode("utf-8", "replace").lstrip("\ufeff")
    lines = [line for line in start.splitlines() if line.strip()]
    return header_of(lines[0]) if lines else ()


def _microbenchmarks(
    paths: Sequence[Path], _engine: Engine, _options: CalibrationOptions
) -> Sequence[Evidence]:
    return [read_microbenchmark(path) for path in paths]


def _pair_tables(paths: Sequence[Path], _engine: Engine, options: CalibrationOptions) -> Sequence[Evidence]:
    return [read_pair_table(path, kernel=options.kernel or _DEFAULT_KERNEL) for path in paths]


KINDS: tuple[Kind, ...] = (
    Kind(
        "measurements",
        "rows of ladder-opt measure",
        lambda path: is_measurement_header(_header(path)),
        lambda paths, engine, options: [
            read_measurements(path, engine, layers=options.layers) for path in paths
        ],
    ),
    Kind(
        "spyre_microbenchmark",
        "tab-separated rows of the Spyre plugin's attention microbenchmark",
        lambda path: is_microbenchmark(_header(path)),
        _microbenchmarks,
    ),
    Kind(
        "table",
        "a table with num_seqs, num_blocks and seconds or compile_seconds",
        lambda path: is_pair_table(_header(path)),
        _pair_tables,
    ),
    Kind(
        "server_log",
        "a server's log with the Spyre plugin's warm-up lines or vLLM's lines of iterations",
        is_server_log,
        lambda paths, engine, _options: [read_server_log(path, engine) for path in paths],
    ),
    Kind(
        "request_records",
        f"per-request records with the times of first and last tokens ({', '.join(TIMED_FORMATS)})",
        holds_timings,
        request_evidence,
    ),
)
