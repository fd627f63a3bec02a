"""Durations and shares as people type and read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.errors import UsageError
from ladder_opt.units import duration_text, parse_duration_seconds, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 10 m ", 600.0),
        ("10min", 600.0),
        ("1.5h", 5400.0),
        ("24H", 86400.0),
        ("2d", 172800.0),
        ("500ms", 0.5),
        (".5s", 0.5),
        ("1e3s", 1000.0),
        ("0", 0.0),
        ("1h30m", 5400.0),
        ("24 min 28 s", 1468.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_seconds(text, option="--uptime") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "h", "ten minutes", "-5s", "1w", "1h30", "nan", "inf", "1e400", "1_0s", "\u0661s"]
)
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_duration_seconds(text, option="--uptime")
    assert str(error.value) == f"--uptime: found {text!r}, expected a duration such as 600s, 10m or 24h"


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), (" 5 % ", 0.05), ("0", 0.0), ("150%", 1.5)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share(text, option="--min-gain") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "one", "-1%", "-0.1", "nan", "inf", "inf%", "1%%"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_share(text, option="--min-gain")
    assert str(error.value) == f"--min-gain: found {text!r}, expected a share such as 1% or 0.01"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.038, "38 ms"),
        (0.9996, "1 s"),
        (1, "1 s"),
        (12.34, "12.3 s"),
        (99.99, "100 s"),
        (100, "1 min 40 s"),
        (245, "4 min 05 s"),
        (3599.9, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (48 * 3600, "48 h 00 min"),
        (1e6, "278 h"),
    ],
)
def test_durations_for_a_person(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.floats(1e-3, 1e7))
def test_a_duration_for_a_person_has_no_exponent_and_is_near(seconds: float) -> None:
    text = duration_text(seconds)
    assert "e" not in text
    parts = re.findall(r"([0-9.]+) (ms|s|min|h|d)\b", text)
    sizes = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    assert sum(float(number) * sizes[unit] for number, unit in parts) == pytest.approx(seconds, rel=0.03)
