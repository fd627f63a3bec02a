"""`calibrate` on made-up files of every kind: coefficients come back, kinds mix, odd files are refused."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_opt.calibration import build
from ladder_opt.calibration.api import calibrate, kind_of
from ladder_opt.calibration.measurement_rows import (
    COLUMNS,
    MeasurementRow,
    read_measurement_rows,
    write_measurement_rows,
)
from ladder_opt.cli.app import main
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.cost.poor_fit import NO_COMPILES
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import default_ladders
from tests.calibration import measured as made
from tests.calibration.runs import SERVER, TRUTH, made_trace, server_run, write_records

ENGINE = Engine()


def holds(cost: CostModel, name: str, truth: float) -> bool:
    """Whether a parameter's interval covers a number, or comes within a hundredth of it."""
    assert cost.fit is not None
    entry = cost.fit["parameters"][name]
    return bool(entry["low"] * 0.99 <= truth <= entry["high"] * 1.01)


def check_attention(cost: CostModel) -> None:
    assert cost.kernel == "chunked"
    for name in ("per_iteration", "per_gather"):
        assert holds(cost, f"step_seconds.{name}", made.ATTENTION[name])


def check_compiles(cost: CostModel, graphs: int) -> None:
    assert cost.graphs_per_variant == graphs
    for name, truth in made.COMPILE.items():
        assert holds(cost, f"compile_seconds.{name}", truth)


def test_rows_of_measure_give_attention_and_compiles(tmp_path: Path) -> None:
    found = calibrate(made.write_measurements(tmp_path / "m.csv"), ENGINE)
    check_attention(found.cost)
    check_compiles(found.cost, made.LAYERS)
    assert build.ATTENTION_ALONE in found.warnings
    fit = found.cost.fit
    assert fit is not None
    assert fit["range"]["step"] == {
        "num_seqs": [4, 32],
        "num_blocks": [1, 64],
        "iterations": [1, 64],
        "gathers": [4, 2048],
    }
    assert fit["residuals"]["step"]["rows"] == len(made.PAIRS)
    assert fit["residuals"]["step"]["r_squared"] > 0.99
    assert fit["draws"]["parameters"][0].startswith("step_seconds.")
    assert len(fit["draws"]["values"]) == 100


def test_a_plain_table_gives_whole_steps_and_whole_variants(tmp_path: Path) -> None:
    path = made.write_table(tmp_path / "t.csv", graphs=5)
    found = calibrate(path, ENGINE, graphs_per_variant=5)
    for name, truth in made.STEP.items():
        assert holds(found.cost, f"step_seconds.{name}", truth)
    check_compiles(found.cost, 5)
    assert found.warnings == (build.NO_SMALL_STEPS,)


@pytest.mark.parametrize(
    "header", ["Num Seqs;NUM-BLOCKS;step_ms", "batch_size\tkv_blocks\tms", "num_seqs,num_blocks,seconds"]
)
def test_a_tables_names_may_be_written_in_many_ways(tmp_path: Path, header: str) -> None:
    mark = next(mark for mark in "\t;," if mark in header)
    factor = 1000 if "ms" in header else 1
    lines = [header] + [
        mark.join(map(str, (s, m, factor * made.step_seconds(made.STEP, s, m)))) for s, m in made.PAIRS
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    cost = calibrate(path, ENGINE).cost
    assert cost.step_seconds.base == pytest.approx(made.STEP["base"], rel=1e-3)


def test_the_microbenchmark_gives_attention_and_a_sequences_blocks(tmp_path: Path) -> None:
    path = made.write_microbenchmark(tmp_path / "u.tsv")
    found = calibrate(path, ENGINE, layers=made.LAYERS)
    check_attention(found.cost)
    assert found.cost.replay_seconds.per_sequence_gather == pytest.approx(0.003, rel=0.02)
    assert NO_COMPILES in found.warnings
    with pytest.raises(UsageError, match="--layers: found none, expected the model's attention layers"):
        calibrate(path, ENGINE)


def test_rows_that_the_microbenchmark_doubts_are_set_aside_and_told(tmp_path: Path) -> None:
    good = [
        made.microbenchmark_row(s, m, 1e3 * made.step_seconds(made.ATTENTION, s, m)) for s, m in made.PAIRS
    ]
    odd = [
        good[0] | {"ms": "", "error": "insufficient blocks"},
        good[0] | {"ms": "nan"},
        good[0] | {"late_compile": True},
        good[0] | {"allclose_pass": False},
        good[0] | {"fallback_clean": False},
        good[0] | {"blocks_per_chunk": 7},
        good[0] | {"attn_path": "batched+per_seq"},
    ]
    found = calibrate(made.write_tab_separated(tmp_path / "u.tsv", good + odd), ENGINE, layers=1)
    assert sorted(note.partition("u.tsv: ")[2] for note in found.notes) == [
        "1 rows set aside: blocks_per_chunk other than the chunked kernel's",
        "1 rows set aside: neither batched decode nor one decoding sequence",
        "1 rows set aside: with a compile inside",
        "1 rows set aside: with a fallback to the CPU",
        "1 rows set aside: with an error",
        "1 rows set aside: with wrong results",
        "1 rows set aside: without a time",
    ]
    with pytest.raises(InputError, match=r"no usable row \(1 with a compile inside\)"):
        calibrate(made.write_tab_separated(tmp_path / "v.tsv", odd[2:3]), ENGINE, layers=1)


def test_an_earlier_microbenchmark_without_batched_columns(tmp_path: Path) -> None:
    names = ("capture_type", "num_reqs", "num_kv_blocks_iterated", "ms", "min_ms", "max_ms", "error")
    rows = [
        {name: made.microbenchmark_row(1, blocks, 0.2 + 0.1 * blocks)[name] for name in names}
        for blocks in (1, 2, 4, 8, 16, 32)
    ]
    found = calibrate(made.write_tab_separated(tmp_path / "u.tsv", rows), ENGINE, layers=10)
    assert found.cost.replay_seconds.per_sequence_gather == pytest.approx(10 * 1e-4, rel=0.01)


STARTS = ([(4, 1), (4, 8), (8, 16)], [(4, 64), (16, 64), (32, 64)], [(8, 64), (12, 20), (24, 30)])


def test_a_warmup_log_at_debug_gives_compiles_and_startup(tmp_path: Path) -> None:
    lines = ["a line of something else", "vLLM API server version 0.28.0"]
    for at, pairs in enumerate(STARTS):
        lines += ["Initializing a V1 LLM engine", *made.warmup_lines(pairs, debug=True, workers=2, seed=at)]
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    cost = calibrate(path, ENGINE).cost
    check_compiles(cost, made.LAYERS)
    assert cost.per_sequence is not None
    assert cost.per_sequence.compile_seconds is not None
    assert cost.per_sequence.compile_seconds.base == pytest.approx(0.5, rel=0.05)
    # 40 layers of 4 graphs at half a second, beside 141.6 s of the model's own.
    assert cost.startup_seconds == pytest.approx(141.6 + 80, rel=0.05)
    assert cost.per_sequence.recorded_in_startup_seconds == pytest.approx(80, rel=0.1)


def test_sums_over_a_layer_with_the_default_ladders_are_known_graphs(tmp_path: Path) -> None:
    """Two starts of engines whose default ladders differ tell the base from the iterations."""
    ladders = default_ladders(ENGINE)
    pairs = [(s, m) for s in ladders.num_seqs for m in ladders.num_blocks]
    lines = made.warmup_lines(pairs, sequences=14, sequence_seconds=0.0001, sigma=0.0)
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate(path, ENGINE)
    assert build.LIKE_BATCHED in found.warnings
    assert any("compile_seconds.per_iteration: the rows cannot tell" in line for line in found.warnings)
    assert found.cost.graphs_per_variant == made.LAYERS
    mean = sum(made.compile_seconds(s, m) for s, m in pairs) / (len(pairs) + 14)
    assert found.cost.compile_seconds.base == pytest.approx(mean, rel=0.01)
    other = calibrate(path, replace(ENGINE, max_num_seqs=16))  # other limits, other ladders: graphs unknown
    assert build.MEAN_GRAPH in other.warnings
    assert other.cost.compile_seconds.base == pytest.approx(mean, rel=0.01)


def iterations(seed: int, steps: int = 400) -> list[str]:
    rng = np.random.default_rng(seed)
    lines = []
    for at in range(steps):
        decodes, prefill = int(rng.integers(1, 32)), int(rng.choice([0, 0, 100, 480]))
        blocks = decodes * int(rng.integers(1, 60))
        took = (
            TRUTH["base"]
            + TRUTH["per_seq"] * decodes
            + TRUTH["per_block"] * blocks
            + TRUTH["per_prefill_token"] * prefill
        )
        took *= math.exp(0.02 * rng.standard_normal())
        usage = 100 * blocks / 2048
        lines.append(made.iteration_line(took, prefill=prefill, decodes=decodes, usage=usage, at=at))
    return lines


def test_lines_of_iterations_give_a_servers_steps(tmp_path: Path) -> None:
    lines = iterations(1)
    lines[3:3] = ["INFO something else", lines[0].replace(" ms,", " ms (dummy),")]
    lines.append(lines[0].replace("generation tokens", "generation tokens ").replace(" 0.0%", " 1.0%"))
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate(path, replace(ENGINE, num_kv_blocks=2049))
    assert holds(found.cost, "step_seconds.base", TRUTH["base"])
    assert holds(found.cost, "replay_seconds.per_prefill_token", TRUTH["per_prefill_token"])
    assert holds(found.cost, "replay_seconds.per_sequence_gather", TRUTH["per_block"])
    assert found.notes == (f"{path}: 1 iterations set aside: dummy",)
    assert set(found.warnings) >= {build.NO_STEPS, NO_COMPILES}
    without_pool = calibrate(path, ENGINE)
    assert without_pool.cost.replay_seconds.per_sequence_gather == 0
    assert build.NO_SMALL_STEPS in without_pool.warnings


def test_requests_rows_and_logs_make_one_model(tmp_path: Path) -> None:
    write_records(server_run(made_trace(1)), tmp_path / "requests.jsonl")
    (tmp_path / "server.log").write_text(
        "\n".join(made.warmup_lines(STARTS[0], debug=True)), encoding="utf-8"
    )
    rows = made.write_measurements(tmp_path / "m.csv")
    found = calibrate([tmp_path / "requests.jsonl", rows, tmp_path / "server.log"], SERVER)
    cost = found.cost
    check_attention(cost)
    check_compiles(cost, made.LAYERS)
    assert cost.step_seconds.base == pytest.approx(TRUTH["base"], rel=0.05)
    assert cost.replay_seconds.per_prefill_token == pytest.approx(TRUTH["per_prefill_token"], rel=0.05)
    assert cost.fit is not None
    told_by = {name: entry["told_by"] for name, entry in cost.fit["parameters"].items()}
    assert told_by["step_seconds.base"] == [str(tmp_path / "requests.jsonl")]
    assert told_by["step_seconds.per_iteration"] == [str(rows)]
    assert set(told_by["compile_seconds.base"]) == {str(rows), str(tmp_path / "server.log")}
    assert cost.fit["kind"] == "measurements+server_log+request_records"
    assert {source["kind"] for source in cost.fit["source"]} == set(cost.fit["kind"].split("+"))
    assert cost.fit["server"]["requests"] == 200
    assert build.ATTENTION_ALONE not in found.warnings


def test_lines_of_iterations_count_before_requests(tmp_path: Path) -> None:
    write_records(server_run(made_trace(1)), tmp_path / "requests.jsonl")
    (tmp_path / "server.log").write_text("\n".join(iterations(2)), encoding="utf-8")
    cost = calibrate([tmp_path / "requests.jsonl", tmp_path / "server.log"], SERVER).cost
    assert cost.fit is not None
    assert cost.fit["parameters"]["step_seconds.base"]["told_by"] == [str(tmp_path / "server.log")]
    assert cost.fit["server"]["requests"] == 200


@given(st.tuples(st.floats(0.01, 0.5), st.floats(0.001, 0.1), st.floats(1e-4, 1e-3)), st.integers(0, 1000))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_coefficients_come_back(tmp_path: Path, truth: tuple[float, float, float], seed: int) -> None:
    terms = {"base": truth[0], "per_seq": 0.0, "per_iteration": truth[1], "per_gather": truth[2]}
    factors = iter(made.noise(seed, 0.01))
    lines = ["num_seqs,num_blocks,seconds"]
    lines += [f"{s},{m},{made.step_seconds(terms, s, m) * next(factors)}" for s, m in made.PAIRS]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate(path, ENGINE).cost
    priced = found.batched_step_seconds([s for s, _ in made.PAIRS], [m for _, m in made.PAIRS])
    expected = [made.step_seconds(terms, s, m) for s, m in made.PAIRS]
    np.testing.assert_allclose(priced, expected, rtol=0.03)


def test_a_term_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = calibrate(
        made.write_table(tmp_path / "t.csv", header="num_seqs,num_blocks,seconds,compile_seconds"), ENGINE
    )
    assert found.cost.fit is not None
    lines = [f"{s},{m},{made.step_seconds(made.STEP | {'per_gather': 0.0}, s, m)}" for s, m in made.PAIRS]
    factors = iter(made.noise(5, 0.02))
    lines = [
        f"{s},{m},{made.step_seconds(made.STEP | {'per_gather': 0.0}, s, m) * next(factors)}"
        for s, m in made.PAIRS
    ]
    path = tmp_path / "u.csv"
    path.write_text("num_seqs,num_blocks,seconds\n" + "\n".join(lines), encoding="utf-8")
    found = calibrate(path, ENGINE)
    assert any(
        line.startswith("step_seconds.per_gather: the data cannot tell it from zero")
        for line in found.warnings
    )
    assert found.cost.fit is not None
    assert found.cost.fit["parameters"]["step_seconds.per_gather"]["told_from_zero"] is False


def test_one_num_seqs_cannot_tell_iterations_from_pages(tmp_path: Path) -> None:
    """At 32 sequences a chunk is a block: pages are 32 times the iterations."""
    pairs = [(32, m) for m in (1, 2, 4, 8, 16, 32, 64)]
    found = calibrate(made.write_table(tmp_path / "t.csv", pairs=pairs), ENGINE)
    told = [line.partition(":")[0] for line in found.warnings if "cannot tell it from a mix" in line]
    assert told == ["step_seconds.per_gather", "step_seconds.per_seq"]
    assert found.cost.step_seconds.per_iteration == pytest.approx(0.02 + 32 * 2e-4, rel=0.05)


row_texts = st.sampled_from([None, "float32", "a, b", 'a "quoted" name'])


@given(
    st.lists(
        st.builds(
            MeasurementRow,
            kernel=st.sampled_from(["chunked", "per_block"]),
            num_seqs=st.integers(1, 64),
            num_blocks=st.integers(1, 1024),
            step_seconds=st.floats(1e-6, 1.0),
            compile_seconds=st.none() | st.floats(1e-3, 100.0),
            layers=st.integers(1, 80),
            graphs_per_variant=st.none() | st.integers(1, 80),
            threads=st.none() | st.integers(1, 8),
            noise=st.none() | st.floats(0.0, 2.0),
            device=row_texts,
            dtype=row_texts,
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_read_as_they_were_written(tmp_path: Path, rows: list[MeasurementRow]) -> None:
    path = tmp_path / "m.csv"
    write_measurement_rows(rows, path)
    assert list(read_measurement_rows(path)) == rows
    assert path.read_text(encoding="utf-8").splitlines()[0].split(",") == list(COLUMNS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kernel,num_seqs,num_blocks,step_seconds\nflat,4,1,1\n",
            ":2: kernel: found 'flat', expected one of",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1,\n",
            "found nothing, expected step seconds, comp",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1,-1\n",
            ": step_seconds: found '-1', expected a ti",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1,nan\n",
            "found 'nan', expected a finite number",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1.5,1\n",
            "found '1.5', expected a whole number of",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds,stpe\nchunked,4,1,1,1\n",
            ":1: found column 'stpe', expected c",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1\n",
            ":2: found 3 cells, expected 4, as in the h",
        ),
        ("kernel,num_seqs,num_blocks,step_seconds\n", "found no row, expected rows of ladder-opt measure"),
        (
            "kernel,num_seqs,num_blocks,step_seconds,layers\nchunked,4,1,1,2\nchunked,4,1,1,3\n",
            "layers: found rows of layers 2 and 3, expected rows of one model",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds,block_size\nchunked,4,1,1,64\n",
            "found pages of 64 tokens, expected the engine's block_size 128",
        ),
        (
            "kernel,num_seqs,num_blocks,step_seconds\nchunked,4,1,1\nper_block,4,1,1\n",
            "found rows of the kernels chunked and per_block, expected rows of one kernel, or --kernel",
        ),
        ("num_seqs,num_blocks,seconds\n4,x,1\n", ": num_blocks: found 'x', expected a finite number"),
        ("num_seqs,num_blocks,seconds\n4,1,\n", ": seconds: found nothing, expected seconds of a step or"),
        ("num_seqs,num_blocks,seconds,ms\n4,1,1,1\n", "found columns seconds and ms, expected one of them"),
        ("num_seqs,num_blocks,seconds,seconds\n4,1,1,1\n", "found column 'seconds' twice, expected each col"),
        ("Iteration(1): 0 context requests", "found no measurements that calibrate knows"),
    ],
)
def test_odd_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        calibrate(path, ENGINE)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.csv"
    for start in (
        b"",
        b"num_seqs,num_blocks,seconds\n",
        b"kernel,num_seqs,num_blocks,step_seconds\n",
        b"ms\tnum_kv_blocks_iterated\tnum_reqs\n",
    ):
        path.write_bytes(start + data)
        with pytest.raises(InputError) as raised:
            calibrate(path, ENGINE, layers=1)
        assert "\n" not in str(raised.value)


def test_files_of_two_models_are_refused(tmp_path: Path) -> None:
    one = made.write_measurements(tmp_path / "a.csv")
    other = made.write_measurements(tmp_path / "b.csv", layers=20)
    with pytest.raises(
        InputError, match="found files of 20 and 40 layers, expected files of one model, or --lay"
    ):
        calibrate([one, other], ENGINE)
    assert kind_of(one).name == "measurements"


def test_a_file_counts_once(tmp_path: Path) -> None:
    one = made.write_measurements(tmp_path / "a.csv")
    copy = tmp_path / "b.csv"
    copy.write_bytes(one.read_bytes())
    for again in (one, copy):
        with pytest.raises(
            InputError, match=r"found the same bytes as in .*a\.csv, expected each measurement once"
        ):
            calibrate([one, again], ENGINE)


def test_a_kernel_that_no_row_has_is_refused(tmp_path: Path) -> None:
    path = made.write_measurements(tmp_path / "m.csv")
    with pytest.raises(
        InputError, match=r"no row of the kernel per_block: \d+ rows .* set aside, expected rows"
    ):
        calibrate(path, ENGINE, kernel="per_block")


def test_a_machine_that_was_not_calm_is_told(tmp_path: Path) -> None:
    found = calibrate(made.write_measurements(tmp_path / "m.csv", noise=0.4), ENGINE)
    assert any("one call repeated varies by 40%" in line for line in found.warnings)


def test_the_command_says_who_told_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = made.write_measurements(tmp_path / "m.csv")
    output = tmp_path / "cost.json"
    assert main(["calibrate", str(rows), "-o", str(output), "--name", "card"]) == 0
    captured = capsys.readouterr()
    assert "step_seconds.per_iteration" in captured.out
    assert "from: 1 m.csv" in captured.out
    assert "…" not in captured.out  # every number whole, in a pipe too
    assert "step measured at num_seqs 4 to 32" in captured.out
    assert captured.err.splitlines() == [
        f"warning: {build.ATTENTION_ALONE}",
        f"warning: {build.NO_SMALL_STEPS}",
    ]
    cost = read_cost_model(output)
    assert cost.name == "card"
    assert main(["calibrate", str(rows), "-o", str(output), "--json", "--strict"]) == 1
    assert json.loads(capsys.readouterr().out)["kernel"] == "chunked"
    for option in (["--table", "often"], ["--layers", "0"], ["--kernel", "flat"]):
        assert main(["calibrate", str(rows), "-o", str(output), *option]) == 2


def test_as_many_rows_as_terms_are_told(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("num_seqs,num_blocks,seconds\n4,8,0.18\n")
    told = [line for line in calibrate(path, Engine()).warnings if "no more rows than terms (1)" in line]
    assert len(told) == 1
    assert told[0].startswith("step_seconds.base: ")
