"""`measure`: its points, its file, and that the rows predict the machine; the machine is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.calibration.measurement_rows import COLUMNS, read_measurement_rows
from ladder_opt.calibration.term_fit import fit_terms
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.measurement.api import measure
from ladder_opt.measurement.bench import Point
from ladder_opt.measurement.design import Candidates
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.measurement.options import MeasureOptions
from ladder_opt.measurement.row_file import RowFile
from tests.measurement.machines import MadeUpMachine

ENGINE = Engine(max_num_seqs=32, max_model_len=8192)
SMALL = Engine(max_num_seqs=8, max_model_len=8 * 128)
CHUNKED = MeasureOptions(kernels=("chunked",), points=6, repeats=5)


def prediction_errors(path: Path, machine: MadeUpMachine, kernel: str, quantity: str) -> list[float]:
    """Relative errors of a plain fit of the rows, over every pair of the engine."""
    rows = [row for row in read_measurement_rows(path) if row.kernel == kernel]
    measured = Candidates(
        kernel, np.array([row.num_seqs for row in rows]), np.array([row.num_blocks for row in rows])
    )
    pairs = [(s, m) for s in range(4, 33) for m in range(1, 65)]
    grid = Candidates(kernel, np.array([s for s, _ in pairs]), np.array([m for _, m in pairs]))
    points = [Point(kernel, s, m) for s, m in pairs]
    if quantity == "step":
        fit = fit_terms(measured.step_terms(), [row.step_seconds or 0 for row in rows], bootstraps=0)
        predicted, truth = fit.predict(grid.step_terms()), [machine.step_seconds(p) for p in points]
    else:
        fit = fit_terms(measured.compile_terms(), [row.compile_seconds or 0 for row in rows], bootstraps=0)
        predicted, truth = fit.predict(grid.compile_terms()), [machine.compile_seconds(p) for p in points]
    return sorted(abs(predicted / np.array(truth) - 1).tolist())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kernel", KERNELS)
def test_twenty_points_predict_the_whole_grid_within_a_tenth(tmp_path: Path, kernel: str, seed: int) -> None:
    """Calls 5 % noisy, a formula up to 5 % off, and a machine that slows by 1 % from point to point."""
    machine = MadeUpMachine(misfit=0.05, noise=0.05, drift=0.01, seed=seed)
    options = MeasureOptions(kernels=(kernel,), points=20, seed=seed)
    found = measure(tmp_path / "m.csv", ENGINE, options=options, open_bench=machine.opened)
    assert (found.new, found.left, found.stopped) == (20, 0, "done")
    for quantity in ("step", "compile"):
        errors = prediction_errors(tmp_path / "m.csv", machine, kernel, quantity)
        assert errors[int(0.9 * len(errors))] < 0.10
        middle, high = found.expected_errors[kernel][quantity]
        assert middle <= high
        assert 0.3 < high / errors[int(0.9 * len(errors))] < 5  # what was said beforehand is of that size


@pytest.mark.parametrize("quantity", ["step", "compile"])
def test_the_error_to_expect_of_a_rough_machine_is_not_that_of_a_smooth_one(
    tmp_path: Path, quantity: str
) -> None:
    """Every sixth number of sequences takes twice as long, which no neighbour in the sizes tells."""

    class Rough(MadeUpMachine):
        def bend(self, point: Point) -> float:
            return super().bend(point) * (2.0 if point.num_seqs % 6 == 2 else 1.0)

    options = MeasureOptions(kernels=("chunked",), points=20)
    said = {}
    for name, machine in (("rough", Rough(noise=0.02)), ("smooth", MadeUpMachine(noise=0.02))):
        found = measure(tmp_path / name, ENGINE, options=options, open_bench=machine.opened)
        _, said[name] = found.expected_errors["chunked"][quantity]
    errors = prediction_errors(tmp_path / "rough", Rough(), "chunked", quantity)
    assert 0.6 < said["rough"] / errors[int(0.9 * len(errors))] < 1.6
    assert said["smooth"] < said["rough"] / 3


def test_points_chosen_predict_better_than_random_ones(tmp_path: Path) -> None:
    def worst_error(name: str, points: list[Point] | None, seed: int) -> float:
        machine = MadeUpMachine(misfit=0.05, noise=0.05, seed=seed)
        options = MeasureOptions(kernels=("chunked",), points=10)
        if points is None:
            measure(tmp_path / name, ENGINE, options=options, open_bench=machine.opened)
        for point in points or ():
            one = replace(options, num_seqs=(point.num_seqs,), num_blocks=(point.num_blocks,))
            measure(tmp_path / name, ENGINE, options=one, open_bench=machine.opened)
        return prediction_errors(tmp_path / name, machine, "chunked", "step")[-1]

    every = Candidates.of(ENGINE, "chunked")
    chosen, random = [], []
    for seed in range(3):
        chosen.append(worst_error(f"chosen-{seed}", None, seed))
        at = np.random.default_rng(seed).choice(len(every), 10, replace=False)
        random.append(worst_error(f"random-{seed}", [every.point(int(one)) for one in at], seed))
    assert np.mean(chosen) < 0.8 * np.mean(random)


def test_a_machine_that_slows_down_does_not_tilt_the_rows(tmp_path: Path) -> None:
    """References that are timed in every round take a drift out: here it would come to 10 %."""
    machine = MadeUpMachine(drift=0.01)
    measure(
        tmp_path / "m.csv",
        ENGINE,
        options=MeasureOptions(kernels=("chunked",), points=14),
        open_bench=machine.opened,
    )
    ratios = [
        (row.step_seconds or 0) / machine.step_seconds(Point(row.kernel, row.num_seqs, row.num_blocks))
        for row in read_measurement_rows(tmp_path / "m.csv")
    ]
    assert max(ratios) / min(ratios) < 1.0001


def test_rows_say_everything_and_both_kernels_take_turns(tmp_path: Path) -> None:
    machine = MadeUpMachine(noise=0.01)
    options = MeasureOptions(points=3, repeats=9)
    shape = ModelShape(layers=4, logits_soft_cap=30.0)
    found = measure(tmp_path / "m.csv", SMALL, shape, options=options, open_bench=machine.opened)
    rows = read_measurement_rows(tmp_path / "m.csv")
    assert rows == found.rows
    assert [row.kernel for row in rows] == ["per_block", "chunked"] * 3
    for row in rows:
        assert (row.layers, row.graphs_per_variant, row.logits_soft_cap, row.repeats) == (4, 1, 30.0, 9)
        assert (row.block_size, row.device, row.clock, row.compiler) == (128, "cpu", "cpu", "inductor")
        assert row.step_seconds_low is not None
        assert row.step_seconds_high is not None
        assert row.step_seconds is not None
        assert row.step_seconds_low <= row.step_seconds <= row.step_seconds_high
    assert [(row.num_seqs, row.num_blocks) for row in rows[:2]] == [(8, 8)] * 2  # the largest first


def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    first = MadeUpMachine()
    measure(tmp_path / "m.csv", SMALL, options=replace(CHUNKED, points=4), open_bench=first.opened)
    before = (tmp_path / "m.csv").read_bytes()
    second = MadeUpMachine()
    found = measure(tmp_path / "m.csv", SMALL, options=CHUNKED, open_bench=second.opened)
    assert (tmp_path / "m.csv").read_bytes().startswith(before)
    assert (len(found.rows), found.new) == (6, 2)
    assert len({(row.num_seqs, row.num_blocks) for row in found.rows}) == 6
    assert len(second.compiled) == 5  # two new ones, and three as references
    third = MadeUpMachine()
    again = measure(tmp_path / "m.csv", SMALL, options=CHUNKED, open_bench=third.opened)
    assert (again.new, again.stopped, third.compiled) == (0, "done", [])


def test_a_run_that_goes_on_is_timed_as_the_first_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run's machine is twice as slow; its references say so."""
    measure(tmp_path / "m.csv", SMALL, options=replace(CHUNKED, points=3), open_bench=MadeUpMachine().opened)
    slow = MadeUpMachine(drift=0.0)
    real = slow.step_seconds
    monkeypatch.setattr(slow, "step_seconds", lambda point: 2 * real(point))
    found = measure(tmp_path / "m.csv", SMALL, options=CHUNKED, open_bench=slow.opened)
    for row in found.rows[3:]:
        exact = real(Point(row.kernel, row.num_seqs, row.num_blocks))
        assert row.step_seconds == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_size": 128}, "found rows of head_size 64 (line 2), expected 128 as asked for"),
        ({"dtype": "bfloat16"}, "found rows of dtype float32 (line 2), expected bfloat16 as asked for"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "m.csv"
    measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    before = path.read_bytes()
    with pytest.raises(UsageError) as error:
        measure(
            path,
            SMALL,
            replace(ModelShape(), **change),  # type: ignore[arg-type]
            options=CHUNKED,
            open_bench=MadeUpMachine().opened,
        )
    expected = f"{path}: {message}: go on with the same settings, or name another file"
    assert str(error.value) == expected
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["notes of a user", "num_seqs,num_blocks,steps\n4,1,7\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    first = content.splitlines()[0]
    assert str(error.value) == (
        f"{path}:1: found {first!r}, expected the columns that ladder-opt measure writes in this release; "
        "name another file"
    )
    assert path.read_text() == content


def test_a_last_line_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    found = measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert found.notes == (f"{path}: dropped a last line that was cut short",)
    assert (found.new, len(found.rows)) == (1, 6)
    path.write_text(",".join(COLUMNS))  # a header without its end
    found = measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert (found.new, len(read_measurement_rows(path))) == (6, 6)


def test_kill_9_leaves_whole_rows(tmp_path: Path) -> None:
    """The process kills itself in the middle of its fifth compile, as anything else may."""
    path = tmp_path / "m.csv"
    program = f"""
        import os, signal
        from tests.measurement.machines import MadeUpMachine
        from tests.measurement.test_measure import CHUNKED, SMALL, measure

        def kill(done):
            if done == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        measure({str(path)!r}, SMALL, options=CHUNKED, open_bench=MadeUpMachine(before_compile=kill).opened)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(read_measurement_rows(path)) == 4
    assert path.read_bytes().endswith(b"\n")
    found = measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert (found.new, len(found.rows)) == (2, 6)


def test_two_measurements_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    told = []

    def meanwhile(done: int) -> None:
        with pytest.raises(UsageError) as error:
            measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
        told.append(str(error.value))

    measure(
        path,
        SMALL,
        options=replace(CHUNKED, points=1),
        open_bench=MadeUpMachine(before_compile=meanwhile).opened,
    )
    assert told == [f"{path}: found another measurement writing it, expected one"]


def test_a_run_that_begins_in_the_same_moment_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first run's look at a file that is not there and its lock, a second one measures it all."""
    path, lock = tmp_path / "m.csv", RowFile._lock
    begun: list[RowFile] = []

    def late(self: RowFile) -> None:
        if not begun:
            begun.append(self)
            measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
        lock(self)

    monkeypatch.setattr(RowFile, "_lock", late)
    found = measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert (found.new, len(read_measurement_rows(path))) == (0, 6)


def test_a_header_cut_short_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(",".join(COLUMNS)[:40])
    found = measure(path, SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert (found.new, len(read_measurement_rows(path))) == (6, 6)


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    machine = MadeUpMachine(before_compile=interrupt)
    found = measure(tmp_path / "m.csv", SMALL, options=CHUNKED, open_bench=machine.opened)
    assert (found.stopped, found.new, found.left) == ("interrupted", 5, 1)


def test_a_time_limit_begins_no_further_point(tmp_path: Path) -> None:
    options = replace(CHUNKED, time_limit_seconds=0.0)
    found = measure(tmp_path / "m.csv", SMALL, options=options, open_bench=MadeUpMachine().opened)
    assert (found.stopped, found.new, found.left) == ("time limit", 0, 6)


def test_a_full_disk_leaves_whole_rows() -> None:
    with pytest.raises(InputError) as error:
        measure("/dev/full", SMALL, options=CHUNKED, open_bench=MadeUpMachine().opened)
    assert str(error.value) == (
        "/dev/full: found a device or a pipe, expected a regular file, which rows are added to"
    )


def test_the_grid_is_every_variant_once(tmp_path: Path) -> None:
    options = MeasureOptions(kernels=("chunked",), grid=True, repeats=1)
    found = measure(tmp_path / "m.csv", SMALL, options=options, open_bench=MadeUpMachine().opened)
    keys = {
        (s, max(1, min(32 // s, m)), -(-m // max(1, min(32 // s, m))))
        for s in range(4, 9)
        for m in range(1, 9)
    }
    assert len(found.rows) == len(keys)
    listed = MeasureOptions(kernels=("per_block",), num_seqs=(8, 4), num_blocks=(1, 8), repeats=1)
    found = measure(tmp_path / "l.csv", SMALL, options=listed, open_bench=MadeUpMachine().opened)
    assert {(row.num_seqs, row.num_blocks) for row in found.rows} == {(4, 1), (4, 8), (8, 1), (8, 8)}


def test_a_large_engine_has_few_candidates_and_its_ends_among_them() -> None:
    engine = Engine(max_num_seqs=128, max_model_len=131072)
    for kernel in KERNELS:
        found = Candidates.of(engine, kernel)
        assert len(found) <= 1200
        assert (found.num_seqs.min(), found.num_seqs.max()) == (4, 128)
        assert found.num_blocks.max() == 1024


def test_a_noisy_machine_is_told(tmp_path: Path) -> None:
    machine = MadeUpMachine(noise=0.4)
    found = measure(tmp_path / "m.csv", SMALL, options=CHUNKED, open_bench=machine.opened)
    assert any(line.startswith("a noisy machine: a tenth of the same calls took ") for line in found.warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 0}, "points: found 0, expected 1 to 100000"),
        ({"kernels": ("ragged",)}, "kernels: found 'ragged', expected per_block, chunked"),
        ({"num_seqs": (4,)}, "num_blocks: found none, expected a list of them beside the other axis's"),
        ({"clock": "sun"}, "clock: found 'sun', expected auto, cpu, wall"),
        (
            {"clock": "cpu", "threads": 2},
            (
                "clock: found cpu with device cpu and 2 threads, expected wall: CPU time is a step's time "
                "where one thread does all of it"
            ),
        ),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        MeasureOptions(**options)  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        (
            Engine(max_num_seqs=3),
            CHUNKED,
            "max_num_seqs: found 3, expected 4 or more, from where decodes are batched",
        ),
        (
            SMALL,
            replace(CHUNKED, num_seqs=(4, 9), num_blocks=(1,)),
            "num_seqs: found 9, expected 4 to 8, the engine's limits",
        ),
        (
            SMALL,
            replace(CHUNKED, num_seqs=(4,), num_blocks=(9,)),
            "num_blocks: found 9, expected 1 to 8, the engine's limits",
        ),
        (
            replace(SMALL, num_kv_blocks=20),
            replace(CHUNKED, num_seqs=(4,), num_blocks=(1, 8)),
            "num_kv_blocks: found 20, expected more than the 32 pages that chunked 4 x 8 reads at once",
        ),
        (
            replace(SMALL, num_kv_blocks=2),
            CHUNKED,
            "num_kv_blocks: found 2, expected a pool that some kernel fits into",
        ),
    ],
)
def test_what_the_engine_cannot_run(
    tmp_path: Path, engine: Engine, options: MeasureOptions, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        measure(tmp_path / "m.csv", engine, options=options, open_bench=MadeUpMachine().opened)
    assert str(error.value) == message
    assert not (tmp_path / "m.csv").exists()


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(UsageError) as error:
        MeasureOptions(seed=seed)
    assert str(error.value) == f"seed: found {seed}, expected 0 to {(1 << 63) - 1}"
