"""A drift as text for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.markup import joined, printable
from ladder_opt.monitor.parts import Parts
from ladder_opt.monitor.prices import MovedTerm
from ladder_opt.monitor.result import Drift, WorkloadDrift
from ladder_opt.monitor.wear import DeadRung, FarSize
from ladder_opt.units import duration_text, hours_text

_FAR_SHOWN = 6
_DEAD_SHOWN = 8
_NAME_SHOWN = 24
_LEAST_SHARE = 5e-4
_PART_NAMES = {
    "rate": "rate (how often requests come)",
    "length": "length (prompts and outputs)",
    "mix": "mix (bursts, order, span, which lengths come together)",
    "cost": "cost (prices)",
}
_PART_NAMES_OF_STEPS = _PART_NAMES | {
    "rate": "rate (sequences that decode together)",
    "length": "length (blocks of the longest)",
    "mix": "mix (which batch sizes and lengths come together)",
}


def drift_text(drift: Drift) -> RenderableType:
    """All that a person should see of a drift."""
    parts: list[RenderableType] = [_headline(drift), "", _costs(drift)]
    parts += _what_changed(drift)
    parts += _prices(drift)
    parts += _wear(drift)
    return Group(*parts)


def _headline(drift: Drift) -> RenderableType:
    text = Text("drifted: " if drift.is_over else "holds: ", style="bold")
    off = duration_text(abs(drift.regret_seconds))
    if drift.regret >= 0:
        text.append(f"the plan costs {drift.regret:.2%} ({off}) more than the best ladders would")
    else:
        text.append(
            f"the plan costs {-drift.regret:.2%} ({off}) less than the best ladders within its limits"
        )
    text.append(f"; {100 * drift.max_regret:.3g}% is allowed")
    if len(drift.workloads) > 1:
        text.append(f"\nthe worst of {len(drift.workloads)} workloads: {printable(drift.worst.name)}")
    if drift.promised_regret:
        text.append(f"\non its own traffic it was {drift.promised_regret:.2%}")
    prices = "other prices than the plan was made with" if drift.cost_changed else "the plan's prices"
    text.append(f"\ncost model {printable(drift.cost_name)}: {prices}")
    return text


def _costs(drift: Drift) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("traffic", no_wrap=True)
    for name in ("steps", "batched", "starts", "plan", "best", "default", "regret", "overpay"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in drift.workloads:
        table.add_row(*_cells(each))
    best = drift.optimum_ladders
    if best is None or best == drift.ladders:
        return table
    told = "best" if drift.optimum_status == "optimal" else "best found"
    lines = [f"{told} num_seqs    {joined(best.num_seqs, most=24)}"]
    lines.append(f"{' ' * len(told)} num_blocks  {joined(best.num_blocks, most=24)}")
    return Group(table, *(Text(line) for line in lines))


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= _NAME_SHOWN else f"...{shown[-_NAME_SHOWN + 3 :]}"


def _cells(each: WorkloadDrift) -> tuple[str, ...]:
    return (
        _short(each.name),
        f"{each.steps:,.0f}",
        f"{each.batched_steps:,.0f}",
        f"{each.restarts:.4g}",
        hours_text(each.objective_seconds),
        hours_text(each.optimum_seconds),
        "" if each.default_seconds is None else hours_text(each.default_seconds),
        f"{each.regret:+.2%}",
        f"{each.overpay:.1%}",
    )


def _what_changed(drift: Drift) -> list[RenderableType]:
    parts = drift.parts
    note = [] if drift.parts_note is None else [Text(printable(drift.parts_note), style="dim")]
    if parts is None:
        return ["", *note] if note else []
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    names = _PART_NAMES_OF_STEPS if parts.of_steps else _PART_NAMES
    shown = [name for name in names if name != "cost" or drift.cost_changed]
    of = parts.seconds if parts.is_small_base else parts
    for name in sorted(shown, key=lambda name: -getattr(of, name)):
        value = getattr(of, name)
        text = _signed(value) if parts.is_small_base else f"{100 * value:+,.2f}"
        table.add_row(f"  {names[name]}", text, style="bold" if name == parts.largest else None)
    lines: list[RenderableType] = []
    if parts.against is not None:
        up, down = parts.against
        lines.append(
            Text(
                f"{up} and {down} nearly cancel: each alone would have moved the regret more than both did",
                style="dim",
            )
        )
    return ["", Text(_change(parts)), table, *lines, *note]


def _change(parts: Parts) -> str:
    """The line above the parts."""
    if not parts.is_small_base:
        then = "" if parts.then is None else f" from {parts.then:.2%}"
        return f"what changed: the regret went{then} to {parts.now:.2%}, in percentage points"
    return (
        f"what changed: the regret went to {duration_text(parts.seconds.now)}; its parts in seconds, for "
        "with rate or lengths\nas they were hardly a step is batched, and shares of what the best ladders "
        "cost there say little"
    )


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration_text(abs(seconds))}"


def _prices(drift: Drift) -> list[RenderableType]:
    found: list[RenderableType] = []
    if drift.terms:
        table = Table(box=None, pad_edge=False)
        table.add_column("term")
        for name in ("plan", "now", "change", "interval", "on this traffic"):
            table.add_column(name, justify="right")
        for term in drift.terms:
            table.add_row(*_term_cells(term), style=None if term.moved else "dim")
        found += ["", Text("prices that differ (dim: within what the new ones leave open)"), table]
    if drift.predictions:
        table = Table(box=None, pad_edge=False)
        table.add_column("measured / the plan's prices")
        for name in ("rows", "median", "10% to 90%", "noise", "furthest off"):
            table.add_column(name, justify="right")
        for each in drift.predictions:
            table.add_row(
                each.quantity,
                f"{each.rows:,}",
                f"{each.ratio:.3g}",
                f"{each.ratio_low:.3g} to {each.ratio_high:.3g}",
                "" if each.noise is None else f"{each.noise:.1%}",
                f"{each.worst_num_seqs} x {each.worst_num_blocks} ({each.worst_ratio:.3g})",
            )
        found += ["", table]
    return found


def _term_cells(term: MovedTerm) -> tuple[str, ...]:
    change = f"x{term.now / term.then:.3g}" if term.then and term.now is not None else ""
    interval = "" if term.low is None or term.high is None else f"{term.low:.3g} to {term.high:.3g}"
    grown = ""
    if term.seconds is not None:
        grown = _signed(term.seconds)
    return (
        term.term,
        "" if term.then is None else f"{term.then:.3g}",
        "" if term.now is None else f"{term.now:.3g}",
        change,
        interval,
        grown,
    )


def _wear(drift: Drift) -> list[RenderableType]:
    lines = [""]
    for axis in ("num_seqs", "num_blocks"):
        dead = [each for each in drift.dead_rungs if each.axis == axis]
        if dead:
            shown = ", ".join(_dead(each) for each in dead[:_DEAD_SHOWN])
            more = f" and {len(dead) - _DEAD_SHOWN} more" if len(dead) > _DEAD_SHOWN else ""
            lines.append(f"{axis} rungs that no step comes to any more: {shown}{more}")
    if drift.dead_variants:
        lines.append(f"compiled but not used by this traffic: {len(drift.dead_variants):,} variants")
    far = [each for each in drift.far_sizes if _weight(each) >= _LEAST_SHARE]
    if far:
        lines.append("sizes with no rung of their own, by what it costs:")
        lines += [f"  {_far(each)}" for each in far[:_FAR_SHOWN]]
    return [Text("\n".join(lines))] if len(lines) > 1 else []


def _dead(each: DeadRung) -> str:
    of = "" if each.of_num_seqs is None else f" for {each.of_num_seqs}"
    stays = ", there for coverage" if each.has_to_stay else ""
    return f"{each.rung}{of} (had {each.share_then:.1%} of steps{stays})"


def _weight(each: FarSize) -> float:
    """Share of the step time that the padding costs; of the steps, where prices are not known."""
    return each.share if each.share_of_seconds is None else each.share_of_seconds


def _far(each: FarSize) -> str:
    then = "" if each.share_then is None else f" (then {each.share_then:.1%})"
    lost = ""
    if each.seconds is not None and each.share_of_seconds is not None:
        lost = f", {duration_text(max(0.0, each.seconds))} ({each.share_of_seconds:.1%} of step time)"
    size = f"{each.axis} {each.size} padded to {each.rung} (x{each.factor:.3g})"
    return f"{size}: {each.share:.1%} of steps{then}{lost}"
