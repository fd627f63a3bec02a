"""The reference as a vLLM attention backend: metadata builder, implementation, and what they share.

The builder pads a step's decodes through the bucketer and nothing else; the implementation runs them on the
compiled kernels, and what is left (prefills, and decodes that are too few for a batch) sequence by sequence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder
from ladder_opt.engine import BLOCK_SIZE_GRAIN_TOKENS
from ladder_opt.errors import UsageError
from ladder_opt.reference.batch import BatchPadder, PaddedBatch
from ladder_opt.reference.compiled import AttentionLayer, CompiledKernels, graphs_compiled, run_sequences
from ladder_opt.reference.recorder import LayerCache, Recording, record
from ladder_opt.vllm_plugin.loading import bucketer_for, logger
from ladder_opt.vllm_plugin.recording import recorder_for

MAX_BATCHED_QUERY_TOKENS = 1  # a decode runs one token; more are a prefill


@dataclass
class Runtime:
    """What the layers and the builders of one engine share.

    Attributes:
        bucketer: the ladders in use.
        padder: pads batches onto them.
        kernels: the compiled variants.
        recorder: counts steps for a record; None where none was asked for.
        dispatched: steps since warm-up at each rung pair, as "num_seqs x num_blocks".
        per_sequence: steps since warm-up with decodes on the per-sequence path.
        recording: what warm-up did; None before.
        graphs_at_end: graphs that the process had compiled when warm-up ended.
        counted_by: the builder whose steps count: every group of layers builds the same ones.
    """

    bucketer: Bucketer
    padder: BatchPadder
    kernels: CompiledKernels
    recorder: StepRecorder | None
    dispatched: Counter[str] = field(default_factory=Counter)
    per_sequence: int = 0
    recording: Recording | None = None
    graphs_at_end: int = 0
    counted_by: object = None

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> Runtime:
        """That of an engine, made at the first call, once its KV cache is laid out."""
        key = str(vllm_config.instance_id)
        if key not in _runtimes:
            bucketer = bucketer_for(vllm_config)
            recorder = recorder_for(vllm_config, bucketer)
            kernels = CompiledKernels(warn=lambda line: logger.warning("ladder_opt: %s", line))
            _runtimes[key] = cls(bucketer, BatchPadder(bucketer), kernels, recorder)
        return _runtimes[key]

    def warm_up(self, layers: Mapping[AttentionLayer, LayerCache]) -> Recording:
        """Record every variant; from here on steps are counted and compiles are late."""
        self.recording = record(self.padder, self.kernels, layers)
        self.graphs_at_end = graphs_compiled()
        if self.recorder is not None:
            self.recorder.start(compiles=self.graphs_at_end)
        return self.recording

    def count(self, batch: PaddedBatch | None, kv_lens: list[int]) -> None:
        """Count a step by its decodes."""
        if self.recording is None or not kv_lens:
            return
        if batch is None:
            self.per_sequence += 1
        else:
            num_seqs, num_blocks = batch.rungs
            self.dispatched[f"{num_seqs} x {num_blocks}"] += 1
        if self.recorder is not None:
            self.recorder.compiles(graphs_compiled())
            self.recorder.decode(kv_lens, self.bucketer.engine.block_size)

    def report(self) -> dict[str, Any]:
        """What was loaded, recorded and met so far, for tests and for people."""
        ladders, kernels, recording = self.bucketer.ladders, self.kernels, self.recording
        return {
            "source": self.bucketer.source,
            "kernel": self.bucketer.kernel,
            "num_seqs": list(ladders.num_seqs),
            "num_blocks": list(ladders.num_blocks),
            "enumerated": sorted(variant.key for variant in self.bucketer.batched_variants()),
            "recorded": sorted({key for key, _ in kernels.recorded}),
            "warmup_seconds": None if recording is None else recording.seconds,
            "warmup_compiles": None if recording is None else recording.compiles,
            "compiles_since": graphs_compiled() - self.graphs_at_end,
            "late_compiles": sum(kernels.late_compiles.values()),
            "unrecorded": sum(kernels.unrecorded.values()),
            "dispatched": dict(self.dispatched),
            "per_sequence_steps": self.per_sequence,
            "cpu_seconds": time.process_time(),
        }


_runtimes: dict[str, Runtime] = {}


@dataclass
class ReferenceMetadata(AttentionMetadata):
    """One step of one group of layers.

    Attributes:
        runtime: what runs it.
        batch: the decodes, padded; None where none are batched.
        block_table: int (sequences, blocks).
        query_starts: first query token of each sequence, and the end of the last.
        seq_lens: KV tokens of each sequence, the step's own counted.
    """

    runtime: Runtime
    batch: PaddedBatch | None
    block_table: torch.Tensor
    query_starts: list[int]
    seq_lens: list[int]


class ReferenceMetadataBuilder(AttentionMetadataBuilder[ReferenceMetadata]):
    """Builds a step's metadata; decodes come first in it, for the batch is asked to be ordered so."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.runtime = Runtime.of(vllm_config)
        block_size = self.runtime.bucketer.engine.block_size
        if kv_cache_spec.block_size != block_size:
            raise UsageError(
                f"block_size: found layers with {kv_cache_spec.block_size}, expected {block_size}"
            )
        self._init_reorder_batch_threshold(MAX_BATCHED_QUERY_TOKENS)
        self.runtime.counted_by = self.runtime.counted_by or self

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> ReferenceMetadata:
        """Split off the decodes and pad them."""
        common = common_attn_metadata
        num_decodes, *_ = split_decodes_and_prefills(
            common,
            decode_threshold=MAX_BATCHED_QUERY_TOKENS,
            treat_short_extends_as_decodes=common.is_prefilling is None,
        )
        seq_lens = common.seq_lens[: common.num_reqs]
        batch = self.runtime.padder.pad(common.block_table_tensor, seq_lens[:num_decodes])
        lengths = seq_lens.tolist()
        if self.runtime.counted_by is self:
            self.runtime.count(batch, lengths[:num_decodes])
        return ReferenceMetadata(
            runtime=self.runtime,
            batch=batch,
            block_table=common.block_table_tensor,
            query_starts=common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            seq_lens=lengths,
        )


class ReferenceAttention(AttentionImpl[ReferenceMetadata]):
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        for what, found in (
            ("ALiBi slopes", alibi_slopes),
            ("attention sinks", sinks),
            (f"attention of type {attn_type}", None if attn_type == AttentionType.DECODER else attn_type),
        ):
            if found is not None:
                raise UsageError(f"the reference backend: found {what}, expected plain decoder attention")
        self.num_heads, self.head_size = num_heads, head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.layer_shape = AttentionLayer(num_heads, head_size, float(scale), logits_soft_cap or None)

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Put a step's keys and values, (tokens, num_kv_heads, head_size), into their slots.

        A slot is page * block_size + token within the page; tokens of slot -1 are padding.
        """
        count = slot_mapping.shape[0]
        real = slot_mapping >= 0
        slots, block_size = slot_mapping[real], kv_cache.shape[2]
        pages, tokens = slots // block_size, slots % block_size
        kv_cache[pages, :, tokens, : self.head_size] = key[:count][real]
        kv_cache[pages, :, tokens, self.head_size :] = value[:count][real]

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: ReferenceMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of a step; query and output are (tokens, num_heads, head_size)."""
        if attn_metadata is None:  # vLLM measures memory with no step at all
            return output
        step, first = attn_metadata, 0
        if step.batch is not None:
            first = step.batch.num_decodes
            output[:first] = step.runtime.kernels.run(
                step.batch, self.layer_shape, query, kv_cache, sliding_window=self.sliding_window
            )
        starts = step.query_starts[first:]
        rest = slice(starts[0], starts[-1])
        output[rest] = run_sequences(
            self.layer_shape,
            query[rest],
            kv_cache,
            step.block_table[first:],
            query_starts=[start - starts[0] for start in starts],
            seq_lens=step.seq_lens[first:],
            sliding_window=self.sliding_window,
        )
        return output


class ReferenceBackend(AttentionBackend):
    """The backend: it stands in for CPU_ATTN, whose KV cache layout it shares."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    engine_block_size: ClassVar[int | None] = None
    """The engine's, once its worker has said so."""

    @classmethod
    def get_supported_kernel_block_sizes(cls) -> list[int | MultipleOf]:
        """The engine's own.

        vLLM gives layers with a sliding window the smallest size that is offered, whatever the engine's is; a
        plan's rungs would count other blocks then.
        """
        if cls.engine_block_size is not None:
            return [cls.engine_block_size]
        return [MultipleOf(BLOCK_SIZE_GRAIN_TOKENS)]

    @staticmethod
    def get_name() -> str:
        """The name it stands in for: vLLM looks it up in its own list."""
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[ReferenceAttention]:
        """The implementation."""
        return ReferenceAttention

    @staticmethod
    def get_builder_cls() -> type[ReferenceMetadataBuilder]:
        """The builder."""
        return ReferenceMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Pages as `kernels.batched_decode` takes them."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @classmethod
    def get_required_kv_cache_layout(cls) -> Any:
        """Heads before tokens, as the shape says."""
        return "HND"

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """They are masked."""
        return True


def warm_up(vllm_config: VllmConfig) -> Runtime:
    """Record every variant for every kind of attention layer of the engine's model."""
    runtime = Runtime.of(vllm_config)
    dtype: Any = vllm_config.model_config.dtype  # vLLM has made a torch.dtype of the user's word
    layers: dict[AttentionLayer, LayerCache] = {}
    for layer in vllm_config.compilation_config.static_forward_context.values():
        impl = getattr(layer, "impl", None)
        if isinstance(impl, ReferenceAttention):
            layers.setdefault(impl.layer_shape, LayerCache(layer.kv_cache, dtype))
    recording = runtime.warm_up(layers)
    logger.info(
        "ladder_opt: recorded %d of %d batched decode variants for %d kinds of layer in %.1f s (%d compiles)",
        len(recording.variants),
        len(runtime.bucketer.batched_variants()),
        recording.layers,
        recording.seconds,
        recording.compiles,
    )
    return runtime
