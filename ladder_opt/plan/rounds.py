"""Replay and solve, again and again, until the ladders stand still.

The step time that a replay needs depends on the ladders, and the ladders on the replay. The first round
replays with the default ladders, each later one with those just solved for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import Replay, simulate
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.result import SolveResult, relative_gap
from ladder_opt.trace.stream import AnyTrace

MAX_ROUNDS = 12

Source = StepHistogram | Replay | AnyTrace | Sequence[AnyTrace]
Progress = Callable[[str, float], None]
"""Called with what is being done ("replay" or "solve") and the share of it done (a solve: its gap)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Traffic, an engine, prices: what a plan is made for.

    Attributes:
        source: a histogram, a replay, or traces.
        engine: the limits.
        cost: prices.
        options: what the plan is asked to be.
        replay_options: how traces are replayed.
        progress: told what is being done.
    """

    source: Source
    engine: Engine
    cost: CostModel
    options: SolveOptions
    replay_options: ReplayOptions
    progress: Progress | None = None

    @classmethod
    def of(
        cls,
        source: Source,
        *,
        cost: CostModel | None,
        engine: Engine | None,
        options: SolveOptions | None,
        replay_options: ReplayOptions | None,
        progress: Progress | None,
    ) -> Task:
        """A task in which None stands for the default."""
        return cls(
            source=source,
            engine=engine or Engine(),
            cost=cost or read_cost_model(),
            options=options or SolveOptions(),
            replay_options=replay_options or ReplayOptions(),
            progress=progress,
        )

    @property
    def replays_traces(self) -> bool:
        """Whether the steps depend on the ladders."""
        return not isinstance(self.source, StepHistogram | Replay)

    @property
    def solves(self) -> bool:
        """Whether there is any ladder to choose."""
        return self.engine.batches_decodes or self.options.target == "spyre-env"

    def steps_with(self, ladders: Ladders) -> tuple[StepHistogram, Replay | None]:
        """The steps of the traffic on a server with these ladders."""
        if isinstance(self.source, StepHistogram):
            return self.source, None
        if isinstance(self.source, Replay):
            return self.source.all_steps, self.source
        progress = self.progress
        replay = simulate(
            self.source,
            self.engine,
            self.cost,
            ladders=ladders,
            concurrency=self.replay_options.concurrency,
            rate_scale=self.replay_options.rate_scale,
            replicas=self.replay_options.replicas,
            weights=self.replay_options.weights,
            scheduling=self.replay_options.scheduling,
            executor=self.replay_options.executor,
            per_sequence=self.options.target == "spyre-env",
            progress=None if progress is None else lambda share: progress("replay", share),
        )
        return replay.all_steps, replay

    def restarts(self, replay: Replay | None) -> float:
        """Server starts to charge."""
        return self.options.restarts_for(replay.server_seconds if replay else None)

    def solve(self, steps: StepHistogram, replay: Replay | None, pins: Ladders) -> SolveResult | None:
        """The best ladders for these steps; None where the engine batches nothing."""
        if not self.solves:
            return None
        progress = self.progress
        return solve_ladders(
            steps,
            self.engine,
            self.cost,
            restarts=self.restarts(replay),
            limits=self.options.limits(self.cost),
            pins=pins,
            target=self.options.target,
            structure=self.options.structure,
            time_limit_seconds=self.options.time_limit_seconds,
            progress=None
            if progress is None
            else lambda best, bound: progress("solve", relative_gap(best, bound)),
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One replay, and what was solved for on it.

    Attributes:
        replayed_with: the ladders that its step times are of.
        steps: the histogram.
        replay: the replay, where there was one.
        solved: the solve, where the engine batches anything.
        settled: whether its ladders are those it was replayed with.
        rounds: how many rounds were run.
    """

    replayed_with: Ladders
    steps: StepHistogram
    replay: Replay | None
    solved: SolveResult | None
    settled: bool
    rounds: int

    @property
    def rank(self) -> float:
        """What the best round is least in: what its ladders cost on its steps."""
        return self.solved.objective_seconds if self.solved else 0.0


AnyRound = TypeVar("AnyRound", bound=Round)


def settle(task: Task, pins: Ladders) -> Round:
    """Run rounds until the ladders stand still; if they come round, or never do, the cheapest stands."""

    def play(ladders: Ladders) -> Round:
        steps, replay = task.steps_with(ladders)
        steps.check_limits(task.engine)
        solved = task.solve(steps, replay, pins)
        return Round(
            replayed_with=ladders, steps=steps, replay=replay, solved=solved, settled=False, rounds=0
        )

    return run_rounds(task, play)


def run_rounds(task: Task, play: Callable[[Ladders], AnyRound]) -> AnyRound:
    """Play rounds, each with the ladders that the one before solved for; see `settle`."""
    ladders = default_ladders(task.engine)
    rounds: list[AnyRound] = []
    while True:
        this = play(ladders)
        solved = this.solved
        settled = solved is None or not task.replays_traces or solved.ladders == ladders
        this = replace(this, settled=settled, rounds=len(rounds) + 1)
        rounds.append(this)
        if solved is None or settled:
            return this
        seen = [each.replayed_with for each in rounds]
        if solved.ladders in seen or len(rounds) == MAX_ROUNDS:
            cycle = rounds[seen.index(solved.ladders) :] if solved.ladders in seen else rounds
            return replace(min(cycle, key=lambda each: each.rank), rounds=len(rounds))
        ladders = solved.ladders
