"""Commands that write a file, one line each, and the files that they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder_opt.cli import main
from ladder_opt.cost.model import read_cost_model
from ladder_opt.occupancy.steps_file import read_steps, write_steps
from ladder_opt.plan.plan import read_plan, write_plan
from ladder_opt.trace.read import read_trace
from tests.plan.plans import STEPS, make_cost, make_plan, make_trace

ENGINE = ("--max-num-seqs", "8", "--max-model-len", "2048", "--cost", "cost.json")
STEPS_AND_ENGINE = ("--steps", "steps.csv", *ENGINE)


@dataclass(frozen=True)
class Writes:
    """A command.

    Attributes:
        arguments: without the output.
        suffix: of the output's name.
        check: reads the output, and raises where it is not whole.
    """

    arguments: tuple[str, ...]
    suffix: str
    check: Callable[[Path], object]


def _csv(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len({line.count(",") for line in lines}) == 1


def _html(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


PAIRS = "num_seqs,num_blocks,seconds,compile_seconds\n" + "".join(
    f"{s},{m},{0.01 + 0.001 * s * m},{2 + m}\n" for s in (4, 8) for m in (1, 4, 8, 16)
)
WRITES: Mapping[str, Writes] = {
    "tune": Writes(("tune", *STEPS_AND_ENGINE), ".json", read_plan),
    "simulate": Writes(("simulate", "trace.csv", *ENGINE), ".csv", read_steps),
    "simulate_parquet": Writes(("simulate", "trace.csv", *ENGINE), ".parquet", read_steps),
    "frontier": Writes(("frontier", *STEPS_AND_ENGINE), ".csv", _csv),
    "export": Writes(("export", "plan.json", "--format", "json"), ".json", read_plan),
    "report": Writes(("report", "plan.json", "--cost", "cost.json", "--frontier-time", "0s"), ".html", _html),
    "calibrate": Writes(("calibrate", "pairs.csv"), ".json", read_cost_model),
    "convert": Writes(("trace", "convert", "trace.csv"), ".parquet", read_trace),
    "synth": Writes(("trace", "synth", "--requests", "50", "--rate", "3"), ".parquet", read_trace),
}


def make_inputs(folder: Path) -> None:
    """The files that the commands read."""
    write_steps(STEPS, folder / "steps.csv")
    write_plan(make_plan(), folder / "plan.json")
    (folder / "pairs.csv").write_text(PAIRS, encoding="utf-8")
    (folder / "cost.json").write_text(json.dumps(make_cost().to_dict()), encoding="utf-8")
    trace = make_trace(requests=40)
    assert trace.arrival_seconds is not None
    rows = zip(trace.arrival_seconds, trace.prompt_tokens, trace.output_tokens, strict=True)
    lines = ["arrival_seconds,prompt_tokens,output_tokens", *(f"{a},{p},{o}" for a, p, o in rows)]
    (folder / "trace.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(name: str, output: str) -> int:
    """Run a command in this process, in the folder of its inputs."""
    return main([*WRITES[name].arguments, "-o", output])
