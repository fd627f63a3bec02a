"""Where the plugin takes hold of vLLM and of the Spyre plugin: three places, idle without plan and record.

1. `EngineArgs.create_engine_config`, the first place where the engine's settings exist: a plan that cannot
   be used stops startup there, before a model is loaded.
2. vLLM's list of stat loggers: ours is left off it unless an engine of the process is to be recorded.
3. The import of the Spyre plugin's attention backend: `spyre_adapter` adapts it as it comes in. Nothing of
   it is imported for that, and nothing is done where it is not installed.

All are marked, so that a second call finds them done. This module imports the standard library alone.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_MARK = "_ladder_opt"
_ARGUMENTS_MODULE = "vllm.engine.arg_utils"
_LOGGERS_MODULE = "vllm.v1.metrics.loggers"
_ASYNC_ENGINE_MODULE = "vllm.v1.engine.async_llm"  # has the name of the function by import
_LIST_LOGGERS = "load_stat_logger_plugin_factories"
SPYRE_PACKAGE = "spyre_inference"
SPYRE_BACKEND = "spyre_inference.v1.attention.backends.spyre_attn"


_stat_logger_is_wanted = False


def check_plans_early() -> None:
    """Check the plan as soon as the engine's settings are known (no effect where vLLM has no such place)."""
    module = sys.modules.get(_ARGUMENTS_MODULE)  # vLLM has it loaded wherever settings are made
    arguments = getattr(module, "EngineArgs", None)
    original = getattr(arguments, "create_engine_config", None)
    if arguments is None or original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        from ladder_opt.vllm_plugin.settings import Settings  # noqa: PLC0415

        settings = Settings.of(vllm_config)
        _offer_stat_logger(wanted=settings.record_folder is not None)
        if settings:
            from ladder_opt.vllm_plugin.loading import check_at_startup  # noqa: PLC0415

            check_at_startup(vllm_config)
        return vllm_config

    setattr(create_engine_config, _MARK, True)
    arguments.create_engine_config = create_engine_config


def _offer_stat_logger(*, wanted: bool) -> None:
    """Leave our stat logger off vLLM's list, unless an engine of this process wants it."""
    global _stat_logger_is_wanted  # noqa: PLW0603 - what the list below reads
    _stat_logger_is_wanted = _stat_logger_is_wanted or wanted
    if _stat_logger_is_wanted:
        return
    loggers = importlib.import_module(_LOGGERS_MODULE)  # a server loads it next
    original = getattr(loggers, _LIST_LOGGERS, None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def list_loggers() -> list[Any]:
        found: list[Any] = original()
        return [each for each in found if _stat_logger_is_wanted or not _is_ours(each)]

    setattr(list_loggers, _MARK, True)
    for module in (loggers, sys.modules.get(_ASYNC_ENGINE_MODULE)):
        if getattr(module, _LIST_LOGGERS, None) is original:
            setattr(module, _LIST_LOGGERS, list_loggers)


def _is_ours(logger: Any) -> bool:
    return str(getattr(logger, "__module__", "")).startswith("ladder_opt.")


def adapt_spyre_when_imported() -> None:
    """Have the Spyre plugin's backend adapted when it is imported (at once, where it already is)."""
    if any(isinstance(finder, _SpyreFinder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get(SPYRE_BACKEND)
    if loaded is not None:
        _adapt(loaded)
    elif is_installed(SPYRE_PACKAGE):
        finder: Any = _SpyreFinder()  # importlib.abc, their base, would bring a dozen modules in
        sys.meta_path.insert(0, finder)


def is_installed(package: str) -> bool:
    """Whether a package is there to be imported; it is not."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported already, by means that leave no spec
        return True


def _adapt(module: ModuleType) -> None:
    from ladder_opt.vllm_plugin.spyre_adapter import adapt  # noqa: PLC0415

    adapt(module)


class _SpyreFinder:
    """Finds nothing itself: it passes the backend's spec on with a loader that adapts what was loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != SPYRE_BACKEND:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = _AdaptingLoader(spec.loader)
                spec.loader = loader
                return spec
        return None


class _AdaptingLoader:
    """The loader of a module, which is adapted once it has run."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does; then the adapter takes its turn."""
        self._loader.exec_module(module)
        _adapt(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
