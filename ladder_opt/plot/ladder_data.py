"""Numbers of the figures about ladders and pages: occupancy, waste, what each rung earns. No drawing here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.plan import Plan
from ladder_opt.plot.compared import Kind, compared

MOST_ROWS, MOST_COLUMNS = 256, 512
"""Of the heat map: about what a screen has room for; sizes beyond share a row or a column."""


@dataclass(frozen=True)
class LadderLines:
    """Where the rungs of a pair of ladders end, in sizes.

    Attributes:
        name: whose ladders.
        kind: what they are.
        segments: float64 (segments, 4): num_blocks and num_seqs of one end, then of the other. A rung r is
            a line at r + 1/2, between the largest size that is padded to it and the next.
    """

    name: str
    kind: Kind
    segments: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OccupancyData:
    """How often each batch shape occurred.

    Attributes:
        num_seqs: int64 (rows,), the first size of each row.
        num_blocks: int64 (columns,), the first size of each column.
        seqs_per_row: sizes that share a row.
        blocks_per_column: sizes that share a column.
        steps: float64 (rows, columns), decode steps; NaN where there were none.
        lines: rungs of the plan and of the default ladders, where a plan is given.
        min_batched_seqs: sequences from which steps reach the ladders.
        total_steps: all decode steps.
        batched_steps: those that reach the ladders.
    """

    num_seqs: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    seqs_per_row: int
    blocks_per_column: int
    steps: NDArray[np.float64]
    lines: tuple[LadderLines, ...]
    min_batched_seqs: int
    total_steps: float
    batched_steps: float


def occupancy_data(
    steps: StepHistogram,
    engine: Engine,
    plan: Plan | None = None,
    *,
    most_rows: int = MOST_ROWS,
    most_columns: int = MOST_COLUMNS,
) -> OccupancyData:
    """The heat map's grid, and the lines over it.

    Raises:
        InputError: a cell is beyond the engine's limits.
    """
    steps.check_limits(engine)
    per_row = -(-engine.max_num_seqs // most_rows)
    per_column = -(-engine.max_num_blocks // most_columns)
    rows = -(-engine.max_num_seqs // per_row)
    columns = -(-engine.max_num_blocks // per_column)
    grid = np.zeros((rows, columns))
    np.add.at(grid, ((steps.num_seqs - 1) // per_row, (steps.num_blocks - 1) // per_column), steps.steps)
    return OccupancyData(
        num_seqs=np.arange(rows, dtype=np.int64) * per_row + 1,
        num_blocks=np.arange(columns, dtype=np.int64) * per_column + 1,
        seqs_per_row=per_row,
        blocks_per_column=per_column,
        steps=np.where(grid > 0, grid, np.nan),
        lines=tuple(
            LadderLines(row.name, row.kind, rung_segments(row.ladders, engine))
            for row in ([] if plan is None else compared(plan))
            if row.kind != "preset"
        ),
        min_batched_seqs=engine.min_batched_seqs,
        total_steps=steps.total_steps,
        batched_steps=float(steps.steps[steps.batched(engine)].sum()),
    )


def rung_segments(ladders: Ladders, engine: Engine) -> NDArray[np.float64]:
    """Lines at the upper edges of all rungs; see `LadderLines`."""
    left, right = 0.5, engine.max_num_blocks + 0.5
    segments = [(left, rung + 0.5, right, rung + 0.5) for rung in ladders.num_seqs]
    below = engine.min_batched_seqs - 0.5
    if ladders.ragged is None and ladders.num_seqs:
        top = ladders.num_seqs[-1] + 0.5
        segments += [(rung + 0.5, below, rung + 0.5, top) for rung in ladders.num_blocks]
    elif ladders.ragged is not None:
        for seqs, blocks in ladders.blocks_by_rung().items():
            segments += [(rung + 0.5, below, rung + 0.5, seqs + 0.5) for rung in blocks]
            below = seqs + 0.5
    return np.array(segments, np.float64).reshape(-1, 4)


@dataclass(frozen=True, kw_only=True)
class WasteData:
    """Pages gathered over the batched steps, split by what they are for.

    Attributes:
        names: plan and baselines.
        kinds: what each is.
        real: float64 (ladders,), pages that the sequences hold.
        ragged: float64 (ladders,), up to the ragged floor: batches are as long as their longest.
        fixable: float64 (ladders,), above the floor: what ladders decide.
    """

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    real: NDArray[np.float64]
    ragged: NDArray[np.float64]
    fixable: NDArray[np.float64]

    @property
    def padded(self) -> NDArray[np.float64]:
        """All pages gathered."""
        return self.real + self.ragged + self.fixable


def waste_data(plan: Plan) -> WasteData:
    """The split of a plan and its baselines."""
    rows = compared(plan)
    gathers = [row.price.gathers for row in rows]
    return WasteData(
        names=tuple(row.name for row in rows),
        kinds=tuple(row.kind for row in rows),
        real=np.array([each.real for each in gathers]),
        ragged=np.array([each.ragged_floor - each.real for each in gathers]),
        fixable=np.array([each.padded - each.ragged_floor for each in gathers]),
    )


@dataclass(frozen=True, kw_only=True)
class AxisRungs:
    """The rungs of one axis.

    Attributes:
        axis: num_seqs, num_blocks or query_lens.
        names: the rung; of ragged ladders "36 for 8", the rung and whose it is.
        marginal_seconds: float64 (rungs,), what the objective would lose without it.
        hits: float64 (rungs,), steps padded to it (calls for a query length).
        forced: bool (rungs,), whether it is there whatever it earns.
    """

    axis: str
    names: tuple[str, ...]
    marginal_seconds: NDArray[np.float64]
    hits: NDArray[np.float64]
    forced: NDArray[np.bool_]


@dataclass(frozen=True)
class RungsData:
    """What each rung earns, axis by axis."""

    axes: tuple[AxisRungs, ...]

    @property
    def most_seconds(self) -> float:
        """The largest amount, either way."""
        return max((float(np.abs(axis.marginal_seconds).max(initial=0.0)) for axis in self.axes), default=0.0)


def rungs_data(plan: Plan) -> RungsData:
    """A plan's rungs; axes without any are left out."""
    axes = []
    for name in ("num_seqs", "num_blocks", "query_lens"):
        rungs = [rung for rung in plan.result.rungs if rung.axis == name]
        if rungs:
            axes.append(
                AxisRungs(
                    axis=name,
                    names=tuple(
                        str(rung.rung) if rung.of_num_seqs is None else f"{rung.rung} for {rung.of_num_seqs}"
                        for rung in rungs
                    ),
                    marginal_seconds=np.array([rung.marginal_seconds for rung in rungs]),
                    hits=np.array([rung.hits for rung in rungs]),
                    forced=np.array([rung.forced for rung in rungs]),
                )
            )
    return RungsData(tuple(axes))
