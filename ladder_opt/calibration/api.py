"""`calibrate`: measurements of any known kind to a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ladder_opt.calibration.kinds import KINDS
from ladder_opt.calibration.result import Calibration, CalibrationOptions
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError


def calibrate(
    paths: str | Path | Sequence[str | Path],
    engine: Engine,
    *,
    name: str = "calibrated",
    prefix_caching: bool = False,
) -> Calibration:
    """Fit a cost model to measurements of a server.

    Args:
        paths: files of one kind, see `ladder_opt.calibration.kinds.KINDS`.
        engine: the limits of the engine that was measured.
        name: of the cost model.
        prefix_caching: the server caches prefixes, see `CalibrationOptions`.

    Raises:
        UsageError: no file.
        InputError: a file of no known kind, files of several kinds, or one that cannot be used.

    Example:
        >>> engine = ServerEngine(block_size=16, num_kv_blocks=2588)  # doctest: +SKIP
        >>> calibrate("requests.jsonl", engine).cost  # doctest: +SKIP
    """
    files = [Path(one) for one in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise UsageError("found no file, expected measurements of a server")
    accepted = "; ".join(kind.description for kind in KINDS)
    kinds = []
    for path in files:
        kind = next((one for one in KINDS if one.recognises(path)), None)
        if kind is None:
            raise InputError("no measurements that calibrate knows", accepted, path=path)
        kinds.append(kind)
        if kind is not kinds[0]:
            raise InputError(
                f"{kind.name} beside {kinds[0].name} in {files[0]}", "files of one kind", path=path
            )
    options = CalibrationOptions(name=name, prefix_caching=prefix_caching)
    return kinds[0].calibrate(files, engine, options)
