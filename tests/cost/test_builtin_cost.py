"""The built-in cost model: as its script derives it, and sound as numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import derive_builtin_cost, published_figures
from ladder_opt.cost.model import read_cost_model

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "spyre-granite-3.3-8b"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    return derive_builtin_cost


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    path = REPOSITORY / "ladder_opt" / "cost" / "builtin" / f"{NAME}.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_stored_file_is_what_the_script_derives(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out == f"{NAME}.json: as derived\n"


def test_check_fails_on_another_file(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / f"{NAME}.json"
    other.write_text(script.to_text(script.derive() | {"startup_seconds": 1.0}), encoding="utf-8")
    monkeypatch.setattr(script, "TARGET", other)
    assert script.main(["--check"]) == 1
    assert "differs from what is derived" in capsys.readouterr().out


def test_all_numbers_are_finite_and_not_negative(stored: dict[str, Any]) -> None:
    assert all(math.isfinite(number) and number >= 0 for number in _numbers(stored))


def test_values_lie_in_their_intervals_and_are_those_in_use(stored: dict[str, Any]) -> None:
    for name, entry in stored["fit"]["parameters"].items():
        assert entry["low"] <= entry["value"] <= entry["high"], name
        part: Any = stored
        for key in name.split("."):
            part = part[key]
        assert part == entry["value"], name


def test_residuals_stay_within_what_the_note_promises(stored: dict[str, Any]) -> None:
    residuals = stored["fit"]["residuals"]
    assert residuals["throughput_ratio"]["mean_abs"] <= 0.015
    assert residuals["throughput_ratio"]["max_abs"] <= 0.03
    assert residuals["warmup_ratio"]["mean_abs"] <= 0.06
    assert residuals["warmup_ratio"]["max_abs"] <= 0.14


def test_stored_numbers_reproduce_the_published_throughput() -> None:
    """Through the package's own model, not the script's arithmetic."""
    model = read_cost_model(NAME)
    for workload in (load for load in published_figures.WORKLOADS if load.fitted):
        lengths = np.arange(workload.kv_low, workload.kv_high + 1)

        def seconds(preset: str, workload: Any = workload, lengths: Any = lengths) -> float:
            rungs = published_figures.ladder(preset, workload)
            blocks = rungs[np.searchsorted(rungs, -(-lengths // 128))]
            return float(model.batched_step_seconds(workload.batch, blocks).mean())

        for preset, measured in zip(published_figures.PRESETS, workload.throughput, strict=True):
            assert seconds("8_5") / seconds(preset) == pytest.approx(measured, abs=0.03)


def test_the_shortest_step_is_no_faster_than_reading_the_weights(stored: dict[str, Any]) -> None:
    """16 GB of fp16 weights at about 205 GB/s take 0.08 s."""
    assert stored["step_seconds"]["base"] > 0.08


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float):
        yield float(value)
