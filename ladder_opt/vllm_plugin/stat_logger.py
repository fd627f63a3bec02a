"""vLLM's stat logger of this plugin: the request trace, and gauges of what the ladders do.

Entry point of the group `vllm.stat_logger_plugins`: `vllm serve` makes one for each engine, in its API
server, and calls `record` once a step. Without a record asked for, `record` returns at once. This is the
one module that imports vLLM as it is loaded, and only vLLM's API server loads it.
"""

from __future__ import annotations

import multiprocessing.util
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase

from ladder_opt.vllm_plugin.gauges import Gauges
from ladder_opt.vllm_plugin.loading import logger, say_once
from ladder_opt.vllm_plugin.recording import instance_of
from ladder_opt.vllm_plugin.request_trace import FinishedRequest, RequestTraceWriter
from ladder_opt.vllm_plugin.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

_LAST_OF_EXIT = -100


class LadderOptStatLogger(StatLoggerBase):
    """Records the requests of one engine, and shows what its worker recorded of the steps."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._writer: RequestTraceWriter | None = None
        self._gauges: Gauges | None = None
        settings = Settings.of(vllm_config)
        self._with_ids = settings.record_ids
        if settings.record_folder is None:
            return
        instance = instance_of(vllm_config)
        self._writer = RequestTraceWriter(
            settings.record_folder,
            instance=instance,
            rank=engine_index,
            every_seconds=settings.record_seconds,
            with_ids=settings.record_ids,
            warn=say_once,
        )
        self._writer.start()
        multiprocessing.util.Finalize(None, self._writer.stop, exitpriority=_LAST_OF_EXIT)
        self._gauges = Gauges.of(
            settings.record_folder,
            instance=instance,
            rank=engine_index,
            every_seconds=settings.record_seconds,
        )
        logger.info("ladder_opt: recording requests in %s", settings.record_folder)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,  # noqa: ARG002 - vLLM's interface
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Take the requests that ended in a step."""
        if self._writer is None:
            return
        if iteration_stats is not None:
            for request in iteration_stats.finished_requests:
                self._writer.add(self._row(request, iteration_stats.iteration_timestamp))
        if self._gauges is not None:
            self._gauges.refresh()

    def log_engine_initialized(self) -> None:
        """Nothing to say: the writer said where it writes."""

    def _row(self, request: Any, now: float) -> FinishedRequest:
        # A request's own arrival is no field of its statistics; its latency counts from it to this very
        # moment.
        return FinishedRequest(
            arrival=now - request.e2e_latency,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_generation_tokens,
            cached_tokens=getattr(request, "num_cached_tokens", 0) or 0,
            request_id=str(getattr(request, "request_id", "") or "") if self._with_ids else "",
        )
