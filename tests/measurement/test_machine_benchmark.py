"""`benchmarks.machine` on a made-up trace: its mechanics, and what it predicts of pages; not its times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import common, design_points, machine
from ladder_opt.calibration.measurement_rows import read_measurement_rows
from ladder_opt.cost.model import CostModel
from ladder_opt.ladder import Ladders
from ladder_opt.measurement.options import MeasureOptions
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.trace.table import Trace


def priced_by(**terms: float) -> CostModel:
    return CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "pages",
            "step_seconds": terms,
            "compile_seconds": {"base": 2.0, "per_iteration": 1.0},
        }
    )


def pages_read(ladders: Ladders, num_seqs: int, num_blocks: int) -> int:
    """By the table in docs/files.md."""
    s = min(rung for rung in ladders.num_seqs if rung >= num_seqs)
    m = min(rung for rung in ladders.num_blocks if rung >= num_blocks)
    c = max(1, min(32 // s, m))
    return s * c * -(-m // c)


def test_predictions_are_the_pages_that_the_batches_are_padded_to() -> None:
    steps = StepHistogram(np.array([2, 5, 8]), np.array([9, 3, 30]), np.array([50.0, 2.0, 1.0]))
    batches = machine.draw_batches(steps, 40, seed=1)
    sizes = [(len(lengths), -(-lengths[0] // 64)) for lengths in batches]
    assert set(sizes) == {(5, 3), (8, 30)}
    assert all(max(lengths) == lengths[0] and min(lengths) >= 1 for lengths in batches)
    for ladders in (Ladders((4, 8), (1, 2, 4, 8, 16, 32)), Ladders((5, 8), (3, 30, 32))):
        contender = machine.Contender("any", common.bucketer_of(ladders, machine.ENGINE))
        machine.predict(contender, priced_by(per_gather=1.0), batches)
        assert contender.predicted_step_seconds == sum(pages_read(ladders, n, b) for n, b in sizes)
        variants = contender.bucketer.batched_variants()
        assert contender.predicted_warmup_seconds == sum(2 + variant.num_chunks for variant in variants)


def test_errors_and_limits() -> None:
    default, plan = (
        machine.Contender(name, common.bucketer_of(Ladders((8,), (32,)), machine.ENGINE)) for name in "ab"
    )
    default.predicted_step_seconds, plan.predicted_step_seconds = 2.0, 1.5
    default.step_seconds = [[1.0, 1.0], [5.0, 1.0], [1.0, 9.0], [1.0, 1.0]]  # quartiles pass bursts over
    plan.step_seconds = [[0.8, 0.8]] * 4
    default.predicted_warmup_seconds, default.warmup_seconds = 11.0, 10.0
    plan.predicted_warmup_seconds, plan.warmup_seconds = 9.5, 10.0
    outcome = machine.Outcome((default, plan), None, priced_by(), ())  # type: ignore[arg-type]
    assert (outcome.ratio_predicted, outcome.ratio_measured) == (0.75, 0.8)
    assert outcome.ratio_error == pytest.approx(0.0625)
    assert outcome.warmup_error == pytest.approx(0.1)


@pytest.mark.vllm
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, traced and not compiled: nothing is late, and every batch is run under both ladders."""
    from dataclasses import replace

    monkeypatch.setattr(machine, "ENGINE", replace(machine.ENGINE, max_model_len=512))
    monkeypatch.setattr(machine, "SHAPE", replace(machine.SHAPE, head_size=8, layers=1))
    rng = np.random.default_rng(0)
    trace = Trace(
        arrival_seconds=np.sort(rng.uniform(0, 5, 60)),
        prompt_tokens=rng.integers(20, 400, 60),
        output_tokens=rng.integers(20, 100, 60),
    )
    said: list[str] = []
    outcome = machine.run(
        trace,
        tmp_path,
        options=MeasureOptions(kernels=("chunked",), points=5, repeats=3, compiler="eager"),
        batches=6,
        rounds=2,
        other_seconds=0.02,
        max_variants=4,
        say=said.append,
    )
    assert len(outcome.measurements.rows) == 5
    for contender in outcome.contenders:
        assert np.shape(contender.step_seconds) == (2, 6)
        assert contender.measured_step_seconds > 0
        assert contender.predicted_step_seconds > 0
    default, plan = outcome.contenders
    assert len(plan.bucketer.batched_variants()) <= 4 < len(default.bucketer.batched_variants())
    assert len(machine.table_rows(outcome)) == 2
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- machine:begin -->\nold\n<!-- machine:end -->\nz\n")
    monkeypatch.setattr(machine, "PAGE", page)
    machine.write_doc(outcome, "verdict")
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("a\n<!-- machine:begin -->\n| ladders |")
    assert text.endswith("<!-- machine:end -->\nz\n")


def test_designed_points_are_held_against_the_rest_of_the_grid(tmp_path: Path) -> None:
    """On a made-up machine that keeps to the formula nothing is off; of one that does not, it is told."""
    from tests.measurement.machines import MadeUpMachine

    options = MeasureOptions(kernels=("chunked",), points=12, repeats=9)
    for misfit, low, high in ((0.0, 0.0, 0.01), (0.5, 0.1, 2.0)):
        bench = MadeUpMachine(misfit=misfit)
        folder = tmp_path / str(misfit)
        folder.mkdir()
        outcome = design_points.run(folder, options, open_bench=bench.opened)
        rows = read_measurement_rows(folder / "grid.csv")
        assert read_measurement_rows(folder / "points.csv") == rows[:12]
        pairs = {(row.num_seqs, row.num_blocks) for row in rows}
        assert pairs >= {(s, m) for s in design_points.NUM_SEQS for m in design_points.NUM_BLOCKS}
        assert {name: len(each) for name, each in outcome.errors.items()} == {
            "steps": len(rows) - 12,
            "compiles": len(rows) - 12,
        }
        assert low <= outcome.worst() < high
        assert [row["predictions of"] for row in design_points.table_rows(outcome)] == [
            f"{what}, {how}" for how in ("by the formula", "interpolated") for what in ("steps", "compiles")
        ]
        for name, errors in outcome.between.items():  # the misfit is smooth in the sizes
            assert np.abs(errors).mean() <= np.abs(outcome.errors[name]).mean() + 1e-4
