"""`ladder-opt drift`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ladder_opt.cli.job_options import JobOptions
from ladder_opt.cli.options import ENGINE_OF_THE_PLAN, EngineOptions, LoadOptions, ReadOptions, StepsOptions
from ladder_opt.cli.output import exit_code, one_line, print_json, progress_bar, say, warn
from ladder_opt.cli.scheduling_options import SchedulingOptions
from ladder_opt.cli.traffic import Traffic, load_traffic
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine, ServerEngine
from ladder_opt.errors import LadderOptError, UsageError
from ladder_opt.files import check_output
from ladder_opt.monitor.asked import replay_options_of, solve_options_of
from ladder_opt.monitor.drift import DEFAULT_MAX_REGRET, cost_of, drift
from ladder_opt.monitor.history import append_history, history_record
from ladder_opt.monitor.prices import Measured, with_measured
from ladder_opt.monitor.result import Drift
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan, read_plan
from ladder_opt.units import parse_duration_seconds, parse_share

EXIT_NO_HISTORY = 2


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """Prices that may differ from the plan's."""

    cost_source: Annotated[
        str | None,
        typer.Option("--cost", help="New prices: a cost model file, or a built-in name [the plan's]."),
    ] = None
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            "--measured",
            help="New measurements, of any kind that calibrate takes: held against the plan's prices, and, "
            "without --cost, the new prices. May be given several times.",
        ),
    ] = None
    plan_cost: Annotated[
        str | None,
        typer.Option(
            "--plan-cost", help="The prices that the plan was made with, where its file does not hold them."
        ),
    ] = None

    def files(self) -> list[Path | str | None]:
        """Files that are read."""
        return [self.cost_source, self.plan_cost, *(self.measured or [])]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What compiles are charged for, and how long a solve may take."""

    restarts: Annotated[
        float | None,
        typer.Option(
            "--restarts", help="Server starts charged to the new traffic [as many as the plan was]."
        ),
    ] = None
    uptime: Annotated[
        str | None, typer.Option("--uptime", help="Time between server starts [the plan's].")
    ] = None
    span: Annotated[
        str | None, typer.Option("--span", help="Server time that a --steps histogram covers.")
    ] = None
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="Time for each solve [60s].")] = None
    strict: Annotated[bool, typer.Option("--strict", help="End with code 1 where there is any warning.")] = (
        False
    )

    def options(self, base: SolveOptions) -> SolveOptions:
        """The plan's options with those given in their place."""
        if self.restarts is not None and self.uptime is not None:
            raise UsageError("--restarts: found --uptime as well, expected one of the two")
        given: dict[str, Any] = {
            "restarts": self.restarts,
            "uptime_seconds": _duration(self.uptime, "--uptime"),
            "span_seconds": _duration(self.span, "--span"),
            "time_limit_seconds": _duration(self.time_limit, "--time-limit"),
        }
        return replace(base, **{name: value for name, value in given.items() if value is not None})


OF_THE_PLAN: Final = ENGINE_OF_THE_PLAN | {
    name: "the plan's"
    for name in ("concurrency", "replicas", *(field.name for field in fields(SchedulingOptions)))
    if name != "num_speculative_tokens"
}
"""For `command`: what new traffic is taken to meet, unless options say otherwise."""


def _duration(text: str | None, option: str) -> float | None:
    return None if text is None else parse_duration_seconds(text, option=option)


def run(
    *,
    context: typer.Context,
    engine_options: EngineOptions,
    prices: PriceOptions,
    steps: StepsOptions,
    read: ReadOptions,
    load: LoadOptions,
    jobs: JobOptions,
    starts: StartOptions,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan in service.")],
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE...]", help="Traces of the new traffic.")
    ] = None,
    max_regret: Annotated[
        str, typer.Option("--max-regret", help="Regret from which the command ends with code 1.")
    ] = f"{DEFAULT_MAX_REGRET:.0%}",
    history: Annotated[
        Path | None, typer.Option("--history", help="A JSONL file that this run's numbers are added to.")
    ] = None,
    no_parts: Annotated[
        bool, typer.Option("--no-parts", help="Do not find out what changed: three replays and solves less.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Say what a plan in service costs on new traffic, and under new prices, above the best there.

    Ends with code 1 where that is more than --max-regret. A history in a folder that is not there is refused
    at once; where it cannot be added to at the end, the verdict comes all the same: the code is then 1 if the
    plan has drifted, and 2 if not. Engine, limits, scheduling and replicas are the plan's unless given.
    """
    share = parse_share(max_regret, option="--max-regret")
    check_output(
        history, inputs=[plan_path, *(traces or []), *steps.files(), steps.sequences, *prices.files()]
    )
    plan = read_plan(plan_path)
    engine = engine_options.engine(plan.to_engine())
    options = starts.options(solve_options_of(plan))
    measured, fitted, told = _measured(prices, plan, engine)
    cost = fitted if prices.cost_source is None else read_cost_model(prices.cost_source)
    plan_cost = None if prices.plan_cost is None else read_cost_model(prices.plan_cost)
    with progress_bar() as progress:
        traffic = load_traffic(
            traces, steps, read, load, engine, engine_options=engine_options, target=plan.target
        )
        found = drift(
            plan,
            traffic.source,
            cost,
            plan_cost=plan_cost,
            measured=measured,
            engine=engine,
            options=traffic.given(options),
            replay_options=_replay_options(plan, load, engine_options, jobs, given=_given(context)),
            max_regret=share,
            tell_parts=not no_parts,
            inputs=traffic.inputs,
            warnings=[*traffic.warnings, *told],
            progress=progress,
        )
    warn([*traffic.notes, *_start_note(traffic, starts, options)], label="note")
    warn(found.warnings)
    if as_json:
        print_json(found.to_dict())
    else:
        from ladder_opt.report.drift import drift_text  # noqa: PLC0415
        from ladder_opt.report.terminal import console  # noqa: PLC0415

        console().print(drift_text(found))
    code = 1 if found.is_over else exit_code(strict=starts.strict, warnings=found.warnings)
    return code if history is None else _kept(found, history, code, strict=starts.strict)


def _kept(found: Drift, history: Path, code: int, *, strict: bool) -> int:
    """Add the run to the history, after its verdict is out; the exit code that this leaves."""
    try:
        told = append_history(history, history_record(found))
    except (LadderOptError, OSError) as error:
        reason = (
            f"{error.filename or history}: {error.strerror}" if isinstance(error, OSError) else str(error)
        )
        say(f"ladder-opt: {one_line(reason)}; the history was left as it is")
        return code or EXIT_NO_HISTORY
    warn(told)
    return code or exit_code(strict=strict, warnings=told)


def _given(context: typer.Context) -> set[str]:
    """Names of the options that stand on the command line, their defaults or not."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _replay_options(
    plan: Plan, load: LoadOptions, engine_options: EngineOptions, jobs: JobOptions, *, given: set[str]
) -> ReplayOptions:
    """The plan's, with what was given in their place."""
    base = replay_options_of(plan)
    asked = load.replay_options(engine_options, jobs)
    names = ("concurrency", "replicas", "rate_scale", "weights")
    changed: dict[str, Any] = {name: getattr(asked, name) for name in names if name in given}
    scheduling = load.scheduling(engine_options, base=base.scheduling)
    return replace(base, executor=asked.executor, scheduling=scheduling, **changed)


def _start_note(traffic: Traffic, starts: StartOptions, options: SolveOptions) -> list[str]:
    """A histogram need not say how long it took."""
    if not isinstance(traffic.source, StepHistogram) or starts.restarts is not None:
        return []
    if traffic.given(options).span_seconds is not None:
        return []
    return [
        "as many server starts are charged for a step as the plan was; --span says how long the steps took"
    ]


def _measured(
    prices: PriceOptions, plan: Plan, engine: Engine
) -> tuple[list[Measured], CostModel | None, list[str]]:
    """New measurements, the prices fitted to them, and what to beware of."""
    if not prices.measured:
        return [], None, []
    from ladder_opt.calibration.api import calibrate  # noqa: PLC0415  (slow to import)
    from ladder_opt.calibration.pairs import measured_pairs  # noqa: PLC0415

    server = ServerEngine.of(engine)
    found = calibrate(prices.measured, server, kernel=plan.kernel, table="never")
    graphs = found.cost.graphs_per_variant
    pairs = measured_pairs(prices.measured, server, kernel=plan.kernel, graphs=graphs)
    rows = [
        Measured.of(
            quantity,
            each.num_seqs,
            each.num_blocks,
            each.seconds * (graphs if quantity == "compile" else 1),
            each.spread,
        )
        for quantity, each in pairs.items()
    ]
    # What was not measured keeps the plan's prices here, so that calibrate's remarks on it do not apply.
    warnings = [line for line in found.warnings if "was not measured" not in line]
    then = cost_of(plan) if prices.plan_cost is None else read_cost_model(prices.plan_cost)
    return rows, found.cost if then is None else with_measured(then, found.cost), warnings
