"""What there is to say of a plan, as plain sentences: the terminal and the HTML report say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ladder_opt.markup import printable
from ladder_opt.plan.parts import PlanPadding, PlanRung
from ladder_opt.plan.plan import Plan
from ladder_opt.plot.compared import Compared, compared
from ladder_opt.report.robust import robust_headline, robust_status
from ladder_opt.solve.problem import QUERY_GRAIN_TOKENS
from ladder_opt.units import duration_text, hours_text

_DEAD_SHOWN = 6
_VERDICTS = {
    "adopt": "adopt: worth loading",
    "keep-default": "keep the default ladders: the plan saves too little to change anything",
    "not-used": "not used: this traffic never reaches the batched kernel",
}


def capital(sentence: str) -> str:
    """A sentence with a large first letter and a full stop, unless it begins with a file or a code name."""
    first = sentence.split(" ", 1)[0].rstrip(".:?")
    start = sentence if {"_", ".", "/"} & set(first) else sentence[:1].upper() + sentence[1:]
    return start if start.endswith((".", ":", "?")) else f"{start}."


def number_in(part: Mapping[str, Any] | None, key: str) -> float | None:
    """A finite number of a free-form part of a plan file, which may hold anything."""
    value = (part or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def has_prices(plan: Plan) -> bool:
    """Whether there is anything to compare: a step that reaches the ladders."""
    return bool(plan.num_seqs and plan.result.steps.batched) or plan.result.sequences is not None


def verdict_text(plan: Plan) -> str:
    """The verdict in a few words."""
    if plan.result.status == "evaluated" and plan.verdict != "not-used":
        return "evaluated as given"
    default = plan.default
    costs_more = default is not None and plan.result.objective_seconds > default.objective_seconds
    if plan.verdict == "keep-default" and costs_more:
        return "keep the default ladders: what was asked for costs more in all"
    return _VERDICTS[plan.verdict]


def saving_text(plan: Plan) -> str:
    """What it saves or costs, to go on the verdict; empty where there is nothing to compare."""
    result, default = plan.result, plan.default
    if plan.verdict == "not-used":
        return ""
    if result.robust is not None and len(result.robust.workloads) > 1:
        return robust_headline(result.robust)
    if default is None or default.objective_seconds <= 0:
        return ""
    saved = default.objective_seconds - result.objective_seconds
    text = (
        f"; {'saves' if saved >= 0 else 'costs'} {duration_text(abs(saved))} "
        f"({abs(saved) / default.objective_seconds:.2%}) against the default ladders"
    )
    return text if default.within_limits else f"{text}, which are over the limits"


def engines_text(plan: Plan) -> str:
    """Whose time a sum is."""
    engines = f"{plan.replicas:,} engines" if plan.replicas > 1 else "one engine"
    robust = plan.result.robust
    workloads = 0 if robust is None else len(robust.workloads)
    return f"{engines} for each of {workloads} workloads" if workloads > 1 else engines


def context_lines(plan: Plan) -> list[str]:
    """What the numbers are of: traffic, engine, prices, and how much of the work they cover."""
    engine, result, replay = plan.engine, plan.result, plan.provenance.replay
    limits = (
        f"{engine.max_num_seqs} sequences, {engine.max_model_len:,} tokens, blocks of {engine.block_size}"
    )
    requests, rounds = number_in(replay, "requests"), number_in(replay, "rounds")
    traffic = "a steps histogram" if requests is None else f"{requests:,} requests on {engines_text(plan)}"
    prices = f"cost model {printable(plan.provenance.cost_name or 'unnamed')}, kernel {plan.kernel}"
    if rounds is not None:
        prices += f"; {rounds} rounds of replay and solve"
    steps = result.steps
    work = f"{steps.total:,.0f} decode steps, {steps.batched:,.0f} of them batched"
    share = busy_share_text(plan)
    if share:
        work += f", {share}"
    return [f"{traffic} ({limits})", prices, work]


def busy_share_text(plan: Plan) -> str | None:
    """How much of the engines' time batched steps take; None where no replay says how busy they were."""
    busy_seconds, result = number_in(plan.provenance.replay, "busy_seconds"), plan.result
    if not busy_seconds:
        return None
    batched = result.step_seconds - (result.sequences.step_seconds if result.sequences else 0.0)
    return f"{batched / busy_seconds:.0%} of the engines' busy time"


_LIMITS = ("max_variants", "warmup_budget_seconds", "guard", "num_seqs", "num_blocks")


def _solves_query_lens(plan: Plan) -> bool:
    return (plan.provenance.asked or {}).get("query_lens") in (None, "solve")


def _is_limited(plan: Plan) -> bool:
    """Whether only some ladders were to be had."""
    asked = plan.provenance.asked or {}
    return any(asked.get(name) for name in _LIMITS) or not _solves_query_lens(plan)


def plain_proof_text(plan: Plan) -> str:
    """How good the plan is known to be, to go on in a sentence: the proof, or the gap."""
    result = plan.result
    within = "that keep to the limits asked for " if _is_limited(plan) else ""
    if result.robust is not None:
        return robust_status(result.robust, limited=_is_limited(plan)).split(": ", 1)[-1]
    if result.status == "optimal":
        return f"no ladders {within}cost less: proven"
    if result.status == "feasible":
        return f"they cost at most {result.gap:.2%} more than the best ladders {within}would"
    return f"the best ladders would cost at most {result.gap:.2%} less"


def proof_text(plan: Plan) -> str:
    """How good the plan is known to be."""
    result = plan.result
    solved_for, limited = _solves_query_lens(plan), _is_limited(plan)
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
    return proof


def objective_text(plan: Plan) -> str:
    """What the objective is made of."""
    startup = number_in(plan.provenance.asked, "startup_seconds")
    less = f" - {duration_text(startup)} of start-up that no ladder changes" if startup else ""
    starts = f"{plan.result.restarts:.4g} server start{'' if plan.result.restarts == 1 else 's'}"
    what = "batched decode" if plan.target == "plugin" else "batched decode and per-sequence attention"
    summed = f", {engines_text(plan)} added up," if engines_text(plan) != "one engine" else ""
    return f"objective = step time of {what}{summed} + {starts} x (warm-up{less})"


def rung_name(rung: PlanRung) -> str:
    """A rung; of ragged ladders, and whose it is."""
    return str(rung.rung) if rung.of_num_seqs is None else f"{rung.rung} for {rung.of_num_seqs}"


def forced_text(rung: PlanRung) -> str:
    """Why an unused rung is there."""
    what = "call" if rung.axis == "query_lens" else "step"
    return f"{rung.axis} {rung_name(rung)} is there for coverage alone: no {what} is padded to it"


def absent_rung_text(plan: Plan) -> str | None:
    """The rung that comes closest to paying for itself."""
    absent = plan.result.best_absent_rung
    if absent is None or absent.saves_step_seconds <= 0:
        return None
    saves, costs = (duration_text(max(0.0, s)) for s in (absent.saves_step_seconds, absent.costs_seconds))
    return (
        f"the next best rung, {absent.axis} {absent.rung}, would save {saves} of step time "
        f"for {costs} of compiles ({absent.num_variants:+} variants)"
    )


def dead_text(plan: Plan) -> str:
    """Variants that are compiled in vain."""
    dead = plan.result.dead_variants
    if not dead:
        return "every variant is used"
    shown = ", ".join(f"{s} x {m}" for s, m in dead[:_DEAD_SHOWN])
    more = ", ..." if len(dead) > _DEAD_SHOWN else ""
    count = f"{len(dead)} of {plan.result.num_variants} variants"
    return f"compiled but never used by this traffic: {count} ({shown}{more})"


def alternative_text(plan: Plan) -> str | None:
    """What the other structure would cost."""
    other = plan.result.alternative
    if other is None or (other.structure == "ragged" and other.saves_seconds < 0):
        return None  # ragged ladders are never dearer: one that is was not found in time
    what = (
        "a ragged plan (a block ladder for each num_seqs rung)"
        if other.structure == "ragged"
        else "a product plan"
    )
    change = "save" if other.saves_seconds >= 0 else "cost"
    least = "" if other.status == "optimal" else " at least"
    saving = f"{change}{least} {duration_text(abs(other.saves_seconds))} more"
    warmup = duration_text(other.warmup_seconds)
    return f"{what} would {saving}, with {other.num_variants} variants and a warm-up of {warmup}"


def holdout_text(plan: Plan) -> str | None:
    """How the plan does on traffic that it has not seen."""
    held = plan.result.holdout
    if held is None:
        return None
    text = (
        f"on the last {held.share:.0%} of the traffic, which it has not seen, the plan costs "
        f"{held.regret:.2%} ({duration_text(max(0.0, held.regret_seconds))}) more than the optimum there"
    )
    if held.default_seconds:
        text += f", and {1 - held.objective_seconds / held.default_seconds:.2%} less than the default ladders"
    return text


def comparison_cells(plan: Plan) -> list[tuple[Compared, tuple[str, ...]]]:
    """Plan and baselines, each with its rungs, variants, warm-up, step time, objective, change, overpay."""
    default = plan.default
    rows: list[tuple[Compared, tuple[str, ...]]] = []
    for row in compared(plan):
        price = row.price
        change = ""
        if default is not None and default.objective_seconds > 0:
            change = f"{price.objective_seconds / default.objective_seconds - 1:+.2%}"
        cells = (
            f"{len(row.ladders.num_seqs)} x {len(row.ladders.num_blocks)}",
            f"{price.num_variants:,}",
            duration_text(price.warmup_seconds),
            hours_text(price.step_seconds),
            hours_text(price.objective_seconds),
            change,
            f"{price.gathers.overpay:.1%}",
        )
        rows.append((row, cells))
    return rows


def unlimited_text(plan: Plan) -> str | None:
    """What the budgets cost."""
    free = plan.result.unlimited
    if free is None:
        return None
    return (
        f"the budget costs {duration_text(max(0.0, free.saves_seconds))}: without it the best has "
        f"{free.num_variants} variants and a warm-up of {duration_text(free.warmup_seconds)}"
    )


def evidence_lines(plan: Plan) -> list[str]:
    """Where the traffic says nothing: a heading, a line for each axis, the guard."""
    evidence = plan.result.evidence
    if evidence is None:
        return []
    share = f"{evidence.unseen_share:.0%} of the possible batch shapes"
    lines = [f"{share} never occurred; worst padding of any size:"]
    lines += [f"  {padding_text(each)}" for each in evidence.worst_padding]
    if evidence.guard is not None:
        without = ", ".join(
            f"{each.axis} x{each.factor:.3g}" for each in evidence.guard.worst_padding_without
        )
        cost = duration_text(max(0.0, evidence.guard.cost_seconds))
        lines.append(
            f"the guard x{evidence.guard.factor:g} costs {cost}; without it the worst would be {without}"
        )
    return lines


def padding_text(padding: PlanPadding) -> str:
    """The worst padding of an axis."""
    text = f"{padding.axis} {padding.size} padded to {padding.rung} (x{padding.factor:.3g})"
    if padding.unseen_from is not None:
        text += f"; sizes {padding.unseen_from} to {padding.unseen_to} were never seen"
    return text
