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
PUBLISHED_OVERPAY = {"pow2": 0.39, "8_5": 0.21, "4_3": 0.15, "9_8": 0.08, "uniform": 0.14}


@pytest.mark.parametrize("name", PRESETS)
def test_bucket_counts_are_the_published_ones(name: str) -> None:
    found = tuple(len(preset_kv_buckets(name, max_model_len=tokens, block_size=128)) for tokens in CONTEXTS)
    assert found == PUBLISHED_COUNTS[name]


def test_uniform_has_the_published_counts_of_short_and_long_contexts() -> None:
    assert len(preset_kv_buckets("uniform", max_model_len=1024, block_size=128)) == 8
    assert len(preset_kv_buckets("uniform", max_model_len=131072, block_size=128)) == 18


@pytest.mark.parametrize("name", PRESETS)
def test_every_bucket_is_a_rung_of_its_own(name: str) -> None:
    found = tuple(len(preset_num_blocks(name, max_model_len=tokens, block_size=128)) for tokens in CONTEXTS)
    assert found == PUBLISHED_COUNTS[name]  # with this block_size every bucket is whole blocks


@pytest.mark.parametrize("name", PRESETS)
def test_mean_overpay_is_the_published_one(name: str) -> None:
    buckets = np.array(preset_kv_buckets(name, max_model_len=4096, block_size=128))
    lengths = np.arange(129, 4097)
    padded = buckets[np.searchsorted(buckets, lengths)]
    assert round(float(np.mean(padded / lengths - 1)), 2) == PUBLISHED_OVERPAY[name]


def test_ladders_at_4096() -> None:
    def ladder(name: str) -> tuple[int, ...]:
        return preset_num_blocks(name, max_model_len=4096, block_size=128)

    assert ladder("pow2") == (1, 2, 4, 8, 16, 32)
    assert ladder("8_5") == (1, 2, 3, 4, 5, 8, 13, 16, 21, 32)
    assert ladder("4_3") == (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 23, 31, 32)
    assert ladder("9_8") == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 18, 20, 23, 26, 29, 32)
    assert ladder("uniform") == (1, 2, 4, 6, 8, 10, 14, 16, 18, 22, 26, 30, 32)


def test_a_series_keeps_its_64_token_grain_where_that_is_whole_blocks() -> None:
    # By hand: 64 * 4 / 3 = 85, 113, 150, 200, 266, 354, 472, 629, 838, each down to 64 tokens, above one
    # block.
    found = preset_kv_buckets("4_3", max_model_len=1000, block_size=64)
    assert found == (64, 128, 192, 256, 320, 448, 512, 576, 832, 1000)
    # With blocks of 128, 192 is none: from 128 on it is 170, 226, 301, 401, 534, 712, 949.
    found = preset_kv_buckets("4_3", max_model_len=1000, block_size=128)
    assert found == (128, 256, 384, 512, 640, 896, 1000)


def test_uniform_without_a_whole_block_above_its_knee_is_powers_of_two() -> None:
    assert preset_kv_buckets("uniform", max_model_len=5000, block_size=128) == preset_kv_buckets(
        "pow2", max_model_len=5000, block_size=128
    )


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
