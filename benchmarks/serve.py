"""Time per output token of real servers with the default ladders and with a tuned plan, on this CPU.

Two `vllm serve` with the reference backend and a model of random weights are up at once, and take turns: each
round sends the same requests, at the same times, to one and then to the other, while the first idles. The
requests are the first ones of the trace that fit, their arrivals squeezed into `--span`.

The plan is tuned for this machine: the kernel is timed at the default ladders' variants, compiles too, and
the cost model is fitted to them (least squares, no coefficient below 0); a step's other time is taken to be
the same under any ladders. Predicted are the attention seconds of a decode step, by replaying the requests
under either pair of ladders; measured is the time per output token. What of it is not attention comes from
the measured runs with the default ladders, so the ratio predicted for the token time says something of the
plan's runs alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import common
from ladder_opt.bucketer import Bucketer
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, write_plan
from ladder_opt.plan.tune import tune
from ladder_opt.trace.table import Trace, within_limits
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
_TIMED_RUNS: Final = 9


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
        predicted_seconds: attention seconds of a mean decode step, by the replay.
        token_seconds: time per output token, each round.
        cpu_seconds: CPU time of the worker per output token, each round: what other work on the machine
            disturbs least.
        report: the worker's report after the last round.
    """

    name: str
    ladders: Ladders
    predicted_seconds: float
    token_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


def measure(bucketer: Bucketer, runs: int = _TIMED_RUNS) -> Measured:
    """Time every variant of a bucketer, in turns, and fit a cost model."""
    import torch

    from ladder_opt.reference.batch import BatchPadder
    from ladder_opt.reference.compiled import AttentionLayer, CompiledKernels
    from ladder_opt.reference.recorder import LayerCache, record

    torch.set_num_threads(1)
    engine = bucketer.engine
    heads, size = MODEL["num_attention_heads"], MODEL["head_dim"]
    layer = AttentionLayer(heads, size, size**-0.5)
    pages = torch.randn(
        (engine.usable_kv_blocks + 1, MODEL["num_key_value_heads"], engine.block_size, 2 * size)
    )
    padder, kernels = BatchPadder(bucketer), CompiledKernels()
    recording = record(padder, kernels, {layer: LayerCache(pages, torch.float32)})
    batches = []
    for variant in recording.variants:
        lengths = torch.tensor(bucketer.batched_witness(variant).kv_lens)
        table = torch.randint(1, len(pages), (len(lengths), engine.max_num_blocks))
        batches.append((padder.pad(table, lengths), torch.randn((len(lengths), heads, size))))
    seconds = np.zeros((runs, len(batches)))
    for run in range(runs):
        for at, (batch, query) in enumerate(batches):
            assert batch is not None
            began = time.thread_time()  # one thread computes; other work on the machine does not count
            kernels.run(batch, layer, query, pages)
            seconds[run, at] = time.thread_time() - began
    step = np.median(seconds, axis=0) * MODEL["num_hidden_layers"]
    chunks = np.array([variant.num_chunks for variant in recording.variants])
    gathers = chunks * [variant.num_seqs * variant.blocks_per_chunk for variant in recording.variants]
    compiles = np.array(recording.compile_seconds)
    step_terms, fitted = _fit(
        step, {"base": np.ones_like(step), "per_iteration": chunks, "per_gather": gathers}
    )
    compile_terms, _ = _fit(compiles, {"base": np.ones_like(compiles), "per_iteration": chunks})
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "this machine's CPU",
            "kernel": bucketer.kernel,
            "step_seconds": step_terms,
            "compile_seconds": compile_terms,
        }
    )
    return Measured(cost, float(np.abs(fitted / step - 1).max()), len(batches))


def _fit(
    seconds: NDArray[np.float64], terms: dict[str, NDArray[Any]]
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Coefficients of 0 or more that come closest, by relative error; and what they give."""
    from scipy.optimize import nnls

    columns = np.column_stack(list(terms.values())).astype(np.float64)
    found, _ = nnls(columns / seconds[:, None], np.ones_like(seconds))
    return dict(zip(terms, found.tolist(), strict=True)), columns @ found


def slice_of(trace: Trace, requests: int, span_seconds: float) -> Trace:
    """The first requests that fit the engine, arriving within a span."""
    fitting = within_limits(trace, max_model_len=ENGINE.max_model_len).take(np.arange(requests))
    assert fitting.arrival_seconds is not None, "the trace has no arrivals"
    arrivals = fitting.arrival_seconds - fitting.arrival_seconds[0]
    return replace(fitting, arrival_seconds=arrivals * (span_seconds / max(float(arrivals[-1]), 1e-9)))


def attention_seconds(trace: Trace, ladders: Ladders, cost: CostModel, other_seconds: float) -> float:
    """Attention seconds of a mean batched step of the replay, other work taking `other_seconds` a step."""
    step = cost.step_seconds.model_copy(update={"base": cost.step_seconds.base + other_seconds})
    timed = cost.model_copy(update={"step_seconds": step})
    steps = simulate(trace, ENGINE, timed, ladders=ladders).steps
    bucketer = Bucketer(ENGINE, ladders, kv_tokens=(ENGINE.max_model_len,), query_tokens=(1,))
    total = weight = 0.0
    for n, b, count in zip(steps.num_seqs, steps.num_blocks, steps.steps, strict=True):
        pair = bucketer.dispatch(int(n), int(b))
        if pair is not None:
            total += count * float(cost.batched_step_seconds(*pair))
            weight += count
    return total / weight if weight else 0.0


def play(server: Server, trace: Trace, seed: int) -> float:
    """Send the requests as they arrive; the mean time per output token, of requests with two or more."""
    rng = np.random.default_rng(seed)
    requests = [
        Request(tuple(rng.integers(3, VOCABULARY, prompt).tolist()), int(output))
        for prompt, output in zip(trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    assert trace.arrival_seconds is not None
    answers = server.complete_all(requests, gap_seconds=np.diff(trace.arrival_seconds).tolist())
    return token_seconds(answers)


def token_seconds(answers: Sequence[Answer]) -> float:
    """Mean over requests of the time between tokens."""
    return statistics.fmean(
        (answer.last_token_at - answer.first_token_at) / (len(answer.tokens) - 1)
        for answer in answers
        if len(answer.tokens) > 1
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
    return [
        Contender(name, ladders, attention_seconds(trace, ladders, measured.cost, other_seconds))
        for name, ladders in (("default", default), ("plan", plan.ladders))
    ], plan


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
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "measured")
    measured = measure(Bucketer.from_engine(ENGINE))
    contenders, plan = make_contenders(trace, measured, other_seconds)
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
                contender.token_seconds.append(play(server, trace, number))
                spent = server.report()["cpu_seconds"] - before
                contender.cpu_seconds.append(spent / int(trace.output_tokens.sum()))
                if progress:
                    print(f"round {number + 1}, {contender.name}: {contender.token_seconds[-1] * 1e3:.1f} ms")
        for contender, server in zip(contenders, servers, strict=True):
            contender.report = server.report()
    return contenders, measured


def rows(contenders: Sequence[Contender]) -> list[dict[str, str]]:
    """The table: one row for each server."""
    default = contenders[0]
    other = statistics.median(default.token_seconds) - default.predicted_seconds
    table = []
    for contender in contenders:
        ratios = _ratios(contender.token_seconds, default.token_seconds)
        cpu_ratios = _ratios(contender.cpu_seconds, default.cpu_seconds)
        predicted = (other + contender.predicted_seconds) / (other + default.predicted_seconds)
        table.append(
            {
                "ladders": contender.name,
                "num_seqs": ",".join(map(str, contender.ladders.num_seqs)),
                "num_blocks": ",".join(map(str, contender.ladders.num_blocks)),
                "variants": str(len(contender.report["recorded"])),
                "warm-up": f"{contender.report['warmup_seconds']:.0f} s",
                "late compiles": str(contender.report["compiles_since"]),
                "ms/token": f"{statistics.median(contender.token_seconds) * 1e3:.1f}",
                "attention ms/step": f"{contender.predicted_seconds * 1e3:.1f}",
                "ratio, predicted": f"{predicted:.3f}",
                "ratio, measured": f"{statistics.median(ratios):.3f}",
                "lowest to highest": f"{min(ratios):.3f} to {max(ratios):.3f}",
                "CPU ms/token": f"{statistics.median(contender.cpu_seconds) * 1e3:.1f}",
                "ratio of CPU": f"{statistics.median(cpu_ratios):.3f}",
            }
        )
    return table


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
    sliced = slice_of(trace, options.requests, options.span)
    with tempfile.TemporaryDirectory() as folder:
        contenders, measured = run(sliced, Path(folder), rounds=options.rounds, other_seconds=options.other)
    table = rows(contenders)
    print(common.text_table(table))
    print(
        f"cost model fitted to {measured.variants} variants, relative error {measured.worst_error:.0%} at "
        "most; times other than attention: from the default's rounds"
    )
    common.write_json(
        options.json,
        "serve",
        {"rows": table, "contenders": [asdict(each) for each in contenders], "cost": measured.cost.to_dict()},
    )
    return 1 if any(contender.report["compiles_since"] for contender in contenders) else 0


if __name__ == "__main__":
    sys.exit(main())
