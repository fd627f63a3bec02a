"""Arguments of another type than a function takes, told in one line: `@checked` on every public function.

Without it a path in a trace's place ends somewhere inside, with an attribute that text does not have. The
types are those of the function's own annotations; what they cannot say (names from a list, ranges, shapes)
the function checks itself.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import numbers
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, Union, get_args, get_origin

from ladder_opt.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_MOST_SHOWN: Final = 60
_MOST_BITS: Final = 1_000
_SEQUENCES: Final = (Sequence, list, tuple)
_NUMBERS: Final = {int: (numbers.Integral, "a whole number"), float: (numbers.Real, "a number")}
_LEFT_ALONE: Final = (bool, Any)  # what is true or false will do for a bool, numpy's own as well
_MADE_BY: Final = {
    "StepHistogram": "lo.read_steps(path).steps",
    "Trace": "lo.read_trace(path)",
    "Plan": "lo.read_plan(path)",
    "CostModel": "lo.read_cost_model(path)",
    "SequenceHistogram": "lo.read_sequences(path).sequences",
    "TotalsHistogram": "lo.read_totals(path).totals",
    "Engine": "lo.Engine(max_num_seqs=32)",
    "ServerEngine": "lo.ServerEngine(max_num_seqs=32)",
    "Ladders": "lo.Ladders((4, 8, 32), (3, 9, 64))",
    "SolveOptions": "lo.SolveOptions(restarts=1.0)",
    "ReplayOptions": "lo.ReplayOptions(replicas=8)",
    "Limits": "lo.Limits(max_variants=40)",
    "Workload": "lo.Workload(steps=..., restarts=1.0)",
    "Drift": "lo.drift(plan, traces)",
    "Bucketer": "lo.Bucketer.from_engine(engine, plan=plan)",
    "RequestRecords": "lo.read_request_records(path)",
}
"""How a value of a type is come by; of several types these are told in this order."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses arguments of other types than its annotations name.

    Raises:
        UsageError: (the function, when called) with the argument, what was found and what was expected.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many or too few: Python says so itself
            return function(*args, **kwargs)
        hints = _hints(function)
        for name, value in bound.arguments.items():
            if name in hints and not _fits(value, hints[name]):
                expected = _expected(hints[name], value)
                raise UsageError(f"{function.__name__}: found {_shown(value)} as {name}, expected {expected}")
            bound.arguments[name] = plain_number(value)
        return function(*bound.args, **bound.kwargs)

    return call


def check_fields(made: object) -> None:
    """Refuse a dataclass with fields of other types than its annotations name; for its `__post_init__`.

    Numbers of other libraries become Python's own.

    Raises:
        UsageError: with the field, what was found and what was expected.
    """
    kind: Any = type(made)
    for name, hint in _field_hints(kind).items():
        value = getattr(made, name)
        if not _fits(value, hint):
            raise UsageError(
                f"{kind.__name__}: found {_shown(value)} as {name}, expected {_expected(hint, value)}"
            )
        if hasattr(value, "tolist") and any(get_origin(kind) in _SEQUENCES for kind in _kinds(hint)):
            value = tuple(value.tolist())  # an array
        object.__setattr__(made, name, plain_number(value))


def plain_number(value: Any) -> Any:
    """A number of another library (numpy's int64, float32) as Python's own; anything else as it is."""
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations."""
    named = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return _looked_up(named, function.__globals__)


@functools.cache
def _field_hints(kind: type) -> dict[str, Any]:
    """A dataclass's annotations."""
    named = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    return _looked_up(named, vars(sys.modules[kind.__module__]))


def _looked_up(named: Mapping[str, str], names: dict[str, Any]) -> dict[str, Any]:
    """The annotations that can be looked up while the program runs; others only type checkers know."""
    found = {}
    for name, annotation in named.items():
        try:
            found[name] = eval(annotation, names)  # noqa: S307  (our own source)
        except NameError:
            continue
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for each in get_args(hint) for kind in _kinds(each))
    return (hint,)


def _fits(value: object, hint: Any) -> bool:
    return any(_fits_one(value, kind) for kind in _kinds(hint))


def _fits_one(value: object, kind: Any) -> bool:
    if kind is None or kind is type(None):
        return value is None
    origin = get_origin(kind)
    if origin is not None:
        return _fits_generic(value, origin, get_args(kind))
    if not isinstance(kind, type) or kind in _LEFT_ALONE:
        return True
    if kind in _NUMBERS:
        is_number = isinstance(value, _NUMBERS[kind][0]) and not isinstance(value, bool)
        return is_number and not _is_beyond_float(value)
    return isinstance(value, kind)


def _is_beyond_float(value: object) -> bool:
    """Whether it is a whole number that no float holds: nothing here has that many of anything."""
    return isinstance(value, numbers.Integral) and int(value).bit_length() > _MOST_BITS


def _fits_generic(value: object, origin: Any, of: tuple[Any, ...]) -> bool:
    if origin is Callable:
        return callable(value)
    if origin in _SEQUENCES:
        # An array is no Sequence, and as good as one; text is one, of letters, which nobody means.
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            return False
        whole = value if isinstance(value, list | tuple) else itertools.islice(value, 1)  # arrays are alike
        return all(_fits(each, of[0]) for each in whole)
    if origin is Iterable:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if origin in (Mapping, dict):
        return isinstance(value, origin) and all(_fits(each, of[1]) for each in value.values())
    return True


def _shown(value: object) -> str:
    """A value's type, and the value itself where that is short."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if _is_beyond_float(value):
        return "a whole number beyond any count"
    if isinstance(value, str | Path | int | float):
        text = repr(str(value)) if isinstance(value, Path) else repr(value)
        return f"{text[:_MOST_SHOWN]} ({kind})"
    if isinstance(value, list | tuple) and value:
        return f"a {kind} of {_shown(value[0])}"
    return f"a {kind}"


def _expected(hint: Any, value: object) -> str:
    """The types that would do, and how one of them is come by."""
    names = [name for kind in _kinds(hint) if kind not in (None, type(None)) for name in _names(kind)]
    *most, last = dict.fromkeys(names)
    text = f"{', '.join(most)} or {last}" if most else last
    for attribute in ("steps", "sequences", "totals"):
        held = getattr(value, attribute, None)
        if held is not None and _fits(held, hint):
            return f"{text}: its .{attribute} is one"
    classes = {kind.__name__ for each in _kinds(hint) for kind in _classes(each)}
    made = [how for name, how in _MADE_BY.items() if name in classes]
    return f"{text}, such as {' or '.join(made)}" if made else text


def _classes(kind: Any) -> list[type]:
    """The classes in a hint, those of a sequence's members too."""
    if get_origin(kind) is None:
        return [kind] if isinstance(kind, type) else []
    return [each for part in get_args(kind) for one in _kinds(part) for each in _classes(one)]


def _names(kind: Any) -> list[str]:
    """A kind in words."""
    origin = get_origin(kind)
    if origin in (Sequence, list, tuple, Iterable):
        inner = " or ".join(name for part in _kinds(get_args(kind)[0]) for name in _names(part))
        return ["several values" if inner == "Any" else f"several of {inner}"]
    if origin is Callable:
        return ["a function"]
    if origin in (Mapping, dict):
        inner = " or ".join(name for part in _kinds(get_args(kind)[1]) for name in _names(part))
        return ["a mapping" if inner == "Any" else f"a mapping to {inner}"]
    if kind in _NUMBERS:
        return [_NUMBERS[kind][1]]
    if kind in (str, Path):
        return ["a path" if kind is Path else "text"]
    return [getattr(kind, "__name__", str(kind))]
