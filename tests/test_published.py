"""The cost model against published hardware figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import published
from benchmarks.derive_builtin_cost import WEIGHT, fit_compile, fit_step
from benchmarks.published_figures import (
    FITTED,
    MEASURED_THROUGHPUT,
    MEASURED_WARMUP,
    PRESETS,
    REFERENCE,
    WARMUP,
    WORKLOADS,
    Floats,
)


def test_the_four_limits_are_kept() -> None:
    throughput, warmup = published.fitted()
    assert np.abs(throughput - MEASURED_THROUGHPUT)[FITTED].max() <= 0.03
    assert np.abs(throughput - MEASURED_THROUGHPUT)[FITTED].mean() <= 0.015
    assert np.abs(warmup - MEASURED_WARMUP)[FITTED].max() <= 0.14
    assert np.abs(warmup - MEASURED_WARMUP)[FITTED].mean() <= 0.06
    assert published.broken_limits() == []


@pytest.mark.parametrize("fit", [fit_step, fit_compile])
def test_workloads_set_aside_have_no_say(fit: Callable[[Floats, Floats], Floats]) -> None:
    measured = MEASURED_THROUGHPUT if fit is fit_step else MEASURED_WARMUP
    other = np.where(FITTED[:, None], measured, measured + 0.3)
    assert np.array_equal(fit(measured, WEIGHT), fit(other, WEIGHT))


def test_told_ratios_of_workloads_set_aside_are_those_of_the_fit() -> None:
    for modelled, told in zip(published.fitted(), published.told(), strict=True):
        assert np.array_equal(modelled[~FITTED], told[~FITTED])
        assert not np.array_equal(modelled[FITTED], told[FITTED])


def test_starts_measured_alike_could_not_keep_the_limit() -> None:
    """The programme's bound holds against a search by another way, from many starts."""
    bound = published.smallest_worst_error()
    assert 0.14 < bound < 0.2
    counts = np.concatenate([WARMUP, WARMUP[:, :, 3:] ** 2], axis=2)[FITTED]
    counts = counts / counts.mean(axis=(0, 1))
    rng = np.random.default_rng(3)
    for _ in range(2000):
        seconds = counts @ np.exp(rng.normal(0, 3, counts.shape[2]))
        ratios = seconds[:, 1:] / seconds[:, :1]
        assert published.error(ratios, MEASURED_WARMUP[FITTED])[1] >= bound


def test_three_presets_tell_a_made_up_baseline() -> None:
    """Ratios made from known seconds and known factors give the factors back."""
    seconds = WARMUP @ np.array([141.6, 4.0, 9.0, 0.4])
    factors = np.array([1.2, 1.0, 1.0, 1.0, 1.3])  # 8_5, pow2, 4_3, 9_8, uniform
    starts = seconds * factors
    residual, baseline, uniform = published.three_presets(starts[:, 1:] / starts[:, :1])
    assert residual < 1e-5
    assert baseline == pytest.approx(1.2, rel=1e-4)
    assert uniform == pytest.approx(1.3, rel=1e-4)


def test_two_workloads_of_one_engine_are_published_apart() -> None:
    """What the page rests its two factors on."""
    first, second = (np.array(load.warmup) for load in WORKLOADS if load.max_model_len == 4096)
    assert np.all((second / first > 1.055) & (second / first < 1.075))


def test_counts_of_a_start_by_hand() -> None:
    at = [load.max_model_len for load in WORKLOADS].index(1024)
    pow2 = 1 + PRESETS.index("pow2")
    # 4 KV rungs x 2 query rungs; 4 sequences with 1, 2, 4 and 8 blocks, one chunk each; 3 + 4 of 13 body
    # graphs.
    assert WARMUP[at, pow2] == pytest.approx([7 / 13, 8, 4, 4])


def test_the_page_is_what_the_benchmark_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = published.DOC.read_text(encoding="utf-8")
    assert published.document() in stored
    page = tmp_path / "page.md"
    page.write_text(f"{published.BEGIN}\n{published.END}\n", encoding="utf-8")
    monkeypatch.setattr(published, "DOC", page)
    monkeypatch.setattr(published, "FIGURE", tmp_path / "figures" / "published.svg")
    assert published.main(["--write-doc"]) == 0
    assert published.document() in page.read_text(encoding="utf-8")
    assert "<svg" in (tmp_path / "figures" / "published.svg").read_text(encoding="utf-8")


@pytest.mark.shared
def test_the_figures_are_those_published(shared_dir: Path) -> None:
    rows = pd.read_csv(shared_dir / "upstream" / "preset_measurements.csv")
    kept = {
        (load.kv_low, load.kv_high, load.max_model_len, load.batch, preset): (throughput, warmup)
        for load in WORKLOADS
        for preset, throughput, warmup in zip(PRESETS, load.throughput, load.warmup, strict=True)
    }
    assert len(rows)
    assert REFERENCE not in set(rows["preset"])
    assert len(rows) == FITTED.sum() * len(PRESETS)
    for *key, throughput, warmup in rows.itertuples(index=False, name=None):
        assert kept[tuple(key)] == (throughput, warmup)
