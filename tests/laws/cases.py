"""Small traffic, prices and engines at random, for laws."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.trace.table import Trace

SECONDS = st.sampled_from([0.0, 0.001, 0.01, 0.37, 1.0, 5.5])


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Up to 10 sequences of up to 14 blocks; one in three has a pool that can be short."""
    seqs, blocks = draw(st.integers(4, 10)), draw(st.integers(1, 14))
    pool = draw(st.sampled_from([None, None, seqs + blocks + draw(st.integers(0, 20))]))
    return Engine(max_num_seqs=seqs, max_model_len=blocks * 128, num_kv_blocks=pool)


@st.composite
def costs(draw: st.DrawFn, kernel: str | None = None) -> CostModel:
    """Any prices of the formulas."""
    return CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "any",
            "kernel": kernel or draw(st.sampled_from(["chunked", "per_block"])),
            "step_seconds": {
                name: draw(SECONDS) for name in ("base", "per_seq", "per_iteration", "per_gather")
            },
            "compile_seconds": {
                name: draw(SECONDS) for name in ("base", "per_iteration", "per_iteration_sq")
            },
            "startup_seconds": draw(SECONDS),
        }
    )


def histograms(engine: Engine) -> st.SearchStrategy[StepHistogram]:
    """One to eight cells within an engine's limits and pool."""
    cell = st.tuples(
        st.integers(1, engine.max_num_seqs),
        st.integers(1, engine.max_num_blocks),
        st.sampled_from([0.5, 1.0, 7.0, 300.0]),
    ).filter(lambda each: each[0] - 1 + each[1] <= engine.usable_kv_blocks)

    def made(cells: list[tuple[int, int, float]]) -> StepHistogram:
        seqs, blocks, steps = zip(*cells, strict=True)
        return StepHistogram(np.array(seqs), np.array(blocks), np.array(steps))

    return st.lists(cell, min_size=1, max_size=8).map(made)


@st.composite
def traces(draw: st.DrawFn, engine: Engine) -> Trace:
    """One to twelve requests, some of them beyond max_model_len."""
    longest = engine.max_model_len
    tokens = st.integers(1, longest), st.integers(1, max(2, longest // 4))
    rows = draw(st.lists(st.tuples(st.floats(0, 5), *tokens), min_size=1, max_size=12))
    arrivals = np.sort(np.array([row[0] for row in rows]))
    prompts, outputs = (np.array([row[at] for row in rows], np.int64) for at in (1, 2))
    return Trace(arrivals - arrivals[0], prompts, outputs)
