"""Traffic that never was: lengths at the old quantiles, marginals moved onto old ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.monitor.swap import with_batches_of, with_blocks_of, with_lengths_of
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import ReplayOptions
from ladder_opt.plan.parts import PlanTraffic
from ladder_opt.plan.plan import plan_from_dict
from ladder_opt.plan.traffic import SHARES, quantiles, summarize_traffic
from ladder_opt.plan.tune import tune
from ladder_opt.trace.table import HashIds, Trace
from tests.plan.plans import ENGINE, make_cost, make_trace

LARGE = Engine(max_num_seqs=16, max_model_len=4096)


def traffic_of(trace: Trace, engine: Engine = LARGE) -> PlanTraffic:
    return PlanTraffic.model_validate(summarize_traffic([trace], engine, ReplayOptions()))


def lengths(seed: int, low: int, high: int, count: int = 2000) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(
        np.arange(count, dtype=np.float64), rng.integers(low, high, count), rng.integers(1, 200, count)
    )


def test_the_same_lengths_stay_exactly_as_they_are() -> None:
    trace = lengths(0, 100, 1500)
    (moved,) = with_lengths_of([trace], traffic_of(trace), traffic_of(trace), LARGE)
    assert (moved.prompt_tokens == trace.prompt_tokens).all()
    assert (moved.output_tokens == trace.output_tokens).all()


def test_lengths_take_the_old_ones_places_and_keep_their_order() -> None:
    now, then = lengths(1, 1000, 1400), lengths(2, 50, 300)
    (moved,) = with_lengths_of([now], traffic_of(now), traffic_of(then), LARGE)
    order = np.argsort(now.prompt_tokens, kind="stable")
    assert (np.diff(moved.prompt_tokens[order]) >= -2).all()  # equal lengths share ranks by lot
    old, new = np.sort(then.prompt_tokens), np.sort(moved.prompt_tokens)
    assert np.abs(old - new).max() <= 12


def test_equal_lengths_spread_over_the_old_ones() -> None:
    then = lengths(3, 100, 900)
    now = Trace(None, np.full(2000, 500), np.full(2000, 20))
    (moved,) = with_lengths_of([now], traffic_of(now), traffic_of(then), LARGE)
    assert np.abs(np.sort(moved.prompt_tokens) - np.sort(then.prompt_tokens)).max() <= 10
    halves = moved.prompt_tokens[:1000].mean(), moved.prompt_tokens[1000:].mean()
    assert halves == pytest.approx((500, 500), abs=25)  # by lot, and not in the order of arrival


def test_pairs_that_are_longer_than_the_engine_takes_are_cut() -> None:
    now, then = lengths(4, 10, 50), lengths(5, 3800, 3890)
    (moved,) = with_lengths_of([now], traffic_of(now), traffic_of(then), LARGE)
    assert (moved.prompt_tokens + moved.output_tokens <= 4096).all()
    assert moved.output_tokens.min() >= 1


def test_ids_of_blocks_go_with_the_prompts() -> None:
    now = Trace(
        np.arange(3, dtype=np.float64),
        np.array([100, 200, 300]),
        np.array([5, 5, 5]),
        hash_ids=HashIds.of([[1, 2], [1, 3, 4, 5], [1, 3, 6, 7, 8]], 64),
    )
    then = Trace(np.arange(3, dtype=np.float64), np.array([60, 250, 600]), np.array([5, 5, 5]))
    (moved,) = with_lengths_of([now], traffic_of(now), traffic_of(then), LARGE)
    ids = moved.hash_ids
    assert ids is not None
    rows = [ids.values[a:b].tolist() for a, b in zip(ids.offsets, ids.offsets[1:], strict=False)]
    assert [len(row) for row in rows] == (-(-moved.prompt_tokens // 64)).tolist()
    assert rows[0] == [1, 2][: len(rows[0])]
    assert rows[2][:5] == [1, 3, 6, 7, 8]
    fresh = [each for row in rows for each in row if each > 8]
    assert len(fresh) == len(set(fresh)) > 0


cells = st.lists(
    st.tuples(st.integers(1, 16), st.integers(1, 32), st.floats(0.5, 1000.0)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(now=cells, then=cells)
def test_marginals_become_the_old_ones(
    now: list[tuple[int, int, float]], then: list[tuple[int, int, float]]
) -> None:
    def made(rows: list[tuple[int, int, float]]) -> StepHistogram:
        seqs, blocks, steps = zip(*rows, strict=True)
        return StepHistogram(np.array(seqs), np.array(blocks), np.array(steps))

    new, old = made(now), made(then)
    moved = with_blocks_of(with_batches_of(new, old, LARGE), old, LARGE)
    assert moved.total_steps == pytest.approx(new.total_steps)
    batched, ours, theirs = new.batched(LARGE), moved.batched(LARGE), old.batched(LARGE)
    assert moved.steps[~ours].sum() == pytest.approx(new.steps[~batched].sum())
    if not batched.any() or not theirs.any():
        return
    for name in ("num_seqs", "num_blocks"):
        for size in range(1, 33):
            share = moved.steps[ours & (getattr(moved, name) == size)].sum() / moved.steps[ours].sum()
            expected = old.steps[theirs & (getattr(old, name) == size)].sum() / old.steps[theirs].sum()
            assert share == pytest.approx(expected, abs=1e-6)


def test_the_same_histogram_stays_as_it_is() -> None:
    steps = StepHistogram(np.array([4, 5, 9, 2]), np.array([1, 30, 8, 3]), np.array([3.0, 1.0, 7.0, 2.0]))
    moved = with_blocks_of(with_batches_of(steps, steps, LARGE), steps, LARGE)
    assert moved.num_seqs.tolist() == steps.num_seqs.tolist()
    assert moved.num_blocks.tolist() == steps.num_blocks.tolist()
    assert moved.steps == pytest.approx(steps.steps)


# What a plan keeps of its traffic.


def test_quantiles_by_hand() -> None:
    counts = np.zeros(12)
    counts[[2, 5, 9]] = [1, 2, 1]
    found = dict(zip(SHARES, quantiles(counts), strict=True))
    assert (found[0.0], found[0.25], found[0.5], found[0.75], found[0.8], found[1.0]) == (2, 2, 5, 5, 9, 9)


def test_a_plan_keeps_rate_and_lengths_of_what_the_engine_takes() -> None:
    trace = make_trace()
    plan = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(replicas=4, rate_scale=2.0))
    traffic = plan.provenance.traffic
    assert traffic is not None
    assert traffic.requests == 300
    assert traffic.requests_per_second == pytest.approx(300 / trace.span_seconds * 2 / 4)
    assert (traffic.prompt_tokens[0], traffic.prompt_tokens[-1]) == (
        trace.prompt_tokens.min(),
        trace.prompt_tokens.max(),
    )
    assert plan_from_dict(plan.to_dict()) == plan
    short = tune(trace, make_cost(), engine=Engine(max_num_seqs=8, max_model_len=512))
    assert short.provenance.traffic is not None
    assert short.provenance.traffic.requests == (trace.prompt_tokens + trace.output_tokens <= 512).sum()
    loop = tune(trace, make_cost(), engine=ENGINE, replay_options=ReplayOptions(concurrency=4))
    assert loop.provenance.traffic is not None
    assert loop.provenance.traffic.requests_per_second is None


def test_weights_count_in_the_summary() -> None:
    traces = [lengths(6, 100, 200), lengths(7, 1000, 1100)]
    found = summarize_traffic(traces, LARGE, ReplayOptions(weights=(3.0, 1.0)))
    assert found is not None
    assert found["requests"] == 8000
    at = dict(zip(SHARES, found["prompt_tokens"], strict=True))
    assert at[0.7] < 200
    assert at[0.8] >= 1000
    assert found["requests_per_second"] == pytest.approx(8000 / (4 * 1999))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": [1, 2]}, "provenance.traffic.prompt_tokens: found 2 of them, expected as many as"),
        (
            {"shares": [0.0, 0.5], "prompt_tokens": [1, 2], "output_tokens": [1, 2]},
            "found 0 to 0.5, expected",
        ),
        ({"shares": [0.0, 1.0], "prompt_tokens": [3, 2], "output_tokens": [1, 2]}, "found a fall, expected"),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(change: dict[str, list[float]], message: str) -> None:
    data = tune(make_trace(requests=50), make_cost(), engine=ENGINE).to_dict()
    data["provenance"]["traffic"] |= change
    with pytest.raises(InputError) as error:
        plan_from_dict(data)
    assert message in str(error.value)
