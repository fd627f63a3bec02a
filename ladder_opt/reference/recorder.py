"""Warm-up: run every variant that the bucketer enumerates, once for each kind of layer, and nothing else.

The batches are the bucketer's witnesses, padded by the builder that serving uses. A witness that comes out at
another variant, or none, is a bug of ours and stops the warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ladder_opt.bucketer import BatchedVariant
from ladder_opt.errors import InternalError
from ladder_opt.reference.batch import BatchPadder
from ladder_opt.reference.compiled import AttentionLayer, CompiledKernels

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LayerCache:
    """One layer of each kind, with its KV pages (`kernels.batched_decode`) and its query's dtype."""

    pages: torch.Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class Recording:
    """What a warm-up did.

    Attributes:
        variants: the variants recorded, in the order of their compiles.
        layers: kinds of layer, each with graphs of its own.
        compiles: graphs compiled; below variants * layers where an earlier run had made some.
        seconds: wall time.
        compile_seconds: of each variant, over all its layers, in their order.
    """

    variants: tuple[BatchedVariant, ...]
    layers: int
    compiles: int
    seconds: float
    compile_seconds: tuple[float, ...]


def record(
    padder: BatchPadder,
    kernels: CompiledKernels,
    layers: Mapping[AttentionLayer, LayerCache],
    *,
    variants: list[BatchedVariant] | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Compile the variants and seal `kernels`.

    Args:
        padder: the builder that serving uses.
        kernels: where the graphs go.
        layers: the kinds of layer to compile for.
        variants: a part of the bucketer's variants; None for all of them.
        progress: told (variants done, of how many).

    Raises:
        InternalError: a witness is not padded to its variant.
    """
    bucketer = padder.bucketer
    asked = bucketer.batched_variants() if variants is None else variants
    before, started = kernels.compiles, time.perf_counter()
    seconds = []
    for done, variant in enumerate(asked):
        began = time.perf_counter()
        seq_lens = torch.tensor(bucketer.batched_witness(variant).kv_lens, dtype=torch.int32)
        block_table = torch.zeros((len(seq_lens), bucketer.engine.max_num_blocks), dtype=torch.int32)
        batch = padder.pad(block_table, seq_lens)
        if batch is None or batch.variant != variant:
            found = None if batch is None else batch.variant
            raise InternalError(f"the witness of {variant} is padded to {found}")
        for layer, cache in layers.items():
            query = torch.zeros((len(seq_lens), layer.num_heads, layer.head_size), dtype=cache.dtype)
            kernels.run(batch, layer, query, cache.pages)
        seconds.append(time.perf_counter() - began)
        if progress is not None:
            progress(done + 1, len(asked))
    kernels.seal()
    return Recording(
        variants=tuple(asked),
        layers=len(layers),
        compiles=kernels.compiles - before,
        seconds=time.perf_counter() - started,
        compile_seconds=tuple(seconds),
    )
