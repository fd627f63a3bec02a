"""The cost model against published hardware figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import published
from benchmarks.published_figures import (
    MEASURED_THROUGHPUT,
    MEASURED_WARMUP,
    PRESETS,
    REFERENCE,
    WARMUP,
    WORKLOADS,
    ladder,
)


def test_the_four_limits_are_kept() -> None:
    throughput, warmup = published.fitted()
    assert np.abs(throughput - MEASURED_THROUGHPUT).max() <= 0.03
    assert np.abs(throughput - MEASURED_THROUGHPUT).mean() <= 0.015
    assert np.abs(warmup - MEASURED_WARMUP).max() <= 0.14
    assert np.abs(warmup - MEASURED_WARMUP).mean() <= 0.06
    assert published.broken_limits() == []


def test_workloads_told_by_the_others_are_little_further_off() -> None:
    """What the page promises of rows that nobody has fitted."""
    throughput, warmup = published.left_out()
    mean, worst = published.error(throughput, MEASURED_THROUGHPUT)
    assert (mean, worst) <= (0.015, 0.031)
    mean, worst = published.error(warmup, MEASURED_WARMUP)
    assert mean <= 0.06
    assert worst <= 0.15


def test_starts_measured_alike_could_not_keep_the_limit() -> None:
    """The programme's bound holds against a search by another way, from many starts."""
    bound = published.smallest_worst_error()
    assert 0.14 < bound < 0.2
    counts = np.concatenate([WARMUP, WARMUP[:, :, 3:] ** 2], axis=2)
    counts = counts / counts.mean(axis=(0, 1))
    rng = np.random.default_rng(3)
    for _ in range(2000):
        seconds = counts @ np.exp(rng.normal(0, 3, counts.shape[2]))
        ratios = seconds[:, 1:] / seconds[:, :1]
        assert published.error(ratios, MEASURED_WARMUP)[1] >= bound


def test_two_presets_have_the_same_rungs_and_other_warmups() -> None:
    """What the page rests its two factors on."""
    short = next(load for load in WORKLOADS if load.max_model_len == 1024)
    assert list(ladder("9_8", short)) == list(ladder("uniform", short)) == list(range(1, 9))
    assert short.warmup[PRESETS.index("uniform")] - short.warmup[PRESETS.index("9_8")] == pytest.approx(0.25)


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
    for *key, throughput, warmup in rows.itertuples(index=False, name=None):
        assert kept[tuple(key)] == (throughput, warmup)
