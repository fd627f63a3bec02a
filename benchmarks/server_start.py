"""Starting a vLLM server with this package installed and no plan, beside one without the package.

Two interpreters see the same packages, one of them without this one (its modules and its entry points).
Each round starts `vllm serve` with either, in turns and in changing order, until it answers `/health`, asks
for the tokens of the same requests, and ends it. Attention is a plugin of the tests' own, which uses nothing
of this package, so that both servers run the same code where this package is not asked for anything.

CPU seconds are those of all of a server's processes. On a busy machine look at these.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import common
from tests.serving import plain_attention
from tests.serving.environment import environment, python
from tests.serving.server import Server
from tests.serving.traffic import mixed
from tests.serving.without_package import make_interpreter

REQUESTS: Final = mixed(12, seed=11, longest_output=24)
ARGUMENTS: Final = {
    "block_size": 128,
    "max_num_seqs": 8,
    "max_model_len": 1024,
    "num_gpu_blocks_override": 65,
    "compilation_config": json.dumps(plain_attention.COMPILATION),
}


@dataclass
class Contender:
    """One interpreter's servers.

    Attributes:
        name: with or without the package.
        interpreter: of Python.
        ready_seconds: from the command to the first answer of `/health`, each round.
        start_cpu_seconds: CPU time of its processes over its life (start, requests, end), each round.
        serve_seconds: for all requests together, each round.
        tokens: what it answered.
    """

    name: str
    interpreter: Path
    ready_seconds: list[float] = field(default_factory=list)
    start_cpu_seconds: list[float] = field(default_factory=list)
    serve_seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


def start_once(contender: Contender, model: Path, folder: Path, plain: Path) -> None:
    """Start a server, ask it, end it, and note what it took."""
    before = _children_cpu_seconds()
    began = time.monotonic()
    server = Server(
        model,
        folder,
        folder / "inductor",
        arguments=ARGUMENTS,
        additional_config={},
        variables={"PYTHONPATH": str(plain)},
        interpreter=contender.interpreter,
    )
    with server:
        contender.ready_seconds.append(time.monotonic() - began)
        began = time.monotonic()
        contender.tokens = [answer.tokens for answer in server.complete_in_order(REQUESTS)]
        contender.serve_seconds.append(time.monotonic() - began)
    contender.start_cpu_seconds.append(_children_cpu_seconds() - before)


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: Path, rounds: int) -> list[Contender]:
    """Both contenders, after all rounds; what they read first is read once by each before the first."""
    model = folder / "model"
    subprocess.run(
        python("tests.serving.tiny_model", "make", model),
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    plain = plain_attention.install(folder / "plain")
    contenders = [
        Contender("without the package", make_interpreter(folder / "without", with_package=False)),
        Contender("with it, no plan", make_interpreter(folder / "with", with_package=True)),
    ]
    for number in range(rounds + 1):  # the first compiles Python's bytecode and fills the disk's cache
        for contender in contenders if number % 2 else contenders[::-1]:
            start_once(contender, model, folder, plain)
            print(f"start {number}, {contender.name}: {contender.ready_seconds[-1]:.1f} s", flush=True)
            if number == 0:
                contender.ready_seconds.clear()
                contender.start_cpu_seconds.clear()
                contender.serve_seconds.clear()
    return contenders


def rows(contenders: Sequence[Contender]) -> list[dict[str, str]]:
    """The table."""
    first = contenders[0]
    table = []
    for each in contenders:
        ready = [one / other for one, other in zip(each.ready_seconds, first.ready_seconds, strict=True)]
        cpu = [
            one / other for one, other in zip(each.start_cpu_seconds, first.start_cpu_seconds, strict=True)
        ]
        table.append(
            {
                "server": each.name,
                "ready after": f"{statistics.median(each.ready_seconds):.2f} s",
                "ratio": f"{statistics.median(ready):.3f}",
                "lowest to highest": f"{min(ready):.3f} to {max(ready):.3f}",
                "CPU": f"{statistics.median(each.start_cpu_seconds):.2f} s",
                "ratio of CPU": f"{statistics.median(cpu):.3f}",
                "requests": f"{statistics.median(each.serve_seconds):.2f} s",
                "tokens": "the same" if each.tokens == first.tokens else "DIFFER",
            }
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where tokens differ or a start takes more CPU time than allowed."""
    parser = common.parser("server_start", __doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--at-most", type=float, default=1.03, help="ratio of CPU times, medians [1.03]")
    options = parser.parse_args(arguments)
    print(common.machine_line())
    with tempfile.TemporaryDirectory() as folder:
        contenders = run(Path(folder), options.rounds)
    print(common.text_table(rows(contenders)))
    common.write_json(options.json, "server_start", [asdict(contender) for contender in contenders])
    without, installed = contenders
    ratio = statistics.median(installed.start_cpu_seconds) / statistics.median(without.start_cpu_seconds)
    return 1 if installed.tokens != without.tokens or ratio > options.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
