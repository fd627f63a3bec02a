"""Settings under which tests start vLLM: on the CPU, offline, one thread, one cache of compiled code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.vllm_oracle import VLLM_ENVIRONMENT

ENGINE_ARGUMENTS = {
    "dtype": "float32",  # `auto` makes bfloat16 of it, whose tokens are others
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
}
_OURS = ("LADDER_OPT_", "SPYRE_", "VLLM_")


def environment(inductor_cache: Path, **more: str) -> dict[str, str]:
    """The variables of an engine's process: the shell's, without any that would set it up otherwise."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {
        **kept,
        **VLLM_ENVIRONMENT,
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(inductor_cache),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), kept.get("PYTHONPATH")))),
        **more,
    }


def python(module: str, *arguments: object, interpreter: Path | None = None) -> list[str]:
    """A command that runs a module, with this interpreter or another."""
    return [str(interpreter or sys.executable), "-m", module, *(str(argument) for argument in arguments)]
