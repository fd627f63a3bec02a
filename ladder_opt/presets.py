"""The Spyre plugin's published KV-ladder presets, as num_blocks ladders.

torch-spyre/spyre-inference names five presets (``docs/user_guide/configuration.md``, "Choosing a KV
ladder"): KV buckets in tokens, which the plugin turns into rungs of ceil(tokens / block_size) blocks.
It publishes how many buckets each has and what it overpays on average, not how each series is rounded.
The rules here are ours, chosen to meet those figures; all keep every power of two, so that a length is
never padded further than by ``pow2``:

- ``pow2``: powers of two from the first that holds a block, up to max_model_len;
- ``8_5``, ``4_3``, ``9_8``: pow2, united with a series whose next entry is the one before times the
  ratio, rounded up to 64 tokens. It starts at 384, 192 and 512 tokens: the starts that give the counts;
- ``uniform``: pow2, united with 3/16, 5/16, ... 15/16 of max_model_len, rounded up to whole blocks.

With block_size 128, at max_model_len 4096 / 16384 / 32768, and the mean overpay over every KV length
above block_size at 16384 (whole blocks against the length itself):

| preset    | published count | KV buckets here | num_blocks rungs here | overpay here | published |
|-----------|-----------------|-----------------|-----------------------|--------------|-----------|
| `pow2`    | 6 / 8 / 9       | 6 / 8 / 9       | 6 / 8 / 9             | 38.6 %       | 39 %      |
| `8_5`     | 10 / 15 / 18    | 10 / 15 / 18    | 10 / 15 / 18          | 19.4 %       | 21 %      |
| `4_3`     | 14 / 20 / 24    | 14 / 20 / 24    | 12 / 18 / 22          | 13.5 %       | 15 %      |
| `9_8`     | 20 / 34 / 41    | 20 / 34 / 41    | 19 / 33 / 39          | 6.7 %        | 8 %       |
| `uniform` | 13 / 15 / 16    | 13 / 15 / 16    | 13 / 15 / 16          | 14.1 %       | 14 %      |

Every published bucket count is met (also the 8 and 18 of `uniform` at 1024 and 131072). `4_3` and `9_8`
have fewer rungs than buckets, because buckets 64 tokens apart can share a block. Counting blocks instead
(the same series started at one block and rounded to the nearest block) gives all but one of the counts
too, but then the published throughput and warm-up figures fit worse, which is why it is not used
(`benchmarks/derive_builtin_cost.py`). The counts do not pin down single rungs: ask the plugin itself which
ones it uses before relying on one.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from ladder_opt.errors import UsageError, one_of

PresetName = Literal["pow2", "8_5", "4_3", "9_8", "uniform"]
"""A preset of the plugin, by the name its documentation gives it."""

PRESETS: Final[tuple[PresetName, ...]] = get_args(PresetName)

_GRAIN_TOKENS: Final = 64
_SERIES: Final = {"8_5": (8, 5, 384), "4_3": (4, 3, 192), "9_8": (9, 8, 512)}  # ratio, then start in tokens
_UNIFORM_SIXTEENTHS: Final = range(3, 16, 2)


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
    if name in _SERIES:
        buckets |= _series(*_SERIES[name], max_model_len)
    elif name == "uniform":
        ends = (_ceil_div(max_model_len * part, 16) for part in _UNIFORM_SIXTEENTHS)
        buckets |= {_ceil_div(end, block_size) * block_size for end in ends}
    return (*sorted(tokens for tokens in buckets if tokens < max_model_len), max_model_len)


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


def _series(numerator: int, denominator: int, start: int, max_model_len: int) -> set[int]:
    """A geometric series on the grain, each entry rounded up from the one before."""
    buckets = set()
    tokens = start
    while tokens < max_model_len:
        buckets.add(tokens)
        tokens = _ceil_div(tokens * numerator, denominator * _GRAIN_TOKENS) * _GRAIN_TOKENS
    return buckets
