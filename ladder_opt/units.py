"""Durations and shares as people type them: `24h`, `10m`, `600s`, `1%`."""

from __future__ import annotations

import math
import re

from ladder_opt.errors import UsageError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d|)\s*", re.IGNORECASE)


def parse_duration_seconds(text: str, *, option: str) -> float:
    """Seconds of `90`, `90s`, `1.5h`, `10m`, `2d`, `500ms`.

    Raises:
        UsageError: anything else.
    """
    match = _DURATION.fullmatch(text)
    seconds = math.inf if match is None else float(match[1]) * _SECONDS[match[2].lower()]
    if not math.isfinite(seconds):
        raise UsageError(f"{option}: found {text!r}, expected a duration such as 600s, 10m or 24h")
    return seconds


def parse_share(text: str, *, option: str) -> float:
    """A share of 1: `1%` and `0.01` are the same.

    Raises:
        UsageError: anything else, or below 0.
    """
    body = text.strip()
    try:
        share = float(body[:-1]) / 100 if body.endswith("%") else float(body)
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise UsageError(f"{option}: found {text!r}, expected a share such as 1% or 0.01")
    return share


def duration_text(seconds: float) -> str:
    """A duration for a person: `38 ms`, `12.3 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds < 0.9995:  # from there on three digits of it are 1 s
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 86400:.1f} d"
