"""A small package with the shape of the Spyre plugin, where the adapter takes hold of it.

Its code is ours. It keeps the plugin's names, signatures and calls, and its rules for ladders (README of
torch-spyre/spyre-inference and facts in `docs/spyre-adapter.md`), without torch, vLLM or a device: lengths
are numpy arrays, and "compiling" puts a key into a set.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

BUCKETER = """
import os
from bisect import bisect_left
from dataclasses import dataclass

_MIN_BATCHED_SEQS = 4
WINDOWED = True


def batched_decode_chunking(b_seqs, b_blocks):
    per_chunk = max(1, min(32 // b_seqs, b_blocks))
    return per_chunk, -(-b_blocks // per_chunk)


@dataclass(frozen=True)
class SpyreAttnBucket:
    num_blocks: int
    padded_query_len: int


@dataclass(frozen=True)
class SpyreAttnBatchedDecodeBucket:
    num_seqs: int
    num_blocks: int
    blocks_per_chunk: int
    num_chunks: int


def _ladder(name, limit, default):
    given = os.environ.get(name)
    if not given:
        return default
    return sorted({int(part) for part in given.split(",") if int(part) <= limit} | {limit})


def _doubling(first, limit):
    start = 1
    while start < first:
        start *= 2
    rungs = set()
    while start < limit:
        rungs.add(start)
        start *= 2
    return sorted(rungs | {limit})


class SpyreAttnBucketer:
    def __init__(self, vllm_config, sliding_window=None):
        self.block_size = vllm_config.cache_config.block_size
        self._sliding_window = sliding_window
        seqs = vllm_config.scheduler_config.max_num_seqs
        self._max_model_len = vllm_config.model_config.max_model_len
        batched = vllm_config.scheduler_config.max_num_batched_tokens
        self._num_seqs_buckets = (
            [] if seqs < _MIN_BATCHED_SEQS
            else _ladder("SPYRE_ATTN_NUM_SEQS_BUCKETS", seqs, _doubling(_MIN_BATCHED_SEQS, seqs))
        )
        step = min(512, batched)
        self._query_buckets = _ladder(
            "SPYRE_ATTN_QUERY_BUCKETS", batched, sorted({1, *range(step, batched + 1, step), batched})
        )
        self._kv_buckets = _ladder(
            "SPYRE_ATTN_KV_BUCKETS", self._max_model_len, _doubling(self.block_size, self._max_model_len)
        )
        self._num_blocks_buckets = sorted({-(-tokens // self.block_size) for tokens in self._kv_buckets})

    @property
    def kv_buckets(self):
        return self._kv_buckets

    @property
    def query_buckets(self):
        return self._query_buckets

    @property
    def num_blocks_buckets(self):
        return self._num_blocks_buckets

    @property
    def num_seqs_buckets(self):
        return self._num_seqs_buckets

    def find_query_bucket(self, query_len):
        return self._up(query_len, self._query_buckets)

    def find_sequence_bucket(self, num_seqs):
        return self._up(num_seqs, self._num_seqs_buckets)

    def find_blocks_bucket(self, num_blocks):
        return self._up(num_blocks, self._num_blocks_buckets)

    @staticmethod
    def _up(size, rungs):
        at = bisect_left(rungs, size)
        return rungs[at] if at < len(rungs) else None

    def variants(self):
        shortest = dict(zip(self._query_buckets, [1, *(rung + 1 for rung in self._query_buckets)]))
        return [
            SpyreAttnBucket(blocks, query)
            for blocks in reversed(self._num_blocks_buckets)
            for query in reversed(self._query_buckets)
            if shortest[query] <= blocks * self.block_size
        ]

    def decode_witness_kv_len(self, num_blocks):
        if self._sliding_window is None:
            return num_blocks * self.block_size
        for tokens in range(2, self._max_model_len + 1):
            if self.find_blocks_bucket(self.active_blocks(tokens)) == num_blocks:
                return tokens
        return None

    def active_blocks(self, tokens):
        window = self._sliding_window
        first = 0 if window is None else max(0, tokens - window) // self.block_size
        return -(-tokens // self.block_size) - first

    def batched_decode_variants(self):
        if os.environ.get("SPYRE_BATCHED_DECODE", "1") == "0":
            return []
        return [
            SpyreAttnBatchedDecodeBucket(seqs, blocks, *batched_decode_chunking(seqs, blocks))
            for blocks in reversed(self._num_blocks_buckets)
            if self.decode_witness_kv_len(blocks) is not None
            for seqs in reversed(self._num_seqs_buckets)
        ]
"""

BACKEND = '''
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from spyre_inference.v1.attention.spyre_attn_bucketer import (
    _MIN_BATCHED_SEQS,
    SpyreAttnBatchedDecodeBucket,
    SpyreAttnBucket,
    SpyreAttnBucketer,
    batched_decode_chunking,
)


@dataclass
class SpyreAttentionMetadata:
    seq_lens: Any
    num_decode_seqs: int
    padded_num_blocks: list[int]
    key: tuple[int, int, int] | None


class SpyreAttentionMetadataBuilder:
    def __init__(self, vllm_config, sliding_window=None):
        self.vllm_config = vllm_config
        self.block_size = vllm_config.cache_config.block_size
        self.sliding_window = sliding_window
        if sliding_window is None:
            self._attn_bucketer = SpyreAttnBucketer(vllm_config)
        else:
            self._attn_bucketer = SpyreAttnBucketer(vllm_config, sliding_window)

    @property
    def attn_bucketer(self):
        return self._attn_bucketer

    def _pad_num_blocks(self, num_blocks):
        if num_blocks == 0:
            return 0
        padded = self._attn_bucketer.find_blocks_bucket(num_blocks)
        assert padded is not None
        return padded

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        """Metadata of a batch: `seq_lens`, and how many of its sequences, at the front, decode."""
        lengths, decodes = common_attn_metadata.seq_lens, common_attn_metadata.num_decodes
        blocks = [self._attn_bucketer.active_blocks(int(tokens)) for tokens in lengths]
        padded = [self._pad_num_blocks(each) for each in blocks]
        key = None
        if decodes >= _MIN_BATCHED_SEQS:
            seqs = self._attn_bucketer.find_sequence_bucket(decodes)
            rung = self._attn_bucketer.find_blocks_bucket(max(blocks[:decodes]))
            if seqs is not None and rung is not None:
                key = (seqs, *batched_decode_chunking(seqs, rung))
        return SpyreAttentionMetadata(lengths, decodes, padded, key)

    def build_for_variant(self, bucket):
        return self._built([bucket.num_blocks * self.block_size], 0)

    def build_for_batched_decode_variant(self, bucket):
        tokens = self._attn_bucketer.decode_witness_kv_len(bucket.num_blocks)
        return self._built([tokens] * bucket.num_seqs, bucket.num_seqs)

    def _built(self, lengths, decodes):
        return self.build(0, SimpleNamespace(seq_lens=np.array(lengths), num_decodes=decodes))
'''

WORKER = """
class TorchSpyreWorker:
    def __init__(self, *builders):
        self.builders = builders
        self.compiled = set()

    def compile_or_warm_up_model(self):
        for builder in self.builders:
            for variant in builder.attn_bucketer.variants():
                builder.build_for_variant(variant)
            for variant in builder.attn_bucketer.batched_decode_variants():
                metadata = builder.build_for_batched_decode_variant(variant)
                wanted = (variant.num_seqs, variant.blocks_per_chunk, variant.num_chunks)
                assert metadata.key == wanted, f"asked for {wanted}, got {metadata.key}"
                self.compiled.add(metadata.key)
        return len(self.compiled)
"""

_FILES = {
    "__init__.py": "",
    "v1/__init__.py": "",
    "v1/attention/__init__.py": "",
    "v1/attention/spyre_attn_bucketer.py": BUCKETER,
    "v1/attention/backends/__init__.py": "",
    "v1/attention/backends/spyre_attn.py": BACKEND,
    "v1/worker/__init__.py": "",
    "v1/worker/spyre_worker.py": WORKER,
}


def write_package(folder: Path, changes: Mapping[str, tuple[str, str]] | None = None) -> None:
    """Write the package below a folder; `changes` maps a file to a (text, other text) to change in it."""
    for name, content in _FILES.items():
        text = textwrap.dedent(content)
        if changes and name in changes:
            before, after = changes[name]
            if before not in text:
                raise AssertionError(f"{name}: found no {before!r} to change")
            text = text.replace(before, after)
        path = folder / "spyre_inference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def forget_package() -> None:
    """Take the package out of the interpreter again."""
    for name in [each for each in sys.modules if each.split(".")[0] == "spyre_inference"]:
        del sys.modules[name]
