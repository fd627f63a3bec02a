"""What a vLLM serve YAML says about scheduling: what is replayed, what is told, what is refused.

Only settings that change which sequences a step holds, or how many blocks they have, are looked at. A setting
that the replay would have to ignore is a warning with the reason; one that leaves the ladders without a use
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder_opt.engine import load_engine_file
from ladder_opt.errors import InputError

HONOURED: Mapping[str, str] = {
    "scheduling_policy": "policy",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "enable_prefix_caching": "prefix_caching",
}


def _is_on(value: Any) -> bool:
    return value not in (None, False, 0, "", "none", "null", {}, [])


def _is_off(value: Any) -> bool:
    return value is not None and not _is_on(value)


def _above_one(value: Any) -> bool:
    return isinstance(value, int | float) and value > 1


_UNKNOWN = "vLLM 0.28 has no such setting, its v1 scheduler admits any number of partial prefills"
_TOLD: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "async_scheduling": (_is_on, "a step is then scheduled before the last one's tokens are known"),
    "enable_chunked_prefill": (_is_off, "prompts are replayed in chunks"),
    "scheduler_reserve_full_isl": (_is_off, "admission is replayed as asking for room for the whole prompt"),
    "watermark": (_is_on, "admission is replayed without one"),
    "prefill_schedule_interval": (_above_one, "prefills are replayed in any step"),
    "max_num_scheduled_tokens": (_is_on, "the budget is max_num_batched_tokens"),
    "scheduler_cls": (_is_on, "the rules are those of vLLM's own scheduler"),
    "kv_transfer_config": (_is_on, "KV is replayed as computed where it is used"),
    "enable_lora": (_is_on, "limits on adapters in a step are not replayed"),
    "pipeline_parallel_size": (_above_one, "steps are replayed one after the other"),
    "decode_context_parallel_size": (_above_one, "each sequence's blocks are replayed on one device"),
    "prefill_context_parallel_size": (_above_one, "each sequence's blocks are replayed on one device"),
    "data_parallel_size": (_above_one, "traffic is dealt to engines with --replicas"),
    "max_num_partial_prefills": (_is_on, _UNKNOWN),
    "max_long_partial_prefills": (_is_on, _UNKNOWN),
}
NO_SPECULATION = (
    "none: a verify step has more than one token a sequence, which batched decode does not take, so its "
    "ladders are not met"
)
_REFUSED = ("speculative_config", "num_speculative_tokens", "spec_method", "spec_model", "spec_tokens")


@dataclass(frozen=True)
class SchedulingFile:
    """What an engine file says about scheduling.

    Attributes:
        settings: fields of `Scheduling`.
        warnings: one line for each setting that the replay leaves out.
    """

    settings: Mapping[str, Any]
    warnings: tuple[str, ...]


def read_scheduling_settings(path: str | Path) -> SchedulingFile:
    """Read what a vLLM serve YAML (or a saved engine JSON) says about scheduling.

    Raises:
        InputError: the file is not a mapping, or asks for speculative decoding.
    """
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in load_engine_file(path).items():
        name = str(key).replace("-", "_")
        if name in _REFUSED and _is_on(value):
            raise InputError("speculative decoding", NO_SPECULATION, path=path, column=str(key))
        if name in HONOURED and value is not None:
            if HONOURED[name] in settings:
                raise InputError(f"{key!r} besides another spelling", "each setting once", path=path)
            settings[HONOURED[name]] = value
        if name in _TOLD:
            matters, reason = _TOLD[name]
            if matters(value):
                shown = str(value) if isinstance(value, str | int | float) else "a mapping"
                warnings.append(f"{path}: {key} {shown[:40]} is not replayed: {reason}")
    return SchedulingFile(settings, tuple(warnings))
