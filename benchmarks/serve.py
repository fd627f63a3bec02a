"""Time per output token of real servers with the default ladders and with a tuned plan, on this CPU.

Two `vllm serve` with the reference backend and a model of random weights are up at once, and take turns: each
round sends the same requests, at the same times, to one and then to the other, while the first idles. The
requests are the first ones of the trace that fit, their arrivals squeezed into `--span`.

The plan is tuned for this machine: the kernel is timed at the default ladders' variants, compiles too, and
the cost model is fitted to them as `ladder-opt measure` does. For the prediction the variants of
both pairs of ladders are then timed side by side. What else a step takes, and a prefill token, comes from the
measured rounds with the default ladders: the two numbers with which the replay of the requests gives their
time per output token and time to first token. With the same two numbers the replay under the plan's ladders
predicts its time per output token, queues and batch sizes included; its measured rounds are not looked at.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from benchmarks import common
from ladder_opt.bucketer import BatchedVariant, Bucketer
from ladder_opt.calibration.term_fit import fit_terms
from ladder_opt.cost.model import CostModel, ReplaySeconds, StepSeconds
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.measurement.api import kernel_bench
from ladder_opt.measurement.bench import Bench, Point
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.measurement.options import MeasureOptions
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, write_plan
from ladder_opt.plan.tune import tune
from ladder_opt.trace.table import Trace
from tests.serving.environment import environment, python
from tests.serving.server import Answer, Request, Server
from tests.serving.tiny_model import VOCABULARY

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGINE: Final = Engine(
    block_size=128, max_num_seqs=8, max_model_len=2048, max_num_batched_tokens=256, num_kv_blocks=129
)
# Attention is a small part of a model this small; these heads make it one that can be measured.
MODEL: Final = {
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_size": 256,
}
SHAPE: Final = ModelShape(
    num_query_heads=MODEL["num_attention_heads"],
    num_kv_heads=MODEL["num_key_value_heads"],
    head_size=MODEL["head_dim"],
    layers=MODEL["num_hidden_layers"],
)
_TIMED_RUNS: Final = 9


class Times(NamedTuple):
    """Means over requests, in seconds."""

    per_output_token: float
    to_first_token: float


@dataclass(frozen=True)
class Measured:
    """What this machine takes: the cost model of one decode step's attention, all layers, and its fit.

    Attributes:
        cost: fitted.
        worst_error: largest relative error of the fit, over the variants timed.
        variants: variants timed.
    """

    cost: CostModel
    worst_error: float
    variants: int


@dataclass
class Contender:
    """One server.

    Attributes:
        name: default or plan.
        ladders: what it is to load.
        attention_seconds: of each rung pair, all layers, as timed by itself.
        predicted_token_seconds: time per output token, by the replay.
        token_seconds: time per output token, each round.
        first_token_seconds: time to first token, each round.
        cpu_seconds: CPU time of the worker per output token, each round: what other work on the machine
            disturbs least.
        report: the worker's report after the last round.
    """

    name: str
    ladders: Ladders
    attention_seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    predicted_token_seconds: float = math.nan
    token_seconds: list[float] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


def points_of(bucketer: Bucketer) -> dict[BatchedVariant, Point]:
    """The largest rung pair of each variant."""
    return {
        variant: Point(bucketer.kernel, variant.num_seqs, max(bucketer.rungs_of(variant)))
        for variant in bucketer.batched_variants()
    }


def time_points(bench: Bench, points: Sequence[Point], runs: int = _TIMED_RUNS) -> dict[Point, float]:
    """Seconds of a step's attention in all layers, at points that are compiled, in turns."""
    seconds = [[bench.step(point).seconds for point in points] for _ in range(runs)]
    medians = np.median(seconds, axis=0) * SHAPE.layers
    return dict(zip(points, medians.tolist(), strict=True))


def measure(bench: Bench, bucketer: Bucketer, runs: int = _TIMED_RUNS) -> Measured:
    """Time every variant of a bucketer, in turns, and fit a cost model."""
    points = points_of(bucketer)
    compiles = np.array([bench.compile(point).seconds for point in points.values()])
    step = np.array(list(time_points(bench, list(points.values()), runs).values()))
    chunks = np.array([variant.num_chunks for variant in points])
    gathers = chunks * [variant.num_seqs * variant.blocks_per_chunk for variant in points]
    step_fit = fit_terms({"base": 1.0, "per_iteration": chunks, "per_gather": gathers}, step, bootstraps=0)
    compile_fit = fit_terms({"base": 1.0, "per_iteration": chunks}, compiles, bootstraps=0)
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "this machine's CPU",
            "kernel": bucketer.kernel,
            "step_seconds": {term.name: term.value for term in step_fit.terms},
            "compile_seconds": {term.name: term.value for term in compile_fit.terms},
        }
    )
    fitted = step / (1 + step_fit.residuals)
    return Measured(cost, float(np.abs(fitted / step - 1).max()), len(points))


def pair_seconds(
    bucketer: Bucketer, timed: Mapping[BatchedVariant, float], cost: CostModel
) -> dict[tuple[int, int], float]:
    """Attention seconds of each rung pair: as timed, or by the fit where the pool holds no such batch."""
    return {
        (s, m): timed.get(bucketer.variant_of(s, m), float(cost.batched_step_seconds(s, m)))
        for s in bucketer.ladders.num_seqs
        for m in bucketer.ladders.num_blocks
    }


def replayed(trace: Trace, contender: Contender, cost: CostModel, base: float, per_token: float) -> Times:
    """Mean time per output token and mean time to first token of the replay of the requests.

    Args:
        trace: the requests.
        contender: its ladders, and the attention seconds of their pairs.
        cost: whose kernel it is.
        base: seconds of a step that are not attention of batched decodes.
        per_token: seconds a prefill token adds.
    """
    timed = cost.model_copy(
        update={
            "step_seconds": StepSeconds(base=base),
            "replay_seconds": ReplaySeconds(per_prefill_token=per_token),
            "step_table": tuple(
                (s, m, base + seconds) for (s, m), seconds in contender.attention_seconds.items()
            ),
        }
    )
    times = simulate(trace, ENGINE, timed, ladders=contender.ladders, request_times=True).request_times
    assert times is not None
    return Times(
        float(np.nanmean(times.time_per_output_token_seconds)),
        float(times.time_to_first_token_seconds.mean()),
    )


def fit_rest(trace: Trace, default: Contender, cost: CostModel) -> tuple[float, float]:
    """(base, per_token) with which the replay under the default ladders gives its measured times."""
    from scipy.optimize import least_squares

    measured = np.log(
        [statistics.median(default.token_seconds), statistics.median(default.first_token_seconds)]
    )

    def off(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        base, per_token = np.exp(logs).tolist()
        return np.asarray(np.log(replayed(trace, default, cost, base, per_token)) - measured)

    # The replay's times move in steps where a schedule changes: differences over a hundredth, several starts.
    starts = [np.log([base, per_token]) for base in (0.01, 0.03) for per_token in (1e-4, 3e-4)]
    fits = [least_squares(off, start, diff_step=[0.01]) for start in starts]
    base, per_token = np.exp(min(fits, key=lambda fit: float(fit.cost)).x).tolist()
    return base, per_token


def play(server: Server, trace: Trace, seed: int) -> Times:
    """Send the requests as they arrive; how long their tokens took."""
    rng = np.random.default_rng(seed)
    requests = [
        Request(tuple(rng.integers(3, VOCABULARY, prompt).tolist()), int(output))
        for prompt, output in zip(trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    assert trace.arrival_seconds is not None
    answers = server.complete_all(requests, gap_seconds=np.diff(trace.arrival_seconds).tolist())
    return times_of(answers)


def times_of(answers: Sequence[Answer]) -> Times:
    """Means over requests."""
    return Times(
        statistics.fmean(
            (answer.last_token_at - answer.first_token_at) / (len(answer.tokens) - 1)
            for answer in answers
            if len(answer.tokens) > 1
        ),
        statistics.fmean(answer.first_token_at - answer.asked_at for answer in answers),
    )


def make_contenders(trace: Trace, measured: Measured, other_seconds: float) -> tuple[list[Contender], Plan]:
    """The default ladders, and a plan with no more variants than they have."""
    default = default_ladders(ENGINE)
    step = measured.cost.step_seconds
    timed = measured.cost.model_copy(
        update={"step_seconds": step.model_copy(update={"base": step.base + other_seconds})}
    )
    options = SolveOptions(max_variants=measured.variants, restarts=0.0)
    plan = tune(trace, timed, engine=ENGINE, options=options)
    return [Contender("default", default), Contender("plan", plan.ladders)], plan


def run(
    trace: Trace, folder: Path, *, rounds: int, other_seconds: float, progress: bool = True
) -> tuple[list[Contender], Measured]:
    """Measure the machine, make the plan, start both servers and play the rounds."""
    model = folder / "model"
    subprocess.run(
        python("tests.serving.tiny_model", "make", model, json.dumps(MODEL)),
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    with kernel_bench(ENGINE, SHAPE, MeasureOptions()) as bench:
        measured = measure(bench, common.bucketer_of(default_ladders(ENGINE), ENGINE))
        contenders, plan = make_contenders(trace, measured, other_seconds)
        bucketers = [common.bucketer_of(contender.ladders, ENGINE) for contender in contenders]
        every = list({point: None for each in bucketers for point in points_of(each).values()})
        for point in every:
            bench.compile(point)
        timed = time_points(bench, every)
    for contender, bucketer in zip(contenders, bucketers, strict=True):
        seconds = {variant: timed[point] for variant, point in points_of(bucketer).items()}
        contender.attention_seconds = pair_seconds(bucketer, seconds, measured.cost)
    write_plan(plan, folder / "plan.json")
    with ExitStack() as up:
        servers = []
        for contender in contenders:
            own = folder / contender.name
            own.mkdir()
            config: dict[str, Any] = {"ladder_opt_backend": "reference"}
            if contender.name == "plan":
                config["ladder_opt"] = str(folder / "plan.json")
            arguments = {
                "block_size": ENGINE.block_size,
                "max_num_seqs": ENGINE.max_num_seqs,
                "max_model_len": ENGINE.max_model_len,
                "max_num_batched_tokens": ENGINE.max_num_batched_tokens,
                "num_gpu_blocks_override": ENGINE.num_kv_blocks,
            }
            # A cache of its own: else the second server would find compiled what they share.
            server = Server(model, own, own / "inductor", arguments=arguments, additional_config=config)
            servers.append(up.enter_context(server))
            servers[-1].complete(Request((3, 4, 5), 4))  # the first request of all pays for much
        for number in range(rounds):
            for contender, server in zip(contenders, servers, strict=True):
                before = server.report()["cpu_seconds"]
                times = play(server, trace, number)
                contender.token_seconds.append(times.per_output_token)
                contender.first_token_seconds.append(times.to_first_token)
                spent = server.report()["cpu_seconds"] - before
                contender.cpu_seconds.append(spent / int(trace.output_tokens.sum()))
                if progress:
                    print(f"round {number + 1}, {contender.name}: {contender.token_seconds[-1] * 1e3:.1f} ms")
        for contender, server in zip(contenders, servers, strict=True):
            contender.report = server.report()
    rest = fit_rest(trace, contenders[0], measured.cost)
    for contender in contenders:
        contender.predicted_token_seconds = replayed(trace, contender, measured.cost, *rest).per_output_token
    return contenders, measured


def rows(contenders: Sequence[Contender]) -> list[dict[str, str]]:
    """The table: one row for each server."""
    default = contenders[0]
    table = []
    for contender in contenders:
        ratios = _ratios(contender.token_seconds, default.token_seconds)
        cpu_ratios = _ratios(contender.cpu_seconds, default.cpu_seconds)
        predicted = contender.predicted_token_seconds / default.predicted_token_seconds
        table.append(
            {
                "ladders": contender.name,
                "num_seqs": ",".join(map(str, contender.ladders.num_seqs)),
                "num_blocks": ",".join(map(str, contender.ladders.num_blocks)),
                "variants": str(len(contender.report["recorded"])),
                "warm-up": f"{contender.report['warmup_seconds']:.0f} s",
                "late compiles": str(contender.report["compiles_since"]),
                "ms/token": f"{statistics.median(contender.token_seconds) * 1e3:.1f}",
                "predicted": f"{contender.predicted_token_seconds * 1e3:.1f}",
                "ratio, predicted": f"{predicted:.3f}",
                "ratio, measured": f"{statistics.median(ratios):.3f}",
                "lowest to highest": f"{min(ratios):.3f} to {max(ratios):.3f}",
                "CPU ms/token": f"{statistics.median(contender.cpu_seconds) * 1e3:.1f}",
                "ratio of CPU": f"{statistics.median(cpu_ratios):.3f}",
            }
        )
    return table


def to_dict(contender: Contender) -> dict[str, Any]:
    """For the JSON file: rung pairs are rows, not keys."""
    pairs = [[s, m, seconds] for (s, m), seconds in contender.attention_seconds.items()]
    return asdict(replace(contender, attention_seconds={})) | {"attention_seconds": pairs}


def _ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where anything compiled while serving."""
    parser = common.parser("serve", __doc__)
    parser.add_argument("--trace", choices=["azure-conv", "sample"], default="azure-conv")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--span", type=float, default=30.0, help="seconds in which they arrive [30]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--other",
        type=float,
        default=0.03,
        help="seconds of a step that are not attention, for the replay [0.03]",
    )
    options = parser.parse_args(arguments)
    print(common.machine_line())
    (trace,) = common.read_traces([options.trace], options.shared).values()
    sliced = common.squeezed(trace, ENGINE, options.requests, options.span)
    with tempfile.TemporaryDirectory() as folder:
        contenders, measured = run(sliced, Path(folder), rounds=options.rounds, other_seconds=options.other)
    table = rows(contenders)
    print(common.text_table(table))
    print(
        f"cost model fitted to {measured.variants} variants, relative error {measured.worst_error:.0%} at "
        "most; what is not attention: from the default's rounds"
    )
    common.write_json(
        options.json,
        "serve",
        {
            "rows": table,
            "contenders": [to_dict(each) for each in contenders],
            "cost": measured.cost.to_dict(),
        },
    )
    return 1 if any(contender.report["compiles_since"] for contender in contenders) else 0


if __name__ == "__main__":
    sys.exit(main())
