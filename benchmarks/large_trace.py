"""A week of traffic on one machine: generate it, stream it, and say what that took.

A trace of `--requests` requests is drawn and written by row group, then replayed as a stream, and its head
(`--in-memory` requests) both as a stream and in memory. Each of these is a process of its own, so that its
peak of resident memory is its own; reading the file is counted, imports and compiling the loop are not. The
defaults' engine settings serve the traffic: 80 requests/s on 1,400 engines, a week of which is
48,384,000 requests. Histograms of the head's two replays have to be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks import common

AT_MOST_MIB: Final = 2048.0
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Result:
    """One process.

    Attributes:
        what: as the table calls it.
        requests: how many it drew or replayed.
        wall_seconds: of the work itself.
        cpu_seconds: of the work itself, all threads.
        peak_mib: resident memory of the process at its peak.
        busy_share: how busy the engines were, 0 to 1; None where nothing was replayed.
        digest: of the histogram.
    """

    what: str
    requests: int
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    busy_share: float | None = None
    digest: str | None = None

    @property
    def seconds_per_million(self) -> float:
        """CPU seconds for a million requests."""
        return self.cpu_seconds / self.requests * _MILLION


def peak_mib() -> float:
    """Resident memory of this process at its peak; getrusage also counts what its parent had as it forked."""
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def measure(
    folder: Path,
    *,
    requests: int,
    in_memory: int,
    rate: float,
    replicas: int,
    jobs: int | None = None,
) -> list[Result]:
    """Draw a trace into `folder` and replay it, each in a process of its own."""
    whole, head = folder / "trace.parquet", folder / "head.parquet"
    shared = [f"--rate={rate}", f"--replicas={replicas}", *([f"--jobs={jobs}"] if jobs else [])]
    results = [in_process("draw", whole, requests, shared)]
    results.append(in_process("stream", whole, requests, shared))
    in_process("draw", head, min(in_memory, requests), shared)
    both = (in_process(what, head, min(in_memory, requests), shared) for what in ("stream", "in memory"))
    return [*results, *both]


def in_process(what: str, path: Path, requests: int, shared: list[str]) -> Result:
    """Have a process do it: "draw", "stream" or "in memory"."""
    command = [sys.executable, "-m", "benchmarks.large_trace", "--child", what, "--file", str(path)]
    done = subprocess.run(
        [*command, f"--requests={requests}", *shared],
        stdout=subprocess.PIPE,
        check=True,
        cwd=common.REPOSITORY,
    )
    return Result(**json.loads(done.stdout))


def child(options: argparse.Namespace) -> Result:
    """The work of one process."""
    from ladder_opt.cost.model import read_cost_model
    from ladder_opt.engine import Engine
    from ladder_opt.executor import Executor
    from ladder_opt.occupancy.replay import simulate
    from ladder_opt.trace.parquet import write_chunks
    from ladder_opt.trace.read import read_trace
    from ladder_opt.trace.stream import AnyTrace, stream_of
    from ladder_opt.trace.synth import synthesize, synthesize_blocks

    def replay(trace: AnyTrace, replicas: int) -> tuple[float, str]:
        found = simulate(
            trace, Engine(), read_cost_model(), replicas=replicas, executor=Executor(options.jobs)
        )
        columns = (
            found.steps.num_seqs,
            found.steps.num_blocks,
            found.steps.steps,
            found.steps.real_gathers(),
        )
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        return found.busy_seconds / (found.busy_seconds + found.idle_seconds), digest

    if options.child != "draw":
        replay(synthesize(requests=100), 1)  # compiles, or loads what was compiled
    wall, cpu = time.perf_counter(), time.process_time()
    busy: float | None = None
    digest: str | None = None
    if options.child == "draw":
        write_chunks(synthesize_blocks(requests=options.requests, rate=options.rate), options.file)
    elif options.child == "stream":
        stream = stream_of(options.file)
        assert stream is not None
        busy, digest = replay(stream, options.replicas)
    else:
        busy, digest = replay(read_trace(options.file), options.replicas)
    return Result(
        what=options.child,
        requests=options.requests,
        wall_seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        peak_mib=peak_mib(),
        busy_share=busy,
        digest=digest,
    )


def table(results: list[Result]) -> str:
    """The printed table."""
    in_memory = results[-1]
    return common.text_table(
        [
            {
                "what": result.what,
                "requests": f"{result.requests:,}",
                "wall s": f"{result.wall_seconds:,.1f}",
                "CPU s": f"{result.cpu_seconds:,.1f}",
                "CPU s per million": f"{result.seconds_per_million:.2f}",
                "of in memory": ""
                if result.what == "draw"
                else f"{result.seconds_per_million / in_memory.seconds_per_million:.2f}",
                "peak MiB": f"{result.peak_mib:,.0f}",
                "engines busy": "" if result.busy_share is None else f"{result.busy_share:.0%}",
            }
            for result in results
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = common.parser("large_trace", __doc__)
    parser.add_argument("--requests", type=int, default=5 * _MILLION, help="of the whole trace [5,000,000]")
    parser.add_argument("--in-memory", type=int, default=2 * _MILLION, help="of its head [2,000,000]")
    parser.add_argument("--rate", type=float, default=80.0, help="requests a second [80]")
    parser.add_argument("--replicas", type=int, default=1400, help="engines that serve them [1400]")
    parser.add_argument("--jobs", type=int, help="replays at a time [one a core]")
    parser.add_argument("--folder", type=Path, help="where traces are written [a temporary one]")
    parser.add_argument(
        "--at-most",
        type=float,
        default=AT_MOST_MIB,
        metavar="MIB",
        help=f"exit 1 when drawing or streaming took more resident memory [{AT_MOST_MIB:,.0f}]",
    )
    parser.add_argument(
        "--child", choices=("draw", "stream", "in memory"), help="used by the benchmark itself"
    )
    parser.add_argument("--file", type=Path, help="used by the benchmark itself")
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(asdict(child(options))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder or os.environ.get("TMPDIR")) as folder:
        results = measure(
            Path(folder),
            requests=options.requests,
            in_memory=options.in_memory,
            rate=options.rate,
            replicas=options.replicas,
            jobs=options.jobs,
        )
        size = (Path(folder) / "trace.parquet").stat().st_size / (1 << 20)
    print(common.machine_line())
    print(table(results))
    print(f"the trace of {options.requests:,} requests takes {size:,.0f} MiB on disk")
    common.write_json(options.json, "large_trace", [asdict(result) for result in results])
    problems = [
        f"{result.what}: found a peak of {result.peak_mib:,.0f} MiB, expected at most {options.at_most:,.0f}"
        for result in results
        if result.what != "in memory" and result.peak_mib > options.at_most
    ]
    if results[-1].digest != results[-2].digest:
        problems.append("the head's histograms differ, expected the same from a stream and in memory")
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
