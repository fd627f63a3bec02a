"""JSON Schemas against files that are really written, and against the published shapes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder, StepsWriter
from ladder_opt.calibration.api import calibrate
from ladder_opt.calibration.measurement_rows import COLUMNS
from ladder_opt.cost.model import (
    CompileSeconds,
    CostModel,
    PerSequence,
    ReplaySeconds,
    StepSeconds,
    builtin_names,
    read_cost_model,
)
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.plan.json_schemas import json_schemas
from ladder_opt.plan.plan import plan_from_dict
from ladder_opt.plan.tune import evaluate
from tests.faults.commands import PAIRS
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan

SCHEMAS = json_schemas()
PLAN = make_plan()
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
COST_KEYS = {field.alias or name for name, field in CostModel.model_fields.items()}
STEP_KEYS, COMPILE_KEYS, REPLAY_KEYS, SEQUENCE_KEYS = (
    set(part.model_fields) for part in (StepSeconds, CompileSeconds, ReplaySeconds, PerSequence)
)


def faults(name: str, data: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(data)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        make_plan(structure="ragged"),
        make_plan(max_variants=4, guard=3.0),
        make_spyre_plan(),
        evaluate(STEPS, PLAN.ladders, make_cost(), engine=ENGINE),
        PLAN.model_copy(update={"verdict": "not-used", "num_seqs": ()}),
    ],
    ids=["product", "ragged", "limits", "spyre-env", "evaluated", "not-used"],
)
def test_plans_that_are_written_keep_to_theirs(plan: Any) -> None:
    assert faults("plan-1.json", json.loads(plan.to_json())) == []


@pytest.mark.parametrize("cost", [*(read_cost_model(name) for name in builtin_names()), make_cost()])
def test_cost_models_that_are_written_keep_to_theirs(cost: Any) -> None:
    assert faults("cost-1.json", cost.to_dict()) == []


def test_tables_of_a_cost_model_do_too() -> None:
    rows = [[4, 1, 0.1], [4, 2, 0.2]]
    cost = make_cost(step_table=rows, compile_table=rows, fit={"any": 1})
    assert faults("cost-1.json", cost.to_dict()) == []
    assert faults("cost-1.json", {**make_cost().to_dict(), "step_table": [[0, 1, 0.1]]}) != []


def test_what_a_server_records_keeps_to_its(tmp_path: Path) -> None:
    recorder = StepRecorder()
    recorder.start()
    recorder.decode([128, 300, 5, 9, 77], 128)
    told: list[str] = []
    writer = StepsWriter(
        recorder,
        Bucketer.from_engine(ENGINE),
        tmp_path,
        instance="i",
        rank=0,
        every_seconds=3600,
        warn=told.append,
    )
    assert writer.write()
    (path,) = tmp_path.glob("steps-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert told == []
    assert faults("record-1.json", record) == []
    assert set(record) <= set(SCHEMAS["record-1.json"]["properties"])


def test_engines_keep_to_theirs() -> None:
    assert faults("engine.json", Engine().to_dict()) == []
    assert faults("engine.json", {"block_size": 100}) != []
    assert faults("engine.json", {"max_num_seqs": 0}) != []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "ladder_opt/plan/2"),
        ("schema", None),
        ("kernel", 3),
        ("num_seqs", [4, 0]),
        ("num_seqs", "4,8"),
        ("verdict", "maybe"),
        ("target", "gpu"),
        ("engine/block_size", "128"),
        ("result/status", "good"),
        ("result/gathers/padded", -1),
        ("result/rungs", [{"axis": "num_seqs"}]),
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(path: str, value: Any) -> None:
    data = copy.deepcopy(PLAN.to_dict())
    *parents, last = path.split("/")
    at = data
    for key in parents:
        at = at[key]
    at[last] = value
    with pytest.raises(InputError):
        plan_from_dict(json.loads(json.dumps(data)))
    assert faults("plan-1.json", json.loads(json.dumps(data))) != []


def test_keys_that_a_later_release_adds_pass() -> None:
    data = {**PLAN.to_dict(), "schema": "ladder_opt/plan/1.3", "later": {"x": 1}}
    assert faults("plan-1.json", json.loads(json.dumps(data))) == []
    assert plan_from_dict(data).num_blocks == PLAN.num_blocks


def keys_of(schema: Any) -> Iterator[str]:
    """Every key that a schema names, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        yield from properties
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_page_on_files_names_every_key(name: str) -> None:
    named = set(re.findall(r"\w+", PAGE))
    assert [key for key in dict.fromkeys(keys_of(SCHEMAS[name])) if key not in named] == []


def test_the_page_on_files_names_what_calibrate_writes(tmp_path: Path) -> None:
    named = set(re.findall(r"\w+", PAGE))
    assert [name for name in COLUMNS if name not in named] == []
    (tmp_path / "pairs.csv").write_text(PAIRS, encoding="utf-8")
    fit = calibrate(tmp_path / "pairs.csv", ENGINE).cost.fit
    assert fit is not None
    keys = [*fit, *(key for each in fit["parameters"].values() for key in each), *fit["residuals"]["step"]]
    assert {"draws", "value", "r_squared"} <= set(keys)
    assert [key for key in keys if key not in named] == []


@pytest.mark.parametrize("keys", [COST_KEYS, STEP_KEYS, COMPILE_KEYS, REPLAY_KEYS, SEQUENCE_KEYS])
def test_a_cost_models_keys_have_a_line_of_their_own(keys: set[str]) -> None:
    """In code marks in the section on cost models, not merely somewhere on the page."""
    section = PAGE[PAGE.index("## Cost model") : PAGE.index("## Measurements")]
    outside_of_examples = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    marked = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", outside_of_examples))))
    assert keys - marked == set()


@pytest.mark.shared
def test_the_published_shapes_are_theirs(shared_dir: Path) -> None:
    """The stable formats as the design states them: its cost model is one, its plan has no other keys."""
    text = (shared_dir / "DESIGN.md").read_text(encoding="utf-8")
    cost = json.loads(text[text.index('{"schema": "ladder_opt/cost/1"') : text.index("`replay_seconds`,")])
    assert faults("cost-1.json", cost) == []
    plan = text[text.index('{"schema": "ladder_opt/plan/1"') : text.index("`objective_seconds` =")]
    named = {key for key in re.findall(r'"(\w+)":', plan) if not key.isdecimal()}
    assert len(named) > 30
    assert named <= set(keys_of(SCHEMAS["plan-1.json"]))
    required = {"schema", "kernel", "engine", "num_seqs", "num_blocks", "verdict", "result", "provenance"}
    assert set(SCHEMAS["plan-1.json"]["required"]) == required
