"""From an engine's settings to its bucketer: limits, plan, environment lists.

vLLM is not imported: everything is read off the `vllm_config` that it hands over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.plan.plan import Plan, plan_from_dict, read_plan
from ladder_opt.vllm_plugin.hooks import SPYRE_PACKAGE, is_installed
from ladder_opt.vllm_plugin.settings import PLAN_KEY, Settings

# vLLM shows what its own loggers say; a name below its own is shown with them.
logger = logging.getLogger("vllm.ladder_opt")

_said: set[str] = set()


def engine_of(vllm_config: Any, *, min_batched_seqs: int = 4) -> Engine:
    """The limits of an engine, from its settings.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        min_batched_seqs: decoding sequences from which the attention backend batches a step.

    Raises:
        UsageError: a limit that no plan can be for, such as a block_size that is no multiple of 64.
    """
    limits: dict[str, Any] = {
        "block_size": vllm_config.cache_config.block_size,
        "max_num_seqs": vllm_config.scheduler_config.max_num_seqs,
        "max_model_len": vllm_config.model_config.max_model_len,
        "max_num_batched_tokens": vllm_config.scheduler_config.max_num_batched_tokens,
        # Known once the KV cache is laid out; before, what Spyre allocates is taken.
        "num_kv_blocks": getattr(vllm_config.cache_config, "num_gpu_blocks", None) or None,
        "min_batched_seqs": min_batched_seqs,
    }
    try:
        return Engine(**limits)
    except UsageError as error:
        raise UsageError(f"the engine's settings: {error}") from None


def load_plan(settings: Settings) -> tuple[Plan | None, str | None]:
    """The plan that settings name, and what to call it in messages; (None, None) without one.

    Raises:
        InputError: it is missing, torn, or no plan of a version that this release knows.
    """
    if settings.inline_plan is not None:
        name = f"additional_config.{PLAN_KEY}"
        return plan_from_dict(dict(settings.inline_plan), path=name), name
    if settings.plan_path is not None:
        return read_plan(settings.plan_path), settings.plan_path
    return None, None


def bucketer_for(
    vllm_config: Any,
    *,
    min_batched_seqs: int = 4,
    kernel: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Bucketer:
    """The bucketer of an engine: its plan, or the default ladders; warnings are logged, each once.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        min_batched_seqs: decoding sequences from which the attention backend batches a step.
        kernel: geometry of the backend's batched kernel; by default the plan's.
        environ: variables with the plan's path and lists; by default the process's.

    Raises:
        InputError: the plan cannot be read, or was made for another block_size or another kernel.
        UsageError: a setting is malformed.
    """
    environ = os.environ if environ is None else environ
    settings = Settings.of(vllm_config, environ)
    plan, name = load_plan(settings)
    if plan is not None and kernel is not None and plan.kernel != kernel:
        raise InputError(
            f"a plan for the {plan.kernel} kernel", f"the backend's {kernel}", path=name, column="kernel"
        )
    engine = engine_of(vllm_config, min_batched_seqs=min_batched_seqs)
    bucketer = Bucketer.from_engine(engine, plan=plan, environ=environ, plan_path=name, kernel=kernel)
    for warning in (*unknown_settings(settings), *bucketer.warnings):
        say_once(warning)
    return bucketer


def unknown_settings(settings: Settings) -> list[str]:
    """A warning for each key of additional_config that looks like ours and is not."""
    return [
        f"additional_config.{key} is no setting of ladder_opt and was left aside"
        for key in settings.unknown_keys
    ]


def check_at_startup(vllm_config: Any) -> None:
    """Refuse a plan that cannot be used, before anything is loaded.

    Raises:
        InputError: as `bucketer_for`.
        UsageError: as `bucketer_for`.
    """
    settings = Settings.of(vllm_config)
    if settings.has_plan and vllm_config.cache_config.block_size is None:
        load_plan(settings)  # vLLM settles the block size later; the bucketer checks it then
    elif settings.has_plan:
        bucketer = bucketer_for(vllm_config)
        logger.info("ladder_opt: ladders from %s", bucketer.source)
        if not _pads_to_ladders(vllm_config, settings):
            say_once(
                f"nothing will use {bucketer.source}: no attention backend here pads batched decode to "
                f"ladders ({SPYRE_PACKAGE} is not installed)"
            )
    else:
        for warning in unknown_settings(settings):
            say_once(warning)


def _pads_to_ladders(vllm_config: Any, settings: Settings) -> bool:
    """Whether the engine has a backend with ladders: the Spyre plugin's, or one of ours by name."""
    if is_installed(SPYRE_PACKAGE):
        return True
    worker = getattr(getattr(vllm_config, "parallel_config", None), "worker_cls", "")
    return settings.backend is not None or str(worker).startswith("ladder_opt.")


def say_once(warning: str) -> None:
    """Log a warning, once in each process."""
    if warning not in _said:
        _said.add(warning)
        logger.warning("ladder_opt: %s", warning)
