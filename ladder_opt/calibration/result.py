"""What a calibration gives: a cost model that says how it was found, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ladder_opt.calibration.tables import TableMode
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """What a calibration may be told besides its files and the engine's limits.

    Attributes:
        name: of the cost model.
        prefix_caching: the server caches prefixes, as `vllm serve` does unless told otherwise. Prompts are
            taken as distinct where the records do not say what they hold.
        layers: attention layers of the model, where the files time one of them and do not say.
        graphs_per_variant: graphs of a compiled variant; None: as the files say, else as many as layers.
        kernel: whose geometry rung pairs have where a file does not say; of files that do, its rows alone
            count.
        table: whether measured tables take the formulas' place, see `calibration.tables`.
    """

    name: str = "calibrated"
    prefix_caching: bool = False
    layers: int | None = None
    graphs_per_variant: int | None = None
    kernel: str | None = None
    table: TableMode = "auto"

    def __post_init__(self) -> None:
        for option, number in (("--layers", self.layers), ("--graphs-per-variant", self.graphs_per_variant)):
            if number is not None and number < 1:
                raise UsageError(f"{option}: found {number}, expected 1 or more")
        if self.kernel is not None:
            get_kernel(self.kernel)
        if self.table not in get_args(TableMode):
            raise UsageError(f"--table: found {self.table!r}, expected {', '.join(get_args(TableMode))}")


@dataclass(frozen=True)
class Calibration:
    """A cost model from measurements.

    Attributes:
        cost: the model; its `fit` holds source, method, parameters with intervals, residuals, ranges,
            warnings, and draws of the parameters.
        warnings: what not to read out of it, one line each.
        notes: remarks on the files, one line each.
    """

    cost: CostModel
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
