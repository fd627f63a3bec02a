"""The worker of vLLM's CPU with the reference backend; `plugin` says how it is asked for."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_worker import CPUWorker

from ladder_opt.reference.empty_build import install_stand_ins

BACKEND = "ladder_opt.reference.backend.ReferenceBackend"


class ReferenceWorker(CPUWorker):
    """Registers the backend in its own process, and warms it up once the KV cache is there."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if install_stand_ins():
            vllm_config.compilation_config.custom_ops[:] = ["none"]  # they are in the library that is missing
        register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
        super().__init__(vllm_config, *args, **kwargs)
        from ladder_opt.reference.backend import ReferenceBackend  # noqa: PLC0415 - as below

        ReferenceBackend.engine_block_size = vllm_config.cache_config.block_size

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as vLLM does, then every variant of batched decode."""
        times = super().compile_or_warm_up_model()
        from ladder_opt.reference.backend import warm_up  # noqa: PLC0415 - vLLM has settled its platform now

        warm_up(self.vllm_config)
        return times

    def ladder_opt_report(self) -> dict[str, Any]:
        """What was loaded, recorded and met so far; for `collective_rpc`."""
        from ladder_opt.reference.backend import Runtime  # noqa: PLC0415

        return Runtime.of(self.vllm_config).report()
