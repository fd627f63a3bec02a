"""A plan as the environment variables of the Spyre plugin.

`SPYRE_ATTN_KV_BUCKETS` is in tokens, and the plugin takes ceil(tokens / block_size) of each entry as a block
rung. The last entry is max_model_len itself, not the end of its last block: a list that ends exactly on the
limit means the same to every version of the plugin (older ones keep entries above it, newer ones drop them,
both append a missing limit). `SPYRE_BATCHED_DECODE` and `SPYRE_ATTN_RECORD` differ in default between
versions, so both are set. Source: torch-spyre/spyre-inference, `spyre_inference/envs.py` and
`v1/attention/spyre_attn_bucketer.py`.
"""

from __future__ import annotations

from ladder_opt.errors import UsageError
from ladder_opt.ladder import KV_LIST, NUM_SEQS_LIST, QUERY_LIST
from ladder_opt.plan.plan import Plan

BATCHED_DECODE_VARIABLES = {"SPYRE_BATCHED_DECODE": "1", "SPYRE_ATTN_RECORD": "1"}
"""What any plan needs of the Spyre plugin: batched decode, and variants recorded at warm-up."""


def kv_buckets(plan: Plan) -> tuple[int, ...]:
    """The plan's num_blocks rungs in tokens, the last one max_model_len."""
    engine = plan.engine
    return tuple(min(rung * engine.block_size, engine.max_model_len) for rung in plan.num_blocks)


def spyre_variables(plan: Plan) -> dict[str, str]:
    """The variables, by name, for a plan with target `spyre-env`.

    Raises:
        UsageError: the plan has another target.
    """
    if plan.query_lens is None:
        raise UsageError(f"target: found {plan.target}, expected spyre-env")
    variables = {KV_LIST: _listed(kv_buckets(plan))}
    if plan.num_seqs:
        variables[NUM_SEQS_LIST] = _listed(plan.num_seqs)
    return variables | {
        QUERY_LIST: _listed(plan.query_lens),
        **BATCHED_DECODE_VARIABLES,
    }


def _listed(rungs: list[int] | tuple[int, ...]) -> str:
    return ",".join(map(str, rungs))
