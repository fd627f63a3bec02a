"""Cost models drawn from a fit: its own draws, or its intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ladder_opt.cost.draws import draw_costs
from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.errors import InputError, UsageError
from tests.plan.plans import make_cost

DRAWS = {"parameters": ["step_seconds.base", "step_seconds.per_gather"], "values": [[0.1, 0.01], [0.3, 0.02]]}


def test_stored_draws_are_used_row_by_row() -> None:
    drawn = draw_costs(make_cost(fit={"draws": DRAWS}), 4)
    pairs = [(each.step_seconds.base, each.step_seconds.per_gather) for each in drawn.costs]
    assert sorted(pairs) == [(0.1, 0.01), (0.1, 0.01), (0.3, 0.02), (0.3, 0.02)]
    assert sorted(pairs[:2]) == [(0.1, 0.01), (0.3, 0.02)]  # each once before any comes again
    assert drawn.mean.step_seconds.base == pytest.approx(0.2)
    assert drawn.mean.compile_seconds == make_cost().compile_seconds
    assert drawn.how == "draws of the fit"
    assert all(each.fit is None for each in drawn.costs)


def test_the_built_in_model_is_drawn_within_its_intervals() -> None:
    cost = read_cost_model()
    assert cost.fit is not None
    drawn = draw_costs(cost, 2000, seed=3)
    compiles = np.array([each.compile_seconds.base for each in drawn.costs])
    entry = cost.fit["parameters"]["compile_seconds.base"]
    assert np.mean(compiles <= entry["low"]) == pytest.approx(0.05, abs=0.015)
    assert np.mean(compiles <= entry["value"]) == pytest.approx(0.5, abs=0.04)
    assert np.mean(compiles <= entry["high"]) == pytest.approx(0.95, abs=0.015)
    # The scale is common to all seconds of a step: iterations and base move together.
    base, iteration = (
        np.array([getattr(each.step_seconds, name) for each in drawn.costs])
        for name in ("base", "per_iteration")
    )
    assert np.corrcoef(np.log(base), np.log(iteration))[0, 1] > 0.5
    np.testing.assert_allclose(np.percentile(base, (5, 95)), [0.153 / 1.5, 0.153 * 1.5], rtol=0.08)
    gathers = np.array([each.step_seconds.per_gather for each in drawn.costs])
    assert gathers.min() == 0.0
    assert all(each.startup_seconds == cost.startup_seconds for each in drawn.costs)


def test_the_same_seed_draws_the_same() -> None:
    cost = read_cost_model()
    assert draw_costs(cost, 5, seed=1) == draw_costs(cost, 5, seed=1)
    assert draw_costs(cost, 5, seed=1) != draw_costs(cost, 5, seed=2)


def test_tables_move_by_a_common_factor() -> None:
    fit = {"draws": DRAWS, "tables": {"compile": {"relative_error": 0.1}}}
    cost = make_cost(compile_table=[[4, 1, 2.0], [8, 1, 3.0]], fit=fit)
    drawn = draw_costs(cost, 50)
    seconds = np.array([[row[2] for row in each.compile_table or ()] for each in drawn.costs])
    np.testing.assert_allclose(seconds[:, 1] / seconds[:, 0], 1.5)
    assert 0.05 < np.log(seconds[:, 0]).std() < 0.15
    assert drawn.mean.compile_table is not None
    assert drawn.mean.compile_table[0][2] == pytest.approx(seconds[:, 0].mean())


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (
            {"draws": {"parameters": ["step_seconds.base"], "values": [[1.0, 2.0]]}},
            "fit.draws: found something els",
        ),
        ({"draws": {"parameters": ["step_seconds.base"], "values": [[-1.0]]}}, "fit.draws"),
        ({"draws": {"parameters": ["name"], "values": [[1.0]]}}, "fit.draws"),
        ({"draws": {"parameters": ["step_seconds.odd"], "values": [[1.0]]}}, "step_seconds.odd"),
        ({"draws": {"parameters": 3, "values": [[1.0]]}}, "fit.draws"),
        ({"draws": [1]}, "fit.draws"),
        (
            {"parameters": {"step_seconds.base": {"value": 1, "low": 2, "high": 3}}},
            "0 <= low <= value <= high",
        ),
        ({"parameters": {"step_seconds.base": {"value": 1, "low": 0}}}, "fit.parameters.step_seconds.base"),
        (
            {
                "parameters": {"step_seconds.base": {"value": 1, "low": 0, "high": 2}},
                "scale_uncertainty_factor": 0.5,
            },
            "found 0.5, expected a factor of 1 or more",
        ),
    ],
)
def test_odd_fits_are_refused(fit: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        draw_costs(make_cost(fit=fit), 3)
    assert message in str(raised.value)
    assert str(raised.value).startswith("round numbers: ")


@pytest.mark.parametrize("cost", [make_cost(), make_cost(fit={"source": "a guess"})])
def test_a_model_that_says_nothing_is_no_source(cost: CostModel) -> None:
    with pytest.raises(
        UsageError, match="'round numbers' that does not say how sure it is, expected one made by"
    ):
        draw_costs(cost, 3)


def test_out_of_range() -> None:
    with pytest.raises(UsageError, match="--uncertainty: found 0, expected 1 to 10000 draws"):
        draw_costs(read_cost_model(), 0)
