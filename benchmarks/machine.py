"""Does a cost model fitted to a few measured points predict what ladders do on this machine?

The batched decode kernel of a small model is measured here (`ladder-opt measure`) at `--points` rung pairs,
and a cost model fitted to them (`ladder-opt calibrate`). With it a trace is replayed and tuned; of the steps
of the replay, `--batches` are drawn. Then both ladders, the default ones and the plan, are taken up for real:

- their variants are compiled, in a process of its own with an empty cache as a server's start has it, and the
  seconds compared with the warm-up predicted;
- every batch is padded by the builder and run by the kernel, under either pair of ladders in turns, and the
  ratio of their seconds compared with the ratio predicted.

Seconds are CPU time of the one thread that computes, lower quartiles of `--rounds` calls: on a busy machine
the wall's scatter. Memory freed stays with the process, as in `ladder_opt/measurement/heap.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import common
from ladder_opt.bucketer import Bucketer
from ladder_opt.calibration.api import calibrate
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.measurement.api import Measurements, measure
from ladder_opt.measurement.heap import kept_heap
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.measurement.options import MeasureOptions
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import tune
from ladder_opt.trace.table import Trace

if TYPE_CHECKING:
    from ladder_opt.measurement.kernel_bench import BenchOptions
    from ladder_opt.reference.batch import BatchPadder
    from ladder_opt.reference.compiled import CompiledKernels

ENGINE: Final = Engine(block_size=64, max_num_seqs=8, max_model_len=2048, max_num_batched_tokens=256)
SHAPE: Final = ModelShape(num_query_heads=4, num_kv_heads=2, head_size=64, layers=2)
PAGE: Final = common.REPOSITORY / "docs" / "measure.md"
QUANTILE: Final = 0.25
CACHE_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"


@dataclass
class Contender:
    """One pair of ladders.

    Attributes:
        name: default or plan.
        bucketer: with the ladders.
        predicted_step_seconds: of the batches drawn, all of them.
        predicted_warmup_seconds: of its variants' compiles.
        step_seconds: measured, (rounds, batches).
        warmup_seconds: measured, of the clock in use.
        warmup_wall_seconds: the same on the wall.
    """

    name: str
    bucketer: Bucketer
    predicted_step_seconds: float = 0.0
    predicted_warmup_seconds: float = 0.0
    step_seconds: list[list[float]] = field(default_factory=list)
    warmup_seconds: float = 0.0
    warmup_wall_seconds: float = 0.0

    @property
    def measured_step_seconds(self) -> float:
        """Of the batches drawn, each by its lower quartile over rounds."""
        return float(np.quantile(np.array(self.step_seconds), QUANTILE, axis=0).sum())


@dataclass(frozen=True)
class Outcome:
    """What was predicted and measured.

    Attributes:
        contenders: default and plan.
        measurements: the rows.
        cost: fitted to them.
        warnings: of the measurement and the fit.
    """

    contenders: tuple[Contender, Contender]
    measurements: Measurements
    cost: CostModel
    warnings: tuple[str, ...]

    @property
    def ratio_predicted(self) -> float:
        """Seconds of the plan's steps over the default's."""
        default, plan = self.contenders
        return plan.predicted_step_seconds / default.predicted_step_seconds

    @property
    def ratio_measured(self) -> float:
        """The same, measured."""
        default, plan = self.contenders
        return plan.measured_step_seconds / default.measured_step_seconds

    @property
    def ratio_error(self) -> float:
        """Relative error of the ratio predicted."""
        return abs(self.ratio_predicted / self.ratio_measured - 1)

    @property
    def warmup_error(self) -> float:
        """Relative error of the warm-up predicted, the larger of the two ladders'."""
        return max(
            abs(each.predicted_warmup_seconds / each.warmup_seconds - 1) if each.warmup_seconds else 0.0
            for each in self.contenders
        )


def with_other_time(cost: CostModel, other_seconds: float) -> CostModel:
    """The model for the replay: a step's other work takes so long, under any ladders."""
    step = cost.step_seconds
    table = cost.step_table
    return cost.model_copy(
        update={
            "step_seconds": step.model_copy(update={"base": step.base + other_seconds}),
            "step_table": table and tuple((s, m, seconds + other_seconds) for s, m, seconds in table),
        }
    )


def draw_batches(steps: StepHistogram, count: int, seed: int) -> list[list[int]]:
    """KV lengths of batches, drawn by how often the replay had their sizes; the longest comes first."""
    rng = np.random.default_rng(seed)
    batched = steps.num_seqs >= ENGINE.min_batched_seqs
    weights = np.where(batched, steps.steps, 0.0)
    drawn = rng.choice(len(steps), count, p=weights / weights.sum())
    batches = []
    for cell in drawn:
        blocks = int(steps.num_blocks[cell])
        low, high = (
            (blocks - 1) * ENGINE.block_size + 1,
            min(blocks * ENGINE.block_size, ENGINE.max_model_len),
        )
        longest = int(rng.integers(low, high + 1))
        others = rng.integers(1, longest + 1, int(steps.num_seqs[cell]) - 1)
        batches.append([longest, *others.tolist()])
    return batches


def predict(contender: Contender, cost: CostModel, batches: Sequence[Sequence[int]]) -> None:
    """Fill in what the model says of the ladders."""
    pairs = []
    for lengths in batches:
        pair = contender.bucketer.dispatch(len(lengths), -(-lengths[0] // ENGINE.block_size))
        assert pair is not None, "a batch that is not batched was drawn"
        pairs.append(pair)
    seqs, blocks = np.array(pairs).T
    contender.predicted_step_seconds = float(cost.batched_step_seconds(seqs, blocks).sum())
    variants = contender.bucketer.batched_variants()
    contender.predicted_warmup_seconds = float(
        cost.variant_compile_seconds(
            [variant.num_seqs for variant in variants],
            [max(contender.bucketer.rungs_of(variant)) for variant in variants],
        ).sum()
    )


@dataclass(frozen=True)
class Warmed:
    """Ladders with their variants compiled.

    Attributes:
        padder: the builder.
        kernels: the variants.
        seconds: that it took, `cpu` and `wall`.
    """

    padder: BatchPadder
    kernels: CompiledKernels
    seconds: dict[str, float]


class Runner:
    """Runs batches under ladders on the kernels of one model."""

    def __init__(self, engine: Engine, shape: ModelShape, options: BenchOptions) -> None:
        import torch

        from ladder_opt.measurement.kernel_bench import KernelBench

        self.engine, self.options = engine, options
        self.bench = KernelBench(engine, shape, options)
        self.rng = torch.Generator().manual_seed(options.seed)

    def warm_up(self, contender: Contender) -> Warmed:
        """Compile all variants as a server does, and note the seconds."""
        from ladder_opt.measurement.kernel_bench import process_seconds
        from ladder_opt.reference.batch import BatchPadder
        from ladder_opt.reference.compiled import CompiledKernels
        from ladder_opt.reference.recorder import LayerCache, record

        padder, kernels = BatchPadder(contender.bucketer), CompiledKernels(compiler=self.options.compiler)
        wall, spent = time.perf_counter(), process_seconds()
        record(padder, kernels, {self.bench.layer: LayerCache(self.bench.pages[0], self.bench.dtype)})
        seconds = {"cpu": process_seconds() - spent, "wall": time.perf_counter() - wall}
        return Warmed(padder, kernels, seconds)

    def inputs(self, batches: Sequence[Sequence[int]]) -> list[tuple[Any, Any, Any]]:
        """For each batch its lengths, block table and query."""
        import torch

        made = []
        for lengths in batches:
            blocks = -(-max(lengths) // self.engine.block_size)
            table = torch.randint(
                1,
                len(self.bench.pages[0]),
                (len(lengths), blocks),
                generator=self.rng,
                dtype=torch.int32,
            )
            shape = (len(lengths), self.bench.layer.num_heads, self.bench.layer.head_size)
            query = torch.randn(shape, generator=self.rng).to(self.bench.dtype)
            made.append((torch.tensor(lengths, dtype=torch.int32), table, query))
        return made

    def step(self, warmed: Warmed, given: tuple[Any, Any, Any]) -> float:
        """CPU seconds of one step's attention: padded once, every layer run."""
        lengths, table, query = given
        began = time.thread_time()
        batch = warmed.padder.pad(table, lengths)
        assert batch is not None
        for pages in self.bench.pages:
            warmed.kernels.run(batch, self.bench.layer, query, pages)
        return time.thread_time() - began


@contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Inductor keeps what it compiles there."""
    from torch._inductor.utils import clear_caches  # what it remembers of another folder

    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    clear_caches()
    try:
        yield
    finally:
        os.environ.pop(CACHE_VARIABLE)
        if before is not None:
            os.environ[CACHE_VARIABLE] = before
        clear_caches()


def warm_up_alone(contender: Contender, options: BenchOptions, folder: Path) -> None:
    """Warm up in a process of its own with an empty cache, as a server starts; it stays in `folder`."""
    asked = {
        "num_seqs": contender.bucketer.ladders.num_seqs,
        "num_blocks": contender.bucketer.ladders.num_blocks,
        "kernel": contender.bucketer.kernel,
        "compiler": options.compiler,
        "seed": options.seed,
        "engine": ENGINE.to_dict(),
        "shape": SHAPE.to_dict(),
    }
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.machine", "--warm-up-alone", json.dumps(asked)],
        env=os.environ | {CACHE_VARIABLE: str(folder)},
        cwd=common.REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds = json.loads(ended.stdout)
    contender.warmup_seconds, contender.warmup_wall_seconds = seconds["cpu"], seconds["wall"]


def _warm_up_asked(text: str) -> int:
    """The other process's part."""
    import torch

    from ladder_opt.measurement.kernel_bench import compile_something

    asked = json.loads(text)
    engine, shape = Engine(**asked["engine"]), ModelShape(**asked["shape"])
    options = _bench_options(asked["compiler"], asked["seed"])
    torch.set_num_threads(options.threads)
    ladders = Ladders(tuple(asked["num_seqs"]), tuple(asked["num_blocks"]))
    contender = Contender("asked", common.bucketer_of(ladders, engine, asked["kernel"]))
    compile_something(options)
    print(json.dumps(Runner(engine, shape, options).warm_up(contender).seconds))
    return 0


def _bench_options(compiler: str, seed: int) -> BenchOptions:
    import torch

    from ladder_opt.measurement.kernel_bench import BenchOptions

    return BenchOptions(device=torch.device("cpu"), compiler=compiler, threads=1, clock="cpu", seed=seed)


def run(
    trace: Trace,
    folder: Path,
    *,
    options: MeasureOptions,
    batches: int,
    rounds: int,
    other_seconds: float,
    max_variants: int,
    table: Any = "auto",
    say: Any = print,
) -> Outcome:
    """Measure, fit, tune, and try both ladders."""
    import torch

    rows = folder / "measured.csv"
    measured = measure(rows, ENGINE, SHAPE, options=options)
    say(f"measured {len(measured.rows)} points")
    fitted = calibrate(rows, ENGINE, kernel=options.kernels[0], table=table)
    cost = fitted.cost
    timed = with_other_time(cost, other_seconds)
    solve = SolveOptions(max_variants=max_variants, restarts=0.0)
    plan = tune(trace, timed, engine=ENGINE, options=solve)
    say(f"plan: num_seqs {plan.ladders.num_seqs}, num_blocks {plan.ladders.num_blocks}")
    steps = simulate(trace, ENGINE, timed, ladders=plan.ladders).steps
    drawn = draw_batches(steps, batches, options.seed)
    contenders = (
        Contender("default", common.bucketer_of(default_ladders(ENGINE), ENGINE, cost.kernel)),
        Contender("plan", common.bucketer_of(plan.ladders, ENGINE, cost.kernel)),
    )
    bench_options = _bench_options(options.compiler, options.seed)
    torch.set_num_threads(bench_options.threads)
    runner, taken = Runner(ENGINE, SHAPE, bench_options), []
    for contender in contenders:
        predict(contender, cost, drawn)
        warm_up_alone(contender, bench_options, folder / contender.name)
        say(f"warmed up {contender.name}: {contender.warmup_seconds:.1f} s of CPU")
        with cache_folder(folder / contender.name):
            taken.append(runner.warm_up(contender))
    with kept_heap():
        _turns(runner, contenders, taken, runner.inputs(drawn), rounds=rounds, seed=options.seed)
    return Outcome(contenders, measured, cost, (*measured.warnings, *fitted.warnings))


def _turns(
    runner: Runner,
    contenders: Sequence[Contender],
    taken: Sequence[Warmed],
    given: Sequence[tuple[Any, Any, Any]],
    *,
    rounds: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    for number in range(-1, rounds):  # the round before the first warms the caches
        seconds = np.zeros((len(contenders), len(given)))
        for at in rng.permutation(len(given)):
            for which in rng.permutation(len(contenders)):
                seconds[which, at] = runner.step(taken[which], given[at])
        if number >= 0:
            for contender, own in zip(contenders, seconds, strict=True):
                contender.step_seconds.append(own.tolist())


def table_rows(outcome: Outcome) -> list[dict[str, str]]:
    """The table: one row for each pair of ladders."""
    return [
        {
            "ladders": each.name,
            "num_seqs": ",".join(map(str, each.bucketer.ladders.num_seqs)),
            "num_blocks": ",".join(map(str, each.bucketer.ladders.num_blocks)),
            "variants": str(len(each.bucketer.batched_variants())),
            "steps, predicted": f"{each.predicted_step_seconds * 1e3:.1f} ms",
            "measured": f"{each.measured_step_seconds * 1e3:.1f} ms",
            "warm-up, predicted": f"{each.predicted_warmup_seconds:.1f} s",
            "measured ": f"{each.warmup_seconds:.1f} s",
            "on the wall": f"{each.warmup_wall_seconds:.1f} s",
        }
        for each in outcome.contenders
    ]


def write_doc(outcome: Outcome, verdict: str) -> None:
    """Replace what stands between the markers of the page."""
    calm = " ".join(f"Of the measurement: {line}." for line in outcome.measurements.warnings)
    body = "\n".join((common.markdown_table(table_rows(outcome)), "", f"{verdict}. {calm}".rstrip()))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        common.between(text, "<!-- machine:begin -->", "<!-- machine:end -->", body), encoding="utf-8"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a prediction is off by more than its limit."""
    parser = common.parser("machine", __doc__)
    parser.add_argument("--trace", choices=["azure-conv", "sample"], default="sample")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--span", type=float, default=120.0, help="seconds in which they arrive [120]")
    parser.add_argument("--other", type=float, default=0.02, help="seconds of a step beside attention [0.02]")
    parser.add_argument("--kernel", choices=["chunked", "per_block"], default="chunked")
    parser.add_argument("--points", type=int, default=20, help="rung pairs to measure [20]")
    parser.add_argument("--batches", type=int, default=60, help="decode steps to run [60]")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each of them [15]")
    parser.add_argument("--max-variants", type=int, default=16, help="of the plan [16]")
    parser.add_argument("--table", choices=["auto", "always", "never"], default="auto")
    parser.add_argument("--compiler", default="inductor", help="eager tries the mechanics alone")
    parser.add_argument("--ratio-within", type=float, default=0.05, help="of the ratio of steps [0.05]")
    parser.add_argument("--warmup-within", type=float, default=0.15, help="of either warm-up [0.15]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-doc", action="store_true", help="put the outcome into docs/measure.md")
    parser.add_argument(
        "--warm-up-alone", metavar="JSON", help="what the benchmark asks a process of its own"
    )
    options = parser.parse_args(arguments)
    if options.warm_up_alone is not None:
        return _warm_up_asked(options.warm_up_alone)
    print(common.machine_line())
    (trace,) = common.read_traces([options.trace], options.shared).values()
    sliced = common.squeezed(trace, ENGINE, options.requests, options.span)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            sliced,
            Path(folder),
            options=MeasureOptions(
                kernels=(options.kernel,), points=options.points, compiler=options.compiler, seed=options.seed
            ),
            batches=options.batches,
            rounds=options.rounds,
            other_seconds=options.other,
            max_variants=options.max_variants,
            table=options.table,
        )
    print(common.text_table(table_rows(outcome)))
    verdict = (
        f"plan / default: predicted {outcome.ratio_predicted:.3f}, measured {outcome.ratio_measured:.3f}, "
        f"off by {outcome.ratio_error:.1%} (limit {options.ratio_within:.0%}); warm-up off by "
        f"{outcome.warmup_error:.1%} at most (limit {options.warmup_within:.0%})"
    )
    print(verdict)
    for line in outcome.warnings:
        print(f"warning: {line}")
    if options.write_doc:
        write_doc(outcome, verdict)
    common.write_json(
        options.json,
        "machine",
        {
            "rows": table_rows(outcome),
            "ratio": {"predicted": outcome.ratio_predicted, "measured": outcome.ratio_measured},
            "warmup_error": outcome.warmup_error,
            "cost": outcome.cost.to_dict(),
        },
    )
    return int(outcome.ratio_error > options.ratio_within or outcome.warmup_error > options.warmup_within)


if __name__ == "__main__":
    sys.exit(main())
