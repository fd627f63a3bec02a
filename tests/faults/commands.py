"""Commands that write a file, one line each, and the files that they read; and a server's recorder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder, StepsWriter
from ladder_opt.calibration.measurement_rows import read_measurement_rows
from ladder_opt.cli import main
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.monitor.history import read_drift_history
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
        option: that names the output.
        grown_from: the command, without its output, that made the file which this one adds to; None: this one
            puts another file in its place.
    """

    arguments: tuple[str, ...]
    suffix: str
    check: Callable[[Path], object]
    option: str = "-o"
    grown_from: tuple[str, ...] | None = None


OLD = b"an old file\n"
RECORDER: Final = "recorder"


def _csv(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len({line.count(",") for line in lines}) == 1


def _html(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


PAIRS = "num_seqs,num_blocks,seconds,compile_seconds\n" + "".join(
    f"{s},{m},{0.01 + 0.001 * s * m},{2 + m}\n" for s in (4, 8) for m in (1, 4, 8, 16)
)
DRIFT = (
    "drift",
    "plan.json",
    *STEPS_AND_ENGINE,
    "--plan-cost",
    "cost.json",
    "--no-parts",
    "--max-regret",
    "1000%",
)
MEASURE = (
    "measure", "--block-size", "64", "--max-num-seqs", "6", "--max-model-len", "256",
    "--num-query-heads", "2", "--num-kv-heads", "1", "--head-size", "8", "--layers", "1",
    "--compiler", "eager", "--repeats", "1", "--kernel", "per_block", "--num-seqs", "4",
)  # fmt: skip
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
    "sweep": Writes(("sweep", "trace.csv", *ENGINE[2:], "--max-num-seqs", "4,8"), ".csv", _csv),
    "drift": Writes(DRIFT, ".jsonl", read_drift_history, option="--history", grown_from=DRIFT),
}
MEASURES = Writes(
    (*MEASURE, "--num-blocks", "1,2,4"),
    ".csv",
    read_measurement_rows,
    grown_from=(*MEASURE, "--num-blocks", "1"),
)
"""By itself, for it needs torch."""


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
    """Run a command in this process, in the folder of its inputs; or let a server's recorder write."""
    if name == RECORDER:
        return _record(Path(output))
    command = named(name)
    return main([*command.arguments, command.option, output])


def named(name: str) -> Writes:
    """A command."""
    return MEASURES if name == "measure" else WRITES[name]


def make_old(name: str, output: Path) -> bytes:
    """Put there what was there before the command; its bytes."""
    grown_from = None if name == RECORDER else named(name).grown_from
    output.unlink(missing_ok=True)
    if grown_from is None:
        output.write_bytes(OLD)
    else:
        assert main([*grown_from, named(name).option, str(output)]) == 0
    return output.read_bytes()


def check(name: str, output: Path) -> None:
    """Read the output, and raise where it is not whole."""
    (read_steps if name == RECORDER else named(name).check)(output)


def recorded(folder: Path, told: list[str]) -> tuple[StepRecorder, StepsWriter]:
    """A recorder of one step, and what writes it to a folder."""
    recorder = StepRecorder()
    recorder.start()
    writer = StepsWriter(
        recorder,
        Bucketer.from_engine(Engine(max_num_seqs=8, max_model_len=2048)),
        folder,
        instance="i",
        rank=0,
        every_seconds=3600,
        warn=told.append,
    )
    recorder.decode([128] * 5, 128)
    return recorder, writer


def _record(output: Path) -> int:
    told: list[str] = []
    _, writer = recorded(output.parent, told)
    writer._stem = output.stem  # in place of one that names the second of its start
    written = writer.write()
    writer._finalizer.cancel()
    return 0 if written and not told else 1
