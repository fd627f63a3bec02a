"""The recorder of a worker process, where the settings ask for one.

    recorder = recorder_for(vllm_config, bucketer)      # None where nothing is to be recorded
    start_after_warmup(recorder, type(worker))          # or recorder.start() where warm-up ends
    recorder.decode(kv_lens, block_size)                # once a step

All ranks of one engine run the same steps, so only its first one records.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder, StepsWriter
from ladder_opt.vllm_plugin.loading import logger, say_once
from ladder_opt.vllm_plugin.settings import Settings

_MARK = "_ladder_opt"

_recorders: dict[str, StepRecorder] = {}
_writers: dict[str, StepsWriter] = {}


def instance_of(vllm_config: Any) -> str:
    """The server's name in file names: the same in all its processes."""
    return str(getattr(vllm_config, "instance_id", "") or "server")


def recorder_for(vllm_config: Any, bucketer: Bucketer | Callable[[], Bucketer]) -> StepRecorder | None:
    """The recorder of this process, made at the first call; None where it is not to record.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        bucketer: the ladders in use, or what makes them, called where they are needed.
    """
    settings = Settings.of(vllm_config)
    parallel = getattr(vllm_config, "parallel_config", None)
    if settings.record_folder is None or getattr(parallel, "rank", 0) not in {0, None}:
        return None
    instance = instance_of(vllm_config)
    if instance not in _recorders:
        recorder = _recorders[instance] = StepRecorder()
        writer = _writers[instance] = StepsWriter(
            recorder,
            bucketer if isinstance(bucketer, Bucketer) else bucketer(),
            settings.record_folder,
            instance=instance,
            rank=getattr(parallel, "data_parallel_rank", 0) or 0,
            every_seconds=settings.record_seconds,
            warn=say_once,
        )
        writer.start()
        logger.info("ladder_opt: recording decode steps in %s", writer.path)
    return _recorders[instance]


def start_after_warmup(recorder: StepRecorder, worker_class: type | None) -> None:
    """Have a recorder start when a worker's `compile_or_warm_up_model` returns; without one, at once."""
    original = getattr(worker_class, "compile_or_warm_up_model", None)
    if worker_class is None or original is None:
        recorder.start(compiles=dynamo_compiles())
        return
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        recorder.start(compiles=dynamo_compiles())
        return result

    setattr(compile_or_warm_up_model, _MARK, True)
    worker_class.compile_or_warm_up_model = compile_or_warm_up_model  # type: ignore[attr-defined]


def dynamo_compiles() -> int:
    """Graphs that torch has compiled in this process; 0 where torch.compile was never used."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
