"""Rows of `ladder-opt measure` as evidence: of one model, with the engine's block size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from ladder_opt.calibration.evidence import Evidence, Source
from ladder_opt.calibration.measurement_rows import read_measurement_rows, samples_of
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.files import sha256_of

KIND: Final = "measurements"
NOISY: Final = 0.2  # relative spread of one call repeated over the run


def read_measurements(path: str | Path, engine: Engine, *, layers: int | None = None) -> Evidence:
    """Read one file.

    Args:
        path: the file.
        engine: whose block size its rows have, where they say.
        layers: of the model served; None: as the rows say. A row is one layer's share, so that rows measured
            with others are good for it too.

    Raises:
        InputError: rows of several models, or of blocks of another size than the engine's.
    """
    rows = read_measurement_rows(path)
    for name in ("layers", "graphs", "block_size", "head_size", "num_kv_heads", "num_query_heads"):
        found = sorted({getattr(row, name) for row in rows} - {None})
        if len(found) > 1:
            raise InputError(
                f"rows of {name} {' and '.join(map(str, found))}", "rows of one model", path=path, column=name
            )
    sizes = {row.block_size for row in rows} - {None, engine.block_size}
    if sizes:
        raise InputError(
            f"pages of {min(each for each in sizes if each)} tokens",
            f"the engine's block_size {engine.block_size} (--block-size)",
            path=path,
            column="block_size",
        )
    stated = next((row.layers for row in rows if row.layers is not None), None)
    warnings = []
    if layers is not None and stated not in {None, layers}:
        warnings.append(
            f"{path}: its rows say layers {stated}; their seconds of one layer were taken {layers} times, as "
            "--layers says"
        )
    layers = layers or stated
    rows = tuple(replace(row, layers=layers) for row in rows)
    noise = max((row.noise for row in rows if row.noise is not None), default=0.0)
    if noise > NOISY:
        warnings.append(f"{path}: the machine was not calm: one call repeated varies by {noise:.0%}")
    return Evidence(
        samples=samples_of(rows, source=str(path)),
        layers=layers,
        graphs_per_variant=rows[0].graphs,
        sources=(Source(str(path), sha256_of(path), len(rows), KIND),),
        warnings=tuple(warnings),
    )
