"""What a calibration gives: a cost model that says how it was found, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass

from ladder_opt.cost.model import CostModel


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """What a calibration may be told besides its files and the engine's limits.

    Attributes:
        name: of the cost model. prefix_caching: the server caches prefixes, as `vllm serve` does unless told
        otherwise. Prompts are taken
            as distinct where the records do not say what they hold.
    """

    name: str = "calibrated"
    prefix_caching: bool = False


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
