"""Published KV-ladder presets: counts, overpay, validity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.errors import UsageError
from ladder_opt.presets import PRESETS, preset_kv_buckets, preset_num_blocks

CONTEXTS = (4096, 16384, 32768)
PUBLISHED_COUNTS = {
    "pow2": (6, 8, 9),
    "8_5": (10, 15, 18),
    "4_3": (14, 20, 24),
    "9_8": (20, 34, 41),
    "uniform": (13, 15, 16),
}
RUNG_COUNTS = PUBLISHED_COUNTS | {"4_3": (12, 18, 22), "9_8": (19, 33, 39)}
PUBLISHED_OVERPAY = {"pow2": 0.39, "8_5": 0.21, "4_3": 0.15, "9_8": 0.08, "uniform": 0.14}


@pytest.mark.parametrize("name", PRESETS)
def test_bucket_counts_are_the_published_ones(name: str) -> None:
    found = tuple(len(preset_kv_buckets(name, max_model_len=tokens, block_size=128)) for tokens in CONTEXTS)
    assert found == PUBLISHED_COUNTS[name]


def test_uniform_has_the_published_counts_of_short_and_long_contexts() -> None:
    assert len(preset_kv_buckets("uniform", max_model_len=1024, block_size=128)) == 8
    assert len(preset_kv_buckets("uniform", max_model_len=131072, block_size=128)) == 18


@pytest.mark.parametrize("name", PRESETS)
def test_rung_counts(name: str) -> None:
    found = tuple(len(preset_num_blocks(name, max_model_len=tokens, block_size=128)) for tokens in CONTEXTS)
    assert found == RUNG_COUNTS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_mean_overpay_is_near_the_published_one(name: str) -> None:
    rungs = np.array(preset_num_blocks(name, max_model_len=16384, block_size=128))
    lengths = np.arange(129, 16385)
    padded = rungs[np.searchsorted(rungs * 128, lengths)] * 128
    assert np.mean(padded / lengths - 1) == pytest.approx(PUBLISHED_OVERPAY[name], abs=0.018)


def test_ladders_at_4096() -> None:
    def ladder(name: str) -> tuple[int, ...]:
        return preset_num_blocks(name, max_model_len=4096, block_size=128)

    assert ladder("pow2") == (1, 2, 4, 8, 16, 32)
    assert ladder("8_5") == (1, 2, 3, 4, 5, 8, 13, 16, 21, 32)
    assert ladder("4_3") == (1, 2, 3, 4, 6, 8, 10, 14, 16, 18, 24, 32)
    assert ladder("uniform") == (1, 2, 4, 6, 8, 10, 14, 16, 18, 22, 26, 30, 32)


@given(
    name=st.sampled_from(PRESETS),
    max_model_len=st.integers(1, 200_000),
    block_size=st.integers(1, 1024),
)
def test_every_engine_gets_a_valid_ladder(name: str, max_model_len: int, block_size: int) -> None:
    rungs = preset_num_blocks(name, max_model_len=max_model_len, block_size=block_size)
    assert list(rungs) == sorted(set(rungs))
    assert rungs[0] >= 1
    assert rungs[-1] == -(-max_model_len // block_size)
    assert set(preset_num_blocks("pow2", max_model_len=max_model_len, block_size=block_size)) <= set(rungs)


def test_unknown_name_and_bad_sizes_are_told() -> None:
    with pytest.raises(UsageError, match="preset: found '2_1', expected one of pow2, 8_5, 4_3, 9_8, uniform"):
        preset_num_blocks("2_1", max_model_len=4096, block_size=128)
    with pytest.raises(UsageError, match="block_size: found 0, expected at least 1"):
        preset_num_blocks("pow2", max_model_len=4096, block_size=0)
