"""The least worst regret over several workloads: what is proven, how fast, and what other plans would give.

Workloads are synthetic histograms (seeded: smooth peaks in different corners, and scattered cells) and
replayed traces, at sizes given as max_num_seqs x max_num_blocks. Limits: none, or as many variants as the
default ladders have. Beside the robust ladders' worst regret stand those of the plan for the sum of the
workloads ("mix"), of each workload's own plan (the best of them), and of the default ladders. "Before
search" is the gap that weights and multipliers leave to the search, "alone" the time that the workloads' own
optima took, which is part of the whole.

Exit code 1: any of those other ladders, where they keep the limit, has a worst regret below the bound.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import common
from benchmarks.solver import BLOCK_SIZE, KERNELS, SEED, synthetic
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import distinct_variants, price_ladders
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import Status
from ladder_opt.solve.robust import RobustResult, Workload, solve_robust

SIZES: Final = ("32x64", "64x512")
LIMITS: Final = ("none", "variants")
REPLICAS: Final = 8
ROUNDING: Final = 1e-8
_MIX_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Instance:
    """Workloads on an engine under one kernel and one limit."""

    name: str
    workloads: tuple[Workload, ...]
    engine: Engine
    cost: CostModel
    limit: str

    def limits(self) -> Limits:
        """The limit in numbers."""
        if self.limit == "none":
            return Limits()
        return Limits(
            max_variants=distinct_variants(default_ladders(self.engine), self.engine, self.cost.geometry)
        )


@dataclass(frozen=True)
class Outcome:
    """One row of the table; None where other ladders were not found in time."""

    instance: Instance
    result: RobustResult
    mix: float | None
    own: float
    default: float

    def disagreements(self) -> list[str]:
        """Other ladders within the limit that are better than the bound allows."""
        others = {"the plan for the sum": self.mix, "a workload's own plan": self.own}
        others["the default"] = self.default
        return [
            f"{' '.join(label(self.instance).values())}: {name} has a worst regret of {regret!r}, "
            f"below the bound {self.result.lower_bound!r}"
            for name, regret in others.items()
            if regret is not None and regret < self.result.lower_bound - ROUNDING
        ]


def synthetic_workloads(engine: Engine, count: int) -> list[StepHistogram]:
    """Peaks that lie in corners of their own, and scattered cells, in turn."""
    found = []
    for k in range(count):
        rng = np.random.default_rng([SEED, engine.max_num_seqs, engine.max_num_blocks, k])
        if k % 2:
            found.append(synthetic("scatter", engine, rng))
            continue
        peak = synthetic("peak", engine, rng)
        seqs, blocks = rng.random(), 0.5 * rng.random()
        far = (peak.num_seqs / engine.max_num_seqs - seqs) ** 2 + (
            peak.num_blocks / engine.max_num_blocks - blocks
        ) ** 2
        found.append(StepHistogram(peak.num_seqs, peak.num_blocks, peak.steps * np.exp(-8 * far)))
    return found


def families(
    size: str, shared: Path, *, restarts: float, replayed: bool
) -> Iterator[tuple[str, tuple[Workload, ...], Engine]]:
    """The workloads of a size."""
    seqs, _, blocks = size.partition("x")
    engine = Engine(max_num_seqs=int(seqs), max_model_len=int(blocks) * BLOCK_SIZE, block_size=BLOCK_SIZE)
    for count in (2, 3):
        histograms = synthetic_workloads(engine, count)
        yield (
            f"{count} synthetic",
            tuple(Workload(steps=steps, restarts=restarts) for steps in histograms),
            engine,
        )
    if not replayed or engine.max_model_len < 8192:
        return
    traces = common.read_traces(["azure-conv", "mooncake", "sample"], shared)
    cost = read_cost_model()
    histograms = [simulate(trace, engine, cost, replicas=REPLICAS).steps for trace in traces.values()]
    yield (
        " + ".join(traces),
        tuple(Workload(steps=steps, restarts=restarts) for steps in histograms),
        engine,
    )


def solve_all(instance: Instance, *, time_limit_seconds: float) -> Outcome:
    """One instance, and what other ladders would give."""
    limits = instance.limits()
    result = solve_robust(
        instance.workloads,
        instance.engine,
        instance.cost,
        limits=limits,
        time_limit_seconds=time_limit_seconds,
    )

    def worst(ladders: Ladders) -> float:
        return max(
            regrets.regret_at(
                price_ladders(
                    each.steps, instance.engine, instance.cost, ladders, restarts=each.restarts
                ).objective_seconds
            )
            for regrets, each in zip(result.workloads, instance.workloads, strict=True)
        )

    mix: float | None = None
    with contextlib.suppress(SolveError):  # none found in time
        found = solve_ladders(
            StepHistogram.sum_of([each.steps for each in instance.workloads]),
            instance.engine,
            instance.cost,
            restarts=sum(each.restarts for each in instance.workloads),
            limits=limits,
            time_limit_seconds=_MIX_SECONDS,
        )
        mix = worst(found.ladders)
    own = min(worst(each.optimum.ladders) for each in result.workloads)
    return Outcome(instance, result, mix, own, worst(default_ladders(instance.engine)))


def label(instance: Instance) -> dict[str, str]:
    """The columns that name an instance."""
    return {
        "workloads": instance.name,
        "size": f"{instance.engine.max_num_seqs}x{instance.engine.max_num_blocks}",
        "kernel": instance.cost.kernel,
        "limit": instance.limit,
    }


def row(outcome: Outcome) -> dict[str, object]:
    """One line of the printed table."""
    result = outcome.result
    return {
        **label(outcome.instance),
        "ladders": f"{len(result.ladders.num_seqs)}x{len(result.ladders.num_blocks)}",
        "status": str(result.status),
        "worst regret": f"{result.worst_regret:.3%}",
        "gap": f"{result.gap:.3%}",
        "before search": f"{result.worst_regret - result.mixed_bound:.3%}",
        "mix": "-" if outcome.mix is None else f"{outcome.mix:.3%}",
        "own, best": f"{outcome.own:.3%}",
        "default": f"{outcome.default:.1%}",
        "alone s": f"{sum(each.optimum.solve_seconds for each in result.workloads):.2f}",
        "seconds": f"{result.solve_seconds:.2f}",
    }


def to_dict(outcome: Outcome) -> dict[str, object]:
    """For the JSON file."""
    return {
        **label(outcome.instance),
        "result": asdict(outcome.result) | {"gap": outcome.result.gap},
        "mix": outcome.mix,
        "own": outcome.own,
        "default": outcome.default,
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = common.parser("robust", __doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="SEQSxBLOCKS", help="[both]")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), help="[both]")
    parser.add_argument("--limits", nargs="+", choices=LIMITS, default=list(LIMITS), help="[both]")
    parser.add_argument("--restarts", type=float, default=1.0, help="server starts of each workload [1]")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve [30]")
    parser.add_argument("--no-traces", action="store_true", help="synthetic histograms only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Solve everything, print the table, judge."""
    options = _options(arguments)
    cost = read_cost_model()
    _warm_up(cost)
    outcomes: list[Outcome] = []
    for size in options.sizes:
        for name, workloads, engine in families(
            size, options.shared, restarts=options.restarts, replayed=not options.no_traces
        ):
            for kernel in options.kernels:
                for limit in options.limits:
                    instance = Instance(name, workloads, engine, cost.with_kernel(kernel), limit)
                    outcomes.append(solve_all(instance, time_limit_seconds=options.time_limit))
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(common.machine_line())
    print(table(outcomes))
    common.write_json(options.json, "robust", [to_dict(outcome) for outcome in outcomes])
    problems = [problem for outcome in outcomes for problem in outcome.disagreements()]
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    proven = sum(outcome.result.status is Status.OPTIMAL for outcome in outcomes)
    print(f"{proven} of {len(outcomes)} proven within {options.time_limit:g} s")
    return 1 if problems else 0


def table(outcomes: Sequence[Outcome]) -> str:
    """The printed table."""
    return common.text_table([row(outcome) for outcome in outcomes])


def _warm_up(cost: CostModel) -> None:
    """Loads what was compiled, so that the first row does not pay for it."""
    engine = Engine(max_num_seqs=10, max_model_len=8 * BLOCK_SIZE)
    workloads = tuple(Workload(steps=steps, restarts=1.0) for steps in synthetic_workloads(engine, 3))
    for limit in LIMITS:
        solve_all(Instance("warm-up", workloads, engine, cost, limit), time_limit_seconds=20.0)


if __name__ == "__main__":
    sys.exit(main())
