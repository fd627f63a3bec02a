"""Which part of a drift is the rate's, the lengths', the mix's: parts that add up to the whole.

The regret of a plan is looked at with a part of its new traffic as it was before (`monitor.swap`). A part's
share of the change is what its swap brings, averaged over the orders in which rate and lengths may have
changed (their Shapley values). The mix, which no summary holds, changes first: its share is the regret of the
new traffic with the old rate and the old lengths, less the regret that the plan had. Prices change last. So

    regret now - regret then = mix + rate + length + cost
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ladder_opt.monitor.swap import with_batches_of, with_blocks_of, with_lengths_of
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.parts import PlanTraffic
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.rounds import Task
from ladder_opt.plan.traffic import summarize_traffic
from ladder_opt.trace.stream import traces_of

MOST_REQUESTS = 20_000_000
"""In memory at once, where a trace is a stream; 24 bytes each."""
MOST_TIMES_THE_RATE = 1e6
"""Between the plan's rate and the new one, for a replay at the other to mean anything."""


PART_NAMES = ("rate", "length", "mix", "cost")
SMALL_BASE = 0.1
"""An optimum below this share of another's is too small a base for shares of both to be added up."""
_FAR = 1.0  # of the regret: parts beyond it are odd enough to look at their bases
_CANCEL, _NOTICEABLE = 10.0, 0.02


@dataclass(frozen=True, kw_only=True)
class Regret:
    """A plan above the optimum on some traffic.

    Attributes:
        share: of the optimum.
        seconds: the same in seconds.
        optimum_seconds: what the best ladders cost there.
    """

    share: float
    seconds: float
    optimum_seconds: float


@dataclass(frozen=True, kw_only=True)
class PartSeconds:
    """The same parts of the seconds above the optimum; they add up to `now - then`.

    Attributes:
        then: of the plan's regret on its own traffic, 0 where it was the best there.
        now: seconds above the optimum on the new traffic under the new prices.
        mix: as in `Parts`.
        rate: likewise.
        length: likewise.
        cost: likewise.
    """

    then: float
    now: float
    mix: float
    rate: float
    length: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Shares of the change in regret (a regret of 5 % is 0.05); they add up to `now - then`.

    Attributes:
        then: the plan's regret on its own traffic; None where the plan does not say, and `mix` holds it too.
        now: on the new traffic under the new prices.
        mix: what is neither rate nor lengths: bursts, their order, which lengths come together.
        rate: how often requests come; of histograms, how many sequences decode together.
        length: how long prompts and outputs are; of histograms, how many blocks the longest has.
        cost: prices; 0 where they are the plan's.
        of_steps: whether they are told from histograms.
        seconds: the same in seconds.
        is_small_base: whether the shares say little: on some of the traffic that was tried the best ladders
            cost next to nothing beside the rest.
    """

    then: float | None
    now: float
    mix: float
    rate: float
    length: float
    cost: float
    of_steps: bool
    seconds: PartSeconds
    is_small_base: bool

    @property
    def against(self) -> tuple[str, str] | None:
        """The parts that pull the most up and down, where they nearly cancel."""
        of = self.seconds if self.is_small_base else self
        named = {name: getattr(of, name) for name in PART_NAMES}
        moved = sum(abs(value) for value in named.values())
        least = 0.0 if self.is_small_base else _NOTICEABLE
        if moved < max(least, _CANCEL * abs(of.now - (of.then or 0.0))):
            return None
        up, down = max(named, key=lambda name: named[name]), min(named, key=lambda name: named[name])
        return (up, down) if named[up] > 0 > named[down] else None

    @property
    def largest(self) -> str | None:
        """The part that brought the most regret; None where none brought any."""
        of = self.seconds if self.is_small_base else self
        named = {name: getattr(of, name) for name in PART_NAMES}
        best = max(named, key=lambda name: named[name])
        return best if named[best] > 0 else None


Swap = Callable[[bool, bool], Task]
"""A task on the new traffic with (old rate, old lengths)."""


def split_regret(
    swap: Swap,
    regret_of: Callable[[Task], Regret],
    *,
    then: float | None,
    before_cost: Regret,
    now: Regret,
    of_steps: bool,
) -> Parts:
    """The parts of a change in regret.

    Args:
        swap: makes the traffic that never was.
        regret_of: a plan's regret on a task.
        then: as `Parts`.
        before_cost: the regret on the new traffic under the plan's prices.
        now: under the new ones.
        of_steps: as `Parts`.
    """
    tried = {
        "old": regret_of(swap(True, True)),
        "only_rate": regret_of(swap(False, True)),
        "only_length": regret_of(swap(True, False)),
        "before_cost": before_cost,
        "now": now,
    }
    shares = _split({name: each.share for name, each in tried.items()}, then=then or 0.0)
    seconds = _split({name: each.seconds for name, each in tried.items()}, then=0.0)
    optima = [each.optimum_seconds for each in tried.values()]
    is_far = max(abs(value) for value in shares.values()) > _FAR
    return Parts(
        then=then,
        now=now.share,
        **shares,
        of_steps=of_steps,
        seconds=PartSeconds(then=0.0, now=now.seconds, **seconds),
        is_small_base=is_far and min(optima) < SMALL_BASE * max(optima),
    )


def _split(value: Mapping[str, float], *, then: float) -> dict[str, float]:
    """Rate and length by their Shapley values; what came before them is the mix, what comes after, prices."""
    old, only_rate, only_length = value["old"], value["only_rate"], value["only_length"]
    return {
        "mix": old - then,
        "rate": ((only_rate - old) + (value["before_cost"] - only_length)) / 2,
        "length": ((only_length - old) + (value["before_cost"] - only_rate)) / 2,
        "cost": value["now"] - value["before_cost"],
    }


def swap_of(plan: Plan, task: Task) -> tuple[Swap | None, str | None]:
    """How to swap parts of a task's traffic for the plan's; or None, and why that cannot be told."""
    if isinstance(task.source, StepHistogram):
        return _swap_steps(plan, task, task.source)
    then = plan.provenance.traffic
    if then is None:
        return None, (
            "what changed is not told apart: the plan holds no rate and lengths of its traffic "
            f"(made by ladder-opt {plan.provenance.version}, or from a histogram)"
        )
    traces = traces_of(task.source)  # type: ignore[arg-type]  # a drift has traces or a histogram
    if sum(len(trace) for trace in traces) > MOST_REQUESTS:
        return None, f"what changed is not told apart for more than {MOST_REQUESTS:,} requests"
    whole = [trace.whole() for trace in traces]
    summary = summarize_traffic(whole, task.engine, task.replay_options)
    if summary is None:
        return None, "what changed is not told apart: no request fits the engine"
    now = PlanTraffic.model_validate(summary)
    rates = then.requests_per_second, now.requests_per_second
    scale = rates[0] / rates[1] if rates[0] and rates[1] else 1.0
    if not 1 / MOST_TIMES_THE_RATE < scale < MOST_TIMES_THE_RATE:
        return None, (
            f"what changed is not told apart: {rates[1]:g} requests/s is nowhere near the plan's {rates[0]:g}"
        )
    moved: dict[bool, Sequence[Any]] = {False: whole}

    def swap(old_rate: bool, old_lengths: bool) -> Task:
        if old_lengths and True not in moved:
            moved[True] = with_lengths_of(whole, now, then, task.engine)
        options = task.replay_options
        if old_rate:
            options = replace(options, rate_scale=options.rate_scale * scale)
        return replace(task, source=moved[old_lengths], replay_options=options)

    note = None if all(rates) else "rate: a closed loop has none, so that its part is 0"
    return swap, note


def _swap_steps(plan: Plan, task: Task, now: StepHistogram) -> tuple[Swap | None, str | None]:
    then = plan.to_steps()
    if then is None:
        return None, "what changed is not told apart: the plan does not hold the steps that it was made from"

    def swap(old_rate: bool, old_lengths: bool) -> Task:
        steps = with_batches_of(now, then, task.engine) if old_rate else now
        return replace(task, source=with_blocks_of(steps, then, task.engine) if old_lengths else steps)

    return swap, None
