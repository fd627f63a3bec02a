"""`ladder-opt check` against what a server with the same settings resolves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder_opt.errors import InputError
from ladder_opt.plan.export import export_plan
from ladder_opt.plan.plan import Plan, write_plan
from ladder_opt.vllm_plugin.loading import bucketer_for
from ladder_opt.vllm_plugin.serve_file import read_additional_config
from tests.cli.runs import TUNE, Run
from tests.plan.plans import ENGINE, make_plan
from tests.vllm_plugin.engines import make_vllm_config

PLAN, SMALL = make_plan(), make_plan(max_variants=2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with p.json, small.json, and serve.yaml that holds the plan inline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LADDER_OPT_PLAN", raising=False)
    write_plan(PLAN, "p.json")
    write_plan(SMALL, "small.json")
    Path("serve.yaml").write_text(export_plan(PLAN, "vllm-yaml", path="p.json"), encoding="utf-8")
    Path("limits.yaml").write_text(
        f"block-size: {ENGINE.block_size}\nmax-num-seqs: {ENGINE.max_num_seqs}\n"
        f"max-model-len: {ENGINE.max_model_len}\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.mark.parametrize(
    "form",
    [
        'additional-config: \'{"ladder_opt": "p.json"}\'',
        "additional_config: {ladder_opt: p.json}",
        "additional-config.ladder_opt: p.json",
        "additional-config: {ladder_opt: small.json}\nadditional-config.ladder_opt: p.json",
        "additional-config: {something: 3}",
        "port: 8000",
    ],
)
@pytest.mark.parametrize("variable", [None, "small.json"])
def test_check_says_what_a_server_resolves(
    place: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    variable: str | None,
) -> None:
    limits = Path("limits.yaml").read_text(encoding="utf-8")
    Path("s.yaml").write_text(f"{limits}{form}\n", encoding="utf-8")
    if variable is not None:
        monkeypatch.setenv("LADDER_OPT_PLAN", variable)
    report = run("check", "--engine", "s.yaml", "--json").json()
    served = bucketer_for(make_vllm_config(additional_config=read_additional_config("s.yaml")))
    assert report["source"] == served.source
    assert report["num_seqs"] == list(served.ladders.num_seqs)
    assert report["num_blocks"] == list(served.ladders.num_blocks)
    assert report["num_variants"] == len(served.batched_variants())
    used = report["plan_sources"][0]["plan"] if report["plan_sources"] else "the default ladders"
    assert used == served.source


@pytest.mark.vllm
@pytest.mark.parametrize(
    "form",
    [
        'additional-config: \'{"ladder_opt": "p.json", "ladder_opt_record_ids": true}\'',
        "additional_config: {ladder_opt: p.json, ladder_opt_record_seconds: 5}",
        "additional-config.ladder_opt: p.json",
        "additional_config.ladder_opt: 17",
        "additional-config: {ladder_opt: small.json}\nadditional-config.ladder_opt: p.json",
        "additional-config.ladder_opt: {schema: x}\nadditional-config.ladder_opt_record: folder",
        None,
    ],
)
def test_the_file_is_read_as_vllm_reads_it(place: Path, form: str | None) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    path = Path("serve.yaml")
    if form is not None:
        path.write_text(f"{form}\n", encoding="utf-8")
    parser: Any = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    EngineArgs.add_cli_args(parser)
    parser.add_argument("--config")
    arguments = parser.parse_args(["--config", str(path)])
    assert read_additional_config(path) == arguments.additional_config


def test_the_first_source_wins_and_the_others_are_told(
    place: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LADDER_OPT_PLAN", "gone.json")
    ran = run("check", "small.json", "--engine", "serve.yaml", "--strict", "--json", code=1)
    report = ran.json()
    assert report["plan_sources"] == [
        {"source": "additional_config.ladder_opt", "plan": "inline"},
        {"source": "PLAN.json", "plan": "small.json"},
        {"source": "LADDER_OPT_PLAN", "plan": "gone.json"},
    ]
    assert report["num_blocks"] == list(PLAN.num_blocks)
    loaded, other = ran.err.splitlines()
    assert loaded == (
        "warning: small.json is not the plan that a server loads: a server takes additional_config.ladder_opt"
        " before anything else, and it holds a plan of its own, which is shown here"
    )
    assert other == (
        "warning: LADDER_OPT_PLAN names gone.json, which is not used: additional_config.ladder_opt comes "
        "first, with a plan of its own"
    )
    monkeypatch.setenv("LADDER_OPT_PLAN", "small.json")
    assert run("check", "--json").json()["source"] == "small.json"
    text = run("check", "--engine", "serve.yaml").out
    assert text.splitlines()[1].split() == ["plan", "by", "additional_config.ladder_opt"]


@pytest.mark.parametrize("form", ["additional-config: {ladder_opt: other.json}", "inline"])
def test_a_plan_that_the_server_will_not_load_ends_with_1(place: Path, run: Run, form: str) -> None:
    Path("other.json").write_text(Path("small.json").read_text(encoding="utf-8"), encoding="utf-8")
    if form == "inline":
        form = f"additional-config: {json.dumps({'ladder_opt': json.loads(Path('small.json').read_text())})}"
    Path("s.yaml").write_text(form, encoding="utf-8")
    ran = run("check", "p.json", "--engine", "s.yaml", "--json", code=1)
    held = "a plan of its own" if "schema" in form else "other.json"
    line = (
        "p.json is not the plan that a server loads: a server takes additional_config.ladder_opt before "
        f"anything else, and it holds {held}, which is shown here"
    )
    assert ran.err == f"warning: {line}\n"
    assert ran.json()["warnings"] == [line]
    assert ran.json()["num_blocks"] == list(SMALL.num_blocks)
    # The same plan under another name of the same file, or word for word, is no other.
    os.link("other.json", "linked.json")
    same = "small.json" if held == "a plan of its own" else "./linked.json"
    assert run("check", same, "--engine", "s.yaml").err == ""


def test_a_plan_that_the_environment_replaces_ends_with_1(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LADDER_OPT_PLAN", "small.json")
    ran = run("check", "p.json", "--json", code=1)
    assert ran.err == (
        "warning: p.json is not the plan that a server loads: LADDER_OPT_PLAN names small.json in this "
        "environment, and a server takes what it names\n"
    )
    assert ran.json()["num_blocks"] == list(PLAN.num_blocks)
    assert run("check", "./small.json").err == ""


def test_a_server_without_a_plan_has_the_default_ladders(place: Path, run: Run) -> None:
    report = run("check", "--engine", "limits.yaml", "--json").json()
    assert (report["source"], report["plan_sources"], report["verdict"]) == ("the default ladders", [], None)
    assert report["num_seqs"] == [4, 8]
    assert run.fails("check") == (
        "found no plan, expected PLAN.json, --engine serve.yaml, or LADDER_OPT_PLAN to be set"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "additional-config: 7",
            "s.yaml: additional-config: found 7, expected a mapping, or JSON in a string",
        ),
        (
            "additional-config: '[1]'",
            ("s.yaml: additional-config: found [1], expected additional_config: a JSON object"),
        ),
        (
            "additional-config: {ladder_opt: 7}",
            "additional_config.ladder_opt: found 7, expected a plan's path or the plan itself",
        ),
        (
            "additional-config: {ladder_opt: no.json}",
            "no.json: found No such file or directory, expected a readable file",
        ),
        (
            "additional-config.ladder_opt: 3\nadditional-config.ladder_opt.x: 4",
            (
                "s.yaml: additional-config: found 'ladder_opt' as a value and as a mapping, expected "
                "one of the two"
            ),
        ),
    ],
)
def test_a_setting_that_stops_a_server_stops_the_check(
    place: Path,
    run: Run,
    text: str,
    message: str,
) -> None:
    Path("s.yaml").write_text(text, encoding="utf-8")
    assert run.fails("check", "--engine", "s.yaml") == message


def test_a_key_that_looks_like_ours_is_told(place: Path, run: Run) -> None:
    Path("s.yaml").write_text(
        "additional-config: {ladder_opt: p.json, ladder_opt_recrod: x}", encoding="utf-8"
    )
    assert run("check", "--engine", "s.yaml").err == (
        "warning: additional_config.ladder_opt_recrod is no setting of ladder_opt and was left aside\n"
    )


def test_reading_leaves_other_settings_alone(place: Path) -> None:
    Path("s.yaml").write_text(yaml.safe_dump({"model": "m", "additional-config": None}), encoding="utf-8")
    assert read_additional_config("s.yaml") == {}
    Path("s.yaml").write_text("- 1", encoding="utf-8")
    with pytest.raises(InputError, match="expected a mapping of engine settings"):
        read_additional_config("s.yaml")


def test_the_inline_plan_is_the_plan(place: Path) -> None:
    inline = read_additional_config("serve.yaml")["ladder_opt"]
    assert Plan.model_validate(json.loads(json.dumps(inline))).num_blocks == PLAN.num_blocks


def test_check_says_what_the_bucketer_uses(folder: Path, run: Run) -> None:
    plan = run(*TUNE, "-o", "p.json", "--json").json()
    report = run("check", "p.json", "--json").json()
    assert report["source"] == "p.json"
    assert report["engine"] == plan["engine"]
    assert (report["num_seqs"], report["num_blocks"]) == (plan["num_seqs"], plan["num_blocks"])
    assert report["num_variants"] == plan["result"]["num_variants"]
    assert report["warnings"] == []
    ran = run("check", "p.json", "--max-num-seqs", "16", "--strict", "--json", code=1)
    warning = "num_seqs: max_num_seqs = 16 was missing and was added as the top rung"
    assert ran.json()["num_seqs"] == [*plan["num_seqs"], 16]
    assert ran.json()["warnings"] == [warning]
    assert ran.err == f"warning: {warning}\n"
    assert "variants" in run("check", "p.json").out
    assert run.fails("check", "p.json", "--block-size", "256") == (
        "p.json: engine.block_size: found a plan for block_size 128, expected the engine's 256"
    )
