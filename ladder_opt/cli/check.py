"""`ladder-opt check`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.environment import ENVIRONMENT_LISTS
from ladder_opt.cli.options import EngineOptions
from ladder_opt.cli.output import exit_code, print_json, warn
from ladder_opt.errors import UsageError
from ladder_opt.plan.plan import Plan, read_plan
from ladder_opt.vllm_plugin.loading import load_plan, unknown_settings
from ladder_opt.vllm_plugin.serve_file import read_additional_config
from ladder_opt.vllm_plugin.settings import PLAN_KEY, PLAN_VARIABLE, Settings

_OF_THE_FILE, _OF_THE_ARGUMENT, _OF_THE_VARIABLE = f"additional_config.{PLAN_KEY}", "PLAN.json", PLAN_VARIABLE
_INLINE = "inline"


def run(
    engine_options: EngineOptions,
    plan_path: Annotated[
        Path | None,
        typer.Argument(metavar="[PLAN.json]", help="The plan [what --engine or LADDER_OPT_PLAN names]."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 where there is any warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Say what the bucketer will really use of a plan on an engine, every clamp included.

    The plan is found as a server finds it: first the additional-config of --engine serve.yaml (a path, or the
    plan itself), then LADDER_OPT_PLAN, in whose place PLAN.json stands here, then the default ladders.
    Engine options that are not given are the plan's own. The Spyre plugin's variables
    SPYRE_ATTN_NUM_SEQS_BUCKETS, SPYRE_ATTN_KV_BUCKETS and SPYRE_ATTN_QUERY_BUCKETS count as they do in a
    server: set here, they win.

    Ends with code 1 where PLAN.json is not the plan that a server with this file and this environment loads.
    """
    environ = dict(os.environ)
    if plan_path is not None:
        environ[PLAN_VARIABLE] = str(plan_path)
    of_file = _additional_config(engine_options.engine_file)
    settings = Settings.of(SimpleNamespace(additional_config=of_file), environ)
    sources = _plan_sources(of_file, plan_path)
    plan, name = load_plan(settings)
    if not sources and engine_options.engine_file is None:
        raise UsageError(
            f"found no plan, expected PLAN.json, --engine serve.yaml, or {PLAN_VARIABLE} to be set"
        )
    engine = engine_options.engine(None if plan is None else plan.to_engine())
    bucketer = Bucketer.from_engine(engine, plan=plan, environ=environ, plan_path=name)
    ladders = bucketer.ladders
    not_used = _not_used(sources, plan, plan_path)
    warnings = [*not_used, *_differing(sources), *unknown_settings(settings), *bucketer.warnings]
    report = {
        "source": bucketer.source,
        "sources": dict(bucketer.sources),
        "plan_sources": sources,
        "kernel": bucketer.kernel,
        "engine": engine.to_dict(),
        "num_seqs": list(ladders.num_seqs),
        "num_blocks": list(ladders.num_blocks),
        "ragged": ladders.ragged_dict(),
        "kv_tokens": list(bucketer.kv_tokens.rungs),
        "query_tokens": list(bucketer.query_tokens.rungs),
        "num_variants": len(bucketer.batched_variants()),
        "num_sequence_variants": len(bucketer.sequence_variants()),
        "environment": {name: os.environ[name] for name in ENVIRONMENT_LISTS if os.environ.get(name)},
        "verdict": None if plan is None else plan.verdict,
        "warnings": warnings,
    }
    warn(warnings)
    if as_json:
        print_json(report)
    else:
        from ladder_opt.report.terminal import console  # noqa: PLC0415
        from ladder_opt.report.text import check_text  # noqa: PLC0415

        console().print(check_text(report))
    return 1 if not_used else exit_code(strict=strict, warnings=warnings)


def _additional_config(engine_file: Path | None) -> Mapping[str, Any]:
    return {} if engine_file is None else read_additional_config(engine_file)


def _plan_sources(of_file: Mapping[str, Any], plan_path: Path | None) -> list[dict[str, str]]:
    """Every place that names a plan, in the order that a server looks at them: the first one is used."""
    sources = []
    if of_file.get(PLAN_KEY) is not None:
        plan = of_file[PLAN_KEY]
        sources.append({"source": _OF_THE_FILE, "plan": plan if isinstance(plan, str) else _INLINE})
    if plan_path is not None:
        sources.append({"source": _OF_THE_ARGUMENT, "plan": str(plan_path)})
    if os.environ.get(PLAN_VARIABLE):
        sources.append({"source": _OF_THE_VARIABLE, "plan": os.environ[PLAN_VARIABLE]})
    return sources


def _not_used(sources: list[dict[str, str]], plan: Plan | None, plan_path: Path | None) -> list[str]:
    """A line where the plan that was asked about is not the one that a server loads.

    Args:
        sources: every place that names a plan.
        plan: the plan in use here.
        plan_path: the plan that was asked about.
    """
    if plan_path is None:
        return []
    of_server = [each for each in sources if each["source"] != _OF_THE_ARGUMENT]
    if not of_server:
        return []
    wins = of_server[0]
    if wins["plan"] == _INLINE:
        if plan == read_plan(plan_path):
            return []
    elif _is_same_file(wins["plan"], plan_path):
        return []
    named = "a plan of its own" if wins["plan"] == _INLINE else wins["plan"]
    if wins["source"] == _OF_THE_FILE:
        why = f"a server takes {_OF_THE_FILE} before anything else, and it holds {named}, which is shown here"
    else:
        why = f"{PLAN_VARIABLE} names {named} in this environment, and a server takes what it names"
    return [f"{plan_path} is not the plan that a server loads: {why}"]


def _is_same_file(one: str, other: Path) -> bool:
    """Whether two paths lead to one file; a file that is not there is no other's."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _differing(sources: list[dict[str, str]]) -> list[str]:
    """A warning for each plan that the file or the environment names and another place's goes before."""
    of_server = [each for each in sources if each["source"] != _OF_THE_ARGUMENT]
    return [
        f"{other['source']} names {other['plan']}, which is not used: {of_server[0]['source']} comes first, "
        f"with {'a plan of its own' if of_server[0]['plan'] == _INLINE else of_server[0]['plan']}"
        for other in of_server[1:]
        if other["plan"] != of_server[0]["plan"]
    ]
