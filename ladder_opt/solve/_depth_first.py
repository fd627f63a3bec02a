"""Depth-first search over num_seqs ladders under fixed multipliers, leaf by leaf; see `_search_kernel`."""

from __future__ import annotations

import numpy as np

from ladder_opt.solve import _dp_kernel as dp_kernel
from ladder_opt.solve import _search_kernel as kernel
from ladder_opt.solve._ascent import Relaxation, interval_costs
from ladder_opt.solve._incumbent import Incumbent
from ladder_opt.solve.problem import Floats, Integers

FINISHED, PAUSED, LEAF = kernel.FINISHED, kernel.PAUSED, kernel.LEAF
MAX_EDGE_BYTES = 8 << 30
_EDGES_BETWEEN_LOOKS = 4_000_000  # a call to the kernel: some milliseconds


class DepthFirst:
    """One search of one range of the number of rungs, from one end.

    Attributes:
        fits: whether the work space would be of a sane size; if not, do not call `advance`.
        edges_seen: edges looked at so far, the measure of work.
    """

    def __init__(self, incumbent: Incumbent, relaxation: Relaxation, *, upward: bool) -> None:
        p = incumbent.problem
        rows, columns = p.shape
        self.upward = upward
        self.problem = p
        depths = min(rows, relaxation.max_rungs) + 1
        self.fits = depths * (columns + 1) ** 2 * 8 <= MAX_EDGE_BYTES
        self._terms = p.row_terms(relaxation.price(incumbent))
        self._multipliers = relaxation.cumulative_multipliers()
        self._costs = interval_costs(relaxation, incumbent)
        self._to_go = cost_to_go(self._costs, relaxation, upward=upward)
        # Pages are only touched as deep as the search goes.
        self._edges = np.empty((depths if self.fits else 1, columns + 1, columns + 1))
        self._edges[0] = 0.0
        self._position = np.zeros(rows + 1, np.int64)
        self._next_child = np.zeros(rows + 1, np.int64)
        self._path_seconds = np.zeros(rows + 1)
        self._state = np.zeros(kernel.STATE_SLOTS, np.int64)
        self._leaf = np.zeros(rows, np.int64)
        self._position[0], self._next_child[0] = (0, 1) if upward else (rows, rows - 1)
        self._edges_of_node = columns * columns // 2 + 1

    @property
    def nodes(self) -> int:
        """Nodes paid for so far."""
        return int(self._state[kernel.NODES])

    @property
    def edges_seen(self) -> int:
        """Work so far."""
        return self.nodes * self._edges_of_node

    @property
    def leaf_rows(self) -> Integers:
        """The num_seqs ladder just found, as candidates' indices."""
        return self._leaf[: self._state[kernel.LEAF_RUNGS]].copy()

    def advance(self, threshold: float) -> int:
        """Go on for some milliseconds; FINISHED, PAUSED, or LEAF with a ladder in `leaf_rows`.

        The threshold is on seconds at the relaxation's prices (the limits' allowance included).
        """
        return int(
            kernel.next_leaf(
                self.upward,
                self._terms,
                self.problem.lowest_column,
                self._multipliers,
                self._costs,
                self._to_go,
                threshold,
                max(1, _EDGES_BETWEEN_LOOKS // self._edges_of_node),
                self._edges,
                self._position,
                self._next_child,
                self._path_seconds,
                self._state,
                self._leaf,
            )
        )

    def open_bound(self) -> float:
        """Least bound of what has not been looked at, at the relaxation's prices."""
        return float(
            kernel.open_bound(
                self.upward,
                self._costs,
                self._to_go,
                self._position,
                self._next_child,
                self._path_seconds,
                int(self._state[kernel.DEPTH]),
            )
        )


def cost_to_go(costs: Floats, relaxation: Relaxation, *, upward: bool) -> Floats:
    """[d, j]: cheapest cover of the rows beyond position j, d rungs done, that keeps to the range."""
    rows = costs.shape[0] - 1
    least, most = relaxation.min_rungs, min(rows, relaxation.max_rungs)
    cover = dp_kernel.counted_rows_above if upward else dp_kernel.counted_rows
    counted = cover(costs, most)
    to_go = np.full((rows + 2, rows + 1), dp_kernel.HUGE)
    for done in range(1, most + 1):
        to_go[done] = counted[max(0, least - done) : most - done + 1].min(axis=0)
    return to_go
