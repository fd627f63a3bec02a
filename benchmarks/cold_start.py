"""From a typed `ladder-opt tune` to the plan on disk: wall time, imports, memory.

The command runs as a process of its own: first with an empty numba cache (every loop is compiled), then with
the cache that left behind, then once under `python -X importtime`, whose own times, added up, are the share
that imports take (measuring slows them by a tenth or so). Nothing heavy is imported here: a child starts as
small as a shell's would.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks import common

AT_MOST: Final = 10.0
PACKAGES_SHOWN: Final = 6


@dataclass(frozen=True)
class Run:
    """One process.

    Attributes:
        name: as the table calls it.
        wall_seconds: from start to exit.
        cpu_seconds: user and system.
        peak_mib: largest resident set.
        import_seconds: spent in imports, where measured.
    """

    name: str
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    import_seconds: float | None = None


def run_command(name: str, command: Sequence[str], environment: dict[str, str], *, stderr: Path) -> Run:
    """Run a process to its end; what it says on stderr goes to a file.

    Raises:
        RuntimeError: it failed.
    """
    with stderr.open("wb") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)  # this child's own usage, not the largest of all
        wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = stderr.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        msg = f"{' '.join(command)}: found exit code {process.returncode}, expected 0; its last line: {last}"
        raise RuntimeError(msg)
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Run(name, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def import_times(text: str) -> dict[str, float]:
    """Seconds by package from what `-X importtime` writes, most first, without what each imports."""
    microseconds: Counter[str] = Counter()
    for line in text.splitlines():
        if not line.startswith("import time:"):
            continue
        own, _, module = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            microseconds[module.strip().partition(".")[0]] += int(own)
    return {module: count * 1e-6 for module, count in microseconds.most_common()}


def measure(
    trace: Path, *, warm_runs: int, arguments: Sequence[str] = ()
) -> tuple[list[Run], dict[str, float]]:
    """The first run, the later ones, and one with its imports timed; seconds by package of that one."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.json")
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(Path(folder, "numba"))}
        tail = ["tune", str(trace), "-o", str(plan), *arguments]
        script = shutil.which("ladder-opt", path=str(Path(sys.executable).parent))
        command = [script, *tail] if script else [sys.executable, "-m", "ladder_opt", *tail]
        log = Path(folder, "stderr.txt")
        runs = [run_command("first, nothing compiled", command, environment, stderr=log)]
        for _ in range(warm_runs):
            plan.unlink()
            runs.append(run_command("later", command, environment, stderr=log))
            if not plan.is_file():
                msg = f"found no {plan}, expected the plan"
                raise RuntimeError(msg)
        timed = run_command(
            "later, imports timed",
            [sys.executable, "-X", "importtime", "-m", "ladder_opt", *tail],
            environment,
            stderr=log,
        )
        packages = import_times(log.read_text(encoding="utf-8", errors="replace"))
    runs.append(Run(**{**asdict(timed), "import_seconds": sum(packages.values())}))
    return runs, packages


def table(runs: Sequence[Run]) -> str:
    """The printed table; the later runs as one line each of best and median."""
    later = [run for run in runs if run.name == "later"]
    shown = [runs[0]]
    for what, pick in (("best", min), ("median", statistics.median_low)):
        wall = pick(run.wall_seconds for run in later)
        shown.append(
            Run(
                **{**asdict(next(run for run in later if run.wall_seconds == wall)), "name": f"later, {what}"}
            )
        )
    shown.append(runs[-1])
    return common.text_table(
        [
            {
                "run": run.name,
                "wall": f"{run.wall_seconds:.2f} s",
                "cpu": f"{run.cpu_seconds:.2f} s",
                "peak memory": f"{run.peak_mib:.0f} MiB",
                "imports": "-"
                if run.import_seconds is None
                else f"{run.import_seconds:.2f} s, {run.import_seconds / run.wall_seconds:.0%}",
            }
            for run in shown
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = common.parser("cold_start", __doc__)
    parser.add_argument(
        "--trace",
        choices=["sample", *common.PUBLIC_TRACES],
        default="sample",
        help="what is tuned for [sample]",
    )
    parser.add_argument("--warm-runs", type=int, default=5, help="later runs [5]")
    parser.add_argument(
        "--at-most",
        type=float,
        default=AT_MOST,
        metavar="SECONDS",
        help=f"exit 1 when the median later run takes more [{AT_MOST:g}]",
    )
    options = parser.parse_args(arguments)
    if options.warm_runs < 1:
        parser.error(f"--warm-runs: found {options.warm_runs}, expected 1 or more")
    path = common.trace_path(options.trace, options.shared)
    if path is None:
        print(
            f"note: no {common.PUBLIC_TRACES[options.trace]} under {options.shared}; "
            "the bundled sample stands in for it"
        )
        path = common.SAMPLE
    runs, packages = measure(path, warm_runs=options.warm_runs)
    print(common.machine_line())
    print(f"ladder-opt tune {path.name} -o plan.json")
    print(table(runs))
    top = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in list(packages.items())[:PACKAGES_SHOWN])
    print(f"imports by package, without what each imports: {top}")
    common.write_json(
        options.json,
        "cold_start",
        {"trace": path.name, "runs": [asdict(run) for run in runs], "imports_seconds": packages},
    )
    median = statistics.median(run.wall_seconds for run in runs if run.name == "later")
    if median > options.at_most:
        print(f"failed: found {median:.1f} s, expected at most {options.at_most:g} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
