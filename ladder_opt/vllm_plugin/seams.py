"""What the adapter relies on in the Spyre plugin, and a check of each point against the plugin that is there.

The names, signatures and calls are facts of torch-spyre/spyre-inference, `spyre_inference/v1/attention/
spyre_attn_bucketer.py` and `backends/spyre_attn.py`; `docs/spyre-adapter.md` says which versions were
looked at.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ladder_opt.cost.geometry import Chunked

PACKAGE = "spyre_inference"
BUCKETER = "SpyreAttnBucketer"
BUILDER = "SpyreAttentionMetadataBuilder"
METADATA = "SpyreAttentionMetadata"
DECODE_BUCKET = "SpyreAttnBatchedDecodeBucket"
CHUNKING = "batched_decode_chunking"
MIN_BATCHED = "_MIN_BATCHED_SEQS"
WORKER_MODULE = "spyre_inference.v1.worker.spyre_worker"
WORKER = "TorchSpyreWorker"

_BUCKETER_METHODS = {
    "find_sequence_bucket": ("self", "num_seqs"),
    "find_blocks_bucket": ("self", "num_blocks"),
    "find_query_bucket": ("self", "query_len"),
    "batched_decode_variants": ("self",),
    "variants": ("self",),
}
BUCKETER_LISTS = ("kv_buckets", "query_buckets", "num_blocks_buckets", "num_seqs_buckets")
_BUILDER_METHODS = {
    "_pad_num_blocks": ("self", "num_blocks"),
    "build": ("self", "common_prefix_len", "common_attn_metadata", "fast_build"),
    "build_for_batched_decode_variant": ("self", "bucket"),
}
_METADATA_FIELDS = ("num_decode_seqs", "seq_lens")
_DECODE_FIELDS = ("num_seqs", "num_blocks", "blocks_per_chunk", "num_chunks")
_CHUNKING_SIZES = range(1, 65)


def differences(backend: ModuleType, bucketer: Any) -> list[str]:
    """Each point at which a backend module is not what the adapter knows; none where it can be adapted.

    Args:
        backend: the module of the builder.
        bucketer: what it has, or had, for the bucketer's class.
    """
    found: list[str] = []
    builder = getattr(backend, BUILDER, None)
    if not inspect.isclass(bucketer) or not inspect.isclass(builder):
        missing = BUCKETER if not inspect.isclass(bucketer) else BUILDER
        return [f"no class {missing} in {backend.__name__}"]
    source = sys.modules[bucketer.__module__]
    init = _parameters(bucketer.__init__)
    if init not in {("self", "vllm_config"), ("self", "vllm_config", "sliding_window")}:
        found.append(f"{BUCKETER}.__init__({', '.join(init)})")
    found += _method_differences(bucketer, _BUCKETER_METHODS)
    found += [
        f"no property {BUCKETER}.{name}"
        for name in BUCKETER_LISTS
        if not isinstance(inspect.getattr_static(bucketer, name, None), property)
    ]
    found += _method_differences(builder, _BUILDER_METHODS)
    if not isinstance(inspect.getattr_static(builder, "attn_bucketer", None), property):
        found.append(f"no property {BUILDER}.attn_bucketer")
    found += _call_differences(builder)
    scan = getattr(inspect.getattr_static(bucketer, "_sliding_variants", None), "func", None)
    if "find_blocks_bucket" in _names_used(scan):
        found.append(f"a use of find_blocks_bucket in {BUCKETER}._sliding_variants")
    fields = getattr(getattr(backend, METADATA, None), "__dataclass_fields__", {})
    found += [f"no field {METADATA}.{name}" for name in _METADATA_FIELDS if name not in fields]
    found += _geometry_differences(source)
    return found


def _method_differences(owner: type, methods: dict[str, tuple[str, ...]]) -> Iterable[str]:
    for name, expected in methods.items():
        method = getattr(owner, name, None)
        if not callable(method):
            yield f"no method {owner.__name__}.{name}"
        elif _parameters(method) != expected:
            yield f"{owner.__name__}.{name}({', '.join(_parameters(method))})"


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ("?",)


def _call_differences(builder: type) -> Iterable[str]:
    """Who calls whom: the two uses of `find_blocks_bucket` are told apart by their callers."""
    for name, callees in (
        ("__init__", (BUCKETER,)),
        ("_pad_num_blocks", ("find_blocks_bucket",)),
        # The num_seqs rung is asked for before the num_blocks rung, which of ragged ladders depends on it.
        ("build", ("_pad_num_blocks", "find_sequence_bucket", "find_blocks_bucket")),
    ):
        called = _names_used(getattr(builder, name, None))
        places = [called.index(callee) if callee in called else -1 for callee in callees]
        for callee, place in zip(callees, places, strict=True):
            if place < 0:
                yield f"no use of {callee} in {BUILDER}.{name}"
        if -1 not in places and places != sorted(places):
            yield f"another order than {', '.join(callees)} in {BUILDER}.{name}"


def _names_used(function: Any) -> list[str]:
    """Names of attributes and globals that a function uses, in the order of its code, comprehensions too."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    names: list[str] = []
    waiting = [] if code is None else [code]
    while waiting:
        for step in dis.get_instructions(waiting.pop(0)):
            if inspect.iscode(step.argval):
                names += _names_used_in(step.argval)
            elif step.opname.startswith("LOAD_") and isinstance(step.argval, str):
                names.append(step.argval)
    return names


def _names_used_in(code: Any) -> list[str]:
    return [
        step.argval
        for step in dis.get_instructions(code)
        if step.opname.startswith("LOAD_") and isinstance(step.argval, str)
    ]


def _geometry_differences(source: ModuleType) -> Iterable[str]:
    least = getattr(source, MIN_BATCHED, None)
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        yield f"{MIN_BATCHED} {least!r}"
    bucket = getattr(source, DECODE_BUCKET, None)
    fields = (
        tuple(field.name for field in dataclasses.fields(bucket)) if dataclasses.is_dataclass(bucket) else ()
    )
    if fields != _DECODE_FIELDS:
        yield f"{DECODE_BUCKET}({', '.join(fields)})"
    chunking = getattr(source, CHUNKING, None)
    if not callable(chunking):
        yield f"no function {CHUNKING}"
        return
    kernel = Chunked()
    for num_seqs in _CHUNKING_SIZES:
        blocks = list(_CHUNKING_SIZES)
        per_chunk = kernel.chunk_blocks(num_seqs, blocks).tolist()
        chunks = kernel.iterations(num_seqs, blocks).tolist()
        for at, expected in zip(blocks, zip(per_chunk, chunks, strict=True), strict=True):
            if tuple(chunking(num_seqs, at)) != expected:
                yield f"{CHUNKING}({num_seqs}, {at}) = {tuple(chunking(num_seqs, at))} in place of {expected}"
                return
