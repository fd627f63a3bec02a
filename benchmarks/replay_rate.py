"""Requests a second of the replay on one core, beside its step loop, vLLM's own Scheduler and the plain twin.

Each contender replays the same requests under the default cost model and ladders, in turns, so that a busy
machine slows all of them. The slow two get the first requests of the trace only, and so does `simulate`
once more, for a like-for-like ratio; their histograms have to agree step for step. Set-up (reading the
trace, compiling the loop, building a Scheduler) is not counted. Where it is installed (`peers.py` says how),
the simulator Vidur takes its turns too, under the same step times; its rules need not be vLLM's.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import common, peers
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.plain import simulate_plain
from ladder_opt.occupancy.replay import simulate, step_seconds_by_size
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import Trace, within_limits

AT_LEAST: Final = 1_000_000.0
ENGINES: Final = (
    ("azure-conv", Engine(max_num_seqs=128), Scheduling()),
    ("azure-conv", Engine(max_num_seqs=256), Scheduling()),
    ("azure-conv", Engine(), Scheduling(policy="priority")),
    ("azure-conv", Engine(), Scheduling(sliding_window=1024)),
    ("mooncake", Engine(max_num_seqs=64, max_model_len=131072), Scheduling()),
    ("mooncake", Engine(max_num_seqs=64, max_model_len=131072), Scheduling(prefix_caching=True)),
)

VIDUR: Final = "Vidur (Sarathi)"

StepCounts = dict[tuple[int, int], int]


@dataclass
class Contender:
    """One way to replay one set of requests.

    Attributes:
        name: as the table calls it.
        traffic: the trace, by its short name.
        engine: the limits.
        requests: how many it replays.
        run: replays once; gives the steps by (num_seqs, num_blocks).
        offset_seconds: set-up inside `run`, taken off.
        seconds: of each repeat.
        steps: what the last repeat gave.
    """

    name: str
    traffic: str
    engine: Engine
    requests: int
    run: Callable[[], StepCounts]
    offset_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    steps: StepCounts = field(default_factory=dict)

    def repeat(self) -> None:
        """Time one replay."""
        started = time.perf_counter()
        self.steps = self.run()
        self.seconds.append(max(1e-9, time.perf_counter() - started - self.offset_seconds))

    @property
    def best_rate(self) -> float:
        """Requests a second of the fastest repeat."""
        return self.requests / min(self.seconds)

    @property
    def median_rate(self) -> float:
        """Requests a second of the middle repeat."""
        return self.requests / statistics.median(self.seconds)


@dataclass
class SelfTimed(Contender):
    """One that runs as another process and measures its own time.

    Attributes:
        run_elsewhere: replays once; gives the seconds of that, and the steps.
    """

    run_elsewhere: Callable[[], tuple[float, StepCounts]] = lambda: (0.0, {})

    def repeat(self) -> None:
        """Have it time one replay."""
        seconds, self.steps = self.run_elsewhere()
        self.seconds.append(seconds)


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    contender: str
    traffic: str
    max_num_seqs: int
    max_model_len: int
    requests: int
    repeats: int
    best_rate: float
    median_rate: float
    ratio: float
    steps_that_differ: int | None


def measure(
    traces: dict[str, Trace],
    *,
    repeats: int,
    slow_repeats: int,
    plain_requests: int,
    vllm_requests: int,
    vidur_requests: int = 0,
    vidur: Path | None = None,
    engine: Engine | None = None,
    others: Sequence[tuple[str, Engine, Scheduling]] = (),
) -> list[Result]:
    """Replay each trace with `simulate`, the first with the step loop, its first requests with everything.

    Args:
        traces: by name.
        repeats: of `simulate`.
        slow_repeats: of the other two.
        plain_requests: for the plain twin; 0 leaves it out.
        vllm_requests: for vLLM's Scheduler; 0 leaves it out.
        vidur_requests: for Vidur; 0 leaves it out.
        vidur: its checkout.
        engine: the limits; default: those of `Engine()`.
        others: traces by name, and other engines and settings to replay them with.
    """
    engine = engine or Engine()
    cost = read_cost_model()
    runs = [(name, engine, Scheduling()) for name in traces]
    runs += [other for other in others if other[0] in traces]
    fast = [
        _fast(name, within_limits(traces[name], max_model_len=limits.max_model_len), limits, cost, settings)
        for name, limits, settings in runs
    ]
    first = next(iter(traces))
    whole = within_limits(traces[first], max_model_len=engine.max_model_len)
    step_loop = _fast(first, whole, engine, cost, stepwise=True)
    slow: list[Contender] = []
    like_for_like: list[Contender] = []
    makers = ((plain_requests, _plain), (vllm_requests, _vllm), (vidur_requests, _vidur(vidur)))
    for requests, make in makers:
        if not requests:
            continue
        head = whole.take(np.arange(min(requests, len(whole))))
        slow.append(make(first, head, engine, cost))
        like_for_like.append(_fast(first, head, engine, cost))
    quick = [*fast, step_loop, *like_for_like]
    for contender in quick:
        contender.run()  # compiles, or loads what was compiled
    for turn in range(repeats):
        for contender in quick:
            contender.repeat()
        for contender in slow if turn < slow_repeats else []:
            contender.repeat()
    results = [_result(contender, None) for contender in fast] + [_result(step_loop, fast[0])]
    for ours, theirs in zip(like_for_like, slow, strict=True):
        results += [_result(ours, None), _result(theirs, ours)]
    return results


def _fast(
    name: str,
    trace: Trace,
    engine: Engine,
    cost: CostModel,
    settings: Scheduling | None = None,
    *,
    stepwise: bool = False,
) -> Contender:
    label = "simulate"
    for field_ in fields(settings) if settings else ():
        value = getattr(settings, field_.name)
        if value != field_.default:
            label += f", {field_.name} {value}"
    return Contender(
        "its step loop" if stepwise else label,
        name,
        engine,
        len(trace),
        lambda: _counts_of(simulate(trace, engine, cost, scheduling=settings, stepwise=stepwise).steps),
    )


def _plain(name: str, trace: Trace, engine: Engine, cost: CostModel) -> Contender:
    seconds = _step_seconds(engine, cost)
    return Contender(
        "plain twin", name, engine, len(trace), lambda: dict(simulate_plain(trace, engine, seconds).steps)
    )


def _vllm(name: str, trace: Trace, engine: Engine, cost: CostModel) -> Contender:
    from tests.vllm_oracle import VLLM_ENVIRONMENT, replay_with_vllm

    for key, value in VLLM_ENVIRONMENT.items():
        os.environ.setdefault(key, value)  # read as vLLM is imported
    seconds = _step_seconds(engine, cost)
    assert trace.arrival_seconds is not None
    columns = (trace.arrival_seconds.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())

    def replay(requests: int) -> StepCounts:
        replayed = replay_with_vllm(
            *(column[:requests] for column in columns),
            block_size=engine.block_size,
            max_num_seqs=engine.max_num_seqs,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            num_gpu_blocks=engine.usable_kv_blocks + 1,
            step_seconds=lambda load: seconds(
                load.num_decodes, load.max_blocks, load.decode_blocks, load.num_prefill_tokens
            ),
        )
        return dict(
            Counter((load.num_decodes, load.max_blocks) for load in replayed.loads if load.num_decodes)
        )

    replay(1)
    started = time.perf_counter()
    replay(0)
    return Contender(
        "vLLM Scheduler",
        name,
        engine,
        len(trace),
        lambda: replay(len(trace)),
        offset_seconds=time.perf_counter() - started,
    )


def _vidur(checkout: Path | None) -> Callable[[str, Trace, Engine, CostModel], Contender]:
    def make(name: str, trace: Trace, engine: Engine, cost: CostModel) -> Contender:
        assert checkout is not None

        def run() -> tuple[float, StepCounts]:
            return peers.run_vidur(checkout, trace, engine, cost)

        return SelfTimed(VIDUR, name, engine, len(trace), dict, run_elsewhere=run)

    return make


def _step_seconds(engine: Engine, cost: CostModel) -> Callable[[int, int, int, int], float]:
    """Seconds of a step, added up in the order that the compiled loop adds them."""
    batched = step_seconds_by_size(engine, cost, default_ladders(engine)).tolist()
    base = cost.step_seconds.base
    replay = cost.replay_seconds

    def seconds(decodes: int, longest: int, own_blocks: int, prefill_tokens: int) -> float:
        prefill = replay.per_prefill_token * prefill_tokens
        if decodes >= engine.min_batched_seqs:
            return float(batched[decodes][longest]) + prefill
        return base + prefill + replay.per_sequence_gather * own_blocks

    return seconds


def _counts_of(steps: StepHistogram) -> StepCounts:
    return {
        (int(n), int(b)): int(count)
        for n, b, count in zip(steps.num_seqs, steps.num_blocks, steps.steps, strict=True)
    }


def _result(contender: Contender, reference: Contender | None) -> Result:
    differ = None
    if reference is not None:
        cells = contender.steps.keys() | reference.steps.keys()
        differ = sum(abs(contender.steps.get(c, 0) - reference.steps.get(c, 0)) for c in cells)
    return Result(
        contender=contender.name,
        traffic=contender.traffic,
        max_num_seqs=contender.engine.max_num_seqs,
        max_model_len=contender.engine.max_model_len,
        requests=contender.requests,
        repeats=len(contender.seconds),
        best_rate=contender.best_rate,
        median_rate=contender.median_rate,
        ratio=1.0 if reference is None else reference.best_rate / contender.best_rate,
        steps_that_differ=differ,
    )


def table(results: Sequence[Result]) -> str:
    """The printed table."""
    return common.text_table(
        [
            {
                "replay": result.contender,
                "trace": common.TRACE_LABELS.get(result.traffic, result.traffic),
                "seqs": result.max_num_seqs,
                "context": result.max_model_len,
                "requests": f"{result.requests:,}",
                "repeats": result.repeats,
                "requests/s, best": f"{result.best_rate:,.0f}",
                "median": f"{result.median_rate:,.0f}",
                "simulate is faster by": "" if result.steps_that_differ is None else f"{result.ratio:,.0f} x",
                "steps that differ": "" if result.steps_that_differ is None else result.steps_that_differ,
            }
            for result in results
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = common.parser("replay_rate", __doc__)
    parser.add_argument("--repeats", type=int, default=9, help="repeats of simulate [9]")
    parser.add_argument("--slow-repeats", type=int, default=3, help="repeats of the other two [3]")
    parser.add_argument(
        "--plain-requests", type=int, default=500, help="for the plain twin; 0: not run [500]"
    )
    parser.add_argument("--vllm-requests", type=int, default=500, help="for vLLM; 0: not run [500]")
    parser.add_argument(
        "--at-least",
        type=float,
        default=AT_LEAST,
        metavar="RATE",
        help=f"exit 1 when the first trace's best rate is below this [{AT_LEAST:,.0f} requests/s]",
    )
    parser.add_argument("--vidur-requests", type=int, default=500, help="for Vidur; 0: not run [500]")
    parser.add_argument(
        "--vidur",
        type=Path,
        metavar="FOLDER",
        default=os.environ.get(peers.VIDUR_VARIABLE),
        help=f"a checkout of Vidur with its requirements in .venv [{peers.VIDUR_VARIABLE}]",
    )
    options = parser.parse_args(arguments)
    absent = peers.why_no_vidur(options.vidur)
    if options.vidur_requests and absent is not None:
        print(f"note: {absent}")
        options.vidur_requests = 0
    if options.vllm_requests and importlib.util.find_spec("vllm") is None:
        print("note: vllm is not installed; its Scheduler is left out (`make test` builds an environment)")
        options.vllm_requests = 0
    results = measure(
        common.read_traces(["azure-conv", "sample", "mooncake"], options.shared),
        repeats=options.repeats,
        slow_repeats=options.slow_repeats,
        plain_requests=options.plain_requests,
        vllm_requests=options.vllm_requests,
        vidur_requests=options.vidur_requests,
        vidur=options.vidur,
        others=ENGINES,
    )
    print(common.machine_line())
    print(table(results))
    common.write_json(options.json, "replay_rate", [asdict(result) for result in results])
    problems = [
        f"{result.contender}: {result.steps_that_differ} steps differ from simulate's"
        for result in results
        if result.steps_that_differ and result.contender != VIDUR
    ]
    if results[0].best_rate < options.at_least:
        problems.append(
            f"simulate: found {results[0].best_rate:,.0f} requests/s, "
            f"expected at least {options.at_least:,.0f}"
        )
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
