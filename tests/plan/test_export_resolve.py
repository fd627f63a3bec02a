"""A plan as shells and servers take it, and what a server with other limits makes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.plan.export import EXPORT_FORMATS, export_plan
from ladder_opt.plan.plan import Plan, plan_from_dict
from ladder_opt.plan.resolve import Resolved, resolve_plan
from ladder_opt.plan.tune import tune
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan

PLAN = make_plan()
NOT_USED = tune(STEPS, make_cost(), engine=ENGINE).model_copy(update={"verdict": "not-used"})
PATHS = [
    "plan.json",
    "/a b/plan.json",
    "it's.json",
    '"; echo $HOME `id` #.json',
    "line\nbreak.json",
    "-n.json",
    "\u00e9\u4e2d.json",
    "*.json",
]


@pytest.mark.parametrize("path", PATHS)
def test_env_is_what_a_shell_sources(tmp_path: Path, path: str) -> None:
    script = tmp_path / "plan.env"
    script.write_text(export_plan(PLAN, "env", path=path), encoding="utf-8")
    shell = subprocess.run(
        ["bash", "-euc", '. "$1"; printf %s "$LADDER_OPT_PLAN"', "bash", str(script)],
        capture_output=True,
        check=True,
    )
    assert shell.stdout.decode() == path
    assert shell.stderr == b""


def test_env_says_the_ladders_in_comments() -> None:
    assert export_plan(PLAN, "env", path="p.json").splitlines() == [
        "# ladder_opt plan: verdict adopt, status optimal",
        f"# num_seqs {','.join(map(str, PLAN.num_seqs))}",
        f"# num_blocks {','.join(map(str, PLAN.num_blocks))} (block_size 128)",
        "export SPYRE_BATCHED_DECODE=1",
        "export SPYRE_ATTN_RECORD=1",
        "export LADDER_OPT_PLAN=p.json",
    ]


def test_env_of_a_plan_not_to_be_loaded() -> None:
    lines = export_plan(NOT_USED, "env", path="p.json").splitlines()
    assert lines[-2:] == [
        "# the verdict is not to adopt it: loading it gains little or nothing",
        "# nothing to load",
    ]
    assert not any("LADDER_OPT_PLAN" in line for line in lines)
    kept = make_plan(min_gain=0.99)
    assert kept.verdict == "keep-default"
    assert export_plan(kept, "env", path="p.json").splitlines()[-4:] == [
        "# the verdict is not to adopt it: loading it gains little or nothing",
        "export SPYRE_BATCHED_DECODE=1",
        "export SPYRE_ATTN_RECORD=1",
        "export LADDER_OPT_PLAN=p.json",
    ]


def test_json_is_the_plan() -> None:
    assert plan_from_dict(json.loads(export_plan(PLAN, "json", path="p.json"))) == PLAN


def test_an_unknown_format_is_told() -> None:
    assert EXPORT_FORMATS == ("env", "vllm-yaml", "json")
    with pytest.raises(UsageError) as error:
        export_plan(PLAN, "toml", path="p.json")
    assert str(error.value) == "--format: found 'toml', expected one of env, vllm-yaml, json"


def inline(text: str) -> Plan:
    """The plan inside an exported YAML."""
    return plan_from_dict(json.loads(yaml.safe_load(text)["additional-config"])["ladder_opt"])


def test_yaml_holds_limits_and_the_plan_without_what_only_people_read() -> None:
    text = export_plan(PLAN, "vllm-yaml", path="p.json")
    loaded = yaml.safe_load(text)
    assert {key: value for key, value in loaded.items() if key != "additional-config"} == {
        "block-size": 128,
        "max-num-seqs": 8,
        "max-model-len": 2048,
        "max-num-batched-tokens": 512,
    }
    plan = inline(text)
    assert plan.ladders == PLAN.ladders
    assert plan.engine == PLAN.engine
    assert plan.provenance == PLAN.provenance
    assert (plan.baselines, plan.result.rungs) == ((), ())
    assert "additional-config" not in yaml.safe_load(export_plan(NOT_USED, "vllm-yaml", path="p.json"))


@given(st.text(max_size=40))
@example("\x7f\x80\x9f\u2028\ufeff\ufffe")
@example("\udcff")
def test_yaml_survives_any_text_in_the_plan(text: str) -> None:
    data = PLAN.to_dict()
    data["provenance"]["inputs"] = [{"path": text, "sha256": "", "rows": 1}]
    data["provenance"]["cost_name"] = text
    plan = plan_from_dict(data)
    assert inline(export_plan(plan, "vllm-yaml", path="p.json")).provenance == plan.provenance


def parsed_by_vllm(arguments: list[str]) -> Any:
    """What `vllm serve` makes of its command line."""
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: Any = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    make_arg_parser(parser.add_subparsers(dest="command").add_parser("serve"))
    return parser.parse_args(arguments)


@pytest.mark.vllm
@pytest.mark.parametrize("num_kv_blocks", [None, 100])
def test_yaml_is_taken_by_vllms_own_parser(tmp_path: Path, num_kv_blocks: int | None) -> None:
    engine = Engine(max_num_seqs=8, max_model_len=2048, num_kv_blocks=num_kv_blocks)
    plan = tune(STEPS, make_cost(name="quotes \" and ' and # and \u00e9"), engine=engine)
    path = tmp_path / "serve.yaml"
    path.write_text(export_plan(plan, "vllm-yaml", path="p.json"), encoding="utf-8")
    for arguments in (
        ["serve", "some/model", "--config", str(path)],
        ["serve", "--config", str(path), "--model", "some/model"],
    ):
        parsed = parsed_by_vllm(arguments)
        assert parsed.block_size == 128
        assert parsed.max_num_seqs == 8
        assert parsed.max_model_len == 2048
        assert parsed.max_num_batched_tokens == 512
        assert parsed.num_gpu_blocks_override == num_kv_blocks
        loaded = plan_from_dict(parsed.additional_config["ladder_opt"])
        assert loaded.ladders == plan.ladders
        assert loaded.provenance.cost_name == plan.provenance.cost_name


@pytest.mark.vllm
def test_options_on_vllms_command_line_win_over_the_yaml(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(export_plan(PLAN, "vllm-yaml", path="p.json"), encoding="utf-8")
    parsed = parsed_by_vllm(["serve", "some/model", "--config", str(path), "--max-num-seqs", "6"])
    assert parsed.max_num_seqs == 6


# Resolving.


def changed(**changes: Any) -> Plan:
    return plan_from_dict(PLAN.to_dict() | changes)


def test_without_a_plan_the_defaults_are_used() -> None:
    assert resolve_plan(None, ENGINE) == Resolved(default_ladders(ENGINE), "the default ladders", ())


def test_a_plan_for_this_engine_is_used_as_it_is() -> None:
    assert resolve_plan(PLAN, ENGINE, path="p.json") == Resolved(PLAN.ladders, "p.json", ())
    assert resolve_plan(PLAN, ENGINE) == Resolved(PLAN.ladders, "the plan", ())


def test_another_block_size_is_refused() -> None:
    with pytest.raises(InputError) as error:
        resolve_plan(PLAN, Engine(block_size=256, max_num_seqs=8, max_model_len=4096), path="p.json")
    assert str(error.value) == (
        "p.json: engine.block_size: found a plan for block_size 128, expected the engine's 256"
    )


def test_other_limits_clamp_with_a_warning_each() -> None:
    plan = changed(num_seqs=[4, 6, 8], num_blocks=[3, 9, 16])
    assert resolve_plan(plan, Engine(max_num_seqs=7, max_model_len=10 * 128)) == Resolved(
        Ladders((4, 6, 7), (3, 9, 10)),
        "the plan",
        (
            "num_seqs: 8 is above max_num_seqs = 7 and was dropped",
            "num_seqs: max_num_seqs = 7 was missing and was added as the top rung",
            "num_blocks: 16 is above ceil(max_model_len / block_size) = 10 and was dropped",
            "num_blocks: ceil(max_model_len / block_size) = 10 was missing and was added as the top rung",
        ),
    )
    larger = resolve_plan(plan, Engine(max_num_seqs=32, max_model_len=32 * 128))
    assert larger.ladders == Ladders((4, 6, 8, 32), (3, 9, 16, 32))
    assert len(larger.warnings) == 2
    smaller = resolve_plan(plan, Engine(max_num_seqs=3, max_model_len=16 * 128))
    assert smaller.ladders == Ladders((), (3, 9, 16))
    assert smaller.warnings == ("num_seqs: max_num_seqs 3 is below min_batched_seqs 4: the list is not used",)


def test_another_first_batch_is_told() -> None:
    engine = Engine(max_num_seqs=8, max_model_len=2048, min_batched_seqs=6)
    resolved = resolve_plan(changed(num_seqs=[4, 8]), engine)
    assert resolved.ladders.num_seqs == (8,)
    assert resolved.warnings == (
        "the plan counts batches from 4 sequences on, the engine from 6",
        "num_seqs: 4 is below min_batched_seqs = 6 and was dropped",
    )


def test_a_plan_without_num_seqs_falls_back_on_the_default() -> None:
    data = PLAN.to_dict()
    data["engine"]["max_num_seqs"] = 3
    plan = plan_from_dict(data | {"num_seqs": []})
    resolved = resolve_plan(plan, ENGINE)
    assert resolved.ladders.num_seqs == default_ladders(ENGINE).num_seqs
    assert resolved.warnings == ("the plan has no num_seqs ladder: the default one is used",)
    assert resolved.source == "the plan"
    same = resolve_plan(plan, Engine(max_num_seqs=3, max_model_len=2048))
    assert (same.ladders.num_seqs, same.warnings) == ((), ())


@given(st.integers(1, 40), st.integers(1, 40), st.sets(st.integers(4, 7)), st.sets(st.integers(1, 15)))
def test_whatever_the_engine_the_ladders_end_on_its_limits(
    max_num_seqs: int, max_num_blocks: int, seqs: set[int], blocks: set[int]
) -> None:
    engine = Engine(max_num_seqs=max_num_seqs, max_model_len=max_num_blocks * 128)
    plan = changed(num_seqs=[*sorted(seqs), 8], num_blocks=[*sorted(blocks), 16])
    ladders = resolve_plan(plan, engine).ladders
    assert ladders.num_seqs[-1:] == ((max_num_seqs,) if max_num_seqs >= 4 else ())
    assert ladders.num_blocks[-1] == max_num_blocks
    assert set(ladders.num_seqs) <= seqs | {8, max_num_seqs}
    assert set(ladders.num_blocks) <= blocks | {16, max_num_blocks}


def test_a_serve_file_has_the_scheduling_that_was_replayed() -> None:
    asked = {
        "scheduling": {"policy": "priority", "long_prefill_token_threshold": 256, "prefix_caching": True}
    }
    provenance = PLAN.provenance.model_copy(update={"asked": asked})
    loaded = yaml.safe_load(
        export_plan(PLAN.model_copy(update={"provenance": provenance}), "vllm-yaml", path="p.json")
    )
    assert loaded["scheduling-policy"] == "priority"
    assert loaded["long-prefill-token-threshold"] == 256
    assert loaded["enable-prefix-caching"] is True
    plain = yaml.safe_load(export_plan(PLAN, "vllm-yaml", path="p.json"))
    assert not {"scheduling-policy", "long-prefill-token-threshold", "enable-prefix-caching"} & set(plain)
