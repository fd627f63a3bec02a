"""A plan's traffic as a heat map of characters: a dozen lines on a terminal, plain ASCII where need be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ladder_opt.plan.plan import Plan
from ladder_opt.plot.ladder_data import OccupancyData, occupancy_data

ROWS, COLUMNS = 8, 64
_FEWEST_COLUMNS, _BESIDE = 16, 24  # cells of a narrow terminal; what labels and rungs take of its width
SHADES, ASCII_SHADES = "·░▒▓█", ".:+#@"


class HeatMap:
    """Steps by num_seqs (up) and num_blocks (right), with the plan's rungs at the edges.

    False, and empty, for a plan that does not hold its steps. As a rich renderable it is plain ASCII on a
    terminal of another encoding than UTF-8.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = plan.to_steps()

    def __bool__(self) -> bool:
        return self._steps is not None and len(self._steps) > 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shades = ASCII_SHADES if options.ascii_only else SHADES
        columns = min(COLUMNS, max(_FEWEST_COLUMNS, options.max_width - _BESIDE))
        for line in self.lines(shades, columns=columns):
            yield Text(line, no_wrap=True, overflow="crop")

    def lines(self, shades: str = SHADES, *, columns: int = COLUMNS) -> list[str]:
        """The map, top row first, at most `columns` cells wide."""
        if self._steps is None or not self:
            return []
        engine = self._plan.to_engine()
        data = occupancy_data(self._steps, engine, most_rows=ROWS, most_columns=columns)
        labels = [_sizes(first, data.seqs_per_row, engine.max_num_seqs) for first in data.num_seqs]
        width = max(len(label) for label in labels)
        heat = shade_rows(data, shades)
        found = ["steps by num_seqs (up) and num_blocks (right), log shades; at the edges the plan's rungs"]
        for row in range(len(labels) - 1, -1, -1):
            rungs = _within(self._plan.num_seqs, data.num_seqs[row], data.seqs_per_row)
            found.append(f"{labels[row]:>{width}} {heat[row]}  {' '.join(map(str, rungs))}".rstrip())
        marks = "".join(
            "^" if _within(self._plan.num_blocks, first, data.blocks_per_column) else " "
            for first in data.num_blocks
        )
        found.append(f"{'':{width}} {marks}".rstrip())
        found.append(f"{'':{width}} {self._scale(data)}".rstrip())
        return found

    def _scale(self, data: OccupancyData) -> str:
        """Sizes below the columns that hold them: the first, the quarters, the last."""
        columns = len(data.num_blocks)
        line = [" "] * columns
        last = str(self._plan.to_engine().max_num_blocks)
        for at in sorted({0, columns // 4, columns // 2, 3 * columns // 4}):
            label = str(int(data.num_blocks[at]))
            if at + len(label) < columns - len(last):
                line[at : at + len(label)] = label
        return ("".join(line)[: columns - len(last)] + last) if columns > len(last) else last


def shade_rows(data: OccupancyData, shades: str) -> list[str]:
    """A character for each cell: a blank for none, else by the logarithm of its steps, evenly to the most."""
    known = np.isfinite(data.steps)
    if not known.any():
        return [" " * data.steps.shape[1]] * data.steps.shape[0]
    least, most = math.log(float(np.nanmin(data.steps))), math.log(float(np.nanmax(data.steps)))
    logs = np.log(np.where(known, data.steps, 1.0))
    share = (logs - least) / (most - least) if most > least else np.ones_like(logs)
    level = np.minimum((share * len(shades)).astype(int), len(shades) - 1)
    return [
        "".join(shades[at] if there else " " for at, there in zip(row, here, strict=True))
        for row, here in zip(level, known, strict=True)
    ]


def _sizes(first: int, count: int, largest: int) -> str:
    last = min(first + count - 1, largest)
    return str(first) if last == first else f"{first}-{last}"


def _within(rungs: Sequence[int], first: int, count: int) -> list[int]:
    return [rung for rung in rungs if first <= rung < first + count]
