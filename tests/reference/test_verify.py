"""`ladder-opt verify`: what holds, what fails and how it is told."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt.bucketer import Bucketer
from ladder_opt.cli import main
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.plan import write_plan
from ladder_opt.reference.verify import VerifyOptions, rung_corners, verify_plan
from tests.plan.plans import make_cost, make_plan, make_trace

TRACED = VerifyOptions(compiler="eager", num_heads=2, head_size=8)


def bucketer() -> Bucketer:
    plan = make_plan()
    return Bucketer.from_engine(plan.to_engine(), plan=plan)


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    write_plan(make_plan(), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def run(*arguments: object) -> int:
    return main(["verify", *(str(argument) for argument in arguments)])


def test_corners_are_the_smallest_and_largest_batches_of_each_rung_pair() -> None:
    engine = Engine(max_num_seqs=8, max_model_len=4 * 128, num_kv_blocks=12)
    made = Bucketer(engine, Ladders((5, 8), (1, 4)), kv_tokens=(512,), query_tokens=(1, 512))
    found = rung_corners(made)
    pairs = {(int(n), int(b)) for n, b in zip(found.num_seqs, found.num_blocks, strict=True)}
    every = {(n, b) for n in (4, 5, 6, 8) for b in (1, 2, 4)}
    assert pairs == every  # the pool of 11 blocks holds the largest, 7 sequences of one block and one of 4


@pytest.mark.vllm
def test_a_plan_holds_on_its_corners_and_on_steps() -> None:
    made = bucketer()
    found = verify_plan(made, options=TRACED)
    assert found.failures == []
    assert found.compiled == found.variants == len(made.batched_variants())
    assert found.batches_per_sequence == found.batches_skipped == 0
    assert found.variants <= found.batches_run <= found.batches_built
    steps = StepHistogram(np.array([2, 5, 8]), np.array([1, 3, 9]), np.array([1.0, 2.0, 3.0]))
    on_steps = verify_plan(made, steps, options=TRACED)
    assert (on_steps.batches_built, on_steps.batches_run, on_steps.batches_per_sequence) == (3, 2, 1)
    assert on_steps.largest_difference < 1e-5


@pytest.mark.vllm
def test_a_part_says_what_was_skipped() -> None:
    options = VerifyOptions(compiler="eager", num_heads=2, head_size=8, compile_at_most=1)
    found = verify_plan(bucketer(), options=options)
    assert found.compiled == 1 < found.variants
    assert found.batches_skipped > 0
    assert found.batches_run <= 3
    assert found.failures == []


@pytest.mark.vllm
def test_a_variant_that_warm_up_leaves_out_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bucketer()
    known = made.batched_variants()
    monkeypatch.setattr(Bucketer, "batched_variants", lambda self: known[1:])
    found = verify_plan(made, options=TRACED)
    assert len(found.failures) == 1
    seqs, per_chunk, chunks = known[0].key
    told = f"num_seqs {seqs}, blocks_per_chunk {per_chunk}, num_chunks {chunks}, never recorded"
    assert found.failures[0].endswith(told)


@pytest.mark.vllm
def test_a_late_compile_and_a_wrong_result_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ladder_opt.reference.batch import PaddedBatch

    real = PaddedBatch.first_tokens

    def of_another_type(self: PaddedBatch, sliding_window: int | None) -> Any:
        return real(self, sliding_window).to(torch.int64 if self.num_decodes == 8 else torch.int32) + 1

    monkeypatch.setattr(PaddedBatch, "first_tokens", of_another_type)
    steps = StepHistogram(np.array([5, 8]), np.array([9, 9]), np.array([2.0, 1.0]))
    made = Bucketer(
        Engine(max_num_seqs=8, max_model_len=16 * 128),
        Ladders((8,), (16,)),
        kv_tokens=(2048,),
        query_tokens=(1, 512),
    )
    found = verify_plan(made, steps, options=TRACED)
    assert found.late_compiles == {"num_seqs 8, blocks_per_chunk 4, num_chunks 4": 1}
    assert len(found.failures) == 2
    assert found.failures[0] == (
        "1 graphs compiled after warm-up at num_seqs 8, blocks_per_chunk 4, num_chunks 4"
    )
    assert found.failures[1].startswith("padded attention differs by ")


@pytest.mark.vllm
def test_command_with_a_histogram(plan_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = plan_path.with_name("steps.csv")
    steps.write_text("num_seqs,num_blocks,steps\n2,1,5\n5,3,7\n8,9,1\n")
    shape = ("--num-heads", 2, "--num-kv-heads", 1, "--head-size", 8, "--compiler", "eager")
    assert run(plan_path, "--steps", steps, *shape, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batches_built"], found["batches_run"], found["failures"]) == (3, 2, [])
    assert run(plan_path, *shape, "--compile-at-most", 1) == 0
    text = capsys.readouterr().out
    assert text.startswith("holds for the 1 variants that were compiled; ")


@pytest.mark.vllm
def test_command_counts_the_environments_lists_as_a_server_does(
    plan_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = make_plan().engine.max_num_seqs
    monkeypatch.setenv("SPYRE_ATTN_NUM_SEQS_BUCKETS", str(top))
    shape = ("--num-heads", 2, "--num-kv-heads", 1, "--head-size", 8, "--compiler", "eager")
    assert run(plan_path, *shape, "--json") == 0
    told = capsys.readouterr()
    assert f"warning: SPYRE_ATTN_NUM_SEQS_BUCKETS asks for num_seqs {top}, " in told.err
    assert json.loads(told.out)["variants"] < len(bucketer().batched_variants())


@pytest.mark.vllm
def test_command_with_a_trace(plan_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every size that the replay of the trace has is built once."""
    trace = plan_path.with_name("trace.csv")
    made = make_trace(requests=60)
    assert made.arrival_seconds is not None
    rows = zip(made.arrival_seconds, made.prompt_tokens, made.output_tokens, strict=True)
    lines = [f"{arrival:.6f},{prompt},{output}" for arrival, prompt, output in rows]
    trace.write_text("\n".join(["arrival,prompt,output", *lines]) + "\n")
    columns = ("--columns", "arrival=arrival,prompt=prompt,output=output", "--time-unit", "s")
    cost = plan_path.with_name("cost.json")
    cost.write_text(json.dumps(make_cost().to_dict()))
    assert (
        run(plan_path, trace, *columns, "--cost", cost, "--compiler", "eager", "--head-size", 8, "--json")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    plan = make_plan()
    replay = simulate(made, plan.to_engine(), make_cost(), ladders=plan.ladders)
    assert found["batches_built"] == len(replay.steps) > 10
    assert found["batches_per_sequence"] == int((replay.steps.num_seqs < 4).sum())


@pytest.mark.vllm
def test_command_ends_with_1_on_a_failure(
    plan_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = bucketer().batched_variants()
    monkeypatch.setattr(Bucketer, "batched_variants", lambda self: known[1:])
    assert run(plan_path, "--compiler", "eager", "--head-size", 8) == 1
    assert capsys.readouterr().out.startswith("fails: ")


def test_command_without_torch(
    plan_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest)
    )
    assert run(plan_path) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "ladder-opt: found no torch, expected it for verify: pip install 'ladder-opt[torch]'\n"
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--num-kv-heads", 3, "--num-kv-heads: found 3, expected a divisor of --num-heads 4"),
        ("--head-size", 0, "--head-size: found 0, expected 1 to 1024"),
        ("--compile-at-most", 0, "--compile-at-most: found 0, expected 1 or more"),
        ("--compiler", "gcc", "--compiler: found 'gcc', expected inductor or eager"),
    ],
)
def test_bad_options(
    plan_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: object, message: str
) -> None:
    assert run(plan_path, option, value) == 2
    assert capsys.readouterr().err == f"ladder-opt: {message}\n"


def test_a_plan_without_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(make_plan(), tmp_path / "plan.json")
    assert run(tmp_path / "plan.json", "--max-num-seqs", 3) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].endswith("plan.json: found no variant of batched decode, expected one to compile")
