"""Seconds on an axis in the unit that people would say them in; a name as chart text."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_opt.markup import printable

_UNITS = (("h", 3600.0, 2 * 3600.0), ("min", 60.0, 120.0), ("s", 1.0, 1.0))
_LONGEST_NAME = 40


def time_unit(largest_seconds: float) -> tuple[str, float]:
    """(name, seconds) of the unit in which the largest value reads well."""
    for name, seconds, least in _UNITS:
        if largest_seconds >= least:
            return name, seconds
    return "ms", 1e-3


def spans_decades(values: NDArray[np.float64], *, factor: float) -> bool:
    """Whether positive values differ by so much that only a logarithmic axis shows them all."""
    if not len(values) or values.min() <= 0:
        return False
    return bool(values.max() / values.min() > factor)


def log_ticks(least: float, largest: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within a range of positive values, and the next on either side."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(largest)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if least / 2 <= tick <= largest * 2]


def decades(largest: float) -> list[float]:
    """Powers of ten from 1 up to at most the largest value."""
    return [10.0**power for power in range(int(math.log10(max(1.0, largest))) + 1)]


def count_text(value: float) -> str:
    """A count on a tick: 1k, 2.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def shown_name(name: str) -> str:
    """A name out of a file, on one line and not longer than a legend takes."""
    text = printable(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."


def plotly_text(value: Any) -> str:
    """Text for plotly, which would read tags and links in it."""
    return html.escape(str(value), quote=False)


def matplotlib_text(value: Any) -> str:
    """Text for matplotlib, which would read mathematics between dollar signs."""
    return str(value).replace("$", r"\$")
