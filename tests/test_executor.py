"""Work on threads and on a Dask cluster: every task once, in order, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ladder_opt.cli import main
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.executor import Executor, Report
from ladder_opt.occupancy import shares
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.options import ReplayOptions
from ladder_opt.plan.sweep import sweep
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.stream import stream_of
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import Trace
from tests.occupancy.test_replay import COST, assert_same

DASK_WARNINGS = (
    "ignore:.*:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:.*:DeprecationWarning:distributed",
)


def square(number: int, report: Report | None) -> int:
    if number == 13:
        raise InputError("13", "another number", path="f.csv", line=4)
    if report is not None:
        report(1)
    return number * number


@pytest.mark.parametrize("jobs", [1, 3, None])
def test_results_come_in_the_order_of_the_tasks(jobs: int | None) -> None:
    told: list[float] = []
    with Executor(jobs).open() as pool:
        assert pool.map(square, range(10), sizes=[1] * 10, progress=told.append) == [
            number * number for number in range(10)
        ]
        with pytest.raises(InputError, match=r"f\.csv:4: found 13, expected another number"):
            pool.map(square, [1, 13, 2], sizes=[1] * 3)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_names() -> None:
    assert Executor.named("local", jobs=2) == Executor(2)
    assert Executor.named("dask://127.0.0.1:8786") == Executor(dask="127.0.0.1:8786")
    for name in ("dask", "dask://", "dask://host", "dask://host:port", "ray://a:1", ""):
        with pytest.raises(UsageError, match=r"--executor: found .*, expected local or dask://HOST:PORT"):
            Executor.named(name)
    for jobs in (0, -1, 5000):
        with pytest.raises(UsageError, match=f"--jobs: found {jobs}, expected 1 to 4096"):
            Executor(jobs)


def test_small_work_does_not_load_joblib() -> None:
    code = (
        "import sys, ladder_opt as lo; from ladder_opt.trace.synth import synthesize; "
        "lo.simulate(synthesize(requests=500), lo.Engine(), lo.read_cost_model(), replicas=8); "
        "sys.exit('joblib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    ) as cluster:
        yield cluster


def client_of(where: Any) -> Any:
    distributed: Any = pytest.importorskip("distributed")
    return distributed.Client(where, set_as_default=False)


@pytest.mark.filterwarnings(*DASK_WARNINGS)
class TestDask:
    """Three worker processes under a scheduler of their own."""

    @pytest.fixture
    def address(self, cluster: Any) -> str:
        with client_of(cluster) as client:
            client.wait_for_workers(3, timeout=60)
        return str(cluster.scheduler_address).removeprefix("tcp://")

    def test_the_result_is_the_one_from_here(self, address: str, tmp_path: Path) -> None:
        trace = synthesize(requests=3000)
        write_trace(trace, tmp_path / "t.parquet")
        stream = stream_of(tmp_path / "t.parquet", chunk_requests=700)
        assert stream is not None
        here = simulate([trace, trace], Engine(), COST, replicas=7, weights=[1, 0.3])
        for source in (trace, stream):
            told: list[float] = []
            there = simulate(
                [source, trace],
                Engine(),
                COST,
                replicas=7,
                weights=[1, 0.3],
                executor=Executor(dask=address),
                progress=told.append,
            )
            assert_same(there, here)
            assert told == sorted(told)
            assert told[-1] == 1.0

    def test_a_worker_killed_half_way_costs_nothing_and_counts_nothing_twice(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shares, "_SHARES_PER_WORKER", 8)
        trace = synthesize(requests=60_000)
        here = simulate(trace, Engine(), COST, replicas=30)
        with client_of(address) as client:
            pids = list(client.run(os.getpid).values())
        assert len(set(pids)) == 3
        killed: list[float] = []

        def kill_one(share: float) -> None:
            if not killed:
                os.kill(pids[1], signal.SIGKILL)
                killed.append(share)

        there = simulate(
            trace, Engine(), COST, replicas=30, executor=Executor(dask=address), progress=kill_one
        )
        assert killed
        assert killed[0] < 0.5
        assert_same(there, here)
        assert there.requests == here.requests == 60_000 - sum(here.set_aside.values())

    def test_a_sweep_there_is_the_sweep_here(self, address: str) -> None:
        trace = synthesize(requests=300, rate=2.0)
        grid: dict[str, list[Any]] = {"max_num_seqs": [8, 16], "max_model_len": [4, 8192]}
        frames = [
            sweep(trace, grid=grid, replay_options=ReplayOptions(replicas=2, executor=executor))
            for executor in (Executor(1), Executor(dask=address))
        ]
        pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)
        assert frames[1]["error"].notna().tolist() == [True, False, True, False]

    def test_errors_come_back_as_they_were(self, address: str, tmp_path: Path) -> None:
        write_trace(synthesize(requests=50), tmp_path / "t.parquet")
        stream = stream_of(tmp_path / "t.parquet")
        assert stream is not None
        (tmp_path / "t.parquet").write_bytes(b"PAR1")
        with pytest.raises(InputError, match="found a file that has changed since it was opened"):
            simulate(stream, Engine(), COST, executor=Executor(dask=address))

    def test_the_command_line_reaches_it(
        self, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rng = np.random.default_rng(0)
        trace = Trace(np.sort(rng.uniform(0, 60, 300)), np.full(300, 400), rng.integers(1, 90, 300))
        write_trace(trace, tmp_path / "t.parquet")
        for executor, name in (("local", "a.csv"), (f"dask://{address}", "b.csv")):
            command = ["simulate", str(tmp_path / "t.parquet"), "--replicas", "3", "--executor", executor]
            assert main([*command, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    monkeypatch.setattr("ladder_opt.executor._CONNECT_SECONDS", 1)
    with pytest.raises(UsageError, match=r"--executor: found no Dask scheduler at 127\.0\.0\.1:1 \("):
        simulate(synthesize(requests=5), Engine(), COST, executor=Executor(dask="127.0.0.1:1"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"expected it \(pip install 'ladder-opt\[dask\]'\)"):
        simulate(synthesize(requests=5), Engine(), COST, executor=Executor(dask="127.0.0.1:1"))
