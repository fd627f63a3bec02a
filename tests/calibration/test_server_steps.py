"""Parameters found again: a server that is a replay with known parameters, seen through its records alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.calibration.request_records import WITHOUT_TIMINGS, request_records
from ladder_opt.calibration.server_steps import fit_server_steps
from ladder_opt.engine import ServerEngine
from ladder_opt.errors import InputError
from tests.calibration.runs import SERVER, TRUTH, made_trace, server_run, step_seconds


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    base=st.floats(0.005, 0.2),
    per_seq=st.floats(0, 0.05),
    per_block=st.floats(0, 1e-3),
    per_prefill_token=st.floats(1e-4, 1e-2),
    load=st.floats(0.05, 0.4),
)
def test_known_parameters_are_found_again(
    *, seed: int, base: float, per_seq: float, per_block: float, per_prefill_token: float, load: float
) -> None:
    """A step of any size seen is priced within 5 percent; last tokens come within 2 percent of the span."""
    truth = {
        "base": base,
        "per_seq": base * per_seq,
        "per_block": base * per_block,
        "per_prefill_token": base * per_prefill_token,
    }
    run = server_run(made_trace(seed, gap_seconds=110 * base * load), truth)
    found = fit_server_steps([run], SERVER)
    fitted = {term.name: term.seconds for term in found.steps.terms}
    ranges = {term.name: term.work_range for term in found.steps.terms}
    for end in (0, 1):
        work = [ranges[name][end] for name in ("per_seq", "per_block", "per_prefill_token")]
        assert step_seconds(fitted, *work) == pytest.approx(step_seconds(truth, *work), rel=0.05)
    assert found.last_token_error_seconds <= 0.02 * run.timings.last_token_seconds.max()


def test_several_runs_are_one_server() -> None:
    runs = [server_run(made_trace(seed, gap_seconds=gap)) for seed, gap in ((1, 0.3), (2, 1.0))]
    found = fit_server_steps(runs, SERVER)
    assert found.steps.rows == sum(int((run.trace.output_tokens > 1).sum()) for run in runs)
    for term in found.steps.terms:
        assert term.seconds == pytest.approx(TRUTH[term.name], rel=0.05)
        assert term.low <= TRUTH[term.name] * 1.001
        assert term.high >= TRUTH[term.name] * 0.999


def test_half_the_requests_predict_the_others() -> None:
    run = server_run(made_trace(3))
    first_half = np.arange(len(run)) < len(run) // 2
    found = fit_server_steps([run], SERVER, used=[first_half])
    assert found.steps.rows == int((run.trace.output_tokens[first_half] > 1).sum())
    assert found.steps.terms[0].seconds == pytest.approx(TRUTH["base"], rel=0.05)


def test_noise_widens_the_intervals_and_moves_little() -> None:
    run = server_run(made_trace(4))
    rng = np.random.default_rng(0)
    timings = run.timings
    spans = timings.last_token_seconds - timings.first_token_seconds
    noisy = replace(
        timings, last_token_seconds=timings.first_token_seconds + spans * rng.normal(1, 0.02, 200)
    )
    found = fit_server_steps([replace(run, timings=noisy)], SERVER)
    base = found.steps.terms[0]
    assert base.high - base.low > 1e-4 * base.seconds
    assert found.steps.mean_step_seconds == pytest.approx(
        fit_server_steps([run], SERVER).steps.mean_step_seconds, rel=0.01
    )


def test_the_cost_model_prices_a_replay_alike_with_and_without_rungs() -> None:
    found = fit_server_steps([server_run(made_trace(5))], SERVER, name="mine")
    cost = found.cost
    assert cost.name == "mine"
    assert cost.kernel == "per_block"
    assert cost.step_seconds.per_gather == cost.replay_seconds.per_sequence_gather
    assert cost.step_seconds.per_seq == cost.replay_seconds.per_seq
    # Five sequences of three blocks each, batched without padding.
    assert float(cost.batched_step_seconds(5, 3)) == pytest.approx(
        step_seconds({term.name: term.seconds for term in found.steps.terms}, 5, 15, 0)
    )


def test_outputs_of_one_token_say_nothing() -> None:
    trace = made_trace(6)
    run = server_run(replace(trace, output_tokens=np.ones(len(trace), np.int64)))
    with pytest.raises(InputError, match="0 requests that took time between the first and the last token"):
        fit_server_steps([run], SERVER)


def test_unusable_timings_are_counted() -> None:
    run = server_run(made_trace(7))
    first = run.timings.first_token_seconds.copy()
    first[3] = np.nan
    first[5] = -1.0
    kept = request_records(run.trace, replace(run.timings, first_token_seconds=first))
    assert len(kept) == 198
    assert kept.trace.set_aside == {WITHOUT_TIMINGS: 2}
    with pytest.raises(InputError, match="found 0 of 200 requests with timings that can be"):
        request_records(run.trace, replace(run.timings, first_token_seconds=first * np.nan), path="x.jsonl")


def test_a_wrong_pool_shows() -> None:
    run = server_run(made_trace(8, gap_seconds=0.05))
    right = fit_server_steps([run], SERVER)
    small = ServerEngine(
        block_size=16, max_num_seqs=32, max_model_len=4096, max_num_batched_tokens=512, num_kv_blocks=400
    )
    wrong = fit_server_steps([run], small)
    assert wrong.last_token_error_seconds > 20 * right.last_token_error_seconds
