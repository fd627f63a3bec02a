"""JSON Schemas (draft 2020-12) of the files that other tools read or write.

Those of plans and cost models come from the models that check them on reading, so they say what is read;
rules across fields (a ladder ends on the engine's limit, a table is a full grid) are the reader's alone.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.occupancy.record_file import RECORD_SCHEMA
from ladder_opt.plan.plan import PLAN_SCHEMA, Plan

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_COST_SCHEMA = "ladder_opt/cost/1"

_AMOUNT = {"type": "number", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 0}
_RUNGS = {"type": "array", "items": {"type": "integer", "minimum": 1}}


def json_schemas() -> dict[str, dict[str, Any]]:
    """The schemas by file name: `plan-1.json`, `cost-1.json`, `record-1.json`, `engine.json`."""
    return {
        "plan-1.json": _of_model(Plan, PLAN_SCHEMA, "A plan: ladders, their cost, what they were made from."),
        "cost-1.json": _of_model(CostModel, _COST_SCHEMA, "A cost model: seconds of steps and of compiles."),
        "record-1.json": _record(),
        "engine.json": {
            "$schema": _DIALECT,
            "title": "ladder_opt engine",
            "description": "An engine's limits, as --engine reads them; other keys are passed over.",
            **_engine(),
        },
    }


def _of_model(model: type[Plan | CostModel], schema: str, description: str) -> dict[str, Any]:
    generated = model.model_json_schema(by_alias=True, mode="validation")
    generated |= {"title": schema, "description": description}
    generated["properties"]["schema"] = _family(schema)
    generated["required"] = sorted({*generated["required"], "schema"})
    return {"$schema": _DIALECT, **generated}


def _family(schema: str) -> dict[str, Any]:
    """The major version, and whatever minor one a later release writes."""
    escaped = schema.replace(".", "\\.")
    told = f"{schema}, or a minor version of it."
    return {"type": "string", "pattern": rf"^{escaped}(\..*)?$", "description": told}


def _engine() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for field in fields(Engine):
        properties[field.name] = {"type": "integer", "minimum": 1, "default": field.default}
    pool = {"type": "integer", "minimum": 2}
    properties["num_kv_blocks"] = {"anyOf": [pool, {"type": "null"}], "default": None}
    properties["block_size"]["multipleOf"] = Engine.block_size_grain_tokens
    return {"type": "object", "properties": properties}


def _record() -> dict[str, Any]:
    """What a server writes beside its steps; see `occupancy.record_file`."""
    by_rung = {"type": "object", "additionalProperties": _RUNGS}
    return {
        "$schema": _DIALECT,
        "title": RECORD_SCHEMA,
        "description": "How long a server counted its steps, and what its ladders did meanwhile.",
        "type": "object",
        "properties": {
            "schema": _family(RECORD_SCHEMA),
            "instance": {"type": "string"},
            "rank": _COUNT,
            "started": {"type": "string"},
            "seconds": _AMOUNT,
            "engine": _engine(),
            "kernel": {"type": "string"},
            "source": {"type": "string"},
            "ladders": {
                "type": "object",
                "properties": {
                    "num_seqs": _RUNGS,
                    "num_blocks": _RUNGS,
                    "ragged": {"anyOf": [by_rung, {"type": "null"}]},
                },
                "required": ["num_seqs", "num_blocks"],
            },
            "steps": {"type": "object", "properties": {"batched": _COUNT, "per_sequence": _COUNT}},
            "gathers": {
                "type": "object",
                "properties": {"real": _COUNT, "ragged_floor": _COUNT, "padded": _COUNT},
            },
            "late_compiles": _COUNT,
            "version": {"type": "string"},
        },
        "required": ["schema", "seconds", "engine"],
    }
