"""The attention backend of `plain_attention`; loaded in engines alone, for it needs vLLM as it loads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, MultipleOf


class Builder(AttentionMetadataBuilder[Any]):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return common_attn_metadata


class Attention(AttentionImpl[Any]):
    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, *rest: Any, **more: Any
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, "auto"
        self.kv_sharing_target_layer_name = self.sliding_window = None

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slots: Any) -> None:
        block_size = kv_cache.shape[2]
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                page, at = divmod(slot, block_size)
                kv_cache[page, :, at, : self.head_size] = key[token]
                kv_cache[page, :, at, self.head_size :] = value[token]

    def forward(  # type: ignore[override]
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        output: Any,
        **more: Any,
    ) -> Any:
        if attn_metadata is None:
            return output
        starts = attn_metadata.query_start_loc_cpu.tolist()
        lengths = attn_metadata.seq_lens.tolist()
        for row in range(attn_metadata.num_reqs):
            first, end, length = starts[row], starts[row + 1], lengths[row]
            pages = attn_metadata.block_table_tensor[row, : -(-length // kv_cache.shape[2])].long()
            cached = kv_cache[pages].transpose(0, 1).flatten(1, 2)[:, :length]
            keys, values = cached[..., : self.head_size], cached[..., self.head_size :]
            asked = query[first:end].transpose(0, 1)
            at = torch.arange(length - (end - first), length)
            seen = torch.arange(length) <= at[:, None]
            repeat = self.num_heads // self.num_kv_heads
            got = scaled_dot_product_attention(
                asked,
                keys.repeat_interleave(repeat, 0),
                values.repeat_interleave(repeat, 0),
                attn_mask=seen,
                scale=self.scale,
            )
            output[first:end] = got.transpose(0, 1)
        return output


class PlainBackend(AttentionBackend):
    forward_includes_kv_cache_update = False
    supported_dtypes = [torch.float32]  # noqa: RUF012 - vLLM's own way

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> Any:
        return Attention

    @staticmethod
    def get_builder_cls() -> Any:
        return Builder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size  # vLLM 0.29 no longer asks
