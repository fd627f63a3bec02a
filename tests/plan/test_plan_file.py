"""Plan files: what is written is read as equal, and what contradicts itself is refused in one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders
from ladder_opt.plan.plan import Plan, plan_from_dict, read_plan, write_plan
from tests.plan.plans import ENGINE, make_plan

PLAN = make_plan()


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(PLAN.to_dict())
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


def message(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as error:
        plan_from_dict(data, path="p.json")
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def message_of_text(folder: Path, text: str) -> str:
    path = folder / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_plan(path)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value).removeprefix(str(path))


def test_what_is_written_is_read_as_equal(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN
    assert json.loads(path.read_text(encoding="utf-8")) == PLAN.to_dict()


@given(
    st.floats(0, 1e300),
    st.lists(st.text(max_size=20), max_size=3),
    st.sets(st.integers(4, 7)),
    st.sets(st.integers(1, 15)),
)
def test_plans_of_any_numbers_and_texts_round_trip(
    seconds: float, warnings: list[str], seqs: set[int], blocks: set[int]
) -> None:
    data = changed("result", "step_seconds", value=seconds)
    data["warnings"] = warnings
    data["num_seqs"], data["num_blocks"] = [*sorted(seqs), 8], [*sorted(blocks), 16]
    plan = plan_from_dict(data)
    assert plan.ladders == Ladders((*sorted(seqs), 8), (*sorted(blocks), 16))
    assert plan_from_dict(json.loads(plan.to_json())) == plan


def test_the_files_keys_are_those_of_the_design() -> None:
    data = PLAN.to_dict()
    assert list(data) == [
        "schema",
        "target",
        "structure",
        "kernel",
        "engine",
        "num_seqs",
        "num_blocks",
        "ragged",
        "verdict",
        "result",
        "baselines",
        "warnings",
        "provenance",
        "cost",
        "occupancy",
    ]
    assert data["schema"] == "ladder_opt/plan/1"
    assert data["engine"] == ENGINE.to_dict()
    assert set(data["result"]) >= {
        "status",
        "objective_seconds",
        "lower_bound_seconds",
        "gap",
        "restarts",
        "step_seconds",
        "warmup_seconds",
        "num_variants",
        "gathers",
        "steps",
        "rungs",
        "dead_variants",
    }
    assert set(data["result"]["rungs"][0]) >= {"axis", "rung", "hits", "forced", "marginal_seconds"}
    assert set(data["provenance"]) >= {"version", "created", "inputs", "cost_sha256"}
    assert PLAN.to_engine() == ENGINE


def test_keys_of_a_later_minor_release_are_kept() -> None:
    data = changed("schema", value="ladder_opt/plan/1.3")
    data["novel"] = {"a": [1, 2]}
    data["result"]["novel"] = 3
    data["result"]["rungs"][0]["novel"] = None
    data["baselines"][0]["novel"] = "x"
    data["provenance"]["novel"] = 1.5
    assert plan_from_dict(data).to_dict() == data


def test_a_plan_without_the_optional_parts_is_enough() -> None:
    data = PLAN.to_dict()
    for key in ("baselines", "warnings", "ragged", "target", "structure"):
        del data[key]
    for key in ("rungs", "dead_variants", "stop_reason"):
        del data["result"][key]
    plan = plan_from_dict(data)
    assert plan.ladders == PLAN.ladders
    assert plan.default is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            changed("schema", value="ladder_opt/plan/2"),
            "schema: found 'ladder_opt/plan/2', expected 'ladder_opt/plan/1'",
        ),
        (
            changed("schema", value="ladder_opt/cost/1"),
            "schema: found 'ladder_opt/cost/1', expected 'ladder_opt/plan/1'",
        ),
        (changed("kernel", value="flash"), "kernel: found 'flash', expected one of per_block, chunked"),
        (changed("target", value="moon"), "target: found 'moon', expected 'plugin' or 'spyre-env'"),
        (
            changed("verdict", value="yes"),
            "verdict: found 'yes', expected 'adopt', 'keep-default' or 'not-used'",
        ),
        (
            changed("engine", "block_size", value=100),
            "engine.block_size: found 100, expected a multiple of 64",
        ),
        (
            changed("engine", "block_size", value="128"),
            "engine.block_size: found '128', expected integer",
        ),
        (changed("engine", "max_num_seqs", value=True), "engine.max_num_seqs: found True, expected integer"),
        (
            changed("engine", "max_num_seqs", value=1 << 40),
            "engine.max_num_seqs: found 1099511627776, expected 1 to 2147483647",
        ),
        (
            changed("num_seqs", value=[4, 6]),
            "num_seqs[1]: found 6, expected a last rung of max_num_seqs = 8",
        ),
        (
            changed("num_seqs", value=[4, 8, 16]),
            "num_seqs[2]: found 16, expected a last rung of max_num_seqs = 8",
        ),
        (changed("num_seqs", value=[]), "num_seqs: found no rung, expected a last rung of max_num_seqs = 8"),
        (
            changed("num_seqs", value=[2, 8]),
            "num_seqs[0]: found 2, expected rungs from min_batched_seqs = 4 on",
        ),
        (changed("num_seqs", value=[8, 4, 8]), "num_seqs[1]: found 4 after 8, expected a larger rung"),
        (changed("num_seqs", value=[4, 4, 8]), "num_seqs[1]: found 4 after 4, expected a larger rung"),
        (changed("num_seqs", value=[4, 8.0]), "num_seqs[1]: found 8.0, expected integer"),
        (changed("num_seqs", value=[True, 8]), "num_seqs[0]: found True, expected integer"),
        (changed("num_seqs", value="4,8"), "num_seqs: found '4,8', expected tuple"),
        (
            changed("num_blocks", value=[3, 9]),
            "num_blocks[1]: found 9, expected a last rung of ceil(max_model_len / block_size) = 16",
        ),
        (
            changed("num_blocks", value=[0, 16]),
            "num_blocks[0]: found 0, expected greater than or equal to 1",
        ),
        (
            changed("num_blocks", value=[]),
            "num_blocks: found no rung, expected a last rung of ceil(max_model_len / block_size) = 16",
        ),
        (
            changed("result", "gap", value=-0.1),
            "result.gap: found -0.1, expected greater than or equal to 0",
        ),
        (changed("result", "restarts", value="1"), "result.restarts: found '1', expected number"),
        (
            changed("result", "status", value="best"),
            "result.status: found 'best', expected 'optimal', 'feasible' or 'evaluated'",
        ),
        (
            changed("result", "rungs", 0, "hits", value=None),
            "result.rungs[0].hits: found None, expected number",
        ),
        (
            changed("result", "dead_variants", value=[[4, 1], [4]]),
            "result.dead_variants[1][1]: found nothing, expected a value",
        ),
        (
            changed("baselines", 0, "num_variants", value=1.5),
            "baselines[0].num_variants: found 1.5, expected integer",
        ),
        (changed("provenance", value=None), None),
    ],
)
def test_contradictions_name_their_key(data: dict[str, Any], text: str | None) -> None:
    found = message(data)
    if text is None:
        assert found.startswith("p.json: provenance: found None, expected dictionary")
    else:
        assert found == f"p.json: {text}"


@pytest.mark.parametrize("key", ["kernel", "engine", "num_seqs", "num_blocks", "verdict", "result", "schema"])
def test_a_missing_part_is_told(key: str) -> None:
    data = PLAN.to_dict()
    del data[key]
    expected = f"{key}: found nothing, expected a value"
    if key == "schema":
        expected = "schema: found schema None, expected 'ladder_opt/plan/1'"
    assert message(data) == f"p.json: {expected}"


def test_an_engine_that_batches_nothing_needs_no_num_seqs() -> None:
    data = changed("engine", "max_num_seqs", value=3)
    data["num_seqs"] = []
    assert plan_from_dict(data).ladders.num_seqs == ()


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    whole = PLAN.to_json()
    assert message_of_text(tmp_path, "") == (
        ":1: column 1: found the end of the file (Expecting value), expected a plan in JSON"
    )
    torn = message_of_text(tmp_path, whole[: len(whole) // 2])
    assert torn.startswith(":")
    assert torn.endswith("expected a plan in JSON")
    assert message_of_text(tmp_path, "[]") == ": found [], expected a plan: a JSON object"
    gap = json.dumps(PLAN.result.gap)
    text = whole.replace(f'"gap": {gap}', '"gap": NaN')
    assert message_of_text(tmp_path, text) == ": found NaN, expected finite numbers"
    text = whole.replace(f'"gap": {gap}', '"gap": 1e999')
    assert message_of_text(tmp_path, text) == ": result.gap: found inf, expected a finite number"
    text = whole.replace('"ragged": null', '"novel": ' + "[" * 200_000)
    assert message_of_text(tmp_path, text) == ": found brackets nested too deeply, expected a plan in JSON"
    text = whole.replace('"ragged": null', '"target": "plugin"')
    assert message_of_text(tmp_path, text) == ": found key 'target' twice, expected each key once"
    assert message_of_text(tmp_path, '{"schema": "ladder_opt/plan/1"}') == (
        ": kernel: found nothing, expected a value"
    )


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    padded = PLAN.to_json() + " " * (20 << 20)
    assert message_of_text(tmp_path, padded) == (
        f": found more than {16 << 20} bytes, expected a plan of at most that"
    )


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_plan(tmp_path)
    assert str(error.value) == f"{tmp_path}: found Is a directory, expected a readable file"


def test_a_frame_has_a_row_for_the_plan_and_each_baseline() -> None:
    frame = PLAN.to_frame()
    assert list(frame.index) == ["plan", *(baseline.name for baseline in PLAN.baselines)]
    assert frame.loc["plan", "objective_seconds"] == PLAN.result.objective_seconds
    assert frame.loc["plan", "num_seqs_rungs"] == len(PLAN.num_seqs)
    default = PLAN.default
    assert default is not None
    assert frame.loc["default", "overpay"] == default.gathers.overpay
    assert isinstance(Plan.model_validate(PLAN.to_dict()), Plan)
