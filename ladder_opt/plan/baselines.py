"""Ladders that a plan is compared with, priced on the same steps."""

from __future__ import annotations

from dataclasses import replace

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders, Target, default_ladders, default_query_lens
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.presets import PRESETS, preset_num_blocks
from ladder_opt.solve.price import LadderPrice, price_ladders
from ladder_opt.solve.problem import Limits


def default_of(engine: Engine, target: Target) -> Ladders:
    """The default ladders for a target; query lengths, where it has them, are the Spyre plugin's own."""
    default = default_ladders(engine)
    return default if target == "plugin" else replace(default, query_lens=default_query_lens(engine))


def price_baselines(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    restarts: float,
    target: Target = "plugin",
) -> list[tuple[str, LadderPrice]]:
    """Price the default ladders, and the Spyre plugin's KV presets as block ladders.

    With target `spyre-env`, query lengths are the Spyre plugin's own. Ladders with a rung pair that a
    measured cost table lacks are left out.
    """
    default = default_of(engine, target)
    ladders = {"default": default}
    for preset in PRESETS:
        blocks = preset_num_blocks(preset, max_model_len=engine.max_model_len, block_size=engine.block_size)
        ladders[preset] = replace(default, num_blocks=blocks)
    priced = []
    for name, each in ladders.items():
        try:
            priced.append((name, price_ladders(steps, engine, cost, each, restarts=restarts)))
        except InputError:
            if cost.table_sizes() is None:
                raise
    return priced


def is_within(price: LadderPrice, limits: Limits) -> bool:
    """Whether priced ladders keep hard limits."""
    if limits.max_variants is not None and price.num_variants > limits.max_variants:
        return False
    budget = limits.max_compile_seconds
    return budget is None or price.compile_seconds <= budget * (1 + 1e-9)
