"""Measured rung pairs of files of any kind, without a fit: what new measurements say of old prices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ladder_opt.calibration import combine
from ladder_opt.calibration.api import kind_of
from ladder_opt.calibration.evidence import Evidence
from ladder_opt.calibration.result import CalibrationOptions
from ladder_opt.calibration.samples import QUANTITIES, Samples
from ladder_opt.engine import Engine


def measured_pairs(
    paths: Sequence[str | Path], engine: Engine, *, kernel: str, graphs: int, layers: int | None = None
) -> dict[str, Samples]:
    """Samples by quantity, those of another kernel left out; files without rung pairs give none.

    Args:
        paths: files that `calibrate` takes.
        engine: of the server measured.
        kernel: whose pairs are wanted.
        graphs: of a compiled variant, by which whole variants' seconds are divided.
        layers: of the model, where files time one of them and do not say.

    Raises:
        InputError: a file of no known kind, or one that cannot be used.
    """
    options = CalibrationOptions(name="measured", layers=layers, graphs_per_variant=graphs, kernel=kernel)
    evidence: list[Evidence] = []
    for path in map(Path, paths):
        evidence += kind_of(path).read([path], engine, options)
    found = combine.all_samples(evidence, layers=layers, graphs=graphs)
    found = found.take(found.kernel == kernel)
    return {
        quantity: found.take(found.quantity == quantity)
        for quantity in QUANTITIES
        if (found.quantity == quantity).any()
    }
