"""What the solver proves, how fast, and what weaker methods find on the same instances.

Instances are synthetic histograms (seeded: a smooth peak, and scattered cells) and replayed traces, at sizes
given as max_num_seqs x num_blocks. Limits: none, as many variants as the default ladders have, or their
warm-up in seconds. Beside each solve:

* alternation: the best num_blocks ladder for a num_seqs ladder, the best num_seqs ladder for that, and so
  on until nothing changes, from 10 starts (each half exact; only without limits). "Above" is how far its
  best and its middle start end above our ladders.
* HiGHS on the mixed-integer programme of `benchmarks/milp.py`, where that is small enough.

Each of our solves runs in a process of its own and is ended some seconds after its time limit.

`--targets` gives each instance the time, and holds it to the gap, that TARGETS sets for its size; without
limits, unless `--limits` asks, and only without limits a miss counts.

Exit code 1: a target is missed, HiGHS proves another optimum, anything beats a proven optimum or our bound,
or a solve had to be ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.milp import MilpResult, count_products, solve_milp
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.problem import Limits, build_problem
from ladder_opt.solve.result import SolveResult, Status

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BLOCK_SIZE: Final = 128
SIZES: Final = ("10x8", "12x16", "32x64", "64x512", "256x1024")
KERNELS: Final = ("chunked", "per_block")
LIMITS: Final = ("none", "variants", "warm-up")
STARTS: Final = 10
MILP_PRODUCTS: Final = 10_000
LIMITED_CELLS: Final = 64 * 512  # larger sizes are solved without limits only, unless --limits asks
SEED: Final = 7
DISAGREEMENT: Final = 1e-6
ROUNDING: Final = 2e-9
TARGETS: Final = {"32x64": (5.0, 0.0), "64x512": (10.0, 0.0005), "256x1024": (30.0, 0.002)}
"""By size: seconds of the solve, and the gap to be reached in them (0: proven)."""
TARGET_STARTS: Final = (0.01, 1.0, 10.0)
GRACE_SECONDS: Final = 3.0  # past its time limit, before a solve is ended


@dataclass(frozen=True)
class Instance:
    """A histogram on an engine under one kernel, one number of restarts and one limit."""

    histogram: str
    steps: StepHistogram
    engine: Engine
    cost: CostModel
    restarts: float
    limit: str

    def limits(self) -> Limits:
        """The limit in numbers: what the default ladders have."""
        if self.limit == "none":
            return Limits()
        default = price_ladders(
            self.steps, self.engine, self.cost, default_ladders(self.engine), restarts=self.restarts
        )
        if self.limit == "variants":
            return Limits(max_variants=default.num_variants)
        return Limits(max_compile_seconds=default.compile_seconds)


@dataclass(frozen=True)
class Alternated:
    """What alternation ended on, start by start."""

    objectives: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    instance: Instance
    candidates: tuple[int, int]
    ours: SolveResult | None  # None: ended, past its time limit
    alternated: Alternated | None
    milp: MilpResult | None
    target_gap: float | None = None  # None: none is set

    def missed(self) -> list[str]:
        """The target, where it is not reached."""
        if self.target_gap is None or self.ours is None:
            return []
        if self.ours.status is Status.OPTIMAL or 0 < self.ours.gap <= self.target_gap:
            return []
        name = " ".join(label(self.instance).values())
        return [f"{name}: gap {self.ours.gap:.3%}, target {self.target_gap:.3%}"]

    def disagreements(self) -> list[str]:
        """What cannot be if all of it is right."""
        ours = self.ours
        name = " ".join(label(self.instance).values())
        if ours is None:
            return [f"{name}: no result {GRACE_SECONDS:g} s after its time limit"]
        proven = ours.status is Status.OPTIMAL
        found = []
        witnesses: dict[str, float] = {}
        if self.alternated is not None:
            witnesses["alternation"] = min(self.alternated.objectives)
        if self.milp is not None:
            witnesses["HiGHS"] = self.milp.objective_seconds
            off = self.milp.objective_seconds / ours.objective_seconds - 1 if ours.objective_seconds else 0.0
            if self.milp.proven and proven and abs(off) > DISAGREEMENT:
                found.append(f"{name}: HiGHS proves an optimum that is {off:+.3e} from ours")
            if self.milp.lower_bound_seconds > ours.objective_seconds * (1 + DISAGREEMENT):
                found.append(f"{name}: HiGHS's bound is above our ladders")
        for witness, objective in witnesses.items():
            if objective < ours.lower_bound_seconds * (1 - ROUNDING):
                found.append(
                    f"{name}: {witness} found {objective!r} s, below our bound {ours.lower_bound_seconds!r} s"
                )
        return found


def synthetic(kind: str, engine: Engine, rng: np.random.Generator) -> StepHistogram:
    """A made-up histogram.

    Args:
        kind: "peak", a smooth hump of 200,000 steps drawn one by one; or "scatter", a twentieth of all
            cells (at least 12) with weights spread over orders of magnitude.
        engine: whose limits it fills.
        rng: seeded.
    """
    top_seqs, top_blocks = engine.max_num_seqs, engine.max_num_blocks
    if kind == "peak":
        seqs = np.clip(np.rint(rng.normal(0.6 * top_seqs, 0.2 * top_seqs, 200_000)), 1, top_seqs)
        blocks = np.clip(np.rint(rng.gamma(4.0, top_blocks / 14, 200_000)) + 1, 1, top_blocks)
        return StepHistogram(seqs.astype(np.int64), blocks.astype(np.int64), np.ones(len(seqs)))
    cells = max(12, top_seqs * top_blocks // 20)
    return StepHistogram(
        rng.integers(engine.min_batched_seqs, top_seqs + 1, cells),
        rng.integers(1, top_blocks + 1, cells),
        np.exp(rng.normal(4.0, 2.0, cells)),
    )


def histograms(
    size: str, shared: Path, *, replayed: bool = True
) -> Iterator[tuple[str, StepHistogram, Engine]]:
    """The histograms of a size: two synthetic ones, and a replayed trace where the engine is large enough."""
    seqs, _, blocks = size.partition("x")
    engine = Engine(max_num_seqs=int(seqs), max_model_len=int(blocks) * BLOCK_SIZE, block_size=BLOCK_SIZE)
    for kind in ("peak", "scatter"):
        yield kind, synthetic(kind, engine, np.random.default_rng([SEED, int(seqs), int(blocks)])), engine
    if replayed and engine.max_model_len >= 8192:
        name = "azure-conv" if engine.max_model_len < 65536 else "mooncake"
        for found, trace in common.read_traces([name], shared).items():
            replay = simulate(trace, engine, read_cost_model(), replicas=8)
            yield f"{found} / 8", replay.steps, engine


def solve_all(
    instance: Instance,
    *,
    time_limit_seconds: float,
    milp_seconds: float,
    alternation: bool = True,
    in_child: bool = True,
) -> Outcome:
    """One instance, every method that it is small enough for; our solve in a process of its own or not."""
    limits = instance.limits()
    problem = build_problem(
        instance.steps, instance.engine, instance.cost, restarts=instance.restarts, limits=limits
    )
    solve = _solve_in_child if in_child else _solve
    ours = solve(instance, limits, time_limit_seconds)
    milp = None
    if milp_seconds and count_products(instance.engine) <= MILP_PRODUCTS:
        milp = solve_milp(
            instance.steps,
            instance.engine,
            instance.cost,
            restarts=instance.restarts,
            max_variants=limits.max_variants,
            max_compile_seconds=limits.max_compile_seconds,
            time_limit_seconds=milp_seconds,
        )
    alternated = alternate(instance) if alternation and instance.limit == "none" else None
    return Outcome(instance, problem.shape, ours, alternated, milp)


def _solve_in_child(instance: Instance, limits: Limits, time_limit_seconds: float) -> SolveResult | None:
    """Our solver's result; None if it has to be ended. Its process starts with everything loaded."""
    # Forking keeps the compiled loops; where it is not to be had, a limit that is ignored goes unpunished.
    if "fork" not in multiprocessing.get_all_start_methods():
        return _solve(instance, limits, time_limit_seconds)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=lambda: sender.send(_solve(instance, limits, time_limit_seconds)), daemon=True
    )
    child.start()
    sender.close()
    try:
        if not receiver.poll(time_limit_seconds + GRACE_SECONDS):
            child.kill()
            return None
        result: SolveResult = receiver.recv()
        return result
    finally:
        child.join()
        receiver.close()


def _solve(instance: Instance, limits: Limits, time_limit_seconds: float) -> SolveResult:
    return solve_ladders(
        instance.steps,
        instance.engine,
        instance.cost,
        restarts=instance.restarts,
        limits=limits,
        time_limit_seconds=time_limit_seconds,
    )


def alternate(instance: Instance, starts: int = STARTS) -> Alternated:
    """Alternating exact one-axis solves from several starts; plain numpy, no reductions, no solver code."""
    started = time.perf_counter()
    engine, cost = instance.engine, instance.cost
    rungs = np.arange(engine.min_batched_seqs, engine.max_num_seqs + 1)
    blocks = np.arange(1, engine.max_num_blocks + 1)
    grid = (rungs[:, None], blocks[None, :])
    weights = np.zeros((engine.max_num_seqs + 1, engine.max_num_blocks + 1))
    batched = instance.steps.num_seqs >= engine.min_batched_seqs
    np.add.at(
        weights,
        (instance.steps.num_seqs[batched], instance.steps.num_blocks[batched]),
        instance.steps.steps[batched],
    )
    below = weights.cumsum(axis=0).cumsum(axis=1)[engine.min_batched_seqs - 1 :]
    step = cost.batched_step_seconds(*grid)
    price = instance.restarts * cost.variant_compile_seconds(*grid)
    variant = cost.geometry.variant_key(*grid)
    objectives = []
    for rows in _starts(len(rungs), starts):
        last = np.inf
        while True:
            columns = _best_columns(rows, below, step, price, variant)
            rows = _best_rows(columns, below, step, price, variant)  # noqa: PLW2901
            ladders = Ladders(tuple(rungs[rows].tolist()), tuple(blocks[columns].tolist()))
            now = price_ladders(
                instance.steps, engine, cost, ladders, restarts=instance.restarts
            ).objective_seconds
            if now >= last * (1 - 1e-12):
                break
            last = now
        objectives.append(last)
    return Alternated(tuple(objectives), time.perf_counter() - started)


def _starts(rows: int, count: int) -> list[Integers]:
    """The top alone, every size, powers of two from the default ladders, then random ones."""
    top = rows - 1
    rng = np.random.default_rng(SEED)
    powers = {2**power - 4 for power in range(2, 12) if 2**power - 4 < top} | {top}
    starts = [np.array([top]), np.arange(rows), np.array(sorted(powers))]
    while len(starts) < count:
        share = rng.uniform(0.02, 0.6)
        starts.append(np.union1d(np.flatnonzero(rng.random(rows) < share), [top]))
    return starts


def _best_columns(rows: Integers, below: Floats, step: Floats, price: Floats, variant: Integers) -> Integers:
    """Shortest path over num_blocks positions, the num_seqs rungs given."""
    columns = step.shape[1]
    steps_up_to = np.diff(below[np.r_[0, rows + 1]], axis=0)  # [k, c]: steps padded to rung k, blocks <= c
    taken_off = steps_up_to.T @ step[rows]  # [a, c]
    in_full = (steps_up_to[:, 1:] * step[rows]).sum(axis=0)

    def cost_of(high: int) -> Floats:
        """Of a step to `high` from each lower position."""
        opens = np.ones((len(rows), high))
        opens[:, 1:] = variant[rows, : high - 1] != variant[rows, high - 1 : high]
        return np.asarray(in_full[high - 1] - taken_off[:high, high - 1] + price[rows, high - 1] @ opens)

    return _shortest_path(columns, cost_of)


def _best_rows(columns: Integers, below: Floats, step: Floats, price: Floats, variant: Integers) -> Integers:
    """Shortest path over num_seqs positions, the num_blocks rungs given."""
    steps_up_to = np.diff(below[:, np.r_[0, columns + 1]], axis=1)  # [j, k]: n <= j, padded to rung k
    opens = np.ones((len(step), len(columns)))
    opens[:, 1:] = variant[:, columns[:-1]] != variant[:, columns[1:]]
    compiles = (price[:, columns] * opens).sum(axis=1)

    def cost_of(high: int) -> Floats:
        """Of a step to `high` from each lower position."""
        inside = steps_up_to[high] - steps_up_to[:high]
        return np.asarray(inside @ step[high - 1, columns] + compiles[high - 1])

    return _shortest_path(len(step), cost_of)


def _shortest_path(size: int, cost_of: Callable[[int], Floats]) -> Integers:
    best = np.zeros(size + 1)
    came_from = np.zeros(size + 1, np.int64)
    for high in range(1, size + 1):
        reached = best[:high] + cost_of(high)
        came_from[high] = reached.argmin()
        best[high] = reached[came_from[high]]
    path = []
    at = size
    while at:
        path.append(at - 1)
        at = int(came_from[at])
    return np.array(path[::-1], np.int64)


def label(instance: Instance) -> dict[str, str]:
    """The columns that name an instance."""
    return {
        "histogram": instance.histogram,
        "size": f"{instance.engine.max_num_seqs}x{instance.engine.max_num_blocks}",
        "kernel": instance.cost.kernel,
        "starts": f"{instance.restarts:g}",
        "limit": instance.limit,
    }


def row(outcome: Outcome) -> dict[str, object]:
    """One line of the printed table."""
    ours = outcome.ours
    named = {
        **label(outcome.instance),
        "candidates": f"{outcome.candidates[0]}x{outcome.candidates[1]}",
    }
    if ours is None:
        return {**named, "status": "ended"}
    alternated, milp = outcome.alternated, outcome.milp
    objective = ours.objective_seconds or 1.0
    above = [] if alternated is None else [value / objective - 1 for value in alternated.objectives]
    return {
        **named,
        "ladders": f"{len(ours.ladders.num_seqs)}x{len(ours.ladders.num_blocks)}",
        "status": str(ours.status),
        "gap": f"{ours.gap:.3%}",
        "ragged gap": f"{1 - ours.ragged_bound_seconds / objective:.3%}",
        "nodes": f"{ours.nodes:,}",
        "relaxed": ours.bound_evaluations,
        "seconds": f"{ours.solve_seconds:.3f}",
        "alternation above, best": f"{round(min(above), 9) + 0.0:.3%}" if above else "-",
        "middle": f"{round(statistics.median(above), 9) + 0.0:.3%}" if above else "-",
        "its s": "-" if alternated is None else f"{alternated.seconds:.2f}",
        "HiGHS": "-" if milp is None else _milp_text(milp, objective),
        "HiGHS s": "-" if milp is None else f"{milp.seconds:.2f}",
    }


def _milp_text(milp: MilpResult, objective: float) -> str:
    off = milp.objective_seconds / objective - 1
    if milp.proven:
        return "equal" if abs(off) <= DISAGREEMENT else f"{off:+.2e}"
    return "nothing" if milp.ladders is None else f"no proof, {off:+.1%}"


def to_dict(outcome: Outcome) -> dict[str, object]:
    """For the JSON file."""
    ours = None if outcome.ours is None else asdict(outcome.ours) | {"gap": outcome.ours.gap}
    return {
        **label(outcome.instance),
        "candidates": outcome.candidates,
        "ours": ours,
        "alternation": None if outcome.alternated is None else asdict(outcome.alternated),
        "milp": None if outcome.milp is None else asdict(outcome.milp),
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = common.parser("solver", __doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=list(SIZES), metavar="SEQSxBLOCKS", help=f"[{' '.join(SIZES)}]"
    )
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), help="[both]")
    parser.add_argument(
        "--limits", nargs="+", choices=LIMITS, help="[all up to 64x512, none for what is larger]"
    )
    parser.add_argument(
        "--restarts", nargs="+", type=float, default=[1.0], metavar="STARTS", help="server starts charged [1]"
    )
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds for each of our solves [3]")
    parser.add_argument(
        "--targets",
        action="store_true",
        help=f"hold {', '.join(TARGETS)} to their targets, in their own time, starts {TARGET_STARTS}",
    )
    parser.add_argument(
        "--milp-seconds", type=float, default=5.0, help="seconds for each of HiGHS's; 0: not run [5]"
    )
    parser.add_argument("--no-alternation", action="store_true", help="leave alternation out")
    parser.add_argument("--no-traces", action="store_true", help="synthetic histograms only")
    options = parser.parse_args(arguments)
    if options.targets:
        options.sizes = [size for size in options.sizes if size in TARGETS]
        options.limits = options.limits or ["none"]
        if options.restarts == [1.0]:
            options.restarts = list(TARGET_STARTS)
    for size in options.sizes:
        seqs, _, blocks = size.partition("x")
        if not (seqs.isdigit() and blocks.isdigit() and int(seqs) >= 4 and int(blocks) >= 1):
            parser.error(f"--sizes: found {size!r}, expected such as 32x64, from 4x1 on")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Solve everything, print the table, judge."""
    options = _options(arguments)
    cost = read_cost_model()
    for kernel in KERNELS:  # loads what was compiled, so that the first row does not pay for it
        _warm_up(cost.with_kernel(kernel))
    outcomes: list[Outcome] = []
    for size in options.sizes:
        for name, steps, engine in histograms(size, options.shared, replayed=not options.no_traces):
            for kernel in options.kernels:
                for restarts in options.restarts:
                    for limit in options.limits or _default_limits(engine):
                        instance = Instance(name, steps, engine, cost.with_kernel(kernel), restarts, limit)
                        seconds, gap = options.time_limit, None
                        if options.targets:
                            seconds, gap = TARGETS[size]
                        outcome = solve_all(
                            instance,
                            time_limit_seconds=seconds,
                            milp_seconds=options.milp_seconds,
                            alternation=not options.no_alternation,
                        )
                        if limit == "none":
                            outcome = replace(outcome, target_gap=gap)
                        outcomes.append(outcome)
                        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(common.machine_line())
    print(table(outcomes))
    common.write_json(options.json, "solver", [to_dict(outcome) for outcome in outcomes])
    problems = [problem for outcome in outcomes for problem in outcome.disagreements()]
    missed = [miss for outcome in outcomes for miss in outcome.missed()]
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    proven = sum(outcome.ours is not None and outcome.ours.status is Status.OPTIMAL for outcome in outcomes)
    print(
        f"{proven} of {len(outcomes)} proven within "
        + ("the targets' time; " if options.targets else f"{options.time_limit:g} s; ")
        + f"{len(problems)} disagreements; {len(missed)} targets missed"
    )
    return 1 if problems or missed else 0


def table(outcomes: Sequence[Outcome]) -> str:
    """The printed table."""
    return common.text_table([row(outcome) for outcome in outcomes])


def _default_limits(engine: Engine) -> tuple[str, ...]:
    return LIMITS if engine.max_num_seqs * engine.max_num_blocks <= LIMITED_CELLS else LIMITS[:1]


def _warm_up(cost: CostModel) -> None:
    engine = Engine(max_num_seqs=10, max_model_len=8 * BLOCK_SIZE)
    steps = synthetic("peak", engine, np.random.default_rng(SEED))
    for limit in LIMITS:
        instance = Instance("warm-up", steps, engine, cost, 1.0, limit)
        _solve(instance, instance.limits(), 5.0)


if __name__ == "__main__":
    sys.exit(main())
