"""What a plan was asked to be, from its file: limits, uptime and scheduling hold for new traffic too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan

_LIMITS = ("max_variants", "warmup_budget_seconds", "guard", "num_seqs", "num_blocks", "query_lens")
_REPLAY = ("concurrency", "replicas")


def solve_options_of(plan: Plan) -> SolveOptions:
    """Target, structure, limits, pinned axes and uptime; server starts and spans are of the plan's traffic.

    Raises:
        InputError: the file holds something else there.
    """
    asked = plan.provenance.asked or {}
    given = {
        name: asked[name] for name in (*_LIMITS, "uptime_seconds", "min_gain") if asked.get(name) is not None
    }
    for name in ("num_seqs", "num_blocks"):
        _check_list(given.get(name, ()), name)
    if isinstance(given.get("query_lens"), list):
        _check_list(given["query_lens"], "query_lens")
    for name in ("max_variants", "warmup_budget_seconds", "guard", "uptime_seconds", "min_gain"):
        _check_number(given.get(name), name)
    options: SolveOptions = _made(SolveOptions, {**given, "target": plan.target, "structure": plan.structure})
    return options


def replay_options_of(plan: Plan) -> ReplayOptions:
    """Replicas, closed loop and scheduling of the plan.

    Its rate scale and weights are not: they said what to make of its own traces.

    Raises:
        InputError: the file holds something else there.
    """
    asked = plan.provenance.asked or {}
    given = {name: asked[name] for name in _REPLAY if asked.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(repr(value), "a whole number of 1 or more", column=f"provenance.asked.{name}")
    scheduling = asked.get("scheduling")
    if scheduling is None:
        return ReplayOptions(**given)
    if not isinstance(scheduling, Mapping):
        raise InputError(
            type(scheduling).__name__, "an object of settings", column="provenance.asked.scheduling"
        )
    known = {field.name for field in fields(Scheduling)}
    return ReplayOptions(
        **given,
        scheduling=_made(Scheduling, {name: scheduling[name] for name in scheduling if name in known}),
    )


def other_rate(plan: Plan) -> float | None:
    """By how much the plan was told to speed its traces up, where it was."""
    scale = (plan.provenance.asked or {}).get("rate_scale")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or scale == 1:
        return None
    return float(scale)


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    try:
        return kind(**given)
    except (UsageError, TypeError) as error:
        raise InputError(f"{error}", "options that tune takes", column="provenance.asked") from None


def _check_list(value: Any, name: str) -> None:
    if not isinstance(value, list | tuple) or not all(type(each) is int for each in value):
        raise InputError(repr(value), "a list of whole numbers", column=f"provenance.asked.{name}")


def _check_number(value: Any, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InputError(repr(value), "a number", column=f"provenance.asked.{name}")
