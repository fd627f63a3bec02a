"""Prometheus gauges of what the ladders do, beside vLLM's own metrics.

The steps are counted in a worker process, the metrics are served by the API server: the gauges show what the
worker wrote down last (`steps-*.json`), so they lag by the time between writes.

| gauge | is |
|---|---|
| `ladder_opt_padding_overpay` | KV pages gathered above the ragged floor, as a share of it |
| `ladder_opt_fixable_share` | of the pages gathered that no sequence holds, the share that ladders can fix |
| `ladder_opt_late_compiles` | kernels compiled since warm-up |
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

_HELP = {
    "ladder_opt_padding_overpay": "KV pages gathered above the ragged floor, as a share of it.",
    "ladder_opt_fixable_share": "Share of the pages gathered in vain that other ladders could avoid.",
    "ladder_opt_late_compiles": "Kernels compiled since warm-up ended.",
}


class Gauges:
    """The gauges of one engine; see `of`."""

    def __init__(
        self, gauges: dict[str, Any], folder: Path, *, pattern: str, engine: str, every_seconds: float
    ) -> None:
        self._gauges = gauges
        self._folder = folder
        self._pattern = pattern
        self._engine = engine
        self._every_seconds = every_seconds
        self._next = 0.0

    @classmethod
    def of(cls, folder: str | Path, *, instance: str, rank: int, every_seconds: float) -> Gauges | None:
        """The gauges, or None where prometheus_client is not installed."""
        from ladder_opt.occupancy.record_file import record_stem  # noqa: PLC0415  (brings numpy)

        gauges = _registered()
        if gauges is None:
            return None
        return cls(
            gauges,
            Path(folder),
            pattern=f"{record_stem(started='*', instance=instance, rank=rank)}.json",
            engine=str(rank),
            every_seconds=every_seconds,
        )

    def refresh(self) -> None:
        """Show what the worker wrote last, if it is time to look again."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_seconds
        values = self._values()
        for name, value in values.items():
            self._gauges[name].labels(engine=self._engine).set(value)

    def _values(self) -> dict[str, float]:
        try:
            latest = max(self._folder.glob(self._pattern), default=None)
            record = {} if latest is None else json.loads(latest.read_text(encoding="utf-8"))
            real, floor, padded = (record["gathers"][key] for key in ("real", "ragged_floor", "padded"))
            late = record["late_compiles"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # nothing written yet; the worker says so itself where it cannot write
        values = {"ladder_opt_late_compiles": float(late)}
        if floor:
            values["ladder_opt_padding_overpay"] = (padded - floor) / floor
            values["ladder_opt_fixable_share"] = (padded - floor) / (padded - real) if padded > real else 0.0
        return values


_made: dict[str, Any] = {}


def _registered() -> dict[str, Any] | None:
    """The gauges in Prometheus's registry, made once in a process; None without prometheus_client."""
    if not _made:
        try:
            from prometheus_client import Gauge  # noqa: PLC0415
        except ImportError:
            return None
        for name, text in _HELP.items():
            _made[name] = Gauge(name, text, labelnames=["engine"], multiprocess_mode="mostrecent")
    return _made
