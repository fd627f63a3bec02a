"""The request trace and the gauges, as vLLM's API server drives them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.trace.read import read_trace
from ladder_opt.vllm_plugin.gauges import Gauges
from ladder_opt.vllm_plugin.request_trace import FinishedRequest, RequestTraceWriter
from tests.vllm_plugin.engines import make_vllm_config


def writer_of(folder: Path, warnings: list[str] | None = None, **options: Any) -> RequestTraceWriter:
    told: list[str] = [] if warnings is None else warnings
    given: dict[str, Any] = {
        "instance": "i",
        "rank": 0,
        "every_seconds": 3600,
        "with_ids": False,
        "warn": told.append,
    }
    return RequestTraceWriter(folder, **(given | options))


def request(number: int) -> FinishedRequest:
    return FinishedRequest(1.7e9 + number, 100 + number, 5, 0, f"r{number}")


def test_a_part_grows_and_is_followed_by_the_next(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, part_rows=3)
    for number in range(8):
        writer.add(request(number))
        assert writer.write()
    parts = sorted(tmp_path.glob("requests-*.parquet"))
    assert [path.name[-13:] for path in parts] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert [len(read_trace(path)) for path in parts] == [3, 3, 2]
    assert read_trace(tmp_path).prompt_tokens.tolist() == list(range(100, 108))


def test_many_requests_between_two_writes(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, part_rows=3)
    for number in range(7):
        writer.add(request(number))
    writer.stop()
    writer.stop()
    assert len(list(tmp_path.iterdir())) == 3
    assert len(read_trace(tmp_path)) == 7


def test_no_request_is_no_file(tmp_path: Path) -> None:
    writer_of(tmp_path / "folder").stop()
    assert not (tmp_path / "folder").exists()


def test_a_write_that_fails_is_told_once_and_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    warnings: list[str] = []
    writer = writer_of(tmp_path / "file", warnings)
    for number in range(2):
        writer.add(request(number))
        assert not writer.write()
    assert len(warnings) == 1
    assert warnings[0].endswith("serving goes on")
    (tmp_path / "file").unlink()
    assert writer.write()
    assert len(read_trace(tmp_path / "file")) == 2


def record(folder: Path, *, late: int = 1, **gathers: int) -> None:
    text = json.dumps({"gathers": gathers, "late_compiles": late})
    (folder / "steps-20260101T000000Z-i-rank0.json").write_text(text, encoding="utf-8")


def shown() -> dict[str, float]:
    from prometheus_client import REGISTRY

    found = {}
    for name in ("padding_overpay", "fixable_share", "late_compiles"):
        value = REGISTRY.get_sample_value(f"ladder_opt_{name}", {"engine": "0"})
        if value is not None:
            found[name] = value
    return found


def test_gauges_show_what_the_worker_wrote(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    gauges = Gauges.of(tmp_path, instance="i", rank=0, every_seconds=0)
    assert gauges is not None
    gauges.refresh()  # nothing written yet
    record(tmp_path, real=50, ragged_floor=100, padded=150)
    gauges.refresh()
    assert shown() == {"padding_overpay": 0.5, "fixable_share": 0.5, "late_compiles": 1}
    record(tmp_path, late=3, real=100, ragged_floor=100, padded=100)
    gauges.refresh()
    assert shown() == {"padding_overpay": 0, "fixable_share": 0, "late_compiles": 3}
    (tmp_path / "steps-20260101T000000Z-i-rank0.json").write_text("{torn", encoding="utf-8")
    gauges.refresh()
    assert shown()["late_compiles"] == 3


def test_gauges_look_no_more_often_than_the_worker_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def values() -> dict[str, float]:
        looks.append(1)
        return {}

    gauges = Gauges({}, tmp_path, pattern="*", engine="0", every_seconds=60)
    monkeypatch.setattr(gauges, "_values", values)
    clock = iter([1000.0, 1030.0, 1059.0, 1061.0])
    monkeypatch.setattr("ladder_opt.vllm_plugin.gauges.time.monotonic", lambda: next(clock))
    for _ in range(4):
        gauges.refresh()
    assert len(looks) == 2


@pytest.mark.vllm
class TestLogger:
    """On vLLM's own statistics."""

    def finished(self, **changes: Any) -> Any:
        from vllm.v1.engine import FinishReason
        from vllm.v1.metrics.stats import FinishedRequestStats

        given: dict[str, Any] = {
            "finish_reason": FinishReason.STOP,
            "request_id": "cmpl-1",
            "e2e_latency": 2.5,
            "num_prompt_tokens": 10,
            "num_generation_tokens": 7,
            "num_cached_tokens": 4,
        }
        return FinishedRequestStats(**(given | changes))

    def iteration(self, *requests: Any) -> Any:
        from vllm.v1.metrics import stats as vllm_stats

        made: Any = vllm_stats.IterationStats
        stats = made()
        stats.iteration_timestamp = 1.7e9
        stats.finished_requests = list(requests)
        return stats

    def logger(self, **additional: Any) -> Any:
        from ladder_opt.vllm_plugin.stat_logger import LadderOptStatLogger

        return LadderOptStatLogger(make_vllm_config(additional_config=additional), 0)

    def test_requests_become_a_trace(self, tmp_path: Path) -> None:
        logger = self.logger(ladder_opt_record=str(tmp_path), ladder_opt_record_seconds=3600)
        logger.log_engine_initialized()
        logger.record(None, None)
        logger.record(None, self.iteration())
        logger.record(
            None, self.iteration(self.finished(), self.finished(e2e_latency=4.0, num_prompt_tokens=3))
        )
        logger.log()
        logger._writer.stop()
        trace = read_trace(tmp_path)
        assert trace.arrival_seconds is not None
        assert trace.arrival_seconds.tolist() == [0, 1.5]
        assert trace.prompt_tokens.tolist() == [3, 10]
        assert trace.output_tokens.tolist() == [7, 7]
        assert trace.cached_tokens is not None
        assert trace.cached_tokens.tolist() == [3, 4]

    @pytest.mark.parametrize("asked", [False, True])
    def test_ids_are_written_only_when_asked_for(self, tmp_path: Path, asked: bool) -> None:
        import pyarrow.parquet as pq

        logger = self.logger(ladder_opt_record=str(tmp_path), ladder_opt_record_ids=asked)
        logger.record(None, self.iteration(self.finished()))
        logger._writer.stop()
        (path,) = tmp_path.glob("*.parquet")
        assert ("request_id" in pq.read_table(path).column_names) is asked
        assert (b"cmpl-1" in path.read_bytes()) is asked

    def test_without_a_record_nothing_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LADDER_OPT_RECORD", raising=False)
        logger = self.logger()
        logger.record(None, self.iteration(self.finished()))
        assert logger._writer is None
        assert logger._gauges is None

    def test_a_plan_made_from_what_was_recorded(self, tmp_path: Path) -> None:
        """Steps and requests lie in one folder; each reader takes its own."""
        logger = self.logger(ladder_opt_record=str(tmp_path), ladder_opt_record_seconds=0.1)
        logger.record(None, self.iteration(*[self.finished(e2e_latency=float(n)) for n in range(50)]))
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("requests-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        logger._writer.stop()
        assert len(read_trace(tmp_path)) == 50
