"""Asked for, the reference's worker is named in the settings; not asked for, nothing is touched."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ladder_opt.errors import UsageError
from ladder_opt.reference import plugin


class FakeArguments:
    """Stands for vLLM's EngineArgs."""

    def __init__(self, additional_config: Any, worker: str) -> None:
        self.additional_config, self.worker = additional_config, worker

    def create_engine_config(self) -> Any:
        return SimpleNamespace(
            additional_config=self.additional_config,
            parallel_config=SimpleNamespace(worker_cls=self.worker),
        )


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> type[FakeArguments]:
    """A fresh class in the place of vLLM's, with the plugin registered, twice."""

    class Arguments(FakeArguments):
        def create_engine_config(self) -> Any:
            return super().create_engine_config()

    module: Any = ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = Arguments
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    monkeypatch.delenv("LADDER_OPT_BACKEND", raising=False)
    plugin.register()
    once = Arguments.create_engine_config
    plugin.register()
    assert Arguments.create_engine_config is once
    return Arguments


def worker(arguments: type[FakeArguments], config: Any, found: str = plugin.CPU_WORKER) -> str:
    name: str = arguments(config, found).create_engine_config().parallel_config.worker_cls
    return name


def test_installed_alone_it_changes_nothing(arguments: type[FakeArguments]) -> None:
    assert worker(arguments, {}) == plugin.CPU_WORKER
    assert worker(arguments, None, "a.Worker") == "a.Worker"
    assert worker(arguments, {"ladder_opt": "plan.json"}) == plugin.CPU_WORKER


def test_asked_for_it_names_its_worker(
    arguments: type[FakeArguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker(arguments, {"ladder_opt_backend": "reference"}) == plugin.WORKER
    assert worker(arguments, {"ladder_opt_backend": "reference"}, plugin.WORKER) == plugin.WORKER
    monkeypatch.setenv("LADDER_OPT_BACKEND", "reference")
    assert worker(arguments, {}) == plugin.WORKER


def test_an_unknown_backend_or_another_device_stops_startup(
    arguments: type[FakeArguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as error:
        worker(arguments, {"ladder_opt_backend": "fast"})
    assert str(error.value) == "additional_config.ladder_opt_backend: found 'fast', expected 'reference'"
    with pytest.raises(UsageError) as error:
        worker(arguments, {"ladder_opt_backend": "reference"}, "vllm.v1.worker.gpu_worker.Worker")
    assert str(error.value) == (
        "the reference backend: found an engine with worker vllm.v1.worker.gpu_worker.Worker, expected "
        "vLLM's on the CPU (VLLM_TARGET_DEVICE=cpu where the build knows no device)"
    )
    monkeypatch.setenv("LADDER_OPT_BACKEND", "slow")
    with pytest.raises(UsageError) as error:
        worker(arguments, {})
    assert str(error.value) == "LADDER_OPT_BACKEND: found 'slow', expected 'reference'"


def test_without_vllm_there_is_nothing_to_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.engine.arg_utils", raising=False)
    plugin.register()


@pytest.mark.vllm
def test_slots_of_a_step() -> None:
    import torch

    from ladder_opt.reference.empty_build import compute_slot_mapping

    block_table = torch.tensor([[5, 2, 0], [7, 0, 0], [1, 3, 4]], dtype=torch.int32)
    positions = torch.tensor([63, 64, 3, 128, 129, 130, 99, 99])  # the last two are of no sequence
    starts = torch.tensor([0, 2, 3, 6], dtype=torch.int32)
    slots = torch.zeros(8, dtype=torch.int64)
    compute_slot_mapping(starts, positions, block_table, slots, 64)
    assert slots.tolist() == [
        5 * 64 + 63,
        2 * 64,
        7 * 64 + 3,
        4 * 64,
        4 * 64 + 1,
        4 * 64 + 2,
        -1,
        -1,
    ]
