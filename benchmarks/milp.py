"""The product problem as a mixed-integer programme, for scipy's HiGHS: a witness that shares no solver code.

**Sets.** Positions 0..R on the num_seqs axis and 0..C on the num_blocks axis; position p > 0 is the rung
candidate p - 1, position 0 is "no rung below". Every size is a candidate: none of the solver's reductions
is used.

**Variables.** u[i, j] = 1 if the num_seqs ladder steps from i to j; v[a, c] likewise; both are unit paths
from 0 to the top. x[i, j, a, c] >= 0 stands for the product u[i, j] * v[a, c].

**Linking.** For each step (i, j) the x[i, j, .] are a path of value u[i, j] over the num_blocks axis, and for
each (a, c) the x[., a, c] are a path of value v[a, c] over the num_seqs axis. With u and v whole these force
x = u * v; with fractions they are far tighter than x <= u, x <= v.

**Objective.** sum x[i, j, a, c] * (steps(i, j, a, c) * step_seconds(j, c) + restarts * compile_seconds(j, c)
if c opens a variant of row j after a). **Limits** are sums over the same openings.

The number of x grows as R^2 * C^2 / 4: some ten thousand are comfortable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.price import price_ladders

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SCALE: Final = 1e4  # of the objective inside HiGHS, whose absolute tolerances are about 1e-6
_RELATIVE_GAP: Final = 1e-9
_BUDGET_SLACK: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class MilpResult:
    """What HiGHS said.

    Attributes:
        proven: whether it ended with a proof.
        ladders: the best it found; None if nothing.
        objective_seconds: of these, priced by `price_ladders` and not by HiGHS; inf without ladders.
        lower_bound_seconds: HiGHS's bound.
        variables: products, the bulk of the variables.
        nodes: branch-and-bound nodes.
        seconds: wall time of building and solving.
    """

    proven: bool
    ladders: Ladders | None
    objective_seconds: float
    lower_bound_seconds: float
    variables: int
    nodes: int
    seconds: float


@dataclass(frozen=True)
class _Axis:
    """Steps between positions: `tail` to `head`, in a fixed order."""

    size: int
    tail: Integers
    head: Integers

    @classmethod
    def of(cls, size: int) -> _Axis:
        head, tail = np.tril_indices(size + 1, -1)
        return cls(size, tail.astype(np.int64), head.astype(np.int64))

    def incidence(self) -> sparse.csr_matrix:
        """(size + 1, steps): what a step takes from its tail and brings to its head."""
        steps = np.arange(len(self.tail))
        values = np.concatenate([np.ones(len(steps)), -np.ones(len(steps))])
        where = (np.concatenate([self.tail, self.head]), np.concatenate([steps, steps]))
        return sparse.csr_matrix((values, where), shape=(self.size + 1, len(steps)))

    def ends(self) -> Floats:
        """One leaves position 0 and arrives at the top."""
        unit = np.zeros(self.size + 1)
        unit[0], unit[-1] = 1.0, -1.0
        return unit


def count_products(engine: Engine) -> int:
    """How many x variables an engine's problem has."""
    rows = engine.max_num_seqs - engine.min_batched_seqs + 1
    columns = engine.max_num_blocks
    return rows * (rows + 1) // 2 * (columns * (columns + 1) // 2)


def solve_milp(
    steps: StepHistogram,
    engine: Engine,
    cost: CostModel,
    *,
    restarts: float,
    max_variants: int | None = None,
    max_compile_seconds: float | None = None,
    time_limit_seconds: float = 60.0,
) -> MilpResult:
    """Solve with HiGHS.

    Args:
        steps: the histogram.
        engine: an engine that batches decodes.
        cost: prices by formula (no measured tables).
        restarts: server starts charged.
        max_variants: limit on distinct variants.
        max_compile_seconds: limit on their compile seconds.
        time_limit_seconds: for HiGHS.
    """
    started = time.perf_counter()
    rungs, blocks = _num_seqs(engine), _num_blocks(engine)
    rows, columns = _Axis.of(len(rungs)), _Axis.of(len(blocks))
    seconds, opened, compiled = _coefficients(steps, engine, cost, (rows, columns))
    objective = (seconds + restarts * compiled).ravel()
    scale = _SCALE / max(float(objective.max(initial=0.0)), 1e-300)
    lone = len(rows.tail) + len(columns.tail)
    constraints = [_paths(rows, columns)]
    for limit, amounts in ((max_variants, opened), (max_compile_seconds, compiled)):
        if limit is not None:
            line = np.concatenate([np.zeros(lone), amounts.ravel()])
            constraints.append(LinearConstraint(line[None, :], -np.inf, limit * (1 + _BUDGET_SLACK)))
    found = milp(
        np.concatenate([np.zeros(lone), objective * scale]),
        integrality=np.concatenate([np.ones(lone), np.zeros(objective.size)]),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"time_limit": time_limit_seconds, "mip_rel_gap": _RELATIVE_GAP},
    )
    ladders = None
    price = np.inf
    if found.x is not None:
        ladders = Ladders(
            _path(rows, found.x[: len(rows.tail)], rungs),
            _path(columns, found.x[len(rows.tail) : lone], blocks),
        )
        price = price_ladders(steps, engine, cost, ladders, restarts=restarts).objective_seconds
    bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) / scale
    return MilpResult(
        proven=found.status == 0,
        ladders=ladders,
        objective_seconds=price,
        lower_bound_seconds=bound,
        variables=objective.size,
        nodes=int(found.mip_node_count or 0),
        seconds=time.perf_counter() - started,
    )


def _coefficients(
    steps: StepHistogram, engine: Engine, cost: CostModel, axes: tuple[_Axis, _Axis]
) -> tuple[Floats, Floats, Floats]:
    """(step seconds, variants opened, their compile seconds) of every pair of steps, (row, column) steps."""
    rows, columns = axes
    below = np.zeros((rows.size + 1, columns.size + 1))
    for n, b, weight in zip(steps.num_seqs, steps.num_blocks, steps.steps, strict=True):
        if n >= engine.min_batched_seqs:
            below[n - engine.min_batched_seqs + 1, b] += weight
    below = below.cumsum(axis=0).cumsum(axis=1)
    i, j = rows.tail[:, None], rows.head[:, None]
    a, c = columns.tail[None, :], columns.head[None, :]
    inside = below[j, c] - below[i, c] - below[j, a] + below[i, a]
    grid = (_num_seqs(engine)[:, None], _num_blocks(engine)[None, :])
    key = cost.geometry.variant_key(*grid)
    # A variant is opened by the lowest rung of the ladder that has it: not if the rung below has it too.
    opens = (a == 0) | (key[j - 1, np.maximum(a, 1) - 1] != key[j - 1, c - 1])
    return (
        inside * cost.batched_step_seconds(*grid)[j - 1, c - 1],
        opens.astype(np.float64),
        opens * cost.variant_compile_seconds(*grid)[j - 1, c - 1],
    )


def _num_seqs(engine: Engine) -> Integers:
    return np.arange(engine.min_batched_seqs, engine.max_num_seqs + 1)


def _num_blocks(engine: Engine) -> Integers:
    return np.arange(1, engine.max_num_blocks + 1)


def _paths(rows: _Axis, columns: _Axis) -> LinearConstraint:
    """Path equations of u, of v, and of x along either axis."""
    over_rows, over_columns = rows.incidence(), columns.incidence()
    many_rows, many_columns = len(rows.tail), len(columns.tail)
    along_columns = sparse.kron(sparse.identity(many_rows), over_columns)  # for each (i, j): x[i, j, .]
    along_rows = sparse.kron(over_rows, sparse.identity(many_columns))  # for each (a, c): x[., a, c]
    value_u = sparse.kron(sparse.identity(many_rows), -columns.ends()[:, None])
    value_v = sparse.kron(-rows.ends()[:, None], sparse.identity(many_columns))
    blocks: list[list[Any]] = [
        [over_rows, None, None],
        [None, over_columns, None],
        [value_u, None, along_columns],
        [None, value_v, along_rows],
    ]
    matrix = sparse.bmat(blocks, format="csr")
    right = np.concatenate(
        [rows.ends(), columns.ends(), np.zeros(along_columns.shape[0] + along_rows.shape[0])]
    )
    return LinearConstraint(matrix, right, right)


def _path(axis: _Axis, values: Floats, sizes: Integers) -> tuple[int, ...]:
    """The rungs that the steps of value 1 arrive at."""
    return tuple(int(size) for size in sorted(sizes[axis.head[values > 0.5] - 1]))
