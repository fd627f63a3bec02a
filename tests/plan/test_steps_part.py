"""What a plan keeps of its steps and prices: whole or told, read as equal, left out of what servers load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ladder_opt.bucketer.bucketer import Bucketer
from ladder_opt.errors import InputError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.sequences import SequenceHistogram
from ladder_opt.plan import steps_part
from ladder_opt.plan.export import export_plan
from ladder_opt.plan.plan import Plan, plan_from_dict, read_plan, write_plan
from ladder_opt.plan.tune import tune
from ladder_opt.solve.price import price_ladders
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan, make_trace


def changed(**occupancy: Any) -> dict[str, Any]:
    data = make_plan().to_dict()
    data["occupancy"] |= occupancy
    return data


def same_steps(left: StepHistogram | None, right: StepHistogram) -> None:
    assert left is not None
    for name in ("num_seqs", "num_blocks", "steps"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(left.real_gathers(), right.real_gathers())
    assert (left.gathers_real is None) == (right.gathers_real is None)


def test_steps_and_prices_come_back_as_they_went_in(tmp_path: Path) -> None:
    steps = StepHistogram(STEPS.num_seqs, STEPS.num_blocks, STEPS.steps / 3, STEPS.real_gathers() / 7)
    write_plan(tune(steps, make_cost(), engine=ENGINE), tmp_path / "p.json")
    plan = read_plan(tmp_path / "p.json")
    same_steps(plan.to_steps(), steps)
    assert plan.to_cost_model() == make_cost()


def test_calls_of_the_per_sequence_kernel_are_kept_too() -> None:
    plan = plan_from_dict(json.loads(make_spyre_plan().to_json()))
    kept = plan.to_steps()
    assert kept is not None
    assert isinstance(kept.sequences, SequenceHistogram)
    calls = STEPS.decode_calls(ENGINE)
    np.testing.assert_array_equal(kept.sequences.calls, calls.calls)
    assert plan.occupancy is not None
    assert plan.occupancy.cells == len(STEPS) + len(calls)


def test_a_plan_is_priced_on_the_steps_that_it_keeps() -> None:
    plan = tune(make_trace(), make_cost(), engine=ENGINE)
    steps, cost = plan.to_steps(), plan.to_cost_model()
    assert steps is not None
    assert cost is not None
    price = price_ladders(steps, ENGINE, cost, plan.ladders, restarts=plan.result.restarts)
    assert price.objective_seconds == plan.result.objective_seconds
    assert price.gathers.real == plan.result.gathers.real


def test_too_many_cells_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_part, "MAX_CELLS", 3)
    plan = make_plan()
    assert plan.to_dict()["occupancy"] == {"cells": 4}
    assert plan.to_steps() is None
    assert plan_from_dict(json.loads(plan.to_json())) == plan
    monkeypatch.setattr(steps_part, "MAX_COST_CHARACTERS", 100)
    plan = make_plan()
    assert "cost" not in plan.to_dict()
    assert plan.to_cost_model() is None


def test_a_full_histogram_is_well_below_the_files_limit() -> None:
    """The bound times what a cell can take at most: four numbers of up to 20 digits."""
    assert steps_part.MAX_CELLS * 4 * 21 < 16 << 20
    seqs, blocks = np.divmod(np.arange(steps_part.MAX_CELLS), 512)
    rng = np.random.default_rng(1)
    steps = StepHistogram(
        seqs + 1, blocks + 1, rng.uniform(0.1, 1e6, len(seqs)), rng.uniform(1, 1e9, len(seqs))
    )
    text = json.dumps(steps_part.occupancy_dict(steps))
    assert len(text) < 3 << 20


def test_the_file_stays_one_that_people_can_open() -> None:
    text = make_plan().to_json()
    lines = text.splitlines()
    assert '    "steps": [70,1000,500,3000]' in lines
    assert '    "num_seqs": [2,5,5,8],' in lines
    assert json.loads(text) == make_plan().to_dict() | {
        "provenance": json.loads(text)["provenance"]  # the time it was made at
    }
    data = make_plan().to_dict()
    data["occupancy"] |= {"novel": {"a": [1, "x"]}}
    again = plan_from_dict(data)
    assert json.loads(again.to_json()) == again.to_dict() == data


def test_plans_of_earlier_releases_have_neither() -> None:
    data = make_plan().to_dict()
    del data["occupancy"], data["cost"]
    plan = plan_from_dict(data)
    assert (plan.to_steps(), plan.to_cost_model()) == (None, None)
    assert plan.to_dict() == data
    assert json.loads(plan.to_json()) == data


def test_servers_load_a_plan_with_or_without(tmp_path: Path) -> None:
    plan = make_plan()
    bare = plan.model_copy(update={"occupancy": None, "cost": None})
    ours, theirs = (Bucketer.from_engine(ENGINE, plan=each, environ={}) for each in (plan, bare))
    assert ours.batched_variants() == theirs.batched_variants()
    inline = yaml.safe_load(export_plan(plan, "vllm-yaml", path="p.json"))["additional-config"]
    assert not {"occupancy", "cost"} & set(json.loads(inline)["ladder_opt"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"steps": [1.0]},
            "occupancy: found 4 num_seqs, 4 num_blocks, 1 steps, expected columns of one length",
        ),
        ({"steps": [70, 1000, 0, 3000]}, "occupancy.steps[2]: found 0, expected "),
        ({"num_seqs": [2, 5, True, 8]}, "occupancy.num_seqs[2]: found True"),
        ({"cells": -1}, "occupancy.cells: found -1"),
        ({"steps": None}, "occupancy: found num_blocks, num_seqs, expected num_seqs, num_blocks and steps"),
        ({"gathers_real": [1.0]}, "occupancy: found "),
        (
            {"sequences": {"num_blocks": [1], "query_len": [1, 2], "calls": [1.0]}},
            "occupancy.sequences: found 1 num_blocks, 2 query_len, 1 calls, expected columns of one length",
        ),
    ],
)
def test_columns_that_contradict_each_other_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        plan_from_dict(changed(**change), path="p.json")
    assert str(error.value).startswith(f"p.json: {message}")
    assert len(str(error.value).splitlines()) == 1


def test_steps_beyond_the_engine_are_told_when_they_are_asked_for() -> None:
    plan = plan_from_dict(changed(num_seqs=[2, 5, 5, 9]))
    assert isinstance(plan, Plan)
    with pytest.raises(InputError, match="at most max_num_seqs = 8"):
        plan.to_steps()
