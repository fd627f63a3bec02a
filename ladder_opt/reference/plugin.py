"""The reference backend in vLLM, where it is asked for; installed alone, it changes nothing.

It is asked for by `--additional-config '{"ladder_opt_backend": "reference"}'`, by
`LADDER_OPT_BACKEND=reference`, or by naming its worker,
`--worker-cls ladder_opt.reference.worker.ReferenceWorker`. The first two need `register`, an entry point of
the group `vllm.general_plugins`: once the engine's settings are made, it names that worker in them.
Everything else happens in the worker.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ladder_opt.errors import UsageError
from ladder_opt.vllm_plugin.settings import REFERENCE, Settings

WORKER = "ladder_opt.reference.worker.ReferenceWorker"
CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_MARK = "_ladder_opt_reference"


def register() -> None:
    """Have settings that ask for the reference name its worker; safe to call again, idle where none asks."""
    # vLLM has this module loaded wherever settings are made, and the plugin needs it nowhere else.
    arguments = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    original = getattr(arguments, "create_engine_config", None)
    if arguments is None or original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        if Settings.of(vllm_config).backend == REFERENCE:
            name_worker(vllm_config)
        return vllm_config

    setattr(create_engine_config, _MARK, True)
    arguments.create_engine_config = create_engine_config


def name_worker(vllm_config: Any) -> None:
    """Name the reference's worker in an engine's settings.

    Raises:
        UsageError: the engine is for another device, or has a worker of its own.
    """
    found = vllm_config.parallel_config.worker_cls
    if found not in {CPU_WORKER, WORKER}:
        raise UsageError(
            f"the reference backend: found an engine with worker {found}, expected vLLM's on the CPU "
            "(VLLM_TARGET_DEVICE=cpu where the build knows no device)"
        )
    vllm_config.parallel_config.worker_cls = WORKER
