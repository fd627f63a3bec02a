"""The Spyre plugin's KV-ladder presets, as num_blocks ladders.

torch-spyre/spyre-inference names five presets (``docs/user_guide/configuration.md``, "Choosing a KV
ladder"): KV buckets in tokens, which the plugin turns into rungs of ceil(tokens / block_size) blocks. How it
makes them is in its source (``spyre_inference/v1/attention/spyre_attn_bucketer.py`` at commit 0c3d568); the
rules, in our words:

- ``pow2``: powers of two from the first that holds a block, up to max_model_len. All presets keep these, so
  that a length is never padded further than by ``pow2``;
- ``8_5``, ``4_3``, ``9_8``: pow2 united with a geometric series. It starts at the grain, each entry is the
  one before times the ratio in whole tokens, and each is a bucket at the multiple of the grain at or below
  it, if that is longer than a block. The grain is 64 tokens; where that leaves any bucket that is no whole
  number of blocks, the series is made again with the block as its grain (and its start);
- ``uniform``: pow2 united with the sums of a knee and 1, 2, ... steps, where those are whole blocks. The knee
  is a sixteenth of max_model_len, the step an eighth of it in whole blocks, both a block at least.

With block_size 128, at max_model_len 4096 / 16384 / 32768, and the mean overpay over every KV length above
block_size at 4096 (the bucket against the length itself):

| preset    | published count | buckets here | published overpay | overpay here |
|-----------|-----------------|--------------|-------------------|--------------|
| `pow2`    | 6 / 8 / 9       | 6 / 8 / 9    | 39 %              | 38.6 %       |
| `8_5`     | 10 / 15 / 18    | 10 / 15 / 18 | 21 %              | 20.8 %       |
| `4_3`     | 14 / 20 / 24    | 14 / 20 / 24 | 15 %              | 15.1 %       |
| `9_8`     | 20 / 34 / 41    | 20 / 34 / 41 | 8 %               | 8.2 %        |
| `uniform` | 13 / 15 / 16    | 13 / 15 / 16 | 14 %              | 13.5 %       |

The 8 and 18 buckets published for `uniform` at 1024 and 131072 are met too. The plugin moves on: ask the one
in use which buckets it has before relying on a single rung.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from ladder_opt.arguments import checked
from ladder_opt.errors import UsageError, one_of

PresetName = Literal["pow2", "8_5", "4_3", "9_8", "uniform"]
"""A preset of the plugin, by the name its documentation gives it."""

PRESETS: Final[tuple[PresetName, ...]] = get_args(PresetName)

_GRAIN_TOKENS: Final = 64
_RATIOS: Final = {"8_5": (8, 5), "4_3": (4, 3), "9_8": (9, 8)}
_UNIFORM_STEPS: Final = 8  # in max_model_len
_UNIFORM_KNEES: Final = 16  # likewise


def preset_kv_buckets(name: str, *, max_model_len: int, block_size: int) -> tuple[int, ...]:
    """The KV buckets of a published preset, in tokens (what `SPYRE_ATTN_KV_BUCKETS` lists).

    Args:
        name: one of `PRESETS`.
        max_model_len: longest sequence the engine takes, in tokens.
        block_size: tokens in a KV block.

    Returns:
        Buckets in tokens, ascending and unique; the last is max_model_len.

    Raises:
        UsageError: there is no such preset, or a size is below 1.
    """
    if name not in PRESETS:
        raise UsageError(f"preset: found {name!r}, expected {one_of(PRESETS, name)}")
    for label, size in (("max_model_len", max_model_len), ("block_size", block_size)):
        if size < 1:
            raise UsageError(f"{label}: found {size}, expected at least 1")
    buckets = _powers_of_two(max_model_len, block_size)
    if name in _RATIOS:
        buckets |= _geometric(*_RATIOS[name], max_model_len, block_size)
    elif name == "uniform":
        buckets |= _evenly_spaced(max_model_len, block_size)
    return (*sorted(tokens for tokens in buckets if tokens < max_model_len), max_model_len)


@checked
def preset_num_blocks(name: str, *, max_model_len: int, block_size: int) -> tuple[int, ...]:
    """The num_blocks ladder of a published preset.

    Args:
        name: one of `PRESETS`.
        max_model_len: longest sequence the engine takes, in tokens.
        block_size: tokens in a KV block.

    Returns:
        Rungs in blocks, ascending and unique; the last is ceil(max_model_len / block_size).

    Raises:
        UsageError: there is no such preset, or a size is below 1.
    """
    buckets = preset_kv_buckets(name, max_model_len=max_model_len, block_size=block_size)
    return tuple(sorted({_ceil_div(tokens, block_size) for tokens in buckets}))


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _powers_of_two(max_model_len: int, block_size: int) -> set[int]:
    """Powers of two from the first that holds a block, below max_model_len."""
    buckets = set()
    tokens = 1 << (block_size - 1).bit_length()
    while tokens < max_model_len:
        buckets.add(tokens)
        tokens *= 2
    return buckets


def _geometric(numerator: int, denominator: int, max_model_len: int, block_size: int) -> set[int]:
    """A geometric series below max_model_len, of whole blocks where the plugin makes it so."""
    buckets = _series(numerator, denominator, _GRAIN_TOKENS, max_model_len, block_size)
    if any(tokens % block_size for tokens in buckets):
        return _series(numerator, denominator, block_size, max_model_len, block_size)
    return buckets


def _series(numerator: int, denominator: int, grain: int, max_model_len: int, block_size: int) -> set[int]:
    """Entries grow from the grain in whole tokens; buckets are the multiples of the grain below them.

    A step that would not grow (a grain of a few tokens) ends the series.
    """
    buckets = set()
    tokens, before = grain * numerator // denominator, grain
    while before < tokens < max_model_len:
        bucket = tokens // grain * grain
        if bucket > block_size:
            buckets.add(bucket)
        tokens, before = tokens * numerator // denominator, tokens
    return buckets


def _evenly_spaced(max_model_len: int, block_size: int) -> set[int]:
    """The knee and 1, 2, ... steps, where they are whole blocks, below max_model_len."""
    step = max(block_size, max_model_len // _UNIFORM_STEPS // block_size * block_size)
    knee = max(block_size, max_model_len // _UNIFORM_KNEES)
    return {tokens for tokens in range(knee + step, max_model_len, step) if tokens % block_size == 0}
