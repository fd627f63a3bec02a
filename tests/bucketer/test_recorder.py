"""What a server counts and writes of its steps, and what becomes of a disk that is full."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer import recorder as recorder_module
from ladder_opt.bucketer.recorder import StepRecorder, StepsWriter, padding_of
from ladder_opt.engine import Engine
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.record_file import read_recorded_steps
from ladder_opt.solve.price import price_ladders
from tests.plan.plans import make_cost

ENGINE = Engine(max_num_seqs=8, max_model_len=16 * 128)
BUCKETER = Bucketer.from_engine(ENGINE)

batches = st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=8), min_size=1, max_size=40)


def started() -> StepRecorder:
    recorder = StepRecorder()
    recorder.start()
    return recorder


def writer_of(
    recorder: StepRecorder, folder: Path, warnings: list[str] | None = None, **options: Any
) -> StepsWriter:
    told: list[str] = [] if warnings is None else warnings
    given: dict[str, Any] = {"instance": "i", "rank": 0, "every_seconds": 3600, "warn": told.append} | options
    return StepsWriter(recorder, BUCKETER, folder, **given)


def test_nothing_is_counted_before_warm_up_ends() -> None:
    recorder = StepRecorder()
    recorder.step(4, 1, 4)
    recorder.decode([100], 128)
    recorder.compiles(7)
    assert recorder.counts().cells == {}
    assert recorder.counts().late_compiles == 0


def test_a_step_is_counted_by_its_own_sizes() -> None:
    recorder = started()
    recorder.decode([128, 129, 1], 128)
    recorder.decode((), 128)  # no decode in it
    recorder.step(3, 2, 4)
    recorder.step(4, 1, 4)
    assert recorder.counts().cells == {(3, 2): (2, 8), (4, 1): (1, 4)}


def test_compiles_count_from_where_warm_up_left_them() -> None:
    recorder = StepRecorder()
    recorder.start(compiles=15)
    for total in (15, 15, 16, 16, 19):
        recorder.compiles(total)
    assert recorder.counts().late_compiles == 4


@given(batches)
def test_the_file_is_the_histogram_of_the_steps(
    tmp_path_factory: pytest.TempPathFactory, batch: list[list[int]]
) -> None:
    recorder = started()
    for blocks in batch:
        recorder.decode([each * 128 for each in blocks], 128)
    folder = tmp_path_factory.mktemp("record")
    assert writer_of(recorder, folder).write()
    recorded = read_recorded_steps([folder], ENGINE)
    expected = StepHistogram(
        np.array([len(blocks) for blocks in batch]),
        np.array([max(blocks) for blocks in batch]),
        np.ones(len(batch)),
        np.array([float(sum(blocks)) for blocks in batch]),
    )
    assert recorded.steps.to_frame().equals(expected.to_frame())
    assert recorded.seconds is not None


@given(batches)
def test_the_padding_it_tells_is_what_the_cost_model_prices(batch: list[list[int]]) -> None:
    recorder = started()
    for blocks in batch:
        recorder.decode([each * 128 for each in blocks], 128)
    told = padding_of(recorder.counts(), BUCKETER)
    cells = recorder.counts().cells
    steps = StepHistogram(
        np.array([size[0] for size in cells]),
        np.array([size[1] for size in cells]),
        np.array([float(number) for number, _ in cells.values()]),
        np.array([float(pages) for _, pages in cells.values()]),
    )
    price = price_ladders(steps, ENGINE, make_cost(), BUCKETER.ladders, restarts=1.0)
    assert told["gathers"] == {
        "real": price.gathers.real,
        "ragged_floor": price.gathers.ragged_floor,
        "padded": price.gathers.padded,
    }
    assert told["steps"] == {"batched": price.batched_steps, "per_sequence": price.per_sequence_steps}


def test_the_record_beside_the_steps(tmp_path: Path) -> None:
    recorder = started()
    recorder.step(5, 3, 9)
    recorder.compiles(2)
    writer = writer_of(recorder, tmp_path / "new" / "folder", instance="abc", rank=3)
    assert writer.write()
    record = json.loads(writer.path.with_suffix(".json").read_text(encoding="utf-8"))
    assert writer.path.name.endswith("-abc-rank3.csv")
    assert record["schema"] == "ladder_opt/record/1"
    assert record["ladders"] == {"num_seqs": [4, 8], "num_blocks": [1, 2, 4, 8, 16], "ragged": None}
    assert record["gathers"] == {"real": 9, "ragged_floor": 15, "padded": 32}
    assert record["late_compiles"] == 2
    assert record["engine"]["block_size"] == 128
    assert sorted(each.suffix for each in writer.path.parent.iterdir()) == [".csv", ".json"]


def test_nothing_counted_is_nothing_written(tmp_path: Path) -> None:
    assert not writer_of(started(), tmp_path / "folder").write()
    assert not (tmp_path / "folder").exists()


def test_a_write_that_fails_is_told_once_and_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = started()
    recorder.step(4, 1, 4)
    warnings: list[str] = []
    writer = writer_of(recorder, tmp_path, warnings)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "a")

    with monkeypatch.context() as patch:
        patch.setattr("ladder_opt.occupancy.steps_file.write_steps", full)
        assert not writer.write()
        recorder.step(4, 1, 4)
        assert not writer.write()
    assert warnings == [
        f"nothing recorded in {tmp_path} for now: [Errno 28] No space left on device: 'a'; serving goes on"
    ]
    assert writer.write()
    assert read_recorded_steps([tmp_path]).steps.steps.tolist() == [2.0]


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    recorder = started()
    recorder.step(4, 1, 4)
    warnings: list[str] = []
    writer = writer_of(recorder, tmp_path / "file" / "folder", warnings, every_seconds=0.01)
    writer.start()
    deadline = time.monotonic() + 30
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.stop()
    writer.stop()
    assert len(warnings) == 1
    assert "Not a directory" in warnings[0]


def test_files_grow_while_the_server_runs(tmp_path: Path) -> None:
    recorder = started()
    recorder.step(4, 1, 4)
    writer = writer_of(recorder, tmp_path, every_seconds=0.01)
    writer.start()
    deadline = time.monotonic() + 30
    while not writer.path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.step(4, 2, 5)
    writer.stop()
    assert read_recorded_steps([tmp_path]).steps.total_steps == 2


def test_what_was_counted_is_written_once_steps_cease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_ADD_UP_SECONDS", 0.01)
    monkeypatch.setattr(recorder_module, "_QUIET_SHARE", 1e-6)
    recorder = started()
    recorder.step(4, 1, 4)
    writer = writer_of(recorder, tmp_path, every_seconds=3600)
    writer.start()
    deadline = time.monotonic() + 30
    while not writer.path.with_suffix(".json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_recorded_steps([tmp_path]).steps.total_steps == 1
    written = writer.path.stat().st_mtime_ns
    time.sleep(0.2)
    assert writer.path.stat().st_mtime_ns == written  # and not again for nothing
    writer.stop()


def test_counts_are_taken_while_steps_come_in() -> None:
    recorder = started()
    stop = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(len(recorder.counts().cells))

    thread = threading.Thread(target=watch)
    thread.start()
    for size in range(1, 3000):
        recorder.step(size, 1, size)
    stop.set()
    thread.join()
    assert len(recorder.counts().cells) == 2999
    assert seen == sorted(seen)


def _serve(folder: str, how: str) -> None:
    recorder = started()
    writer = writer_of(recorder, Path(folder))
    writer.start()
    recorder.step(4, 1, 4)
    if how == "terminated":  # vLLM's processes turn the signal into an exit

        def leave(*_: object) -> None:
            sys.exit(0)

        signal.signal(signal.SIGTERM, leave)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    if how == "raising":
        sys.exit(3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["ending", "terminated", "raising"])
def test_what_was_counted_last_is_written_as_the_process_ends(tmp_path: Path, method: str, how: str) -> None:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_serve, args=(str(tmp_path), how))
    process.start()
    process.join(60)
    assert process.exitcode == (3 if how == "raising" else 0)
    assert read_recorded_steps([tmp_path]).steps.total_steps == 1


def test_the_module_that_counts_is_light() -> None:
    assert "numpy" not in vars(recorder_module)
