"""The real kernel under the bench, and `ladder-opt measure` on it; eager, but for one compile."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ladder_opt.calibration.api import calibrate
from ladder_opt.calibration.measurement_rows import read_measurement_rows
from ladder_opt.cli import main
from ladder_opt.engine import Engine
from ladder_opt.measurement import api
from ladder_opt.measurement.bench import Point
from ladder_opt.measurement.model_shape import ModelShape
from tests.measurement.machines import MadeUpMachine

TINY = Engine(block_size=64, max_num_seqs=6, max_model_len=4 * 64)
SHAPE = ModelShape(
    num_query_heads=2, num_kv_heads=1, head_size=8, layers=3, sliding_layers=1, sliding_window=9
)
ENGINE_OPTIONS = ("--block-size", "64", "--max-num-seqs", "6", "--max-model-len", "256")
SHAPE_OPTIONS = ("--num-query-heads", "2", "--num-kv-heads", "1", "--head-size", "8", "--layers", "3")


def run(*arguments: object) -> int:
    return main(["measure", *(str(argument) for argument in arguments)])


@pytest.mark.vllm
@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_a_point_is_compiled_once_and_timed(compiler: str) -> None:
    import torch

    from ladder_opt.measurement.kernel_bench import BenchOptions, KernelBench

    options = BenchOptions(device=torch.device("cpu"), compiler=compiler, threads=1, clock="cpu", seed=0)
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with KernelBench.opened(TINY, SHAPE, options) as bench:
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        chunked, same = Point("chunked", 4, 1), Point("per_block", 4, 1)
        first = bench.compile(chunked)
        assert first.seconds > 0
        assert bench.kernels.compiles == 1
        assert bench.compile(same).seconds == first.seconds  # one block a chunk: the two kernels are one
        for point in (chunked, same):
            timed = bench.step(point)
            assert timed.seconds > 0
            assert timed.wall_seconds > 0
        assert bench.kernels.compiles == 1  # sliding layers and full ones share their graph
        assert len(bench.pages) == 3
        if compiler == "inductor":
            assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] == 0
            assert any(cache.rglob("*.so"))
    assert not cache.exists()
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


@pytest.mark.vllm
def test_each_compile_finds_nothing_cached() -> None:
    """The same variant compiled twice writes everything twice, and no later step needs either folder anew."""
    import torch
    from torch._dynamo.utils import counters

    from ladder_opt.measurement.kernel_bench import BenchOptions, KernelBench
    from ladder_opt.reference.compiled import CompiledKernels

    options = BenchOptions(device=torch.device("cpu"), compiler="inductor", threads=1, clock="cpu", seed=0)
    point = Point("chunked", 4, 2)
    with KernelBench.opened(TINY, SHAPE, options) as bench:
        run_s = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        before, folders = counters["inductor"]["fxgraph_cache_miss"], set(run_s.iterdir())
        written = []
        for _ in range(2):
            bench.compile(point)
            (own,) = set(run_s.iterdir()) - folders
            folders.add(own)
            written.append(sorted(path.name for path in own.rglob("*.so")))
            first, bench.kernels = bench.kernels, CompiledKernels(compiler="inductor")
            bench._graphs.clear()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(run_s)
        assert written[0] == written[1] != []
        assert counters["inductor"]["fxgraph_cache_miss"] == before + 2
        assert counters["inductor"]["fxgraph_cache_hit"] == 0
        bench.kernels = first
        assert bench.step(point).seconds > 0


@pytest.mark.vllm
def test_the_bench_runs_what_the_server_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The padded batch has the point's rungs, its longest sequence all of its blocks, and real pages."""
    import torch

    from ladder_opt.measurement.kernel_bench import BenchOptions, KernelBench
    from ladder_opt.reference.compiled import CompiledKernels

    seen = []
    real = CompiledKernels.run

    def spy(self: CompiledKernels, batch, layer, query, pages, **settings):  # type: ignore[no-untyped-def]
        seen.append((batch, settings["sliding_window"]))
        return real(self, batch, layer, query, pages, **settings)

    monkeypatch.setattr(CompiledKernels, "run", spy)
    options = BenchOptions(device=torch.device("cpu"), compiler="eager", threads=1, clock="wall", seed=0)
    with KernelBench.opened(TINY, SHAPE, options) as bench:
        point = Point("chunked", 5, 3)
        bench.compile(point)
        seen.clear()
        timed = bench.step(point)
    assert timed.seconds == timed.wall_seconds
    assert [window for _, window in seen] == [9, None, None]
    batch = seen[0][0]
    assert (batch.rungs, batch.num_decodes, batch.variant.key) == ((5, 3), 5, (5, 3, 1))
    assert batch.end_tokens[0] == 3 * 64
    assert batch.page_ids[0].min() > 0


@pytest.mark.vllm
def test_command_and_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "m.csv"
    options = (*ENGINE_OPTIONS, *SHAPE_OPTIONS, "--compiler", "eager", "--repeats", 3)
    assert run("-o", rows, *options, "--points", 4, "--kernel", "chunked", "--json") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["rows"], found["new"], found["stopped"], found["left"]) == (4, 4, "done", 0)
    assert "made-up" not in told.err
    assert run("-o", rows, *options, "--points", 6, "--kernel", "chunked") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"measured all points asked for: 6 rows in {rows}, 2 of them new\n")
    engine = "--block-size 64 --max-num-seqs 6 --max-model-len 256"
    assert out.rstrip().endswith(f"next: ladder-opt calibrate {rows} {engine} -o COST.json")
    made = read_measurement_rows(rows)
    assert {(row.layers, row.head_size, row.compiler, row.threads) for row in made} == {(3, 8, "eager", 1)}
    assert all(row.compile_seconds is None for row in made)  # tracing alone compiles nothing
    assert all(row.device is not None and row.device.startswith("cpu (") for row in made)
    cost = calibrate(rows, TINY).cost
    assert cost.kernel == "chunked"
    assert cost.batched_step_seconds(6, 4) > 0
    assert run("-o", rows, *options, "--kernel", "chunked", "--head-size", 16) == 2
    assert capsys.readouterr().err == (
        f"ladder-opt: {rows}: found rows of head_size 8 (line 2), expected 16 as asked for: go on with the "
        "same settings, or name another file\n"
    )


@pytest.mark.vllm
def test_command_with_a_models_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "gemma2",
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "attn_logit_softcapping": 50.0,
        "max_position_embeddings": 128,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = (*ENGINE_OPTIONS, "--model", tmp_path, "--compiler", "eager", "--repeats", 2)
    pairs = ("--num-seqs", 4, "--num-blocks", "1,2", "--kernel", "per_block")
    assert run("-o", tmp_path / "m.csv", *options, *pairs) == 0
    err = capsys.readouterr().err
    assert "note: max_model_len 256 is beyond the model's 128 positions\n" in err
    rows = read_measurement_rows(tmp_path / "m.csv")
    assert [(row.num_seqs, row.num_blocks) for row in rows] == [(4, 2), (4, 1)]
    assert {(row.dtype, row.logits_soft_cap, row.layers) for row in rows} == {("bfloat16", 50.0, 2)}


@pytest.mark.vllm
def test_the_command_is_killed_and_goes_on(tmp_path: Path) -> None:
    rows = tmp_path / "m.csv"
    pairs = ("--kernel", "per_block", "--num-seqs", "4,5,6", "--num-blocks", "1,2")
    options = ["-o", str(rows), *ENGINE_OPTIONS, *SHAPE_OPTIONS, "--compiler", "eager", *pairs]
    process = subprocess.Popen([sys.executable, "-m", "ladder_opt", "measure", *options, "--repeats", "200"])
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if rows.exists() and rows.read_bytes().count(b"\n") >= 5:  # the header and the first points
            process.kill()
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    before = rows.read_bytes()
    assert before.endswith(b"\n")
    assert 4 <= len(read_measurement_rows(rows)) < 6
    assert run(*options, "--repeats", "2") == 0
    assert rows.read_bytes().startswith(before)
    assert len(read_measurement_rows(rows)) == 6


@pytest.mark.vllm
def test_ctrl_c_ends_the_command_with_what_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    machine = MadeUpMachine(before_compile=interrupt)
    monkeypatch.setattr(api, "kernel_bench", machine.opened)
    assert run("-o", tmp_path / "m.csv", "--kernel", "chunked", "--points", 9) == 130
    told = capsys.readouterr()
    assert told.out.startswith(f"interrupted: 5 rows in {tmp_path}/m.csv, 5 of them new\n4 points are left; ")
    assert told.err.splitlines()[-1] == "ladder-opt: interrupted"
    assert "note: no model was named (--model): these are the seconds of a made-up layer\n" in told.err


def test_the_command_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest)
    )
    assert run("-o", tmp_path / "m.csv") == 2
    assert capsys.readouterr().err == (
        "ladder-opt: found no torch, expected it for measure: pip install 'ladder-opt[torch]'\n"
    )
    assert not (tmp_path / "m.csv").exists()


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--device", "spyglass"),
            "--device: found 'spyglass', which torch does not know, expected cpu, cuda ",
        ),
        (("--device", "meta"), "--device: found 'meta', which torch "),
        (
            ("--compiler", "gcc"),
            "--compiler: found 'gcc', expected a backend of torch.compile such as eager, ",
        ),
    ],
)
def test_what_is_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert run("-o", tmp_path / "m.csv", *options) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ladder-opt: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "m.csv").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kernel", "ragged"), "--kernel: found 'ragged', expected per_block, chunked"),
        (("--dtype", "int8"), "--dtype: found 'int8', expected float32, bfloat16, float16"),
        (
            ("--grid", "--points", "3"),
            "--points: found 3 with --grid, expected one of them: these measure all pairs",
        ),
        (
            ("--num-seqs", "4", "--num-blocks", "1", "--points", "3"),
            (
                "--points: found 3 with --num-seqs and --num-blocks, expected one of them: these measure all "
                "pairs"
            ),
        ),
        (("--num-seqs", "4"), "--num-blocks: found none, expected a list of them beside the other axis's"),
        (
            ("--time-limit", "soon"),
            "--time-limit: found 'soon', expected a duration such as 600s, 10m or 24h",
        ),
        (
            ("--max-num-seqs", "2"),
            "--max-num-seqs: found 2, expected 4 or more, from where decodes are batched",
        ),
    ],
)
def test_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert run("-o", tmp_path / "m.csv", *options) == 2
    assert capsys.readouterr().err == f"ladder-opt: {message}\n"
