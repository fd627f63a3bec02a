"""What a report is drawn from: the plan, and what its file, or the user, gives beside it.

A plan file never makes a path to read: the traces and cost model that its provenance names are not opened.
What a report needs is in the plan itself (`occupancy`, `cost`), or is given by name; what neither has is
absent, and the report says what would bring it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from ladder_opt.cost.model import CostModel, builtin_names, read_cost_model
from ladder_opt.errors import InputError, LadderOptError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay, simulate
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.plan.frontier import Frontier, plan_frontier
from ladder_opt.plan.options import ReplayOptions
from ladder_opt.plan.plan import Plan
from ladder_opt.plot.trace_data import TraceData, timeline_interval, trace_data
from ladder_opt.report.names import file_names
from ladder_opt.report.sentences import number_in
from ladder_opt.trace.stream import AnyTrace, traces_of
from ladder_opt.trace.summary import TraceSummary, summarize
from ladder_opt.trace.table import TraceSource

DEFAULT_FRONTIER_SECONDS = 20.0
MOST_REPLAYED = 1_000_000  # requests whose batch over time is replayed: one process, all of them in memory
_SAME = 1e-9  # relative; the same steps give the same sums to rounding

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Absent:
    """Something that the report cannot show.

    Attributes:
        what: the section.
        why: what is missing.
        how: the command that brings it; None where nothing does.
    """

    what: str
    why: str
    how: str | None = None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All that a report shows.

    Attributes:
        plan: the plan.
        name: what to call it: its file.
        cost: the prices, where they are known.
        steps: the steps it is priced on, where they are known.
        frontier: solved anew from those.
        traffic: the traces given.
        summaries: (file, facts) of each of them.
        sources: the files given.
        warnings: the plan's own, and what does not go together.
        absent: what is not shown.
    """

    plan: Plan
    name: str
    cost: CostModel | None
    steps: StepHistogram | None
    frontier: Frontier | None
    traffic: TraceData | None
    summaries: tuple[tuple[str, TraceSummary], ...]
    sources: tuple[TraceSource, ...] = ()
    warnings: tuple[str, ...]
    absent: tuple[Absent, ...]

    @cached_property
    def names(self) -> dict[str, str]:
        """What the report calls each file: it is handed on, and where a file lay is nobody's concern."""
        robust = self.plan.result.robust
        paths = [each.path for each in self.sources]
        paths += [each.path for each in self.plan.provenance.inputs]
        paths += [] if robust is None else [each.path for each in robust.workloads]
        return file_names(dict.fromkeys(paths))

    @property
    def notes(self) -> list[str]:
        """What the traffic says of itself, in the plan or in the traces given, each line once."""
        told = [note for _, summary in self.summaries for note in summary.notes]
        return list(dict.fromkeys([*(self.plan.provenance.notes or ()), *told]))


def gather(
    plan: Plan,
    *,
    name: str,
    traces: AnyTrace | Sequence[AnyTrace] = (),
    steps: StepHistogram | None = None,
    cost: CostModel | None = None,
    inputs: Sequence[TraceSource] | None = None,
    frontier_seconds: float = DEFAULT_FRONTIER_SECONDS,
    progress: Progress | None = None,
) -> Contents:
    """Put a report's contents together.

    Args:
        plan: the plan.
        name: what to call it in the report and its commands.
        traces: the traffic that it was made for; without, the report has no section on it.
        steps: the steps that it is priced on; default: those in the plan, or else of a replay of `traces`.
        cost: the prices that it was made with; default: those in the plan.
        inputs: the files of `traces` or `steps`, to be compared with the plan's; default: the traces'.
        frontier_seconds: time for the frontier; 0 leaves it out.
        progress: told what is being done.

    Raises:
        InputError: the prices are others than the plan's, the plan contradicts itself, or a trace cannot be
            replayed.
    """
    absent: list[Absent] = []
    traces = traces_of(traces)
    given = [source for trace in traces for source in trace.sources] if inputs is None else list(inputs)
    warnings = [*plan.warnings, *_other_inputs(plan, given)]
    prices = _prices(plan, cost)
    if prices is None:
        known = plan.provenance.cost_name or "the cost model"
        absent.append(
            Absent("Cost model, step times, frontier", f"the plan does not hold {known}", "--cost COST.json")
        )
    options = _replay_options(plan)
    histogram = plan.to_steps() if steps is None else steps
    replay = _replay(plan, traces, prices, options, progress, needed=histogram is None)
    if histogram is None and replay is not None:
        histogram = replay.all_steps
    if histogram is None:
        absent.append(
            Absent("Batch shapes, step times, frontier", _why_no_steps(plan), "TRACE or --steps STEPS.csv")
        )
    elif not _are_the_plans(plan, histogram):
        warnings.append(
            "the steps are not those that the plan was priced on: the heat map, the step times and the "
            "frontier are of other traffic than the tables"
        )
    found = None
    if histogram is not None and prices is not None and frontier_seconds > 0:
        found = _frontier(plan, histogram, prices, seconds=frontier_seconds, progress=progress, absent=absent)
    if not traces:
        if plan.provenance.replay is not None:
            absent.append(Absent("Traffic over time", "a plan does not hold its trace", "TRACE"))
    elif replay is None or replay.timeline is None:
        absent.append(Absent("Batches over time", _why_no_timeline(traces, prices)))
    engines = options.replicas
    return Contents(
        plan=plan,
        name=name,
        cost=prices,
        steps=histogram,
        frontier=found,
        traffic=trace_data(traces, None if replay is None else replay.timeline, engines=engines)
        if traces
        else None,
        summaries=tuple(
            (_trace_name(trace, at, given if len(given) == len(traces) else None), summarize(trace))
            for at, trace in enumerate(traces)
        ),
        sources=tuple(given),
        warnings=tuple(dict.fromkeys(warnings)),
        absent=tuple(absent),
    )


def as_contents(plan: Plan | Contents, given: Mapping[str, Any]) -> Contents:
    """Contents as they are, or put together for a plan with the arguments of `gather`."""
    if isinstance(plan, Contents):
        return plan
    return gather(plan, **({"name": "plan"} | dict(given)))


def _trace_name(trace: AnyTrace, at: int, files: Sequence[TraceSource] | None) -> str:
    if files is not None:
        return files[at].path
    return ", ".join(source.path for source in trace.sources) or f"trace {at + 1}"


def _other_inputs(plan: Plan, given: Sequence[TraceSource]) -> list[str]:
    """A line for each file that the plan was not made from, and for each that is missing."""
    if not given:
        return []
    made_from = {each.sha256: each.path for each in plan.provenance.inputs}
    lines = [
        f"{source.path} is not what the plan was made from: no input of the plan has its SHA-256, "
        f"{source.sha256[:12]}..."
        for source in given
        if source.sha256 not in made_from
    ]
    missing = [path for digest, path in made_from.items() if digest not in {each.sha256 for each in given}]
    if missing and not lines:
        lines.append(f"not given to the report, though the plan was made from it: {', '.join(missing)}")
    return lines


def _prices(plan: Plan, cost: CostModel | None) -> CostModel | None:
    wanted = plan.provenance.cost_sha256
    if cost is not None:
        if cost.sha256() != wanted:
            raise InputError(
                f"cost model {cost.name} of digest {cost.sha256()[:12]}...",
                f"the plan's, {plan.provenance.cost_name or 'unnamed'} of digest {wanted[:12]}...",
                column="--cost, --kernel",
            )
        return cost
    held = plan.to_cost_model()
    if held is not None:
        return held
    if plan.provenance.cost_name in builtin_names():  # plans of earlier releases hold no prices
        builtin = read_cost_model(plan.provenance.cost_name).with_kernel(plan.kernel)
        return builtin if builtin.sha256() == wanted else None
    return None


def _why_no_steps(plan: Plan) -> str:
    if plan.occupancy is None:
        return "the plan does not hold its steps"
    return f"the plan's steps, {plan.occupancy.cells:,} cells, were too many to be kept in it"


def _are_the_plans(plan: Plan, steps: StepHistogram) -> bool:
    batched = steps.batched(plan.to_engine())
    for found, expected in (
        (float(steps.steps[batched].sum()), plan.result.steps.batched),
        (float(steps.ragged_floor()[batched].sum()), plan.result.gathers.ragged_floor),
    ):
        if abs(found - expected) > _SAME * max(found, expected):
            return False
    return True


def _replay_options(plan: Plan) -> ReplayOptions:
    """How the plan's traces were replayed.

    Raises:
        InputError: `provenance.asked` says what no run of ours can have been asked.
    """
    asked = plan.provenance.asked or {}
    weights, scheduling = asked.get("weights"), asked.get("scheduling") or {}
    known = {field.name for field in fields(Scheduling)}
    try:
        return ReplayOptions(
            concurrency=None if asked.get("concurrency") is None else _whole(asked["concurrency"]),
            rate_scale=float(asked.get("rate_scale", 1.0)),
            replicas=_whole(asked.get("replicas", 1)),
            weights=None if weights is None else tuple(float(each) for each in weights),
            scheduling=Scheduling(**{key: value for key, value in scheduling.items() if key in known}),
        )
    except (AttributeError, TypeError, ValueError, LadderOptError) as error:
        raise InputError(str(error)[:120], "the options of a run", column="provenance.asked") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(repr(value)[:60], "a whole number", column="provenance.asked")
    return value


def _replay(
    plan: Plan,
    traces: Sequence[AnyTrace],
    cost: CostModel | None,
    options: ReplayOptions,
    progress: Progress | None,
    *,
    needed: bool,
) -> Replay | None:
    """The plan's traffic under its own ladders, sampled over time where that can be had.

    None where there are no traces or prices, or the steps are not needed and cannot be sampled.
    """
    if not traces or cost is None:
        return None
    sampled = len(traces) == 1 and len(traces[0]) <= MOST_REPLAYED
    if not sampled and not needed:
        return None
    span = max((trace.span_seconds for trace in traces if trace.has_arrivals), default=0.0)
    end = number_in(plan.provenance.replay, "end_seconds") or span
    return simulate(
        traces,
        plan.to_engine(),
        cost,
        ladders=plan.ladders if plan.num_seqs else None,
        concurrency=options.concurrency,
        rate_scale=options.rate_scale,
        replicas=options.replicas,
        weights=options.weights,
        scheduling=options.scheduling,
        per_sequence=plan.target == "spyre-env",
        timeline_seconds=timeline_interval(max(span, end)) if sampled else None,
        progress=None if progress is None else lambda share: progress("replay", share),
    )


def _why_no_timeline(traces: Sequence[AnyTrace], cost: CostModel | None) -> str:
    if cost is None:
        return "the replay's clock needs the cost model"
    if len(traces) > 1:
        return "each of several traces is replayed on a clock of its own"
    return f"more than {MOST_REPLAYED:,} requests are not sampled for a report"


def _frontier(
    plan: Plan,
    steps: StepHistogram,
    cost: CostModel,
    *,
    seconds: float,
    progress: Progress | None,
    absent: list[Absent],
) -> Frontier | None:
    if not plan.num_seqs or not plan.result.steps.batched:
        return None
    try:
        return plan_frontier(plan, steps, cost, time_limit_seconds=seconds, progress=progress)
    except LadderOptError as error:
        absent.append(Absent("Frontier", str(error)))
        return None
