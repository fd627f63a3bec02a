"""How sure a plan is: against every pair of ladders of a small engine, and what a plan's file says of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ladder_opt.cli.app import main
from ladder_opt.cost.draws import draw_costs
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.plan import Plan, read_plan, write_plan
from ladder_opt.plan.tune import tune
from ladder_opt.solve.price import price_ladders
from tests.plan.plans import make_cost, make_trace

ENGINE = Engine(max_num_seqs=7, max_model_len=5 * 128)
STEPS = StepHistogram(
    np.array([4, 5, 6, 7, 5, 4, 7]),
    np.array([1, 2, 3, 5, 4, 2, 3]),
    np.array([900.0, 300, 250, 80, 120, 700, 90]),
)
NAMES = ["step_seconds.per_iteration", "step_seconds.per_gather", "compile_seconds.base"]
DRAWS = 30


def uncertain_cost(spread: float = 0.8, rows: int = DRAWS) -> CostModel:
    """Draws around round numbers, a factor of e^spread wide."""
    rng = np.random.default_rng(8)
    middle = np.array([2e-3, 1e-3, 0.35])
    values = middle * np.exp(spread * rng.standard_normal((rows, 3)))
    return make_cost(
        kernel="per_block",
        step_seconds={"base": 0.01, "per_iteration": middle[0], "per_gather": middle[1]},
        compile_seconds={"base": middle[2]},
        fit={"draws": {"parameters": NAMES, "values": values.tolist()}},
    )


def every_pair() -> list[Ladders]:
    def ladders(first: int, last: int) -> list[tuple[int, ...]]:
        inner = range(first, last)
        return [
            (*some, last) for size in range(len(inner) + 1) for some in itertools.combinations(inner, size)
        ]

    return [Ladders(seqs, blocks) for seqs in ladders(4, 7) for blocks in ladders(1, 5)]


def percentiles(values: NDArray[np.float64], *percents: int) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in percents or (5, 50, 95)}


def sure_plan(cost: CostModel, **options: Any) -> Plan:
    return tune(
        STEPS, cost, engine=ENGINE, options=SolveOptions(restarts=1.0, uncertainty_draws=DRAWS, **options)
    )


def test_every_number_is_that_of_exhaustive_search() -> None:
    cost = uncertain_cost()
    plan = sure_plan(cost)
    found = plan.uncertainty
    assert found is not None
    drawn = draw_costs(cost, DRAWS).costs
    pairs = every_pair()
    prices = np.array(
        [
            [price_ladders(STEPS, ENGINE, each, pair, restarts=1.0).objective_seconds for pair in pairs]
            for each in drawn
        ]
    )
    mine = prices[:, pairs.index(plan.ladders)]
    default = prices[:, pairs.index(default_ladders(ENGINE))]
    gain = 1 - mine / default
    assert found.gain == pytest.approx(percentiles(gain))
    assert found.saves_seconds == pytest.approx(percentiles(default - mine))
    assert found.beats_default == pytest.approx((mine < default * (1 - 1e-6)).mean())
    regret = mine / prices.min(axis=1) - 1
    assert found.regret == pytest.approx(percentiles(regret, 50, 95), abs=1e-9)
    assert found.stays_best == pytest.approx((regret <= 1e-6).mean())
    assert found.draws == DRAWS
    assert found.unsolved == 0
    assert found.over_limits == 0

    best = found.best_on_average
    assert best is not None
    average = prices.mean(axis=0)
    chosen = average[pairs.index(Ladders(best.num_seqs, best.num_blocks))]
    assert chosen == pytest.approx(average.min(), rel=1e-6)
    assert best.saves_seconds == pytest.approx(mine.mean() - chosen, abs=1e-6)
    assert best.status == "optimal"

    # Ties aside, which rung sets are best is what exhaustive search says too.
    argbest = [pairs[int(at)] for at in prices.argmin(axis=1)]
    unique = (np.sort(prices, axis=1)[:, 1] > np.sort(prices, axis=1)[:, 0] * (1 + 1e-9)).all()
    assert unique
    shares = {(each.axis, each.rung): each.share for each in found.rungs}
    for rung in plan.num_seqs:
        assert shares["num_seqs", rung] == pytest.approx(np.mean([rung in each.num_seqs for each in argbest]))
    for rung in plan.num_blocks:
        assert shares["num_blocks", rung] == pytest.approx(
            np.mean([rung in each.num_blocks for each in argbest])
        )


def test_without_spread_a_plan_is_sure() -> None:
    found = sure_plan(uncertain_cost(spread=0.0)).uncertainty
    assert found is not None
    assert found.stays_best == 1.0
    assert {each.share for each in found.rungs} == {1.0}
    assert found.other_rungs == ()
    assert found.best_on_average is not None
    assert found.best_on_average.is_plan
    assert found.gain is not None
    assert found.gain["p5"] == pytest.approx(found.gain["p95"])


def test_limits_and_pins_hold_under_every_draw() -> None:
    found = sure_plan(uncertain_cost(), max_variants=4, num_seqs=[7]).uncertainty
    assert found is not None
    assert [each.rung for each in found.rungs if each.axis == "num_seqs"] == [7]
    best = found.best_on_average
    assert best is not None
    assert best.num_seqs == (7,)
    assert len(best.num_blocks) <= 4


def test_a_budget_that_some_draws_break_is_counted() -> None:
    cost = uncertain_cost()
    plan = sure_plan(cost, warmup_budget_seconds=30.0 + 4 * 0.35)
    found = plan.uncertainty
    assert found is not None
    over = [
        price_ladders(STEPS, ENGINE, each, plan.ladders, restarts=1.0).compile_seconds > 4 * 0.35 * (1 + 1e-9)
        for each in draw_costs(cost, DRAWS).costs
    ]
    assert found.over_limits == pytest.approx(np.mean(over))
    assert 0 < found.over_limits < 1
    # With a compile of more than the whole budget not even one variant can be had.
    dearest = [each.compile_seconds.base > 4 * 0.35 * (1 + 1e-9) for each in draw_costs(cost, DRAWS).costs]
    assert found.unsolved == sum(dearest)


@pytest.mark.parametrize("options", [{"structure": "ragged"}, {"guard": 1.5}])
def test_other_structures_are_assessed_too(options: dict[str, Any]) -> None:
    plan = sure_plan(uncertain_cost(), **options)
    assert plan.uncertainty is not None
    best = plan.uncertainty.best_on_average
    assert best is not None
    assert (best.ragged is not None) == (plan.structure == "ragged")


def test_the_file_holds_it_only_where_it_was_asked(tmp_path: Path) -> None:
    plan = sure_plan(uncertain_cost())
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    silent = tune(STEPS, uncertain_cost(), engine=ENGINE)
    assert "uncertainty" not in silent.to_dict()
    assert silent.provenance.asked is not None
    assert "uncertainty_draws" not in silent.provenance.asked
    assert plan.provenance.asked is not None
    assert plan.provenance.asked["uncertainty_draws"] == DRAWS


def test_it_is_asked_from_python_and_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tune(make_trace(requests=60), options=SolveOptions(uncertainty_draws=3))
    assert plan.uncertainty is not None
    assert plan.uncertainty.source == "intervals of the fit, each by itself"
    steps = tmp_path / "steps.csv"
    steps.write_text("num_seqs,num_blocks,steps\n5,3,10000\n8,9,30000\n", encoding="utf-8")
    arguments = ["tune", "--steps", str(steps), "--uncertainty", "3"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "how sure: 3 cost models drawn (intervals of the fit, each by itself)" in text
    assert "rungs that stay: num_seqs" in text
    assert "best on average: " in text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uncertainty"]["draws"] == 3
    assert main(["tune", "--steps", str(steps), "--uncertainty", "-1"]) == 2
    assert capsys.readouterr().err.startswith("ladder-opt: --uncertainty: found -1, expected 1 or more draws")


def test_not_with_robust_or_without_a_fit() -> None:
    with pytest.raises(UsageError, match="--uncertainty: found with --robust, expected one of the two"):
        SolveOptions(robust=True, uncertainty_draws=3)
    # Nothing to be unsure about: said in one line, whatever the prices say of themselves.
    few = StepHistogram(np.array([2]), np.array([3]), np.array([100.0]))
    for cost in (uncertain_cost(), make_cost()):
        plan = tune(few, cost, engine=ENGINE, options=SolveOptions(uncertainty_draws=3))
        assert plan.uncertainty is None
        assert plan.warnings[0] == (
            "--uncertainty: no step is batched, so that there is nothing to be unsure about"
        )
    with pytest.raises(UsageError, match="does not say how sure it is"):
        tune(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(uncertainty_draws=3))
