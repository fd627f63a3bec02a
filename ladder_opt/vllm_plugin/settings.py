"""What the user asked of the plugin: the plan to load, and where to record what is served.

`additional_config` (vLLM's `--additional-config`) wins over the environment:

| key | variable | is |
|---|---|---|
| `ladder_opt` | `LADDER_OPT_PLAN` | the plan's path (or, in additional_config, the plan itself) |
| `ladder_opt_record` | `LADDER_OPT_RECORD` | folder for the record; off where neither is set |
| `ladder_opt_record_seconds` | `LADDER_OPT_RECORD_SECONDS` | seconds between writes (60) |
| `ladder_opt_record_ids` | `LADDER_OPT_RECORD_IDS` | whether request ids are recorded (false) |
| `ladder_opt_backend` | `LADDER_OPT_BACKEND` | `reference` for the backend of `ladder_opt.reference.plugin` |

Neither vLLM nor numpy is imported here: this runs in every server, with a plan or without.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder_opt.errors import UsageError

PLAN_KEY, PLAN_VARIABLE = "ladder_opt", "LADDER_OPT_PLAN"
RECORD_KEY, RECORD_VARIABLE = "ladder_opt_record", "LADDER_OPT_RECORD"
SECONDS_KEY, SECONDS_VARIABLE = "ladder_opt_record_seconds", "LADDER_OPT_RECORD_SECONDS"
IDS_KEY, IDS_VARIABLE = "ladder_opt_record_ids", "LADDER_OPT_RECORD_IDS"
BACKEND_KEY, BACKEND_VARIABLE = "ladder_opt_backend", "LADDER_OPT_BACKEND"

REFERENCE = "reference"

_KEYS = frozenset({PLAN_KEY, RECORD_KEY, SECONDS_KEY, IDS_KEY, BACKEND_KEY})
_DEFAULT_SECONDS = 60.0
_LEAST_SECONDS = 0.1
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plugin's settings. True where there is anything for it to do (a backend is not its own to choose).

    Attributes:
        plan_path: the plan's file; None where it is inline or there is none.
        inline_plan: the plan itself, as the settings hold it.
        record_folder: where the record goes; None: nothing is recorded.
        record_seconds: time between writes.
        record_ids: whether the request trace names requests.
        backend: `reference` for the reference backend; None for the engine's own.
        unknown_keys: keys of additional_config that look like ours and are not.
    """

    plan_path: str | None = None
    inline_plan: Mapping[str, Any] | None = None
    record_folder: str | None = None
    record_seconds: float = _DEFAULT_SECONDS
    record_ids: bool = False
    backend: str | None = None
    unknown_keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.has_plan or self.record_folder is not None or bool(self.unknown_keys)

    @property
    def has_plan(self) -> bool:
        """Whether a plan is to be loaded."""
        return self.plan_path is not None or self.inline_plan is not None

    @classmethod
    def of(cls, vllm_config: Any, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings of an engine.

        Raises:
            UsageError: a setting has another type than it should, or is out of range.
        """
        environ = os.environ if environ is None else environ
        extra = getattr(vllm_config, "additional_config", None)
        extra = extra if isinstance(extra, Mapping) else {}  # platforms may have an object of their own there
        plan = extra.get(PLAN_KEY)
        if plan is not None and not isinstance(plan, Mapping) and not (isinstance(plan, str) and plan):
            raise UsageError(
                f"additional_config.{PLAN_KEY}: found {plan!r:.60}, expected a plan's path or the plan itself"
            )
        path = plan if isinstance(plan, str) else None
        if plan is None:
            path = environ.get(PLAN_VARIABLE) or None
        return cls(
            plan_path=path,
            inline_plan=plan if isinstance(plan, Mapping) else None,
            record_folder=_text(extra.get(RECORD_KEY), environ.get(RECORD_VARIABLE)),
            record_seconds=_seconds(extra.get(SECONDS_KEY), environ.get(SECONDS_VARIABLE)),
            record_ids=_flag(extra.get(IDS_KEY), environ.get(IDS_VARIABLE)),
            backend=_backend(extra.get(BACKEND_KEY), environ.get(BACKEND_VARIABLE)),
            unknown_keys=tuple(
                str(key) for key in extra if str(key).startswith(f"{PLAN_KEY}_") and str(key) not in _KEYS
            ),
        )


def _backend(value: object, variable: str | None) -> str | None:
    name = f"additional_config.{BACKEND_KEY}" if value is not None else BACKEND_VARIABLE
    given = variable or None if value is None else value
    if given is None:
        return None
    if given != REFERENCE:
        raise UsageError(f"{name}: found {given!r:.60}, expected {REFERENCE!r}")
    return REFERENCE


def _text(value: object, variable: str | None) -> str | None:
    if value is None:
        return variable or None
    if not isinstance(value, str) or not value:
        raise UsageError(f"additional_config.{RECORD_KEY}: found {value!r:.60}, expected a folder")
    return value


def _seconds(value: object, variable: str | None) -> float:
    name = f"additional_config.{SECONDS_KEY}" if value is not None else SECONDS_VARIABLE
    given = variable or None if value is None else value
    if given is None:
        return _DEFAULT_SECONDS
    try:
        seconds = (
            float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else 0.0
        )
    except ValueError:
        seconds = 0.0
    if not _LEAST_SECONDS <= seconds < float("inf"):
        raise UsageError(f"{name}: found {given!r:.60}, expected {_LEAST_SECONDS:g} seconds or more")
    return seconds


def _flag(value: object, variable: str | None) -> bool:
    if isinstance(value, bool):
        return value
    name = f"additional_config.{IDS_KEY}" if value is not None else IDS_VARIABLE
    given = (variable or "") if value is None else value
    if not isinstance(given, str) or given.lower() not in _WORDS:
        raise UsageError(f"{name}: found {given!r:.60}, expected true or false")
    return _WORDS[given.lower()]
