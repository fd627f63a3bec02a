"""A plan in the forms that servers and scripts take."""

from __future__ import annotations

import json
import shlex

from ladder_opt.arguments import checked
from ladder_opt.errors import UsageError, one_of
from ladder_opt.plan.plan import Plan
from ladder_opt.plan.spyre_environment import BATCHED_DECODE_VARIABLES, spyre_variables

EXPORT_FORMATS = ("env", "vllm-yaml", "json")


@checked
def export_plan(plan: Plan, format: str, *, path: str) -> str:  # noqa: A002 - the option's name
    """The plan as text.

    `env`: lines a shell can source; they name the plan file, for our vLLM plugin, say the ladders in
    comments, and switch batched decode and its recording on in the Spyre plugin. Of a plan for `spyre-env`
    they set the Spyre plugin's own variables. `vllm-yaml`: a file for `vllm serve --config`, the plan's
    ladders and limits inline; variables can only be told in its comments.
    `json`: the plan file itself.

    Args:
        plan: the plan.
        format: one of `EXPORT_FORMATS`.
        path: where the plan file is, for the forms that name it.

    Raises:
        UsageError: an unknown format.
    """
    if format == "json":
        return plan.to_json()
    if format == "env":
        return _env(plan, path)
    if format == "vllm-yaml":
        return _vllm_yaml(plan)
    raise UsageError(f"--format: found {format!r}, expected {one_of(EXPORT_FORMATS, format)}")


def _header(plan: Plan) -> list[str]:
    lines = [
        f"# ladder_opt plan: verdict {plan.verdict}, status {plan.result.status}",
        f"# num_seqs {','.join(map(str, plan.num_seqs)) or 'none'}",
        f"# num_blocks {','.join(map(str, plan.num_blocks)) or 'none'} (block_size {plan.engine.block_size})",
    ]
    if plan.query_lens is not None:
        lines.append(f"# query_lens {','.join(map(str, plan.query_lens))}")
    if plan.verdict != "adopt":
        lines.append("# the verdict is not to adopt it: loading it gains little or nothing")
    return lines


def _env(plan: Plan, path: str) -> str:
    lines = _header(plan)
    if plan.verdict == "not-used":
        return "\n".join([*lines, "# nothing to load"]) + "\n"
    if plan.target == "spyre-env":
        return "\n".join([*lines, *_spyre_lines(plan)]) + "\n"
    lines += [f"export {name}={value}" for name, value in BATCHED_DECODE_VARIABLES.items()]
    lines.append(f"export LADDER_OPT_PLAN={shlex.quote(path)}")
    return "\n".join(lines) + "\n"


def _spyre_lines(plan: Plan) -> list[str]:
    return [f"export {name}={value}" for name, value in spyre_variables(plan).items()]


def _vllm_yaml(plan: Plan) -> str:
    engine = plan.engine
    lines = _header(plan)
    lines += [
        f"block-size: {engine.block_size}",
        f"max-num-seqs: {engine.max_num_seqs}",
        f"max-model-len: {engine.max_model_len}",
        f"max-num-batched-tokens: {engine.max_num_batched_tokens}",
    ]
    if engine.num_kv_blocks is not None:
        lines.append(f"num-gpu-blocks-override: {engine.num_kv_blocks}")
    lines += _scheduling_lines(plan)
    if plan.verdict != "not-used" and plan.target == "spyre-env":
        lines += [
            "# The ladders are environment variables, which this file cannot set:",
            *(f"# {line}" for line in _spyre_lines(plan)),
        ]
    elif plan.verdict != "not-used":
        # vLLM wants this option as JSON in a string; what only people read is left out of it.
        inline = json.dumps({"ladder_opt": _for_server(plan)}, separators=(",", ":"))
        lines.append(f"additional-config: {json.dumps(inline)}")
    return "\n".join(lines) + "\n"


def _scheduling_lines(plan: Plan) -> list[str]:
    """The settings of scheduling that the traffic was replayed with, where they are not vLLM-on-Spyre's."""
    asked = (plan.provenance.asked or {}).get("scheduling") or {}
    lines = []
    if asked.get("policy", "fcfs") != "fcfs":
        lines.append(f"scheduling-policy: {asked['policy']}")
    if asked.get("long_prefill_token_threshold"):
        lines.append(f"long-prefill-token-threshold: {asked['long_prefill_token_threshold']}")
    if asked.get("prefix_caching"):
        lines.append("enable-prefix-caching: true")
    return lines


def _for_server(plan: Plan) -> dict[str, object]:
    slim = plan.model_copy(
        update={
            "baselines": (),
            "warnings": (),
            "result": plan.result.model_copy(update={"rungs": (), "dead_variants": ()}),
            "cost": None,
            "occupancy": None,
        }
    )
    return slim.to_dict()
