"""What the plugin costs a server: nanoseconds a step, and what it loads where it has nothing to do.

Steps: batches of the default ladders' sizes at random, each measured in many short runs that take turns
with a loop of the same length over a function that does nothing. Best and median are given less that loop's
own; the bound is held against the best run of counting and dispatching together, the one that other work on
the machine disturbed least.

Start: a process of its own calls the plugin's entry point without a plan, beside one that imports what
every server imports first (`vllm.engine.arg_utils`, where vLLM is installed, else `numpy`); times are
inside the processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Final

from benchmarks import common

AT_MOST_NANOSECONDS: Final = 2000.0
STEPS: Final = 20_000

_REGISTER: Final = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
from ladder_opt.vllm_plugin import register
register()
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
_HOST: Final = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
print(json.dumps([seconds, len(set(sys.modules) - before)]))
"""


@dataclass(frozen=True)
class Cost:
    """One thing that happens once a step.

    Attributes:
        name: as the table calls it.
        best_nanoseconds: of the fastest run.
        median_nanoseconds: of the runs.
        against_nothing: median with the loop and call around it, over that of the empty function.
    """

    name: str
    best_nanoseconds: float
    median_nanoseconds: float
    against_nothing: float


@dataclass(frozen=True)
class Contender:
    """A loop over steps, and what is done before it, which is not measured."""

    prepare: Callable[[], None]
    loop: Callable[[], None]


def contenders(steps: int) -> dict[str, Contender]:
    """A loop of that many steps for each thing to measure; the first does nothing."""
    import numpy as np

    from ladder_opt.bucketer import Bucketer
    from ladder_opt.bucketer.recorder import StepRecorder
    from ladder_opt.engine import Engine

    engine = Engine()
    bucketer = Bucketer.from_engine(engine)
    recorder, idle = StepRecorder(), StepRecorder()
    recorder.start()
    rng = np.random.default_rng(0)
    sizes: list[tuple[int, int]] = list(
        zip(
            rng.integers(engine.min_batched_seqs, engine.max_num_seqs, steps, endpoint=True).tolist(),
            rng.integers(1, engine.max_num_blocks, steps, endpoint=True).tolist(),
            strict=True,
        )
    )
    lengths: list[list[int]] = rng.integers(2, engine.max_model_len, (64, engine.max_num_seqs)).tolist()

    def nothing(num_seqs: int, num_blocks: int) -> None:
        pass

    def each(take: Callable[[int, int], object]) -> Callable[[], None]:
        def loop() -> None:
            for num_seqs, num_blocks in sizes:
                take(num_seqs, num_blocks)

        return loop

    def counted(num_seqs: int, num_blocks: int) -> None:
        recorder.step(num_seqs, num_blocks, num_seqs * num_blocks)

    def both(num_seqs: int, num_blocks: int) -> None:
        recorder.step(num_seqs, num_blocks, num_seqs * num_blocks)
        bucketer.dispatch(num_seqs, num_blocks)

    def not_counted(num_seqs: int, num_blocks: int) -> None:
        idle.step(num_seqs, num_blocks, num_seqs * num_blocks)

    def from_lengths(_: int, num_blocks: int) -> None:
        recorder.decode(lengths[num_blocks & 63], engine.block_size)

    clear = recorder.add_up
    return {
        "nothing": Contender(clear, each(nothing)),
        "dispatch a step": Contender(clear, each(bucketer.dispatch)),
        "count a step": Contender(clear, each(counted)),
        "count and dispatch": Contender(clear, each(both)),
        "count, from 32 KV lengths": Contender(clear, each(from_lengths)),
        "count, before warm-up ends": Contender(clear, each(not_counted)),
        "add up 32 KV lengths, in the writer's thread": Contender(each(from_lengths), recorder.add_up),
    }


def measure_steps(*, repeats: int, steps: int) -> list[Cost]:
    """Each contender's time a step, from runs that take turns."""
    loops = contenders(steps)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, contender in loops.items():
            contender.prepare()
            start = time.perf_counter()
            contender.loop()
            seconds[name].append(time.perf_counter() - start)
    empty = seconds.pop("nothing")
    return [
        Cost(
            name=name,
            best_nanoseconds=(min(runs) - min(empty)) / steps * 1e9,
            median_nanoseconds=(statistics.median(runs) - statistics.median(empty)) / steps * 1e9,
            against_nothing=statistics.median(runs) / statistics.median(empty),
        )
        for name, runs in seconds.items()
    ]


def run_inside(code: str) -> Any:
    """Run code that prints JSON last, without our settings in the environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LADDER_OPT_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=environ, text=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


def measure_start(*, repeats: int) -> dict[str, Any]:
    """What the entry point takes and loads without a plan, beside the host's first import."""
    module = "vllm.engine.arg_utils" if find_spec("vllm") else "numpy"
    registered = [run_inside(_REGISTER) for _ in range(repeats)]
    host = [run_inside(_HOST.format(module=module)) for _ in range(min(repeats, 2))]
    ours = min(seconds for seconds, _ in registered)
    theirs = min(seconds for seconds, _ in host)
    loaded = registered[0][1]
    return {
        "register_seconds": ours,
        "modules": loaded,
        "host": module,
        "host_seconds": theirs,
        "host_modules": host[0][1],
        "share": ours / theirs,
    }


def table(costs: Sequence[Cost]) -> str:
    """The printed table."""
    return common.text_table(
        [
            {
                "once a step": cost.name,
                "best": f"{cost.best_nanoseconds:.0f} ns",
                "median": f"{cost.median_nanoseconds:.0f} ns",
                "against an empty call": f"x{cost.against_nothing:.1f}",
            }
            for cost in costs
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = common.parser("serving", __doc__)
    parser.add_argument("--repeats", type=int, default=15, help="runs of each [15]")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps in a run [{STEPS}]")
    parser.add_argument(
        "--at-most",
        type=float,
        default=AT_MOST_NANOSECONDS,
        metavar="NANOSECONDS",
        help=f"exit 1 when counting and dispatching a step takes more [{AT_MOST_NANOSECONDS:g}]",
    )
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.steps < 1:
        parser.error(f"found --repeats {options.repeats}, --steps {options.steps}, expected 1 or more")
    costs = measure_steps(repeats=options.repeats, steps=options.steps)
    start = measure_start(repeats=min(options.repeats, 5))
    print(common.machine_line())
    print(table(costs))
    print(
        f"entry point without a plan: {start['register_seconds'] * 1e3:.2f} ms and {len(start['modules'])} "
        f"modules, {start['share']:.3%} of the {start['host_seconds']:.2f} s and {start['host_modules']} "
        f"modules of import {start['host']}"
    )
    common.write_json(options.json, "serving", {"steps": [asdict(cost) for cost in costs], "start": start})
    found = next(cost.best_nanoseconds for cost in costs if cost.name == "count and dispatch")
    if found > options.at_most:
        print(f"failed: found {found:.0f} ns, expected at most {options.at_most:g} ns", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
