"""Fixtures that all tests of the command line share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladder_opt.occupancy.steps_file import write_steps
from tests.cli.runs import Run
from tests.plan.plans import STEPS, make_cost, make_trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with steps.csv, trace.csv and cost.json."""
    monkeypatch.chdir(tmp_path)
    write_steps(STEPS, "steps.csv")
    Path("cost.json").write_text(json.dumps(make_cost().to_dict()), encoding="utf-8")
    trace = make_trace(requests=120)
    assert trace.arrival_seconds is not None
    rows = zip(
        trace.arrival_seconds.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        strict=True,
    )
    lines = ["arrival_seconds,prompt_tokens,output_tokens"]
    Path("trace.csv").write_text("\n".join([*lines, *(f"{a},{p},{o}" for a, p, o in rows)]), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)
