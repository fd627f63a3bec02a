"""What vLLM loads: the plan in `vllm serve`, and the record of what was served.

vLLM calls `register` without arguments in its API server, engine core and worker processes, before anything
that holds the engine's settings exists. So it only prepares: nothing is read here, nothing heavy imported,
and without a plan or a record asked for nothing that it prepares does anything
(`docs/design/0010-serving.md`).
"""

from __future__ import annotations

_registered = False


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; safe to call again."""
    global _registered  # noqa: PLW0603 - once for each process
    if _registered:
        return
    from ladder_opt.vllm_plugin import hooks  # noqa: PLC0415

    hooks.check_plans_early()
    hooks.adapt_spyre_when_imported()
    _registered = True
