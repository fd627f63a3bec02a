"""Numbers behind the step times, the frontier and the prices."""

from __future__ import annotations

import numpy as np
import pytest

from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.plan.frontier import frontier
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plot import time_data
from ladder_opt.plot._plotly import cost_figure
from ladder_opt.plot.time_data import QUANTILES, cost_data, frontier_data, step_seconds_data
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan


def test_step_times_of_the_default_ladders_by_hand() -> None:
    """(5, 3), (5, 7) and (8, 9) are padded to 32, 64 and 128 pages: 42, 74 and 138 ms."""
    data = step_seconds_data(make_plan(), STEPS, make_cost())
    default = next(each for each in data.ladders if each.kind == "default")
    assert default.seconds.tolist() == pytest.approx([0.042, 0.074, 0.138])
    assert default.shares.tolist() == pytest.approx([1000 / 4500, 1500 / 4500, 1.0])
    assert default.quantiles == pytest.approx((0.138,) * 3)
    assert default.mean == pytest.approx((1000 * 0.042 + 500 * 0.074 + 3000 * 0.138) / 4500)
    assert default.longest == pytest.approx(0.138)


def test_quantiles_are_those_of_the_steps_one_by_one() -> None:
    plan, cost = make_plan(), make_cost()
    for each in step_seconds_data(plan, STEPS, cost).ladders:
        counts = np.diff(np.concatenate(([0.0], each.shares))) * 4500
        one_by_one = np.repeat(each.seconds, counts.round().astype(int))
        assert len(one_by_one) == 4500
        expected = np.quantile(one_by_one, QUANTILES, method="inverted_cdf")
        assert each.quantiles == tuple(expected)
    total = sum(each.mean for each in step_seconds_data(plan, STEPS, cost).ladders if each.kind == "plan")
    assert total * 4500 == pytest.approx(plan.result.step_seconds)


def test_the_frontiers_points_are_all_there() -> None:
    plan = make_plan()
    found = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(restarts=1.0))
    data = frontier_data(found, plan)
    assert data.points_in_all == len(found) == len(data.warmup_seconds)
    assert data.step_seconds.tolist() == [price.step_seconds for price in found.prices]
    assert (data.knee, data.chosen, data.complete) == (found.knee, found.chosen, True)
    assert [mark[0] for mark in data.marks] == ["knee", "least in all at 1 starts"]
    assert data.others[0].name == "plan"
    chosen = data.warmup_seconds[data.chosen] + data.step_seconds[data.chosen]
    assert chosen == pytest.approx(plan.result.step_seconds + plan.result.warmup_seconds)


def test_a_long_frontier_is_thinned_but_keeps_what_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = frontier(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(restarts=1.0))
    monkeypatch.setattr(time_data, "MOST_FRONTIER_POINTS", 4)
    assert len(found) == 5
    data = frontier_data(found)
    assert len(data.warmup_seconds) < 5
    assert data.points_in_all == len(found)
    assert data.warmup_seconds[0] == found.prices[0].warmup_seconds
    assert data.warmup_seconds[-1] == found.prices[-1].warmup_seconds
    assert data.step_seconds[data.knee] == found.prices[found.knee].step_seconds
    assert data.step_seconds[data.chosen] == found.prices[found.chosen].step_seconds


def test_curves_are_the_models_seconds() -> None:
    data = cost_data(make_cost(), ENGINE)
    assert data.num_seqs == (4, 8)
    assert data.num_blocks.tolist() == list(range(1, 17))
    # 8 sequences and 9 blocks: 3 chunks of 4 blocks, 96 pages of 1 ms and a base of 10 ms.
    assert data.step_seconds[1, 8] == pytest.approx(0.106)
    assert data.residuals == ()
    assert data.sure == ()


def test_parameters_have_the_intervals_of_the_fit() -> None:
    data = cost_data(read_cost_model())
    base = next(each for each in data.parameters if each.name == "step_seconds.base")
    assert (base.value, base.low, base.high, base.unit) == (0.153, 0.15, 0.16, "s")
    assert base.interval_ratio == pytest.approx((0.15 / 0.153, 0.16 / 0.153))
    assert ("throughput_ratio rows", "12") in data.residuals
    by_iteration_sq = next(each for each in data.parameters if each.name.endswith("iteration_sq"))
    assert not by_iteration_sq.is_sure  # an interval from 0 to 0


def test_a_fit_may_hold_anything() -> None:
    fit = {
        "parameters": {"step_seconds.base": {"low": "x", "high": True}, "startup_seconds": 3},
        "residuals": {"a": [1.0, None, 2.5], "b": {"c": "text"}, "d": None, "e": list(range(100))},
    }
    data = cost_data(make_cost(fit=fit))
    assert data.sure == ()
    assert data.residuals == (("a", "1, ?, 2.5"), ("b c", "text"), ("e", "0, 1, 2, 3, 4, 5, 6, 7, ..."))
    assert cost_data(make_cost(fit={"parameters": [], "residuals": 7.0})).residuals == (("", "7"),)


def test_a_measured_table_has_curves_at_its_own_sizes() -> None:
    table = [[s, m, 0.01 * s * m] for s in (4, 8) for m in (2, 16)]
    data = cost_data(make_cost(step_table=table), Engine(max_num_seqs=8, max_model_len=2048))
    assert data.num_seqs == (4, 8)
    assert data.num_blocks.tolist() == [2, 16]
    np.testing.assert_allclose(data.step_seconds, [[0.08, 0.64], [0.16, 1.28]])


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_rows_of_intervals_keep_their_height(count: int) -> None:
    fitted = {
        name: {"low": 0.5 * value, "high": 9.0 * value}
        for name, value in (
            ("step_seconds.base", 0.01),
            ("step_seconds.per_gather", 0.001),
            ("compile_seconds.base", 2.0),
            ("replay_seconds.per_sequence_gather", 0.001),
            ("replay_seconds.per_prefill_token", 0.0001),
        )
    }
    data = cost_data(make_cost(fit={"parameters": dict(list(fitted.items())[:count])}), ENGINE)
    if count > len(fitted):
        data = cost_data(read_cost_model(), ENGINE)
    figure = cost_figure(data)
    margin = figure.layout.margin
    plot = figure.layout.height - margin.t - margin.b
    low, high = figure.layout.yaxis2.domain
    assert (high - low) * plot / len(data.sure) == pytest.approx(44, abs=0.1)
    upper = figure.layout.yaxis.domain
    assert (upper[1] - upper[0]) * plot == pytest.approx(300, abs=0.1)
    assert figure.layout.xaxis2.automargin is False
    names = [note.text for note in figure.layout.annotations if note.xanchor == "left"]
    assert len(names) == len(data.sure)
    if count <= len(fitted):
        assert names[0] == "step_seconds.base, up to 9 times"
        assert figure.layout.xaxis2.range[1] < 5
