"""Commands whose mistakes of usage are told in our words: what was found, what was expected, where.

The library under the command line words such mistakes in several ways of its own, and its classes for them
move between releases. What they carry does not: `option_name`, `param`. So they are caught where a command's
arguments are parsed, and become a `UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from ladder_opt.errors import UsageError, did_you_mean, one_of

_LEAST: Final = {"seed": 0, "long_prefill_token_threshold": 0, "num_speculative_tokens": 0}
_EXAMPLES: Final = {"uncertainty": "how many cost models to draw, such as --uncertainty 40"}


class Command(TyperCommand):
    """A command that says in one line of ours what is wrong with its arguments.

    Attributes:
        kinds: the type of each parameter's value, by its name.
    """

    kinds: Mapping[str, type] = MappingProxyType({})

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.allow_extra_args = True  # `parse_args` refuses them
        for parameter in self.params:
            wanted = _wanted(parameter, self.kinds)
            convert = _telling(parameter, parameter.process_value, wanted)
            parameter.process_value = convert  # type: ignore[assignment, method-assign]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse them.

        Raises:
            UsageError: they are not what the command takes.
        """
        parameters = list(self.get_params(ctx))
        try:
            left = super().parse_args(ctx, args)
        except Exception as error:
            message = _explain(error, parameters, self.kinds)
            if message is None:
                raise
            raise UsageError(message) from None
        if left and not ctx.resilient_parsing:
            raise UsageError(f"found {left[0]!r}, expected no further argument of {_words(ctx)}")
        return left


class Group(TyperGroup):
    """A group of commands; an unknown one is told beside the nearest."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before the command.

        Raises:
            UsageError: it is no option of ours.
        """
        parameters = list(self.get_params(ctx))
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            message = _explain(error, parameters, {})
            if message is None:
                raise
            raise UsageError(message) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is meant.

        Raises:
            UsageError: there is none of this name.
        """
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            expected = one_of(self.list_commands(ctx), args[0])
            raise UsageError(f"found no command {args[0]!r}, expected {expected}")
        return super().resolve_command(ctx, args)


def command_class(kinds: Mapping[str, type]) -> type[Command]:
    """A `Command` whose parameters take values of these types."""
    return type("Command", (Command,), {"kinds": MappingProxyType(dict(kinds))})


def _telling(parameter: Any, process: Callable[[Any, Any], Any], wanted: str) -> Callable[[Any, Any], Any]:
    """A parameter's conversion of its value, with a mistake told in our words."""

    def convert(ctx: Any, value: Any) -> Any:
        try:
            return process(ctx, value)
        except Exception as error:
            if not _is_of_usage(error) or value is None or value == ():  # nothing given: `_explain` says so
                raise
            raise UsageError(f"{_name(parameter)}: found {value!r}, expected {wanted}") from None

    return convert


def _is_of_usage(error: Exception) -> bool:
    return hasattr(error, "format_message")


def _explain(error: Exception, parameters: list[Any], kinds: Mapping[str, type]) -> str | None:
    """Our words for a mistake that the library found; None for anything else."""
    if not _is_of_usage(error):
        return None
    option = getattr(error, "option_name", None)
    if option is None:
        missing = getattr(error, "param", None)
        return None if missing is None else f"found no {_name(missing)}, expected {_help(missing)}"
    meant = [each for each in parameters if option in (*each.opts, *each.secondary_opts)]
    if not meant:
        names = [name for each in parameters for name in (*each.opts, *each.secondary_opts)]
        return f"found no option {option!r}, expected one that --help lists{_near(option, names)}"
    if getattr(meant[0], "is_flag", False):
        return f"{option}: found a value, expected none: it is a switch"
    return f"{option}: found nothing after it, expected {_wanted(meant[0], kinds)}"


def _near(option: str, names: list[str]) -> str:
    """The nearest option; the dashes that all of them begin with make none alike."""
    return did_you_mean(option, [name for name in names if name.startswith("--")], ignoring="--")


def _name(parameter: Any) -> str:
    """As it is typed: the longest of an option's names, an argument's word."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]")
    return max((str(name) for name in parameter.opts), key=len)


def _wanted(parameter: Any, kinds: Mapping[str, type]) -> str:
    """What a parameter takes."""
    if parameter.name in _EXAMPLES:
        return _EXAMPLES[parameter.name]
    kind = kinds.get(parameter.name)
    if kind is int:
        return f"a whole number of at least {_LEAST.get(parameter.name, 1)}"
    return "a number" if kind is float else _help(parameter)


def _help(parameter: Any) -> str:
    """A parameter's help as what is expected."""
    told = (parameter.help or "").rstrip(".")
    return f"a value ({told})" if told else "a value"


def _words(ctx: Any) -> str:
    """The words that call the command."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(("ladder-opt", *words))
