"""A sweep is its points' plans side by side, wherever they were made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ladder_opt.cli import main
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.executor import Executor
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.sweep import RESULTS, SETTINGS, sweep
from ladder_opt.plan.tune import tune
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.stream import stream_of
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthesize(requests=600, rate=2.0)


def options(jobs: int) -> ReplayOptions:
    return ReplayOptions(replicas=4, executor=Executor(jobs))


GRID: dict[str, list[Any]] = {"max_num_seqs": [8, 16], "rate_scale": [0.5, 2.0]}


def test_each_row_is_its_points_plan(trace: Trace) -> None:
    frame = sweep(trace, grid=GRID, replay_options=options(1))
    assert list(frame.columns) == [*SETTINGS, *RESULTS]
    assert list(zip(frame["max_num_seqs"], frame["rate_scale"], strict=True)) == [
        (8, 0.5), (8, 2.0), (16, 0.5), (16, 2.0),
    ]  # fmt: skip
    assert set(frame["replicas"]) == {4}
    assert frame["error"].isna().all()
    for row in (frame.iloc[index] for index in range(len(frame))):
        plan = tune(
            trace,
            engine=Engine(max_num_seqs=int(row.max_num_seqs)),
            replay_options=ReplayOptions(replicas=4, rate_scale=float(row.rate_scale)),
        )
        assert row.num_seqs == " ".join(map(str, plan.num_seqs))
        assert row.num_blocks == " ".join(map(str, plan.num_blocks))
        assert row.step_seconds == plan.result.step_seconds
        assert row.warmup_seconds == plan.result.warmup_seconds
        assert row.overpay == plan.result.gathers.overpay
        assert plan.default is not None
        assert row.default_step_seconds == plan.default.step_seconds
        assert row.default_overpay == plan.default.gathers.overpay
        assert row.saved == pytest.approx(
            1 - plan.result.objective_seconds / plan.default.objective_seconds, rel=1e-12
        )


def test_jobs_and_streams_change_nothing(trace: Trace, tmp_path: Path) -> None:
    write_trace(trace, tmp_path / "t.parquet")
    stream = stream_of(tmp_path / "t.parquet", chunk_requests=100)
    assert stream is not None
    alone = sweep(trace, grid=GRID, replay_options=options(1))
    for source, jobs in ((trace, 3), (stream, 2)):
        found = sweep(source, grid=GRID, replay_options=options(jobs))
        pd.testing.assert_frame_equal(found, alone, check_exact=True)


def test_points_without_a_plan_are_rows_with_the_reason(trace: Trace) -> None:
    frame = sweep(
        trace,
        grid={"max_model_len": [8, 8192], "block_size": [100, 128]},
        options=SolveOptions(max_variants=1, num_seqs=[4, 8, 32]),
    )
    assert frame["error"].tolist()[:3] == [
        "block_size: found 100, expected a multiple of 64",
        "found no request to replay (600 beyond_max_model_len), expected at least one",
        "block_size: found 100, expected a multiple of 64",
    ]
    assert "max" in frame["error"].iloc[3]  # three rungs are more than one variant
    assert frame["num_variants"].isna().all()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "grid: found 0 combinations, expected 1 to 10000"),
        ({"replicas": list(range(1, 102)), "max_num_seqs": list(range(1, 102))},
         "grid: found 10201 combinations, expected 1 to 10000"),
        ({"replicas": []}, "replicas: found [], expected at least one value"),
        ({"kernel": ["chunked"]},
         "grid: found 'kernel', expected settings among " + ", ".join(SETTINGS)),
    ],
)  # fmt: skip
def test_grids_that_are_none(trace: Trace, grid: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(UsageError) as error:
        sweep(trace, grid=grid)
    assert str(error.value) == message


def test_a_row_falls_behind_where_its_plan_says_so() -> None:
    """The tail of a short trace is not falling behind; nor is a closed loop."""
    short = Trace(np.array([0.0, 1.0]), np.array([100, 100]), np.array([200, 200]))
    busy = Trace(np.linspace(0.0, 100.0, 400), np.full(400, 1000), np.full(400, 500))
    for trace, behind in ((short, False), (busy, True), (replace(busy, arrival_seconds=None), False)):
        replayed = ReplayOptions(concurrency=None if trace.has_arrivals else 8)
        row = sweep(trace, grid={"max_num_seqs": [8]}, replay_options=replayed).iloc[0]
        plan = tune(trace, engine=Engine(max_num_seqs=8), replay_options=replayed)
        assert row.falls_behind == behind == any("falls behind" in each for each in plan.warnings)
        if trace is short:
            assert row.end_over_span > 1.25


class TestCommand:
    @pytest.fixture
    def path(self, trace: Trace, tmp_path: Path) -> str:
        write_trace(trace, tmp_path / "t.parquet")
        return str(tmp_path / "t.parquet")

    def test_table_csv_and_json(
        self, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: Trace
    ) -> None:
        out = tmp_path / "sweep.csv"
        command = ["sweep", path, "--max-num-seqs", "8,16", "--rate-scale", "0.5,2", "--replicas", "4"]
        assert main([*command, "-o", str(out)]) == 0
        text = capsys.readouterr().out
        assert text.startswith("all points: replicas 4\n")
        assert len(text.splitlines()) >= 8
        frame = sweep(trace, grid=GRID, replay_options=options(1))
        table = pd.read_csv(out)
        assert table["num_seqs"].tolist() == frame["num_seqs"].tolist()
        assert table["step_seconds"].tolist() == frame["step_seconds"].tolist()
        assert main([*command, "--json"]) == 0
        points = json.loads(capsys.readouterr().out)["points"]
        assert [point["warmup_seconds"] for point in points] == frame["warmup_seconds"].tolist()
        assert points[0]["num_kv_blocks"] is None

    def test_an_auto_pool_wins_over_the_engine_file_as_in_tune(
        self, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "serve.yaml"
        file.write_text("num-gpu-blocks-override: 700\n", encoding="utf-8")
        command = ["sweep", path, "--engine", str(file), "--max-num-seqs", "8", "--json"]
        for options, expected in (([], 700), (["--num-kv-blocks", "auto"], None)):
            assert main([*command, *options]) == 0
            assert json.loads(capsys.readouterr().out)["points"][0]["num_kv_blocks"] == expected

    def test_a_failing_point_is_told_and_strict_ends_with_1(
        self, path: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["sweep", path, "--max-model-len", "8,8192", "--json"]
        assert main(command) == 0
        told = capsys.readouterr()
        assert (
            "warning: no plan for max_model_len 8: found no request to replay (600 beyond_max_model_len), "
            "expected at least one\n"
        ) in told.err
        assert [point["error"] is None for point in json.loads(told.out)["points"]] == [False, True]
        assert main([*command, "--strict"]) == 1

    def test_failures_alone_are_bad_input(self, path: str, capsys: pytest.CaptureFixture[str]) -> None:
        out = Path(path).with_name("none.csv")
        assert main(["sweep", path, "--max-model-len", "8,16", "-o", str(out)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err == (
            "ladder-opt: found no plan at any of 2 points, expected one or more: "
            "no plan for max_model_len 8: found no request to replay (600 beyond_max_model_len), "
            "expected at least one\n"
        )
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "found no setting to vary"),
            (["--max-num-seqs", "8,x"], "--max-num-seqs: found 'x' in '8,x', expected integers"),
            (["--rate-scale", "1,nan"], "--rate-scale: found 'nan' in '1,nan', expected numbers"),
            (["--max-num-seqs", "8", "-o", "/"], "/: found Is a directory"),
        ],
    )  # fmt: skip
    def test_bad_usage_is_one_line(
        self, path: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["sweep", path, *arguments]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"ladder-opt: {message}")
        assert len(told.splitlines()) == 1
