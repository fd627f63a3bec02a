"""Durations and shares as people type them: `24h`, `10m`, `600s`, `1%`."""

from __future__ import annotations

import math
import re

from ladder_opt.errors import UsageError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d)"
_DURATION = re.compile(rf"\s*(?:{_PART}\s*)+", re.IGNORECASE)
_PLAIN = re.compile(r"\s*[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?\s*", re.IGNORECASE)


def parse_duration_seconds(text: str, *, option: str) -> float:
    """Seconds of `90`, `90s`, `1.5h`, `10m`, `2d`, `500ms`, `1h30m`, `24 min 28 s`.

    Raises:
        UsageError: anything else.
    """
    seconds = math.inf
    if _PLAIN.fullmatch(text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        parts = re.findall(_PART, text, re.IGNORECASE)
        seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
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
    if seconds < 100 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 3600:.0f} h"


def hours_text(seconds: float) -> str:
    """A duration that stands beside others of its size: in hours from one hour on, `63.6 h`."""
    return duration_text(seconds) if seconds < 3600 else f"{seconds / 3600:,.1f} h"
