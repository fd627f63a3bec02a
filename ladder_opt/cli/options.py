"""Options that several commands share, in groups: a command takes a group as one argument.

`command` expands each group's fields into options of their own, so that a group is written once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_type_hints

import typer

from ladder_opt.cli.examples import epilog_of
from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.scheduling_options import SchedulingOptions
from ladder_opt.cli.usage import command_class
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.cost.model import DEFAULT_COST_NAME, CostModel, read_cost_model
from ladder_opt.engine import Engine, read_engine_settings
from ladder_opt.errors import UsageError
from ladder_opt.ladder import parse_rungs
from ladder_opt.occupancy.engine_file import SchedulingFile, read_scheduling_settings
from ladder_opt.occupancy.record_file import steps_files
from ladder_opt.plan.options import DEFAULT_MIN_GAIN, ReplayOptions, SolveOptions
from ladder_opt.solve.api import DEFAULT_TIME_LIMIT_SECONDS
from ladder_opt.trace.stream import AnyTrace
from ladder_opt.trace.table import Trace
from ladder_opt.units import parse_duration_seconds, parse_share

Function = TypeVar("Function", bound=Callable[..., Any])
_TOLD_DEFAULT: Final = re.compile(r" \[([^\]]*)\]")


def command(
    app: typer.Typer, name: str, *, under: str = "", defaults: Mapping[str, str] | None = None
) -> Callable[[Function], Function]:
    """Register a function whose dataclass arguments are groups of options; its examples end its help.

    Args:
        app: where.
        name: the command.
        under: the words before it, where it is a command's own.
        defaults: what an option's help says of its default, by the field's name, where this command takes
            another than the group's; {} stands for what the group says.
    """

    def register(function: Function) -> Function:
        epilog = epilog_of(f"{under} {name}".strip())
        expanded = _expanded(function, defaults or {})
        kinds = {
            each.name: _kind(each.annotation) for each in inspect.signature(expanded).parameters.values()
        }
        app.command(name, cls=command_class(kinds), epilog=epilog)(expanded)
        return function

    return register


def _kind(annotation: Any) -> type:
    """The type of a value: without its `Annotated`, `| None` and `list`."""
    while arguments := get_args(annotation):
        annotation = arguments[0]
    return annotation if isinstance(annotation, type) else str


def _with_default(annotation: Any, default: str) -> Any:
    """An option's annotation whose help says another default."""
    kind, option = get_args(annotation)
    told = copy.copy(option)
    own = _TOLD_DEFAULT.search(option.help)
    text = default.format("" if own is None else own[1])
    told.help = f"{_TOLD_DEFAULT.sub('', option.help).rstrip('.')} [{text}]."
    told.show_default = False
    return Annotated[kind, told]


def _expanded(function: Callable[..., Any], defaults: Mapping[str, str]) -> Callable[..., Any]:
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            fields = get_type_hints(hint, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=_with_default(fields[field.name], defaults[field.name])
                    if field.name in defaults
                    else fields[field.name],
                )
                for field in dataclasses.fields(hint)
            ]
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        return function(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del call.__wrapped__
    return call


def completing(*names: str) -> Callable[[str], list[str]]:
    """A shell's completion of an option that takes one of some names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine's limits."""

    engine_file: Annotated[
        Path | None,
        typer.Option("--engine", help="A vLLM serve YAML or a saved engine JSON; options here win."),
    ] = None
    block_size: Annotated[
        int | None, typer.Option("--block-size", help="Tokens in a KV block, a multiple of 64 [128].")
    ] = None
    max_num_seqs: Annotated[int | None, typer.Option("--max-num-seqs", help="Sequences in a step [32].")] = (
        None
    )
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Tokens of prompt and output together [8192].")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, typer.Option("--max-num-batched-tokens", help="Token budget of a step [512].")
    ] = None
    num_kv_blocks: Annotated[
        str | None,
        typer.Option(
            "--num-kv-blocks",
            help="KV blocks of the pool, the null block counted [auto: max_num_seqs * ceil(max_model_len / "
            "block_size) + 1].",
        ),
    ] = None
    min_batched_seqs: Annotated[
        int | None,
        typer.Option("--min-batched-seqs", help="Decoding sequences from which steps are batched [4]."),
    ] = None

    def scheduling_file(self) -> SchedulingFile:
        """What the file says about scheduling."""
        if self.engine_file is None:
            return SchedulingFile({}, ())
        return read_scheduling_settings(self.engine_file)

    def engine(self, base: Engine | None = None, *, kind: type[Engine] = Engine) -> Engine:
        """The engine: defaults (or `base`), then the file, then the options; of the kind asked for."""
        settings: dict[str, Any] = base.to_dict() if base else {}
        if self.engine_file is not None:
            settings |= read_engine_settings(self.engine_file)
        for field in dataclasses.fields(Engine):
            value = getattr(self, field.name)
            if value is not None:
                settings[field.name] = _kv_blocks(value) if field.name == "num_kv_blocks" else value
        try:
            return kind(**settings)
        except UsageError as error:
            if self.engine_file is None:
                raise
            raise UsageError(f"{self.engine_file} and options: {error}") from None


ENGINE_OF_THE_PLAN: Final = {field.name: "the plan's" for field in dataclasses.fields(Engine)}
"""For `command`: the engine's limits are those in the plan."""
ENGINE_OF_A_PLAN: Final = dict.fromkeys(ENGINE_OF_THE_PLAN, "the plan's, else {}")
"""For `command`: the same, where there need be no plan."""


def _kv_blocks(text: str) -> int | None:
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"--num-kv-blocks: found {text!r}, expected a whole number or auto")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """What steps and compiles cost."""

    cost_source: Annotated[
        str,
        typer.Option(
            "--cost",
            help="A cost model file, or a built-in name.",
            autocompletion=completing(DEFAULT_COST_NAME),
        ),
    ] = DEFAULT_COST_NAME
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            help="chunked or per_block; overrides the file's.",
            autocompletion=completing(*KERNELS),
        ),
    ] = None

    def file(self) -> Path | None:
        """The cost model's file; None for a built-in one."""
        path = Path(self.cost_source)
        return path if path.exists() else None

    def cost(self) -> CostModel:
        """The cost model."""
        return read_cost_model(self.cost_source).with_kernel(self.kernel)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How trace files are read."""

    format_: Annotated[
        str | None, typer.Option("--format", help="Format of the trace files [found out].")
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="Columns of any table: arrival=...,prompt=...,output=...[,cached=...,session=...].",
        ),
    ] = None
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", help="Unit of numeric arrivals: s, ms, us or ns.")
    ] = None
    clock: Annotated[
        str, typer.Option("--clock", help="Arrivals that run backwards: auto, sort, unwrap or refuse.")
    ] = "auto"
    spread_ticks: Annotated[
        bool, typer.Option("--spread-ticks", help="Spread arrivals that sit on a grid evenly over its steps.")
    ] = False

    def open(self, path: Path) -> AnyTrace:
        """Open one trace file; a large one as a stream."""
        from ladder_opt.trace.open import open_trace  # noqa: PLC0415  (--steps needs none of it)

        return open_trace(path, **self._reading())

    def read(self, path: Path) -> Trace:
        """Read one trace file into memory."""
        from ladder_opt.trace.read import read_trace  # noqa: PLC0415  (--steps needs none of it)

        return read_trace(path, **self._reading())

    def _reading(self) -> dict[str, Any]:
        return {
            "format": self.format_,
            "columns": _column_names(self.columns),
            "time_unit": self.time_unit,
            "clock": self.clock,
            "spread_ticks": self.spread_ticks,
        }


def _column_names(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    names = {}
    for part in text.split(","):
        role, equals, name = part.partition("=")
        if not equals or not name.strip() or not role.strip():
            raise UsageError(f"--columns: found {part!r}, expected arrival=NAME,prompt=NAME,output=NAME")
        if role.strip() in names:
            raise UsageError(f"--columns: found {role.strip()!r} twice, expected each role once")
        names[role.strip()] = name.strip()
    return names


@dataclass(frozen=True, kw_only=True)
class LoadOptions(SchedulingOptions):
    """How traces are replayed."""

    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Closed loop: as many requests in flight, arrivals unused."),
    ] = None
    rate_scale: Annotated[
        float, typer.Option("--rate-scale", help="Arrivals come this many times as fast.")
    ] = 1.0
    replicas: Annotated[
        int, typer.Option("--replicas", help="Engines that arrivals are dealt to in turn.")
    ] = 1
    weights: Annotated[
        str | None, typer.Option("--weights", help="How often each trace counts in the mix: 5,1,1 [1 each].")
    ] = None

    def replay_options(self, engine_options: EngineOptions, jobs: JobOptions) -> ReplayOptions:
        """For the library; the engine file may say how it schedules."""
        return ReplayOptions(
            executor=jobs.executor(),
            concurrency=self.concurrency,
            rate_scale=self.rate_scale,
            replicas=self.replicas,
            weights=None if self.weights is None else _numbers(self.weights, option="--weights"),
            scheduling=self.scheduling(engine_options),
        )


def _numbers(text: str, *, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}: found {text!r}, expected numbers such as 5,1,1") from None


@dataclass(frozen=True, kw_only=True)
class StepsOptions:
    """A histogram in place of traces."""

    steps: Annotated[
        list[Path] | None,
        typer.Option(
            "--steps",
            help="A steps histogram (CSV or Parquet) in place of traces, or a folder that a server recorded; "
            "several add up.",
        ),
    ] = None
    sequences: Annotated[
        Path | None,
        typer.Option(
            "--sequences", help="Calls of the per-sequence path beside --steps, for --target spyre-env."
        ),
    ] = None

    def files(self) -> list[str]:
        """The files meant, those of folders one by one."""
        return [file for path in self.steps or [] for file in steps_files(path)]


@dataclass(frozen=True, kw_only=True)
class RestartOptions:
    """What compiles are charged for, and what counts as a gain or a failure."""

    restarts: Annotated[
        float | None,
        typer.Option("--restarts", help="Server starts charged to the traffic (may be a fraction)."),
    ] = None
    uptime: Annotated[
        str | None,
        typer.Option("--uptime", help="Time between server starts; restarts = span / uptime [24h]."),
    ] = None
    span: Annotated[
        str | None,
        typer.Option("--span", help="Server time that a --steps histogram covers: span times replicas."),
    ] = None
    min_gain: Annotated[
        str, typer.Option("--min-gain", help="Saving on the default below which it is kept.")
    ] = f"{DEFAULT_MIN_GAIN:.0%}"
    strict: Annotated[bool, typer.Option("--strict", help="End with code 1 where there is any warning.")] = (
        False
    )

    def fields(self) -> dict[str, Any]:
        """For `SolveOptions`."""
        if self.restarts is not None and self.uptime is not None:
            raise UsageError("--restarts: found --uptime as well, expected one of the two")
        return {
            "restarts": self.restarts,
            "uptime_seconds": None
            if self.uptime is None
            else parse_duration_seconds(self.uptime, option="--uptime"),
            "span_seconds": None if self.span is None else parse_duration_seconds(self.span, option="--span"),
            "min_gain": parse_share(self.min_gain, option="--min-gain"),
        }


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What the ladders have to be."""

    structure: Annotated[
        str,
        typer.Option(
            "--structure",
            help="product: two independent ladders; ragged: blocks by num_seqs rung.",
            autocompletion=completing("product", "ragged"),
        ),
    ] = "product"
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="plugin: independent ladders, loaded by our vLLM plugin; spyre-env: one KV ladder for "
            "both attention paths, as the Spyre plugin's environment variables take it.",
            autocompletion=completing("plugin", "spyre-env"),
        ),
    ] = "plugin"
    max_variants: Annotated[
        int | None, typer.Option("--max-variants", help="Limit on distinct compiled variants.")
    ] = None
    warmup_budget: Annotated[
        str | None,
        typer.Option("--warmup-budget", help="Limit on the warm-up, start-up included: 10m, 600s."),
    ] = None
    guard: Annotated[
        float | None,
        typer.Option("--guard", help="No size, seen or not, is padded by more than this factor on an axis."),
    ] = None
    holdout: Annotated[
        str | None,
        typer.Option(
            "--holdout", help="Solve on all but this last share of each trace, and try the plan on it."
        ),
    ] = None
    num_seqs: Annotated[str | None, typer.Option("--num-seqs", help="Pin the num_seqs ladder: 4,8,32.")] = (
        None
    )
    num_blocks: Annotated[
        str | None, typer.Option("--num-blocks", help="Pin the num_blocks ladder: 3,9,64.")
    ] = None
    query_lens: Annotated[
        str | None,
        typer.Option(
            "--query-lens",
            help="Query lengths of per-sequence attention (spyre-env): a list pins them; default: the "
            "Spyre plugin's own; solve: the best [solve where the cost model prices query padding].",
        ),
    ] = None
    time_limit: Annotated[
        str, typer.Option("--time-limit", help="Time for each solve; then the gap is stated.")
    ] = f"{DEFAULT_TIME_LIMIT_SECONDS:g}s"

    def fields(self) -> dict[str, Any]:
        """For `SolveOptions`."""
        budget = self.warmup_budget
        return {
            "structure": self.structure,
            "target": self.target,
            "query_lens": query_lens(self.query_lens),
            "max_variants": self.max_variants,
            "warmup_budget_seconds": None
            if budget is None
            else parse_duration_seconds(budget, option="--warmup-budget"),
            "guard": self.guard,
            "holdout": None if self.holdout is None else parse_share(self.holdout, option="--holdout"),
            "num_seqs": () if self.num_seqs is None else parse_rungs(self.num_seqs, option="--num-seqs"),
            "num_blocks": ()
            if self.num_blocks is None
            else parse_rungs(self.num_blocks, option="--num-blocks"),
            "time_limit_seconds": parse_duration_seconds(self.time_limit, option="--time-limit"),
        }


def query_lens(text: str | None) -> list[int] | Literal["default", "solve"] | None:
    """What --query-lens asks for."""
    if text is None or text in {"default", "solve"}:
        return text  # type: ignore[return-value]  # mypy does not narrow str to a literal
    return parse_rungs(text, option="--query-lens")


def solve_options(restarts: RestartOptions, limits: LimitOptions | None = None) -> SolveOptions:
    """Both groups as the library takes them."""
    return SolveOptions(**restarts.fields(), **(limits.fields() if limits else {}))
