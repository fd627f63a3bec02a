"""Results as text for a terminal: plans, replays, trace summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.occupancy.replay import Replay
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.parts import PlanPadded, PlanPadding, PlanPrice, PlanRung
from ladder_opt.plan.plan import Plan
from ladder_opt.report.robust import robust_headline, robust_status, robust_text
from ladder_opt.solve.problem import QUERY_GRAIN_TOKENS
from ladder_opt.trace.summary import TraceSummary
from ladder_opt.units import duration_text, hours_text

MIN_WIDTH = 100
_RUNGS_SHOWN = 8
_DEAD_SHOWN = 6

_LADDER_NAMES = ("num_seqs", "num_blocks", "query_lens")
_VERDICTS = {
    "adopt": "adopt: worth loading",
    "keep-default": "keep the default ladders: the plan saves too little to change anything",
    "not-used": "not used: this traffic never reaches the batched kernel",
}


def console(*, stderr: bool = False) -> Console:
    """A console that never wraps tables below a readable width, also in a pipe."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if made.width < MIN_WIDTH and not made.is_terminal:
        made.width = MIN_WIDTH
    return made


def plan_text(plan: Plan, *, path: str | None = None) -> RenderableType:
    """All that a person should see of a plan."""
    parts: list[RenderableType] = [_headline(plan), "", _ladders(plan)]
    if (plan.num_seqs and plan.result.steps.batched) or plan.result.sequences is not None:
        parts += [
            *robust_text(plan),
            "",
            _comparison(plan),
            "",
            _waste(plan),
            "",
            _rungs(plan),
            _dead(plan),
            *_holdout(plan),
            *_unlimited(plan),
            *_alternative(plan),
            *_evidence(plan),
        ]
    parts += ["", _next_step(plan, path)]
    return Group(*parts)


def replay_text(replay: Replay) -> RenderableType:
    """A replay's totals."""
    table = _facts()
    facts: list[tuple[str, str]] = [
        ("requests replayed", f"{replay.requests:,}"),
        *((f"set aside: {reason}", f"{count:,}") for reason, count in sorted(replay.set_aside.items())),
        ("engine steps", f"{replay.engine_steps:,}"),
        ("  with decodes", f"{replay.steps.total_steps:,.0f} in {len(replay.steps):,} cells"),
        ("  prefill only", f"{replay.prefill_only_steps:,}"),
        *(
            []
            if replay.sequences is None
            else [
                (
                    "per-sequence calls",
                    f"{replay.sequences.total_calls:,.0f} in {len(replay.sequences):,} cells",
                )
            ]
        ),
        ("preemptions", f"{replay.preemptions:,}"),
        ("prefill / decode tokens", f"{replay.prefill_tokens:,} / {replay.decode_tokens:,}"),
        *([("tokens from the prefix cache", f"{replay.cached_tokens:,}")] if replay.cached_tokens else []),
        ("busy / idle", f"{duration_text(replay.busy_seconds)} / {duration_text(replay.idle_seconds)}"),
        ("last request ends after", duration_text(replay.end_seconds)),
        ("server time (--span)", duration_text(replay.server_seconds)),
    ]
    for name, value in facts:
        table.add_row(name, value)
    return table


def summary_text(summary: TraceSummary, *, path: str) -> RenderableType:
    """A trace's facts."""
    table = _facts()
    table.add_row("file", Text(path))
    table.add_row("format", ", ".join(summary.formats))
    table.add_row("requests", f"{summary.requests:,} of {summary.rows:,} rows")
    for reason, count in summary.set_aside.items():
        table.add_row(f"set aside: {reason}", f"{count:,}")
    if summary.span_seconds is None:
        table.add_row("arrivals", "none: replay needs --concurrency")
    else:
        rate = summary.requests_per_second
        table.add_row("span", duration_text(summary.span_seconds))
        table.add_row("rate", "unknown" if rate is None else f"{rate:.3g} requests/s")
        table.add_row("inter-arrival CV", _or_unknown(summary.interarrival_cv))
        table.add_row("busiest minute / mean", _or_unknown(summary.busiest_minute_over_mean))
    if summary.tick_seconds is not None:
        table.add_row(
            "arrival ticks", f"{summary.tick_seconds:g} s, {summary.tick_share or 0:.0%} of arrivals"
        )
    table.add_row("Spearman prompt-output", _or_unknown(summary.spearman_prompt_output))
    if summary.cached_share is not None:
        table.add_row("cached share of prompts", f"{summary.cached_share:.1%}")
    if summary.sessions is not None:
        table.add_row("sessions", f"{summary.sessions:,}")
    return Group(table, *_quantiles(summary), *(Text(f"note: {note}") for note in summary.notes))


def _quantiles(summary: TraceSummary) -> list[RenderableType]:
    if not summary.prompt_tokens or not summary.output_tokens:
        return []
    table = Table(box=None, pad_edge=False)
    table.add_column("tokens")
    for name in summary.prompt_tokens:
        table.add_column(name, justify="right")
    for label, values in (("prompt", summary.prompt_tokens), ("output", summary.output_tokens)):
        table.add_row(
            label, *(f"{value:,.1f}" if name == "mean" else f"{value:,.0f}" for name, value in values.items())
        )
    return ["", table]


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _facts() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column()
    return table


def _headline(plan: Plan) -> RenderableType:
    result = plan.result
    default = plan.default
    text = Text()
    evaluated = result.status == "evaluated" and plan.verdict != "not-used"
    text.append("evaluated as given" if evaluated else _verdict(plan), style="bold")
    if plan.verdict != "not-used" and result.robust is not None and len(result.robust.workloads) > 1:
        text.append(robust_headline(result.robust))
    elif plan.verdict != "not-used" and default is not None and default.objective_seconds > 0:
        saved = default.objective_seconds - result.objective_seconds
        text.append(
            f"; {'saves' if saved >= 0 else 'costs'} {duration_text(abs(saved))} "
            f"({abs(saved) / default.objective_seconds:.2%}) against the default ladders"
        )
        if not default.within_limits:
            text.append(", which are over the limits")
    for line in _context(plan):
        text.append(f"\n{line}")
    return text


def _verdict(plan: Plan) -> str:
    default = plan.default
    costs_more = default is not None and plan.result.objective_seconds > default.objective_seconds
    if plan.verdict == "keep-default" and costs_more:
        return "keep the default ladders: what was asked for costs more in all"
    return _VERDICTS[plan.verdict]


def _context(plan: Plan) -> list[str]:
    """What the numbers are of: traffic, engine, prices, and how much of the work they cover."""
    engine, result, replay = plan.engine, plan.result, plan.provenance.replay or {}
    asked = plan.provenance.asked or {}
    replicas = asked.get("replicas", 1)
    engines = f"{replicas} engines" if replicas > 1 else "one engine"
    limits = (
        f"{engine.max_num_seqs} sequences, {engine.max_model_len:,} tokens, blocks of {engine.block_size}"
    )
    traffic = f"{replay['requests']:,} requests on {engines}" if "requests" in replay else "a steps histogram"
    prices = f"cost model {plan.provenance.cost_name or 'unnamed'}, kernel {plan.kernel}"
    if "rounds" in replay:
        prices += f"; {replay['rounds']} rounds of replay and solve"
    steps = result.steps
    work = f"{steps.total:,.0f} decode steps, {steps.batched:,.0f} of them batched"
    if replay.get("busy_seconds"):
        batched = result.step_seconds - (result.sequences.step_seconds if result.sequences else 0.0)
        work += f", {batched / replay['busy_seconds']:.0%} of the engines' busy time"
    return [f"{traffic} ({limits})", prices, work]


def _ladders(plan: Plan) -> RenderableType:
    result = plan.result
    table = _facts()
    table.add_row("num_seqs", Text(_joined(plan.num_seqs)))
    if plan.ragged is None:
        table.add_row("num_blocks", Text(_joined(plan.num_blocks)))
    for rung, blocks in (plan.ragged or {}).items():
        table.add_row(f"num_blocks for {rung}", Text(_joined(blocks)))
    if plan.query_lens is not None:
        table.add_row("query_lens", Text(_joined(plan.query_lens)))
    asked = plan.provenance.asked or {}
    solved_for = asked.get("query_lens") in (None, "solve")
    limited = (
        any(
            asked.get(name)
            for name in ("max_variants", "warmup_budget_seconds", "guard", "num_seqs", "num_blocks")
        )
        or not solved_for
    )
    if result.robust is not None:
        proof = robust_status(result.robust, limited=limited)
    elif result.status == "optimal":
        proof = (
            f"optimal, proven: no ladders {'that keep to the limits asked for ' if limited else ''}cost less"
        )
    elif result.status == "feasible":
        proof = f"feasible: at most {result.gap:.3%} above the optimum ({result.stop_reason})"
    else:
        proof = f"evaluated as given: the optimum is at most {result.gap:.2%} below"
    if plan.query_lens is not None and solved_for and result.status != "evaluated":
        proof += f" (query lengths: 1, multiples of {QUERY_GRAIN_TOKENS}, the limit)"
    table.add_row("status", proof)
    return table


def _joined(rungs: Sequence[int]) -> str:
    return ", ".join(map(str, rungs)) if rungs else "none"


def _comparison(plan: Plan) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("ladders", no_wrap=True)
    for name in ("rungs", "variants", "warm-up", "step time", "objective", "vs default", "overpay"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    default = plan.default
    rows: list[tuple[str, Sequence[int], Sequence[int], PlanPrice, bool]] = [
        ("plan", plan.num_seqs, plan.num_blocks, plan.result, True)
    ]
    named: dict[tuple[Sequence[int], Sequence[int]], list[str]] = {}
    for baseline in plan.baselines:
        named.setdefault((baseline.num_seqs, baseline.num_blocks), []).append(baseline.name)
    rows += [
        (", ".join(named[b.num_seqs, b.num_blocks]), b.num_seqs, b.num_blocks, b, b.within_limits)
        for b in plan.baselines
        if named[b.num_seqs, b.num_blocks][0] == b.name
    ]
    for name, seqs, blocks, price, within in rows:
        change = ""
        if default is not None and default.objective_seconds > 0:
            change = f"{price.objective_seconds / default.objective_seconds - 1:+.2%}"
        table.add_row(
            name,
            f"{len(seqs)} x {len(blocks)}",
            f"{price.num_variants:,}",
            duration_text(price.warmup_seconds),
            hours_text(price.step_seconds),
            hours_text(price.objective_seconds),
            change,
            f"{price.gathers.overpay:.1%}",
            "" if within else "over limits",
            style="bold" if name == "plan" else None,
        )
    asked = plan.provenance.asked or {}
    startup = asked.get("startup_seconds", 0.0)
    less = f" - {duration_text(startup)} of start-up that no ladder changes" if startup else ""
    starts = f"{plan.result.restarts:.4g} server start{'' if plan.result.restarts == 1 else 's'}"
    what = "batched decode" if plan.target == "plugin" else "batched decode and per-sequence attention"
    return Group(
        table,
        Text(
            f"objective = step time of {what} + {starts} x (warm-up{less}); overpay: pages gathered "
            "above the ragged floor; pow2 to uniform: the Spyre plugin's KV presets as block ladders",
            style="dim",
        ),
    )


def _waste(plan: Plan) -> RenderableType:
    table = _facts()
    ours = plan.result.gathers
    default = plan.default
    table.add_row("pages needed", f"{ours.real:,.0f}")
    table.add_row(
        "ragged floor", f"{ours.ragged_floor:,.0f}  (batches are as long as their longest; no ladder helps)"
    )
    fixable = f"{ours.padded - ours.ragged_floor:,.0f}"
    if default is not None:
        fixable += f"  (default: {default.gathers.padded - default.gathers.ragged_floor:,.0f})"
    table.add_row("padding above it", fixable)
    calls = plan.result.sequences
    if calls is not None:
        table.add_row("per-sequence calls", f"{calls.calls:,.0f}, {duration_text(calls.step_seconds)} in all")
        table.add_row("  pages padded", _padded(calls.gathers))
        table.add_row("  query tokens padded", _padded(calls.query_tokens))
        table.add_row("  variants", f"{calls.num_variants:,} of {plan.result.num_variants:,}")
    return table


def _padded(counted: PlanPadded) -> str:
    share = counted.padded / counted.real - 1 if counted.real else 0.0
    return f"{counted.padded:,.0f} for {counted.real:,.0f}  ({share:+.1%})"


def _rungs(plan: Plan) -> RenderableType:
    lines: list[RenderableType] = []
    for axis in _LADDER_NAMES:
        rungs = [rung for rung in plan.result.rungs if rung.axis == axis]
        earners = sorted((r for r in rungs if not r.forced), key=lambda r: -r.marginal_seconds)
        if earners:
            shown = ", ".join(
                f"{_rung_name(r)} ({duration_text(max(0.0, r.marginal_seconds))})"
                for r in earners[:_RUNGS_SHOWN]
            )
            more = f" and {len(earners) - _RUNGS_SHOWN} more" if len(earners) > _RUNGS_SHOWN else ""
            lines.append(Text(f"{axis} rungs by what they save: {shown}{more}"))
        lines += [Text(_forced(rung)) for rung in rungs if rung.forced and not rung.hits]
    absent = plan.result.best_absent_rung
    if absent is not None and absent.saves_step_seconds > 0:
        saves, costs = (duration_text(max(0.0, s)) for s in (absent.saves_step_seconds, absent.costs_seconds))
        lines.append(
            Text(
                f"the next best rung, {absent.axis} {absent.rung}, would save {saves} of step time "
                f"for {costs} of compiles ({absent.num_variants:+} variants)"
            )
        )
    return Group(*lines)


def _rung_name(rung: PlanRung) -> str:
    return str(rung.rung) if rung.of_num_seqs is None else f"{rung.rung} for {rung.of_num_seqs}"


def _forced(rung: PlanRung) -> str:
    what = "call" if rung.axis == "query_lens" else "step"
    return f"{rung.axis} {_rung_name(rung)} is there for coverage alone: no {what} is padded to it"


def _dead(plan: Plan) -> RenderableType:
    dead = plan.result.dead_variants
    if not dead:
        return Text("every variant is used")
    shown = ", ".join(f"{s} x {m}" for s, m in dead[:_DEAD_SHOWN])
    more = ", ..." if len(dead) > _DEAD_SHOWN else ""
    count = f"{len(dead)} of {plan.result.num_variants} variants"
    return Text(f"compiled but never used by this traffic: {count} ({shown}{more})")


def _alternative(plan: Plan) -> list[RenderableType]:
    other = plan.result.alternative
    if other is None or (other.structure == "ragged" and other.saves_seconds < 0):
        return []  # ragged ladders are never dearer: one that is was not found in time
    what = (
        "a ragged plan (a block ladder for each num_seqs rung)"
        if other.structure == "ragged"
        else "a product plan"
    )
    change = "save" if other.saves_seconds >= 0 else "cost"
    least = "" if other.status == "optimal" else " at least"
    saving = f"{change}{least} {duration_text(abs(other.saves_seconds))} more"
    warmup = duration_text(other.warmup_seconds)
    return [Text(f"{what} would {saving}, with {other.num_variants} variants and a warm-up of {warmup}")]


def _holdout(plan: Plan) -> list[RenderableType]:
    held = plan.result.holdout
    if held is None:
        return []
    text = (
        f"on the last {held.share:.0%} of the traffic, which it has not seen, the plan costs "
        f"{held.regret:.2%} ({duration_text(max(0.0, held.regret_seconds))}) more than the optimum there"
    )
    if held.default_seconds:
        text += f", and {1 - held.objective_seconds / held.default_seconds:.2%} less than the default ladders"
    return [Text(text)]


def _unlimited(plan: Plan) -> list[RenderableType]:
    free = plan.result.unlimited
    if free is None:
        return []
    return [
        Text(
            f"the budget costs {duration_text(max(0.0, free.saves_seconds))}: without it the best has "
            f"{free.num_variants} variants and a warm-up of {duration_text(free.warmup_seconds)}"
        )
    ]


def _evidence(plan: Plan) -> list[RenderableType]:
    evidence = plan.result.evidence
    if evidence is None:
        return []
    share = f"{evidence.unseen_share:.0%} of the possible batch shapes"
    lines = [f"{share} never occurred; worst padding of any size:"]
    lines += [f"  {_padding(each)}" for each in evidence.worst_padding]
    if evidence.guard is not None:
        without = ", ".join(
            f"{each.axis} x{each.factor:.3g}" for each in evidence.guard.worst_padding_without
        )
        cost = duration_text(max(0.0, evidence.guard.cost_seconds))
        lines.append(
            f"the guard x{evidence.guard.factor:g} costs {cost}; without it the worst would be {without}"
        )
    return [Text("\n".join(lines))]


def _padding(padding: PlanPadding) -> str:
    text = f"{padding.axis} {padding.size} padded to {padding.rung} (x{padding.factor:.3g})"
    if padding.unseen_from is not None:
        text += f"; sizes {padding.unseen_from} to {padding.unseen_to} were never seen"
    return text


def _next_step(plan: Plan, path: str | None) -> RenderableType:
    if plan.verdict == "not-used":
        return Text("next: nothing to load")
    if plan.verdict == "keep-default":
        return Text("next: nothing to change")
    if path is None:
        return Text("next: name a file with -o PLAN.json, then ladder-opt export PLAN.json --format env")
    return Text(f"next: ladder-opt export {path} --format env")


def check_text(report: dict[str, Any]) -> RenderableType:
    """What the bucketer will use."""
    table = _facts()
    table.add_row("source", Text(report["source"]))
    if report["plan_sources"]:
        table.add_row("plan by", Text(report["plan_sources"][0]["source"]))
    table.add_row("num_seqs", Text(_joined(report["num_seqs"])))
    if report["ragged"] is None:
        table.add_row("num_blocks", Text(_joined(report["num_blocks"])))
    for rung, blocks in (report["ragged"] or {}).items():
        table.add_row(f"num_blocks for {rung}", Text(_joined(blocks)))
    table.add_row("variants", f"{report['num_variants']:,}")
    for axis, label in (("kv_tokens", "KV, tokens"), ("query_tokens", "query, tokens")):
        source = report["sources"][axis]
        table.add_row(label, Text(f"{_joined(report[axis])}  (per sequence; {source})"))
    table.add_row("per sequence", f"{report['num_sequence_variants']:,} variants")
    return table


_FRONTIER_ROWS = 12


def frontier_text(frontier: Frontier) -> RenderableType:
    """A small table of a frontier: its ends, its knee, the point that the restarts choose, some between."""
    count = len(frontier)
    spread = {round(index * (count - 1) / (_FRONTIER_ROWS - 1)) for index in range(_FRONTIER_ROWS)}
    table = Table(box=None, pad_edge=False)
    for name in ("warm-up", "step time", "variants", "rungs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for index in sorted(spread | {frontier.knee, frontier.chosen}):
        price = frontier.prices[index]
        marks = [
            name for name, at in (("knee", frontier.knee), ("least in all", frontier.chosen)) if at == index
        ]
        table.add_row(
            duration_text(price.warmup_seconds),
            hours_text(price.step_seconds),
            f"{price.num_variants:,}",
            f"{len(price.ladders.num_seqs)} x {len(price.ladders.num_blocks)}",
            ", ".join(marks),
        )
    whole = "complete: no other is left out" if frontier.complete else "the best known, not complete"
    before, after = frontier.minute_before(frontier.chosen), frontier.minute_after(frontier.chosen)
    minutes = []
    if after > 0 or frontier.chosen < count - 1:
        minutes.append(f"the next minute of warm-up would save {duration_text(after)} of step time")
    if before is not None:
        minutes.append(f"the last minute of warm-up saved {duration_text(before)} of step time")
    lines = [
        f"{count:,} Pareto-optimal pairs of ladders ({whole}); {len(table.rows)} of them:",
        f"at {frontier.restarts:.4g} server starts " + ", and ".join(minutes or ["there is one point alone"]),
    ]
    return Group(Text(lines[0]), "", table, "", Text(lines[1]))
