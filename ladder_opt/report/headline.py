"""The top of a report: the decision in a sentence, how sure it is, the numbers it turns on, warnings."""

from __future__ import annotations

from ladder_opt.markup import text
from ladder_opt.plan.plan import Plan
from ladder_opt.report.certainty import certainty_text, knee_text, synthetic_notes
from ladder_opt.report.contents import Contents
from ladder_opt.report.names import without_folders
from ladder_opt.report.sentences import (
    busy_share_text,
    capital,
    engines_text,
    has_prices,
    number_in,
    saving_text,
    verdict_text,
)
from ladder_opt.units import duration_text, hours_text

_NOTES_SHOWN = 4
_SAID = {
    "adopt": "Load this plan",
    "keep-default": "Keep the default ladders",
    "not-used": "There is nothing to load",
}
_LABELS = ("How sure:", "Synthetic traffic:", "A shorter start")


def short_verdict(plan: Plan) -> str:
    """For a window's title."""
    return capital(verdict_text(plan)).removesuffix(".")


def headline(contents: Contents) -> str:
    """All of it as HTML."""
    plan = contents.plan
    heading = f"ladder_opt report on {contents.name}"
    sure = [certainty_text(plan, contents.cost)]
    synthetic = synthetic_notes(contents.notes)
    if synthetic:
        told = [without_folders(line, contents.names) for line in synthetic[:_NOTES_SHOWN]]
        more = len(synthetic) - len(told)
        sure.append(" ".join([*told, *([f"{more} more such notes stand with the traffic."] if more else [])]))
    knee = None if contents.frontier is None else knee_text(contents.frontier, plan)
    lines = "".join(f"<p>{_labelled(line)}</p>" for line in [*sure, *([] if knee is None else [knee])])
    return "\n".join(
        [
            f"<h1>{text(heading)}</h1>",
            f'<p class="verdict">{text(_verdict(plan))}.</p>',
            f'<div class="sure">{lines}</div>',
            f'<p class="context">{"".join(f"<span>{text(line)}</span>" for line in _context(plan))}</p>',
            _cards(plan),
            _warnings(contents),
        ]
    )


def _labelled(line: str) -> str:
    """A line with what it is about in bold."""
    label = next((each for each in _LABELS if line.startswith(each)), "")
    return f"<b>{text(label)}</b>{text(line.removeprefix(label))}" if label else text(line)


def _verdict(plan: Plan) -> str:
    """The decision."""
    result, default = plan.result, plan.default
    robust = result.robust is not None and len(result.robust.workloads) > 1
    if plan.verdict == "not-used":
        return f"{_SAID[plan.verdict]}: this traffic never reaches the batched kernel"
    if result.status == "evaluated" or robust:
        subject = _SAID[plan.verdict] if robust else "Evaluated as given"
        return f"{subject}: {saving_text(plan).removeprefix('; ') or 'nothing to compare it with'}"
    if default is None or default.objective_seconds <= 0:
        return f"{_SAID[plan.verdict]}: there are no default ladders to compare it with"
    return f"{_SAID[plan.verdict]}: {_why(plan, default.objective_seconds)}"


def _why(plan: Plan, default_seconds: float) -> str:
    saved = default_seconds - plan.result.objective_seconds
    together = f" over {engines_text(plan)}" if plan.replicas > 1 else ""
    amount = f"{abs(saved) / default_seconds:.1%} ({duration_text(abs(saved))}{together})"
    if plan.verdict == "adopt":
        limits = "" if plan.default is None or plan.default.within_limits else ", which are over the limits"
        later = plan.result.warmup_seconds - (plan.default.warmup_seconds if plan.default else 0.0)
        start = f"; a server start takes {duration_text(abs(later))} {'longer' if later > 0 else 'less'}"
        if abs(later) < 1:
            start = ""
        return f"it saves {amount} against the default ladders{limits}{start}"
    if saved < 0:
        return f"what was asked for would cost {amount} more"
    return f"the plan would save {amount}, too little to change anything"


def _context(plan: Plan) -> list[str]:
    """What the numbers are of, and how much of the work they cover."""
    engine, result, replay = plan.engine, plan.result, plan.provenance.replay
    requests, share = number_in(replay, "requests"), busy_share_text(plan)
    traffic = "A histogram of steps" if requests is None else f"{requests:,} requests on {engines_text(plan)}"
    limits = (
        f"at most {engine.max_num_seqs:,} sequences at a time and {engine.max_model_len:,} tokens a sequence"
    )
    steps = result.steps
    work = f"{steps.batched:,.0f} of {steps.total:,.0f} decode steps are batched"
    if plan.target == "plugin" and steps.batched:
        work += ", and only there ladders matter"
    if share:
        work += f": {share}"
    return [f"{traffic}, {'each of' if plan.replicas > 1 else 'of'} {limits}.", f"{work}."]


def _cards(plan: Plan) -> str:
    """The four numbers that a decision turns on, each with the default's."""
    if not has_prices(plan):
        return ""
    result, default = plan.result, plan.default
    added = f", {engines_text(plan)} added up" if engines_text(plan) != "one engine" else ""
    cards = [
        (
            f"time of batched steps{added}",
            hours_text(result.step_seconds),
            default and hours_text(default.step_seconds),
        ),
        (
            "a server start takes",
            duration_text(result.warmup_seconds),
            default and duration_text(default.warmup_seconds),
        ),
        (
            "kernel variants compiled at a start",
            f"{result.num_variants:,}",
            default and f"{default.num_variants:,}",
        ),
        (
            "padding that ladders can avoid",
            f"{result.gathers.overpay:.1%}",
            default and f"{default.gathers.overpay:.1%}",
        ),
    ]
    items = "".join(
        f'<li><span class="what">{text(what)}</span><span class="value">{text(value)}</span>'
        + (f'<span class="before">default: {text(before)}</span>' if before else "")
        + "</li>"
        for what, value, before in cards
    )
    return f'<ul class="cards" aria-label="Key numbers">{items}</ul>'


def _warnings(contents: Contents) -> str:
    if not contents.warnings:
        return ""
    lines = (without_folders(line, contents.names) for line in contents.warnings)
    items = "".join(f"<li>{text(capital(line))}</li>" for line in lines)
    return f'<div class="warnings" role="note"><p>Beware</p><ul>{items}</ul></div>'
