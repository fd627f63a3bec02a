"""`additional_config` as a vLLM serve YAML gives it to a server.

vLLM turns a file for `vllm serve --config` into command-line arguments: a mapping becomes JSON, a string is
read as JSON, and `additional-config.ladder_opt: plan.json` sets one key of it. Where a file has both forms,
the dotted keys come last and win whole. Source: vllm 0.28, `FlexibleArgumentParser` in
`vllm/utils/argparse_utils.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_opt.engine import load_engine_file
from ladder_opt.errors import InputError
from ladder_opt.validation import load_json_object

_OPTION = "additional-config"


def read_additional_config(path: str | Path) -> Mapping[str, Any]:
    """The mapping that a server started with this file has as its `additional_config`; empty without one.

    Raises:
        InputError: the file cannot be read, or the setting is no JSON object.
    """
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for key, value in load_engine_file(path).items():
        option, *keys = str(key).split(".")
        if option.replace("_", "-") != _OPTION or value is None:
            continue
        if keys:
            _set(dotted, keys, _from_text(value), path)
        elif isinstance(value, Mapping):
            whole = {str(name): each for name, each in value.items()}
        elif isinstance(value, str):
            whole = load_json_object(value, path=f"{path}: {key}", what="additional_config")
        else:
            raise InputError(repr(value)[:60], "a mapping, or JSON in a string", path=path, column=str(key))
    return dotted or whole


def _set(settings: dict[str, Any], keys: list[str], value: Any, path: str | Path) -> None:
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
        if not isinstance(settings, dict):
            raise InputError(
                f"{key!r} as a value and as a mapping", "one of the two", path=path, column=_OPTION
            )
    settings[keys[-1]] = value


def _from_text(value: Any) -> Any:
    """A dotted key's value: JSON where it is any, else the text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
