"""One job, threads and processes on the same replay: what `Executor` could do on the cores of one machine.

The trace is cut into shares as `simulate` cuts it, and the shares run in turn, by threads, and by processes
(joblib's loky). Each way is repeated in turns; wall time is the best, CPU time the mean over all threads and
processes. Processes are started anew each time, as a command's would be. Results have to be the same.
"""

from __future__ import annotations

import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor

from benchmarks import common
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders
from ladder_opt.occupancy.replay import step_seconds_by_size
from ladder_opt.occupancy.shares import Counted, Share, added, cut, run_share
from ladder_opt.trace.synth import synthesize


@dataclass
class Way:
    """One way to run shares.

    Attributes:
        name: as the table calls it.
        run: replays all shares.
        wall_seconds: of each repeat.
        cpu_seconds: of each repeat, all threads and processes.
    """

    name: str
    run: Callable[[], list[Counted]]
    wall_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def repeat(self) -> Counted:
        """Time one replay."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        counted = self.run()
        get_reusable_executor().shutdown(wait=True)  # so that its processes' time is counted
        self.wall_seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(max(1e-9, _cpu_seconds() - cpu))
        return added(counted)


def _cpu_seconds() -> float:
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _unpacked(packed: bytes) -> Counted:
    share: Share = pickle.loads(packed)  # noqa: S301  (packed by this very run)
    return run_share(share)


def measure(*, requests: int, replicas: int, jobs: int, repeats: int) -> list[Way]:
    """Replay a generated trace in each way.

    Raises:
        ValueError: two ways counted differently.
    """
    engine, cost = Engine(), read_cost_model()
    share = Share(
        trace=synthesize(requests=requests, rate=replicas / 16),
        first=0,
        stop=replicas,
        replicas=replicas,
        engine=engine,
        cost=cost,
        batched_seconds=step_seconds_by_size(engine, cost, default_ladders(engine)),
        concurrency=None,
        rate_scale=1.0,
    )
    run_share(cut(share, replicas)[0])  # compiles, or loads what was compiled

    def parallel(backend: str) -> list[Counted]:
        shares = cut(share, 4 * jobs)
        runner = joblib.Parallel(n_jobs=jobs, backend=backend, batch_size=1)
        if backend == "threading":
            return list(runner(joblib.delayed(run_share)(each) for each in shares))
        return list(runner(joblib.delayed(_unpacked)(pickle.dumps(each)) for each in shares))

    ways = [
        Way("1 job", lambda: [run_share(share)]),
        Way(f"{jobs} threads", lambda: parallel("threading")),
        Way(f"{jobs} processes", lambda: parallel("loky")),
    ]
    for _ in range(repeats):
        results = [way.repeat() for way in ways]
        if not all(np.array_equal(results[0].tables.steps, other.tables.steps) for other in results):
            raise ValueError("the ways count differently")
        if not all(other.engines == results[0].engines for other in results):
            raise ValueError("the ways' seconds differ")
    return ways


def table(ways: list[Way]) -> str:
    """The printed table."""
    wall, cpu = min(ways[0].wall_seconds), statistics.mean(ways[0].cpu_seconds)
    return common.text_table(
        [
            {
                "shares run by": way.name,
                "wall s, best": f"{min(way.wall_seconds):.2f}",
                "of 1 job's": f"{min(way.wall_seconds) / wall:.2f}",
                "CPU s, mean": f"{statistics.mean(way.cpu_seconds):.2f}",
                "of it": f"{statistics.mean(way.cpu_seconds) / cpu:.2f}",
            }
            for way in ways
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = common.parser("jobs", __doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the trace [1,000,000]")
    parser.add_argument("--replicas", type=int, default=64, help="engines [64]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time [one a core]")
    parser.add_argument("--repeats", type=int, default=5, help="of each way [5]")
    options = parser.parse_args(arguments)
    ways = measure(
        requests=options.requests, replicas=options.replicas, jobs=options.jobs, repeats=options.repeats
    )
    print(common.machine_line())
    print(table(ways))
    rows = [{**asdict(way), "run": None} for way in ways]
    common.write_json(options.json, "jobs", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
