"""The adapter on a package of the Spyre plugin's shape: plan in, both paths apart, unknown shapes refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ladder_opt.errors import InputError
from ladder_opt.occupancy.record_file import read_recorded_steps
from ladder_opt.plan.plan import Plan, write_plan
from ladder_opt.vllm_plugin import hooks, recording, spyre_adapter
from tests.plan.plans import make_plan, make_spyre_plan
from tests.vllm_plugin.engines import make_vllm_config
from tests.vllm_plugin.fake_spyre import forget_package, write_package

Import = Callable[..., ModuleType]
BACKEND_FILE = "v1/attention/backends/spyre_attn.py"
BUCKETER_FILE = "v1/attention/spyre_attn_bucketer.py"
BUILD = "SpyreAttentionMetadataBuilder.build"
SEQS_LINE = "            seqs = self._attn_bucketer.find_sequence_bucket(decodes)\n"
BLOCKS_LINE = "            rung = self._attn_bucketer.find_blocks_bucket(max(blocks[:decodes]))\n"


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Writes the package, has the plugin's hook in place, and imports the package's backend."""
    for name in (
        "LADDER_OPT_PLAN",
        "LADDER_OPT_RECORD",
        "SPYRE_ATTN_KV_BUCKETS",
        "SPYRE_ATTN_NUM_SEQS_BUCKETS",
    ):
        monkeypatch.delenv(name, raising=False)

    def load(**changes: tuple[str, str]) -> ModuleType:
        named = {"backend": BACKEND_FILE, "bucketer": BUCKETER_FILE}
        write_package(tmp_path / "site", {named[name]: change for name, change in changes.items()})
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        importlib.invalidate_caches()
        hooks.adapt_spyre_when_imported()
        importlib.import_module("spyre_inference.v1.worker.spyre_worker")
        return importlib.import_module(hooks.SPYRE_BACKEND)

    before = list(sys.meta_path)
    yield load
    sys.meta_path[:] = before
    forget_package()


def batch(*kv_lens: int, decodes: int | None = None) -> Any:
    return SimpleNamespace(
        seq_lens=np.array(kv_lens), num_decodes=len(kv_lens) if decodes is None else decodes
    )


def warmed_up(*builders: Any) -> Any:
    worker = sys.modules["spyre_inference.v1.worker.spyre_worker"].TorchSpyreWorker(*builders)
    worker.compile_or_warm_up_model()
    return worker


def with_plan(plan: Plan, **limits: Any) -> Any:
    return make_vllm_config(additional_config={"ladder_opt": plan.to_dict()}, **limits)


def test_without_a_plan_the_plugin_is_as_it_was(backend: Import) -> None:
    module = backend()
    builder_class = module.SpyreAttentionMetadataBuilder
    methods = dict(vars(builder_class))
    builder = builder_class(make_vllm_config())
    source = sys.modules["spyre_inference.v1.attention.spyre_attn_bucketer"]
    assert type(builder.attn_bucketer) is source.SpyreAttnBucketer
    assert dict(vars(builder_class)) == methods


def test_a_plan_moves_batched_decode_and_leaves_the_per_sequence_path(
    backend: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_ATTN_KV_BUCKETS", "1024,2048")  # 8 and 16 blocks
    module = backend()
    plan = make_plan(num_seqs=(5, 8), num_blocks=(3, 9, 16))
    builder = module.SpyreAttentionMetadataBuilder(with_plan(plan))
    bucketer = builder.attn_bucketer
    assert isinstance(
        bucketer, sys.modules["spyre_inference.v1.attention.spyre_attn_bucketer"].SpyreAttnBucketer
    )
    assert bucketer.num_seqs_buckets == [5, 8]
    assert bucketer.num_blocks_buckets == [8, 16]  # of the KV ladder, as before
    # Five decodes, the longest of 2 blocks: padded to (5, 3) in the batch, to 8 blocks each on its own.
    metadata = builder.build(0, batch(130, 100, 100, 100, 100))
    assert metadata.key == (5, 3, 1)
    assert metadata.padded_num_blocks == [8] * 5
    # Three decodes are below min_batched_seqs, and no block stays none.
    assert builder.build(0, batch(130, 100, 100)).key is None
    assert builder._pad_num_blocks(0) == 0


@pytest.mark.parametrize("structure", ["product", "ragged"])
def test_warm_up_compiles_what_steps_ask_for_and_nothing_else(backend: Import, structure: str) -> None:
    module = backend()
    plan = make_plan(structure=structure)
    builder = module.SpyreAttentionMetadataBuilder(with_plan(plan))
    worker = warmed_up(builder)
    assert len(worker.compiled) == plan.result.num_variants
    asked = {
        builder.build(0, batch(blocks * 128, *[100] * (decodes - 1))).key
        for decodes in range(4, 9)
        for blocks in range(1, 17)
    }
    assert asked == worker.compiled


@pytest.mark.parametrize("structure", ["product", "ragged"])
@pytest.mark.parametrize("window", [100, 300, 512])
def test_a_sliding_window_compiles_what_its_steps_can_ask_for(
    backend: Import, structure: str, window: int
) -> None:
    module = backend()
    builder = module.SpyreAttentionMetadataBuilder(with_plan(make_plan(structure=structure)), window)
    worker = warmed_up(builder)
    asked = {
        builder.build(0, batch(tokens, *[2] * (decodes - 1))).key
        for decodes in range(4, 9)
        for tokens in range(2, 2049, 7)
    }
    assert asked == worker.compiled


def test_a_plan_of_todays_plugin_moves_the_per_sequence_path_too(backend: Import) -> None:
    plan = make_spyre_plan(num_blocks=(3, 16), query_lens=(1, 128, 512))
    bucketer = backend().SpyreAttentionMetadataBuilder(with_plan(plan)).attn_bucketer
    assert bucketer.kv_buckets == [384, 2048]
    assert bucketer.num_blocks_buckets == [3, 16]
    assert bucketer.query_buckets == [1, 128, 512]
    assert {variant.num_blocks for variant in bucketer.variants()} == {3, 16}


def test_batched_decode_switched_off_stays_off(backend: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_BATCHED_DECODE", "0")
    builder = backend().SpyreAttentionMetadataBuilder(with_plan(make_plan()))
    assert builder.attn_bucketer.batched_decode_variants() == []


def test_a_pooling_model_keeps_the_plugins_bucketer(backend: Import) -> None:
    builder = backend().SpyreAttentionMetadataBuilder(with_plan(make_plan(), runner_type="pooling"))
    assert not hasattr(builder.attn_bucketer, "ladder_opt")


def test_a_plan_from_the_environment(
    backend: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(make_plan(num_seqs=(6, 8)), tmp_path / "p.json")
    monkeypatch.setenv("LADDER_OPT_PLAN", str(tmp_path / "p.json"))
    builder = backend().SpyreAttentionMetadataBuilder(make_vllm_config())
    assert builder.attn_bucketer.num_seqs_buckets == [6, 8]


def test_a_plan_that_cannot_be_used_stops_the_builder(backend: Import) -> None:
    module = backend()
    with pytest.raises(InputError) as error:
        module.SpyreAttentionMetadataBuilder(with_plan(make_plan(), block_size=64))
    assert str(error.value) == (
        "additional_config.ladder_opt: engine.block_size: found a plan for block_size 128, "
        "expected the engine's 64"
    )
    per_block = make_plan().model_copy(update={"kernel": "per_block"})
    with pytest.raises(
        InputError, match="found a plan for the per_block kernel, expected the backend's chunked"
    ):
        module.SpyreAttentionMetadataBuilder(with_plan(per_block))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {
                "bucketer": (
                    "def find_sequence_bucket(self, num_seqs)",
                    "def find_sequence_bucket(self, n, m=0)",
                )
            },
            "SpyreAttnBucketer.find_sequence_bucket(self, n, m)",
        ),
        (
            {"bucketer": ("    def variants(self):", "    def all_variants(self):")},
            "no method SpyreAttnBucketer.variants",
        ),
        (
            {"bucketer": ("sliding_window=None):", "sliding_window=None, more=()):")},
            "SpyreAttnBucketer.__init__(self, vllm_config, sliding_window, more)",
        ),
        (
            {"bucketer": ("    num_chunks: int\n", "    num_chunks: int\n    store_out: bool = False\n")},
            "SpyreAttnBatchedDecodeBucket(num_seqs, num_blocks, blocks_per_chunk, num_chunks, store_out)",
        ),
        (
            {"bucketer": ("min(32 // b_seqs, b_blocks)", "min(64 // b_seqs, b_blocks)")},
            "batched_decode_chunking(1, 33) = (33, 1) in place of (32, 2)",
        ),
        (
            {"bucketer": ("    @property\n    def num_seqs_buckets", "    def num_seqs_buckets")},
            "no property SpyreAttnBucketer.num_seqs_buckets",
        ),
        (
            {"bucketer": ("self._kv_buckets", "self._kv_rungs")},
            "no list SpyreAttnBucketer._kv_buckets",
        ),
        (
            {"backend": ("num_decode_seqs: int", "num_decodes: int")},
            "no field SpyreAttentionMetadata.num_decode_seqs",
        ),
        (
            {"backend": ("self._attn_bucketer.find_sequence_bucket(decodes)", "decodes")},
            "no use of find_sequence_bucket in SpyreAttentionMetadataBuilder.build",
        ),
        (
            {"backend": (SEQS_LINE + BLOCKS_LINE, BLOCKS_LINE + SEQS_LINE)},
            "another order than _pad_num_blocks, find_sequence_bucket, find_blocks_bucket in " + BUILD,
        ),
        (
            {
                "backend": (
                    "def _pad_num_blocks(self, num_blocks)",
                    "def _pad_num_blocks(self, num_blocks, seq)",
                )
            },
            "SpyreAttentionMetadataBuilder._pad_num_blocks(self, num_blocks, seq)",
        ),
    ],
)
def test_another_shape_is_refused_by_name_where_there_is_a_plan(
    backend: Import, changes: dict[str, tuple[str, str]], named: str
) -> None:
    module = backend(**changes)
    with pytest.raises(InputError) as error:
        module.SpyreAttnBucketer(with_plan(make_plan()))
    assert str(error.value) == (
        f"spyre_inference: found {named}, expected the Spyre plugin as this release of ladder_opt knows it"
    )
    module.SpyreAttnBucketer(make_vllm_config())  # and goes on as it is without one


def test_a_plugin_without_a_bucketer_is_refused_where_a_plan_is_set(
    backend: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ("    SpyreAttnBucketer,\n", "")
    assert "SpyreAttnBucketer" not in vars(backend(backend=change))
    forget_package()
    monkeypatch.setenv("LADDER_OPT_PLAN", "p.json")
    with pytest.raises(InputError, match="found no SpyreAttnBucketer in"):
        importlib.import_module(hooks.SPYRE_BACKEND)


@pytest.mark.parametrize("planned", [True, False])
def test_served_steps_are_recorded_and_warm_up_is_not(backend: Import, tmp_path: Path, planned: bool) -> None:
    module = backend()
    config = make_vllm_config(
        additional_config={"ladder_opt_record": str(tmp_path / "rec"), "ladder_opt_record_seconds": 3600}
        | ({"ladder_opt": make_plan().to_dict()} if planned else {})
    )
    builder = module.SpyreAttentionMetadataBuilder(config)
    windowed = module.SpyreAttentionMetadataBuilder(config, 300)
    warmed_up(builder, windowed)
    for step in (
        batch(300, 100, 100, 100),
        batch(300, 100, 100, 100),
        batch(2000, 100),  # the per-sequence path
        batch(2000, 100, 500, decodes=2),  # a mixed step: only its decodes count
        batch(500, decodes=0),  # a prefill
    ):
        builder.build(0, step)
        windowed.build(0, step)
    (writer,) = (w for w in recording._writers.values() if w.path.parent == tmp_path / "rec")
    assert writer.write()
    recorded = read_recorded_steps([tmp_path / "rec"])
    rows = recorded.steps.to_frame().to_numpy().tolist()
    assert rows == [[2, 16, 2, 34], [4, 3, 2, 12]]
    assert recorded.seconds is not None


def test_ranks_after_the_first_record_nothing(tmp_path: Path, backend: Import) -> None:
    config = make_vllm_config(additional_config={"ladder_opt_record": str(tmp_path / "rec")}, rank=1)
    builder = backend().SpyreAttentionMetadataBuilder(config)
    warmed_up(builder)
    builder.build(0, batch(300, 100, 100, 100))
    assert spyre_adapter._recorder_of(builder) is None
    assert not (tmp_path / "rec").exists()
