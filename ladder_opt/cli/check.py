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
from ladder_opt.vllm_plugin.loading import load_plan, unknown_settings
from ladder_opt.vllm_plugin.serve_file import read_additional_config
from ladder_opt.vllm_plugin.settings import PLAN_KEY, PLAN_VARIABLE, Settings

_OF_THE_FILE, _OF_THE_ARGUMENT, _OF_THE_VARIABLE = f"additional_config.{PLAN_KEY}", "PLAN.json", PLAN_VARIABLE


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
    warnings = [*_differing(sources), *unknown_settings(settings), *bucketer.warnings]
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
    return exit_code(strict=strict, warnings=warnings)


def _additional_config(engine_file: Path | None) -> Mapping[str, Any]:
    return {} if engine_file is None else read_additional_config(engine_file)


def _plan_sources(of_file: Mapping[str, Any], plan_path: Path | None) -> list[dict[str, str]]:
    """Every place that names a plan, in the order that a server looks at them: the first one is used."""
    sources = []
    if of_file.get(PLAN_KEY) is not None:
        plan = of_file[PLAN_KEY]
        sources.append({"source": _OF_THE_FILE, "plan": plan if isinstance(plan, str) else "inline"})
    if plan_path is not None:
        sources.append({"source": _OF_THE_ARGUMENT, "plan": str(plan_path)})
    if os.environ.get(PLAN_VARIABLE):
        sources.append({"source": _OF_THE_VARIABLE, "plan": os.environ[PLAN_VARIABLE]})
    return sources


def _differing(sources: list[dict[str, str]]) -> list[str]:
    """A warning for each plan that is named and not used."""
    return [
        f"{other['source']} names {other['plan']}, which is not used: {sources[0]['source']} comes first, "
        f"with {'a plan of its own' if sources[0]['plan'] == 'inline' else sources[0]['plan']}"
        for other in sources[1:]
        if other["plan"] != sources[0]["plan"]
    ]
