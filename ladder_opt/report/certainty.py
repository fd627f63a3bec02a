"""How sure a plan's headline is, and what else was to be had, in plain sentences.

Measured or not, by which prices, how near the best; the knee of the frontier beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ladder_opt.cost.model import CostModel, builtin_names, read_cost_model
from ladder_opt.plan.frontier import Frontier
from ladder_opt.plan.plan import Plan
from ladder_opt.report.sentences import capital, number_in, plain_proof_text
from ladder_opt.units import duration_text

_SYNTHETIC = ("synthetic", "drawn from")  # how notes of traffic that nobody recorded begin: trace.synth
_LEAST_CHANGE = 5e-4


def certainty_text(plan: Plan, cost: CostModel | None) -> str:
    """One line: what the seconds are, what they rest on, and how good the ladders are known to be."""
    if plan.verdict == "not-used":
        how = "read off the steps given" if plan.provenance.replay is None else "the traffic was replayed"
        return f"How sure: {how}; no server was measured."
    parts = [
        "How sure: calculated, not measured; no server has run with these ladders.",
        f"{_prices_text(cost)}.",
        f"By these prices {plain_proof_text(plan)}.",
    ]
    found = plan.uncertainty
    if found is not None and found.gain is not None and {"p5", "p95"} <= set(found.gain):
        parts.append(
            f"With other prices that the cost model allows for, it saves {found.gain['p5']:.1%} to "
            f"{found.gain['p95']:.1%} in nine cases of ten."
        )
    return " ".join(parts)


def synthetic_notes(notes: Sequence[str]) -> list[str]:
    """Those that say that nobody recorded this traffic, as sentences."""
    told = [note for note in notes if note.lower().startswith(_SYNTHETIC)]
    return [capital(re.sub(r"^synthetic: ", "synthetic traffic: ", note)) for note in told]


def knee_text(found: Frontier, plan: Plan) -> str | None:
    """What the frontier's knee offers beside the plan; None where there is none, or it offers nothing.

    Of a robust plan it says nothing: the frontier is of the workloads' sum, and regret is of each.
    """
    if plan.result.robust is not None and len(plan.result.robust.workloads) > 1:
        return None
    if not 0 < found.knee < len(found) - 1:
        return None
    knee, result = found.prices[found.knee], plan.result
    if knee.num_variants >= result.num_variants or knee.warmup_seconds >= result.warmup_seconds:
        return None
    if result.step_seconds <= 0:
        return None
    change = knee.step_seconds / result.step_seconds - 1
    less = f"{knee.num_variants:,} kernel variants instead of {result.num_variants:,}"
    start = (
        f"a start of {duration_text(knee.warmup_seconds)} instead of {duration_text(result.warmup_seconds)}"
    )
    if change < _LEAST_CHANGE:
        return f"A shorter start for no more step time, at the knee of the trade-off: {less}, {start}."
    return f"A shorter start, at the knee of the trade-off: {less}, {start}, for {change:.1%} more step time."


def _prices_text(cost: CostModel | None) -> str:
    if cost is None:
        return "The plan does not hold its cost model, so how sure its seconds are is not known"
    fit = cost.fit or {}
    residuals = _part(fit, "residuals")
    source = "the built-in cost model" if _is_builtin(cost) else f"the cost model {cost.name}"
    told = _factor_text(fit) or _of_requests(fit, residuals) or _of_rows(residuals)
    return f"Seconds come from {source}, {told or 'which does not say how sure it is'}"


def _is_builtin(cost: CostModel) -> bool:
    return (
        cost.name in builtin_names()
        and read_cost_model(cost.name).with_kernel(cost.kernel).sha256() == cost.sha256()
    )


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a `fit`, which may hold anything; empty where there is none."""
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _factor_text(fit: Mapping[str, Any]) -> str | None:
    factor = number_in(fit, "scale_uncertainty_factor")
    if factor is None or factor < 1:
        return None
    told = (
        f"derived from published figures; real steps may take {1 / factor:.2g} to {factor:.3g} times as long"
    )
    compiles = number_in(fit, "compile_uncertainty_factor")
    if compiles is None or compiles < 1:
        return told
    return f"{told}, compiles {1 / compiles:.2g} to {compiles:.3g} times"


def _of_rows(residuals: Mapping[str, Any]) -> str | None:
    """What is left of a fit to rows: `calibration.combine` writes it."""
    told = []
    for name, what in (("step", "steps"), ("compile", "compiles")):
        part = _part(residuals, name)
        spread = _part(part, "relative")
        rows, low, high = number_in(part, "rows"), number_in(spread, "p5"), number_in(spread, "p95")
        if rows is None or low is None or high is None:
            continue
        told.append(f"{rows:,.0f} measured {what} (nine in ten of them {low:+.1%} to {high:+.1%} off it)")
    return f"fitted to {' and '.join(told)}" if told else None


def _of_requests(fit: Mapping[str, Any], residuals: Mapping[str, Any]) -> str | None:
    """What is left of a fit to a server's requests: `calibration.server_records` writes it."""
    spread = _part(residuals, "seconds_per_step")
    requests, mean = number_in(fit, "requests"), number_in(residuals, "mean_step_seconds")
    low, high = number_in(spread, "p25"), number_in(spread, "p75")
    if requests is None or mean is None or low is None or high is None or mean <= 0:
        return None
    off = f"{low / mean:+.1%} to {high / mean:+.1%}"
    return f"fitted to {requests:,.0f} requests of a server (half of their times for a step {off} off it)"
