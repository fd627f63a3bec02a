"""From an engine's settings to a bucketer: which plan, and one line where it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.errors import InputError, UsageError
from ladder_opt.plan.plan import Plan, write_plan
from ladder_opt.vllm_plugin import loading
from ladder_opt.vllm_plugin.loading import bucketer_for, check_at_startup, engine_of
from ladder_opt.vllm_plugin.settings import Settings
from tests.plan.plans import make_cost, make_plan
from tests.vllm_plugin.engines import make_vllm_config

PLAN = make_plan(num_seqs=(5, 8))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAN", "RECORD", "RECORD_SECONDS", "RECORD_IDS"):
        monkeypatch.delenv(f"LADDER_OPT_{name}", raising=False)
    monkeypatch.setattr(loading, "_said", set())


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_plan(PLAN, tmp_path / "p.json")
    return str(tmp_path / "p.json")


def config(**additional: Any) -> Any:
    return make_vllm_config(additional_config=additional)


def test_nothing_asked_for_is_nothing_to_do() -> None:
    assert not Settings.of(make_vllm_config(), {})
    assert not Settings.of(make_vllm_config(additional_config=object()), {})
    assert not Settings.of(None, {})
    assert bucketer_for(make_vllm_config(), environ={}).source == "the default ladders"


def test_additional_config_wins_over_the_environment(path: str, tmp_path: Path) -> None:
    environ = {"LADDER_OPT_PLAN": path, "LADDER_OPT_RECORD": "env"}
    assert Settings.of(config(), environ).plan_path == path
    other = str(tmp_path / "other.json")
    settings = Settings.of(config(ladder_opt=other, ladder_opt_record="own"), environ)
    assert (settings.plan_path, settings.record_folder) == (other, "own")
    inline = Settings.of(config(ladder_opt=PLAN.to_dict()), environ)
    assert inline.plan_path is None
    assert inline.has_plan


@pytest.mark.parametrize("how", ["inline", "path", "environment"])
def test_a_plan_however_given(how: str, path: str) -> None:
    given = {"inline": PLAN.to_dict(), "path": path}.get(how)
    vllm_config = config() if given is None else config(ladder_opt=given)
    bucketer = bucketer_for(vllm_config, environ={"LADDER_OPT_PLAN": path} if given is None else {})
    assert bucketer.ladders == PLAN.ladders
    assert bucketer.source == ("additional_config.ladder_opt" if how == "inline" else path)


def test_the_plan_that_vllm_yaml_puts_inline_is_one() -> None:
    from ladder_opt.plan.export import export_plan

    line = export_plan(PLAN, "vllm-yaml", path="p.json").splitlines()[-1]
    extra = json.loads(json.loads(line.removeprefix("additional-config: ")))
    assert bucketer_for(config(**extra), environ={}).ladders == PLAN.ladders


def test_engine_limits_come_from_vllms_own_settings() -> None:
    engine = engine_of(make_vllm_config(num_gpu_blocks=99, max_num_batched_tokens=777))
    assert engine.to_dict() == {
        "block_size": 128,
        "max_num_seqs": 8,
        "max_model_len": 2048,
        "max_num_batched_tokens": 777,
        "num_kv_blocks": 99,
        "min_batched_seqs": 4,
    }
    assert engine_of(make_vllm_config(num_gpu_blocks=0)).num_kv_blocks is None
    with pytest.raises(UsageError) as error:
        engine_of(make_vllm_config(block_size=16))
    assert str(error.value) == "the engine's settings: block_size: found 16, expected a multiple of 64"


def foreign(folder: Path, kind: str) -> Any:
    """A plan that cannot be used, as `ladder_opt` is set to it."""
    file = folder / "p.json"
    if kind == "missing":
        return str(file)
    if kind == "torn":
        file.write_text(PLAN.to_json()[:200], encoding="utf-8")
    elif kind == "foreign":
        file.write_text(json.dumps(make_cost().to_dict()), encoding="utf-8")
    elif kind == "version":
        file.write_text(PLAN.to_json().replace("plan/1", "plan/2"), encoding="utf-8")
    elif kind == "block_size":
        smaller = PLAN.to_dict()
        smaller["engine"] |= {"block_size": 64, "max_model_len": 1024}
        return smaller
    elif kind == "list":
        return [4, 8]
    elif kind == "empty":
        return ""
    return str(file)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "{file}: found No such file or directory, expected a readable file"),
        ("torn", "{file}:"),
        ("foreign", "{file}: schema: found 'ladder_opt/cost/1', expected 'ladder_opt/plan/1'"),
        ("version", "{file}: schema: found 'ladder_opt/plan/2', expected 'ladder_opt/plan/1'"),
        (
            "block_size",
            "additional_config.ladder_opt: engine.block_size: found a plan for block_size 64, expected",
        ),
        (
            "list",
            "additional_config.ladder_opt: found [4, 8], expected a plan's path or the plan itself",
        ),
        ("empty", "additional_config.ladder_opt: found '', expected a plan's path or the plan itself"),
    ],
)
def test_a_plan_that_cannot_be_used_stops_startup_with_one_line(
    tmp_path: Path, kind: str, message: str
) -> None:
    vllm_config = config(ladder_opt=foreign(tmp_path, kind))
    for start in (check_at_startup, bucketer_for):
        with pytest.raises((InputError, UsageError)) as error:
            start(vllm_config)
        assert str(error.value).startswith(message.format(file=tmp_path / "p.json"))
        assert "\n" not in str(error.value)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What our logger warns of, whatever vLLM has made of the levels and handlers of its loggers."""
    lines: list[str] = []
    monkeypatch.setattr(loading.logger, "warning", lambda text, *args: lines.append(text % args))
    return lines


def test_other_limits_are_clamped_with_a_warning_told_once(warned: list[str]) -> None:
    vllm_config = make_vllm_config(additional_config={"ladder_opt": PLAN.to_dict()}, max_num_seqs=6)
    assert bucketer_for(vllm_config).ladders.num_seqs == (5, 6)
    bucketer_for(vllm_config)
    assert warned == [
        "ladder_opt: num_seqs: 8 is above max_num_seqs = 6 and was dropped",
        "ladder_opt: num_seqs: max_num_seqs = 6 was missing and was added as the top rung",
    ]


def test_a_plan_that_nothing_would_use_is_told(warned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LADDER_OPT_BACKEND", raising=False)
    vllm_config = config(ladder_opt=PLAN.to_dict())
    monkeypatch.setattr(loading, "is_installed", lambda package: False)
    check_at_startup(config(ladder_opt=PLAN.to_dict(), ladder_opt_backend="reference"))
    monkeypatch.setenv("LADDER_OPT_BACKEND", "reference")
    check_at_startup(vllm_config)
    monkeypatch.delenv("LADDER_OPT_BACKEND")
    assert not any("nothing will use" in line for line in warned)
    check_at_startup(vllm_config)
    assert warned[-1] == (
        "ladder_opt: nothing will use additional_config.ladder_opt: no attention backend here pads batched "
        "decode to ladders (spyre_inference is not installed)"
    )


def test_a_block_size_that_vllm_settles_later_is_checked_later(path: str) -> None:
    check_at_startup(make_vllm_config(additional_config={"ladder_opt": path}, block_size=None))


def test_a_key_that_looks_like_ours_is_told(warned: list[str]) -> None:
    check_at_startup(config(ladder_opt_recrod="x"))
    assert warned == [
        "ladder_opt: additional_config.ladder_opt_recrod is no setting of ladder_opt and was left aside"
    ]


@pytest.mark.parametrize(
    ("additional", "environ", "message"),
    [
        ({"ladder_opt_record": 3}, {}, "additional_config.ladder_opt_record: found 3, expected a folder"),
        (
            {"ladder_opt_record_seconds": "soon"},
            {},
            "additional_config.ladder_opt_record_seconds: found 'soon', expected 0.1 seconds or more",
        ),
        (
            {},
            {"LADDER_OPT_RECORD_SECONDS": "0"},
            "LADDER_OPT_RECORD_SECONDS: found '0', expected 0.1 seconds or more",
        ),
        (
            {},
            {"LADDER_OPT_RECORD_IDS": "perhaps"},
            "LADDER_OPT_RECORD_IDS: found 'perhaps', expected true or false",
        ),
    ],
)
def test_a_setting_out_of_range_is_one_line(
    additional: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        Settings.of(config(**additional), environ)
    assert str(error.value) == message


def test_settings_of_the_record() -> None:
    settings = Settings.of(
        config(ladder_opt_record_seconds=5), {"LADDER_OPT_RECORD": "d", "LADDER_OPT_RECORD_IDS": "true"}
    )
    assert (settings.record_folder, settings.record_seconds, settings.record_ids) == ("d", 5.0, True)
    assert not Settings.of(config(ladder_opt_record_ids=False), {"LADDER_OPT_RECORD_IDS": "1"}).record_ids


def test_a_plan_for_another_kernel_is_refused() -> None:
    plan: Plan = PLAN.model_copy(update={"kernel": "per_block"})
    with pytest.raises(InputError) as error:
        bucketer_for(config(ladder_opt=plan.to_dict()), kernel="chunked")
    assert str(error.value) == (
        "additional_config.ladder_opt: kernel: found a plan for the per_block kernel, "
        "expected the backend's chunked"
    )
