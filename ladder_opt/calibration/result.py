"""What a calibration gives: a cost model that says how it was found, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass

from ladder_opt.cost.model import CostModel


@dataclass(frozen=True)
class Calibration:
    """A cost model from measurements.

    Attributes:
        cost: the model; its `fit` holds source, method, parameters with intervals, residuals, ranges,
        warnings. warnings: what not to read out of it, one line each. notes: remarks on the files, one line
        each.
    """

    cost: CostModel
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
