"""Other simulators of LLM serving, run as processes of their own where they are installed.

Vidur (https://github.com/microsoft/vidur, MIT; Agrawal et al., MLSys 2024) simulates engines iteration by
iteration. `pip install` of its repository leaves no module behind, so it runs from a checkout:

    git clone https://github.com/microsoft/vidur && cd vidur
    python3 -m venv .venv && .venv/bin/pip install -r requirements.txt

and `--vidur FOLDER` (or LADDER_OPT_VIDUR) names that checkout. `vidur_peer.py` says how it is run.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.ladder import default_ladders
from ladder_opt.occupancy.replay import step_seconds_by_size
from ladder_opt.trace.table import Trace

VIDUR_VARIABLE: Final = "LADDER_OPT_VIDUR"
_HOW: Final = "benchmarks/peers.py says how"
_SCRIPT: Final = Path(__file__).with_name("vidur_peer.py")


def why_no_vidur(checkout: Path | None) -> str | None:
    """Why Vidur cannot be run from there; None where it can."""
    if checkout is None:
        return f"Vidur is left out: --vidur or {VIDUR_VARIABLE} names no checkout ({_HOW})"
    for part in ("vidur/simulator.py", ".venv/bin/python"):
        if not (checkout / part).is_file():
            return f"Vidur is left out: no {part} under {checkout} ({_HOW})"
    return None


def run_vidur(
    checkout: Path, trace: Trace, engine: Engine, cost: CostModel
) -> tuple[float, dict[tuple[int, int], int]]:
    """Simulate a trace on one replica under this cost model's step times and default ladders.

    Returns:
        Seconds that the simulation took, and its batches by (decodes, blocks of the longest).

    Raises:
        subprocess.CalledProcessError: Vidur failed.
    """
    assert trace.arrival_seconds is not None
    with tempfile.TemporaryDirectory() as folder:
        requests, table = Path(folder) / "requests.csv", Path(folder) / "table.json"
        with requests.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
            writer.writerows(
                zip(
                    trace.arrival_seconds.tolist(),
                    trace.prompt_tokens.tolist(),
                    trace.output_tokens.tolist(),
                    strict=True,
                )
            )
        table.write_text(json.dumps(_table(engine, cost)), encoding="utf-8")
        done = subprocess.run(
            [checkout / ".venv" / "bin" / "python", _SCRIPT, requests, table],
            stdout=subprocess.PIPE,
            check=True,
            cwd=folder,  # it leaves a folder of outputs behind
            env={**os.environ, "PYTHONPATH": str(checkout.resolve()), "WANDB_MODE": "disabled"},
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], {(decodes, longest): count for decodes, longest, count in found["batches"]}


def _table(engine: Engine, cost: CostModel) -> dict[str, Any]:
    return {
        "block_size": engine.block_size,
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "usable_kv_blocks": engine.usable_kv_blocks,
        "min_batched_seqs": engine.min_batched_seqs,
        "base": cost.step_seconds.base,
        "per_sequence_gather": cost.replay_seconds.per_sequence_gather,
        "per_prefill_token": cost.replay_seconds.per_prefill_token,
        "batched_seconds": step_seconds_by_size(engine, cost, default_ladders(engine)).tolist(),
    }
