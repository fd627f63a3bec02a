"""The history of a drift: whole lines only, whoever writes at once or dies in between."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.errors import InputError, UsageError
from ladder_opt.monitor.drift import drift
from ladder_opt.monitor.history import HISTORY_SCHEMA, append_history, history_record, read_drift_history
from tests.plan.plans import STEPS, make_plan

WHEN = dt.datetime(2026, 9, 30, 4, 0, tzinfo=dt.UTC)


def record(regret: float = 0.01, **more: Any) -> dict[str, Any]:
    return {"schema": HISTORY_SCHEMA, "time": "2026-09-30T04:00:00+00:00", "regret": regret, **more}


def test_runs_come_back_as_a_table_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    found = drift(make_plan(), STEPS)
    append_history(path, history_record(found, time=WHEN + dt.timedelta(days=7)))
    append_history(path, history_record(found, time=WHEN))
    frame = read_drift_history(path)
    assert [each.isoformat() for each in frame.index] == [
        "2026-09-30T04:00:00+00:00",
        "2026-10-07T04:00:00+00:00",
    ]
    assert frame["regret"].tolist() == [found.regret, found.regret]
    assert frame["plan_sha256"].tolist() == [found.plan_digest] * 2
    assert {"part_rate", "part_length", "part_mix", "part_cost", "is_over"} <= set(frame.columns)
    assert frame["part_rate"].tolist() == pytest.approx([0.0, 0.0])


def test_a_time_of_another_zone_is_told_in_utc() -> None:
    found = drift(make_plan(), STEPS, tell_parts=False)
    zone = dt.timezone(dt.timedelta(hours=2))
    line = history_record(found, time=dt.datetime(2026, 9, 30, 6, 0, tzinfo=zone))
    assert line["time"] == "2026-09-30T04:00:00+00:00"
    assert line["part_rate"] is None


def test_a_history_without_its_last_line_feed_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    path.write_text(json.dumps(record(0.5)), encoding="utf-8")
    append_history(path, record(0.25))
    assert read_drift_history(path)["regret"].tolist() == [0.5, 0.25]


def test_an_empty_history_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    path.write_text("\n", encoding="utf-8")
    assert len(read_drift_history(path)) == 0
    append_history(path, record())
    assert len(read_drift_history(path)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}}", "drift.jsonl:2"),
        ("[]", "drift.jsonl:2"),
        ('{"schema": "ladder_opt/plan/1"}', "found 'ladder_opt/plan/1'"),
        ('{"schema": "ladder_opt/drift-history/2"}', "found 'ladder_opt/drift-history/2'"),
        (json.dumps(record() | {"time": "noon"}), "time: found 'noon', expected a time such as"),
        (json.dumps(record() | {"time": 3}), "time: found 3, expected a time such as"),
        (json.dumps(record() | {"regret": "much"}), "regret: found 'much', expected a number"),
        (json.dumps({"schema": HISTORY_SCHEMA}), "time: found None"),
    ],
)
def test_a_line_that_is_no_run_is_refused_and_the_file_left_alone(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "drift.jsonl"
    path.write_text(f"{json.dumps(record())}\n{line}\n", encoding="utf-8")
    before = path.read_bytes()
    for use in (lambda: read_drift_history(path), lambda: append_history(path, record())):
        with pytest.raises(InputError) as error:
            use()
        assert message in str(error.value)
        assert "drift.jsonl:2" in str(error.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", [*range(1, len(json.dumps(record())), 7), "zeros"])
def test_a_torn_line_is_told_and_nothing_is_lost(tmp_path: Path, torn: int | str) -> None:
    path = tmp_path / "drift.jsonl"
    rest = "\0" * 40 if torn == "zeros" else json.dumps(record(0.75))[: int(torn)]
    path.write_text(f"{json.dumps(record(0.5))}\n{rest}", encoding="utf-8")
    line = f"{path}: line 2 is torn and left as found; 1 whole ones count"
    assert append_history(path, record(0.25)) == [line]
    assert path.read_text(encoding="utf-8") == (
        f"{json.dumps(record(0.5))}\n{rest}\n{json.dumps(record(0.25))}\n"
    )
    (again,) = append_history(path, record(0.125))
    assert again == f"{path}: line 2 is torn and left as found; 2 whole ones count"
    with pytest.warns(UserWarning, match="line 2 is torn and left as found; 3 whole ones count"):
        frame = read_drift_history(path)
    assert frame["regret"].tolist() == [0.5, 0.25, 0.125]


def test_a_history_that_begins_torn_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    path.write_text(json.dumps(record())[:50], encoding="utf-8")
    assert append_history(path, record()) == [f"{path}: line 1 is torn and left as found; 0 whole ones count"]
    assert append_history(tmp_path / "new.jsonl", record()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder that can be written"):
        append_history(tmp_path / "no" / "drift.jsonl", record())


def test_a_file_that_is_no_history_is_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n", encoding="utf-8")
    with pytest.raises(InputError):
        append_history(path, record())
    assert path.read_text(encoding="utf-8") == "remember the milk\n"


def _append_many(path: str, first: int) -> None:
    for at in range(first, first + 20):
        append_history(path, record(float(at)))


def test_runs_at_once_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(str(path), 100 * at)) for at in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    found = read_drift_history(path)["regret"].tolist()
    assert sorted(found) == sorted(float(100 * at + each) for at in range(3) for each in range(20))
    assert [each.name for each in tmp_path.iterdir()] == ["drift.jsonl"]


def test_a_killed_run_leaves_a_whole_history(tmp_path: Path) -> None:
    path = tmp_path / "drift.jsonl"
    code = (
        "import sys; from ladder_opt.monitor.history import append_history\n"
        f"record = {record(padding='x' * 20000)!r}\n"
        "while True: append_history(sys.argv[1], record)\n"
    )
    for seconds in (0.05, 0.11, 0.23):
        worker = subprocess.Popen([sys.executable, "-c", code, str(path)])
        deadline = time.monotonic() + 60
        before = path.stat().st_size if path.exists() else 0
        while (not path.exists() or path.stat().st_size <= before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        runs = len(read_drift_history(path))
        assert path.read_bytes().endswith(b"\n")
        append_history(path, record())  # no lock outlives the process
        assert len(read_drift_history(path)) == runs + 1


def test_what_is_no_record_or_no_file_is_refused(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with pytest.raises(UsageError, match="found schema None, expected a record of history_record"):
        append_history(history, {"a": 1})
    assert not history.exists()
    os.mkfifo(history)
    with pytest.raises(InputError, match="pipe"):
        append_history(history, {"schema": HISTORY_SCHEMA})
