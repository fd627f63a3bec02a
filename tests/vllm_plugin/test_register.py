"""What the entry points cost and do, without a plan and with one, in vLLM itself where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ladder_opt.errors import InputError
from ladder_opt.plan.export import export_plan
from ladder_opt.plan.plan import write_plan
from ladder_opt.vllm_plugin import hooks, register
from tests.plan.plans import make_plan
from tests.vllm_plugin.engines import make_vllm_config

HEAVY = ("numpy", "pydantic", "pandas", "pyarrow", "scipy", "numba", "torch", "vllm", "spyre_inference")


def run_python(code: str, **environ: str) -> Any:
    """Run code that prints JSON as its last line."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LADDER_OPT_")} | environ
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=env, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_register_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; before = set(sys.modules); from ladder_opt.vllm_plugin import register; "
        "register(); register(); new = set(sys.modules) - before; "
        f"print(json.dumps(sorted(name for name in new if name.split('.')[0] in {HEAVY!r})))"
    )
    assert run_python(code) == []
    assert run_python(code, LADDER_OPT_PLAN="p.json", LADDER_OPT_RECORD="d") == []  # read where it is used


def test_register_leaves_no_hook_where_there_is_nothing_to_hook() -> None:
    code = (
        "import json, sys; before = list(sys.meta_path); from ladder_opt.vllm_plugin import register; "
        "register(); print(json.dumps(before == sys.meta_path))"
    )
    assert run_python(code) is True


def test_register_can_be_called_again() -> None:
    before = list(sys.meta_path)
    register()
    register()
    assert [type(finder) for finder in sys.meta_path] == [type(finder) for finder in before]


def test_the_entry_points_are_these() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert (
        '[project.entry-points."vllm.general_plugins"]\nladder_opt = "ladder_opt.vllm_plugin:register"'
        in text
    )
    (general,) = entry_points(group="vllm.general_plugins", name="ladder_opt")
    assert general.load() is register


@pytest.mark.vllm
def test_vllm_takes_the_stat_logger() -> None:
    from vllm.v1.metrics.loggers import StatLoggerBase, load_stat_logger_plugin_factories

    from ladder_opt.vllm_plugin.stat_logger import LadderOptStatLogger

    assert issubclass(LadderOptStatLogger, StatLoggerBase)
    assert LadderOptStatLogger in load_stat_logger_plugin_factories()


@pytest.mark.vllm
def test_vllms_own_parser_takes_the_exported_yaml(tmp_path: Path) -> None:
    """`vllm serve --config FILE`, as far as the engine's arguments."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils import argparse_utils

    plan = make_plan()
    file = tmp_path / "serve.yaml"
    file.write_text(export_plan(plan, "vllm-yaml", path="p.json"), encoding="utf-8")
    flexible: Any = argparse_utils.FlexibleArgumentParser
    parser = AsyncEngineArgs.add_cli_args(flexible())
    arguments = AsyncEngineArgs.from_cli_args(
        parser.parse_args(["--model", str(model_folder(tmp_path)), "--config", str(file)])
    )
    assert arguments.max_num_seqs == plan.engine.max_num_seqs
    assert arguments.block_size == plan.engine.block_size
    assert arguments.max_model_len == plan.engine.max_model_len
    assert arguments.additional_config["ladder_opt"]["num_blocks"] == list(plan.num_blocks)
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["block-size"] == 128


class Arguments:
    """vLLM's engine arguments, as far as the hook goes."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config

    def create_engine_config(self, usage_context: str | None = None) -> Any:
        return self.vllm_config


def test_a_plan_is_checked_where_the_settings_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LADDER_OPT_PLAN", raising=False)
    monkeypatch.setattr(hooks, "_offer_stat_logger", lambda *, wanted: None)
    hooked: Any = type("Hooked", (Arguments,), {"create_engine_config": Arguments.create_engine_config})
    module: Any = SimpleNamespace(EngineArgs=hooked)
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    hooks.check_plans_early()
    once = hooked.create_engine_config
    hooks.check_plans_early()
    assert hooked.create_engine_config is once
    plain = make_vllm_config()
    assert hooked(plain).create_engine_config(usage_context="x") is plain
    write_plan(make_plan(), tmp_path / "p.json")
    good = make_vllm_config(additional_config={"ladder_opt": str(tmp_path / "p.json")})
    assert hooked(good).create_engine_config() is good
    gone = make_vllm_config(additional_config={"ladder_opt": str(tmp_path / "gone.json")})
    with pytest.raises(InputError, match=r"gone\.json: found No such file or directory, expected a readable"):
        hooked(gone).create_engine_config()


def test_the_stat_logger_is_offered_only_to_engines_that_record(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = type("Ours", (), {"__module__": "ladder_opt.vllm_plugin.stat_logger"})
    other = type("Other", (), {"__module__": "elsewhere"})

    def listing() -> list[Any]:
        return [ours, other]

    modules: list[Any] = [SimpleNamespace(load_stat_logger_plugin_factories=listing) for _ in range(2)]
    for name, module in zip(("vllm.v1.metrics.loggers", "vllm.v1.engine.async_llm"), modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(hooks, "_stat_logger_is_wanted", False)
    for _ in range(2):
        hooks._offer_stat_logger(wanted=False)
        assert [module.load_stat_logger_plugin_factories() for module in modules] == [[other], [other]]
    hooks._offer_stat_logger(wanted=True)
    hooks._offer_stat_logger(wanted=False)
    assert modules[0].load_stat_logger_plugin_factories() == [ours, other]


_STARTS = """
import json
from vllm.engine.arg_utils import EngineArgs
found = []
for plan in {plans!r}:
    try:
        EngineArgs(
            model={model!r}, skip_tokenizer_init=True, dtype="float32", block_size=128, max_num_seqs=8,
            max_model_len=2048, max_num_batched_tokens=2048, enforce_eager=True,
            additional_config={{"ladder_opt": plan}},
        ).create_engine_config()
        found.append(None)
    except Exception as error:
        found.append([type(error).__name__, str(error)])
from vllm.v1.engine.async_llm import load_stat_logger_plugin_factories
found.append([each.__name__ for each in load_stat_logger_plugin_factories()])
print(json.dumps(found))
"""

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}


def model_folder(tmp_path: Path) -> Path:
    """A folder that vLLM takes for a model's, as long as nobody asks for weights."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    return model


@pytest.mark.vllm
def test_vllm_itself_refuses_a_plan_that_cannot_be_used(tmp_path: Path) -> None:
    write_plan(make_plan(), tmp_path / "p.json")
    plans = [str(tmp_path / "p.json"), str(tmp_path / "gone.json")]
    code = _STARTS.format(model=str(model_folder(tmp_path)), plans=plans)
    assert run_python(code, VLLM_TARGET_DEVICE="cpu") == [
        None,
        ["InputError", f"{plans[1]}: found No such file or directory, expected a readable file"],
        [],  # without a record the engine is offered no stat logger of ours
    ]
