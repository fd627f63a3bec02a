"""The kinds of measurement files that `calibrate` takes: one reader each, tried in order.

Another kind (rows of measurements, warm-up logs, a microbenchmark's table, iteration logs) is another `Kind`
here: whether a file is of it, and a function from its files to a `Calibration`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder_opt.calibration.result import Calibration, CalibrationOptions
from ladder_opt.calibration.server_records import calibrate_request_records
from ladder_opt.engine import Engine
from ladder_opt.trace.read import TIMED_FORMATS, holds_timings


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        name: short.
        description: what a message says that calibrate accepts.
        recognises: whether a file is of this kind; a look at its names, not at its values.
        calibrate: from files of this kind, the engine's limits and options to a cost model.
    """

    name: str
    description: str
    recognises: Callable[[Path], bool]
    calibrate: Callable[[Sequence[Path], Engine, CalibrationOptions], Calibration]


KINDS: tuple[Kind, ...] = (
    Kind(
        "request_records",
        f"per-request records with the times of first and last tokens ({', '.join(TIMED_FORMATS)})",
        holds_timings,
        calibrate_request_records,
    ),
)
