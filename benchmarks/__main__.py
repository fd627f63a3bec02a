"""All that is worth watching, in one command and one table; against an earlier run it can fail.

    python -m benchmarks --json now.json
    python -m benchmarks --compare earlier.json

Every figure is a ratio of two things measured side by side in this run (or a share, or megabytes), so that
runs on machines of different speed can be compared: solves beside alternating one-axis solves in numpy, the
replay beside its plain twin and vLLM's Scheduler, a whole `ladder-opt tune` beside a process that only
imports numpy, pandas and scipy, a plan's overpay beside that of each pair of ladders, at its warm-up.

With `--compare`, a figure that is worse than the earlier one by more than its noise ends the run with 1. A
figure's noise is what `NOISE` allows its kind, and no less than what its repeats scattered in either run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from benchmarks import common

Better = Literal["lower", "higher"]

NOISE: Final = {"time": 0.25, "rate": 0.25, "memory": 0.08, "exact": 1e-6}
"""Relative change that means nothing, by kind of figure: cores shared with others move times so much."""
REPEATS: Final = 5
SOLVER_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Figure:
    """One number worth watching.

    Attributes:
        name: what it is, the same in every run.
        value: a ratio, a share, or what `unit` says.
        better: which way is better.
        kind: of `NOISE`.
        unit: "" for ratios and shares.
        scatter: relative spread of its repeats.
    """

    name: str
    value: float
    better: Better
    kind: str
    unit: str = ""
    scatter: float = 0.0

    def noise(self, earlier: Figure | None = None) -> float:
        """The relative change that means nothing."""
        return max(NOISE[self.kind], self.scatter, earlier.scatter if earlier else 0.0)

    def change(self, earlier: Figure) -> float:
        """How much worse than an earlier one, as a share of it; below 0: better."""
        if earlier.value == 0:
            return 0.0 if self.value == 0 else float(np.inf if self.better == "lower" else -np.inf)
        ratio = self.value / earlier.value
        return ratio - 1 if self.better == "lower" else 1 - ratio


def timed(name: str, times: Sequence[float], beside: Sequence[float]) -> Figure:
    """The ratio of times taken in turns: the median of the turns' own ratios, and how they scatter."""
    ratios = [one / other for one, other in zip(times, beside, strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return Figure(name, middle, "lower", "time", scatter=(high - low) / middle)


def solver_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Gaps, and seconds beside alternation, over sizes."""
    from benchmarks import solver
    from ladder_opt.cost.model import read_cost_model

    cost = read_cost_model()
    sizes = ("12x16", "32x64") if options.quick else ("32x64", "64x512", "256x1024")
    for size in sizes:
        repeats = 1 if size == "256x1024" else REPEATS
        for name, steps, engine in solver.histograms(size, options.shared, replayed=False):
            instance = solver.Instance(name, steps, engine, cost, 1.0, "none")
            seconds, beside = [], []
            gap = 0.0
            for _ in range(repeats):
                solved = solver.solve_all(
                    instance,
                    time_limit_seconds=SOLVER_SECONDS,
                    milp_seconds=0,
                    alternation=False,
                    in_child=False,
                )
                assert solved.ours is not None
                seconds.append(solved.ours.solve_seconds)
                if repeats > 1:
                    beside.append(solver.alternate(instance, starts=2).seconds)
                gap = max(0.0, solved.ours.gap)
            yield Figure(f"solver {size} {name}: gap", gap, "lower", "exact")
            if beside:
                yield timed(f"solver {size} {name}: seconds beside alternation", seconds, beside)


def replay_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Requests a second beside the plain twin's and vLLM's Scheduler's; differing steps end the run."""
    from benchmarks import replay_rate

    vllm = 0 if importlib.util.find_spec("vllm") is None else 200
    results = replay_rate.measure(
        common.read_traces(["sample"], options.shared),
        repeats=REPEATS,
        slow_repeats=3,
        plain_requests=300,
        vllm_requests=vllm,
    )
    for result in results:
        if result.steps_that_differ is None:
            continue
        if result.steps_that_differ:
            raise SystemExit(f"{result.contender}: {result.steps_that_differ} steps differ from simulate's")
        yield Figure(f"replay: times as fast as {result.contender}", result.ratio, "higher", "rate")


def plan_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Each trace's plan, at the warm-up of the default ladders and of each preset: overpay beside theirs."""
    from benchmarks.plans import CASES
    from ladder_opt.cost.model import read_cost_model
    from ladder_opt.engine import Engine
    from ladder_opt.occupancy.replay import simulate
    from ladder_opt.plan.baselines import price_baselines
    from ladder_opt.solve.api import solve_ladders
    from ladder_opt.solve.price import price_ladders
    from ladder_opt.solve.problem import Limits

    cost = read_cost_model()
    for case in CASES:
        path = common.trace_path(case.trace, options.shared)
        if path is None or (options.quick and case.trace != "sample"):
            continue
        trace = common.read_traces([case.trace], options.shared)[case.trace]
        engine = Engine(max_num_seqs=case.max_num_seqs, max_model_len=case.max_model_len)
        steps = simulate(trace, engine, cost, replicas=case.replicas).steps
        for name, theirs in price_baselines(steps, engine, cost, restarts=1.0):
            limits = Limits(max_compile_seconds=theirs.compile_seconds)
            found = solve_ladders(
                steps, engine, cost, restarts=1e-6, limits=limits, time_limit_seconds=SOLVER_SECONDS
            )
            ours = price_ladders(steps, engine, cost, found.ladders, restarts=1e-6)
            ratio = _overpay(ours) / _overpay(theirs) if _overpay(theirs) else 1.0
            yield Figure(f"plan {case.name}: overpay beside {name}, warm-up equal", ratio, "lower", "exact")


def _overpay(price: Any) -> float:
    return float(price.gathers.padded / price.gathers.ragged_floor - 1)


def process_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Import and cold start beside a process that imports numpy, pandas and scipy; peak memory."""
    from benchmarks.cold_start import run_command

    arguments = ["tune", str(common.SAMPLE), "--replicas", "80"]
    ways = {
        "three imports": [sys.executable, "-c", "import numpy, pandas, scipy.optimize"],
        "import ladder_opt": [sys.executable, "-c", "import ladder_opt"],
        "ladder-opt --version": [sys.executable, "-m", "ladder_opt", "--version"],
        "ladder-opt tune": [sys.executable, "-m", "ladder_opt", *arguments],
    }
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(Path(folder, "numba"))}
        log = Path(folder, "stderr.txt")
        first = run_command("first", ways["ladder-opt tune"], environment, stderr=log)
        runs = [
            {name: run_command(name, command, environment, stderr=log) for name, command in ways.items()}
            for _ in range(2 if options.quick else REPEATS)
        ]
    beside = [run["three imports"].cpu_seconds for run in runs]
    yield timed("first tune, nothing compiled: CPU beside three imports", [first.cpu_seconds], beside[:1])
    for name in list(ways)[1:]:
        yield timed(f"{name}: CPU beside three imports", [run[name].cpu_seconds for run in runs], beside)
    for name in ("import ladder_opt", "ladder-opt tune"):
        peak = statistics.median(run[name].peak_mib for run in runs)
        yield Figure(f"{name}: peak memory", peak, "lower", "memory", "MiB")


GROUPS: Final[dict[str, Callable[[argparse.Namespace], Iterable[Figure]]]] = {
    "process": process_figures,
    "replay": replay_figures,
    "plans": plan_figures,
    "solver": solver_figures,
}


def read_figures(path: Path) -> dict[str, Figure]:
    """The figures of an earlier run, by name.

    Raises:
        ValueError: the file holds none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {entry["name"]: Figure(**entry) for entry in data["results"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path}: found {type(error).__name__} ({error}), expected what --json wrote"
        raise ValueError(msg) from None


def regressions(now: Iterable[Figure], earlier: dict[str, Figure]) -> list[str]:
    """A line for each figure that is worse by more than its noise."""
    found = []
    for figure in now:
        before = earlier.get(figure.name)
        if before is None:
            continue
        # An absolute doubt as well: a gap of a millionth is none, and zero has no relative change.
        allowed = figure.noise(before) * abs(before.value) + (1e-6 if figure.kind == "exact" else 0.0)
        worse = figure.value - before.value if figure.better == "lower" else before.value - figure.value
        if worse > allowed:
            found.append(
                f"{figure.name}: found {figure.value:.4g}, earlier {before.value:.4g}, "
                f"noise {figure.noise(before):.0%}"
            )
    return found


def table(figures: Sequence[Figure], earlier: dict[str, Figure]) -> str:
    """The printed table."""
    rows = []
    for figure in figures:
        before = earlier.get(figure.name)
        row = {"figure": figure.name, "now": f"{figure.value:.4g}{figure.unit and ' ' + figure.unit}"}
        row["better"] = figure.better
        if earlier:
            row["earlier"] = "-" if before is None else f"{before.value:.4g}"
            row["worse by"] = "-" if before is None else f"{figure.change(before):+.1%}"
        row["noise"] = f"{figure.noise(before):.2g}"
        rows.append(row)
    return common.text_table(rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, compare; 1 where a figure is worse than earlier by more than its noise."""
    parser = common.parser("", __doc__)
    parser.prog = "python -m benchmarks"
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="groups [all]")
    parser.add_argument("--quick", action="store_true", help="small sizes and the bundled sample alone")
    parser.add_argument("--compare", type=Path, metavar="OLD", help="figures of an earlier run")
    options = parser.parse_args(arguments)
    earlier: dict[str, Figure] = {}
    if options.compare is not None:
        try:
            earlier = read_figures(options.compare)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    figures: list[Figure] = []
    for name in options.only:
        began = time.perf_counter()
        figures += GROUPS[name](options)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(common.machine_line())
    print(table(figures, earlier))
    common.write_json(options.json, "all", [asdict(each) for each in figures])
    worse = regressions(figures, earlier)
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
