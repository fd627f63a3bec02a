"""Turn pydantic's error list into the one line this project promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ladder_opt.errors import InputError

_MAX_SHOWN_CHARACTERS = 60
_MAX_DEPTH = 50


def load_json_object(text: str, *, path: str | Path | None, what: str) -> dict[str, Any]:
    """Parse a JSON object; NaN, infinities and duplicate keys are refused.

    Raises:
        InputError: with line and column of the fault.
    """

    def refuse_constant(name: str) -> None:
        raise InputError(name, "finite numbers", path=path)

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise InputError(f"key {twice!r} twice", "each key once", path=path)
        return keys

    try:
        data = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)
    except json.JSONDecodeError as error:
        found = shown(text[error.pos : error.pos + 20]) if error.pos < len(text) else "the end of the file"
        raise InputError(
            f"{found} ({error.msg})",
            f"{what} in JSON",
            path=path,
            line=error.lineno,
            column=f"column {error.colno}",
        ) from None
    except InputError:
        raise
    except RecursionError:
        raise InputError("brackets nested too deeply", f"{what} in JSON", path=path) from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(str(error), f"{what} in JSON", path=path) from None
    if not isinstance(data, dict):
        raise InputError(shown(data), f"{what}: a JSON object", path=path)
    if _depth_beyond(data, _MAX_DEPTH):
        raise InputError("brackets nested too deeply", f"{what} in JSON", path=path)
    return data


def _depth_beyond(data: object, limit: int) -> bool:
    """Whether a value nests deeper than a limit, level by level: no recursion."""
    level = [data]
    for _ in range(limit):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def check_schema(data: dict[str, Any], *, family: str, major: int, path: str | Path | None) -> None:
    """Refuse another kind of file, or a major version this release does not know.

    Raises:
        InputError: `schema` is absent, of another family, or of another major version.
    """
    expected = f"{family}/{major}"
    found = data.get("schema")
    if not isinstance(found, str):
        raise InputError(f"schema {shown(found)}", repr(expected), path=path, column="schema")
    if found.split(".")[0] != expected:
        raise InputError(repr(found[:_MAX_SHOWN_CHARACTERS]), repr(expected), path=path, column="schema")


def as_input_error(error: ValidationError, *, path: str | Path | None) -> InputError:
    """The first fault of a pydantic validation, with its key path."""
    first = error.errors(include_url=False)[0]
    location = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    kind = first["type"]
    if kind == "missing":
        found, expected = "nothing", "a value"
    elif kind == "extra_forbidden":
        found, expected = "an unknown key", "only the keys of this format"
    elif kind == "value_error":
        context: Any = first.get("ctx", {}).get("error")
        if isinstance(context, InputError):  # a rule across fields, which names its own key
            return InputError(context.found, context.expected, path=path, column=context.column)
        found, _, expected = str(context).partition(", expected ")
        found = found.removeprefix("found ")
        expected = expected or "a valid value"
    else:
        found = shown(first["input"])
        message = first["msg"]
        expected = message.removeprefix("Input should be ").removeprefix("a valid ")
    return InputError(found, expected, path=path, column=location.lstrip(".") or None)


def shown(value: object) -> str:
    """A value as it appears in a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."
