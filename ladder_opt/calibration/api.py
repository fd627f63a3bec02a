"""`calibrate`: measurements of any known kinds to a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ladder_opt.arguments import checked
from ladder_opt.calibration.build import build_calibration
from ladder_opt.calibration.kinds import KINDS, Kind
from ladder_opt.calibration.result import Calibration, CalibrationOptions
from ladder_opt.calibration.server_records import calibrate_request_records
from ladder_opt.calibration.tables import TableMode
from ladder_opt.engine import Engine, ServerEngine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.files import sha256_of

REQUESTS = "request_records"


@checked
def calibrate(
    paths: str | Path | Sequence[str | Path],
    engine: Engine,
    *,
    name: str = "calibrated",
    prefix_caching: bool = False,
    layers: int | None = None,
    graphs_per_variant: int | None = None,
    kernel: str | None = None,
    table: TableMode = "auto",
) -> Calibration:
    """Fit a cost model to measurements.

    Args:
        paths: files of any kinds, see `ladder_opt.calibration.kinds.KINDS`.
        engine: the limits of the engine that was measured.
        name: of the cost model.
        prefix_caching: the server caches prefixes, see `CalibrationOptions`.
        layers: attention layers of the model, where the files do not say.
        graphs_per_variant: graphs of a compiled variant, where it is not as the files say.
        kernel: whose geometry rung pairs have.
        table: tables in place of formulas: "auto" where these do not fit, "always" one of pairs measured,
            "interpolated" one between the pairs measured, by how far the formula is off there, or "never".

    Raises:
        UsageError: no file, or an option out of range.
        InputError: a file of no known kind, one that is named twice, or one that cannot be used.

    Example:
        >>> engine = ServerEngine(block_size=16, num_kv_blocks=2588)  # doctest: +SKIP
        >>> calibrate("requests.jsonl", engine).cost  # doctest: +SKIP
        >>> calibrate(["measured.csv", "server.log"], Engine()).cost  # doctest: +SKIP
    """
    # In the order of their names: whatever the order they are given in, the same cost model.
    files = sorted(Path(one) for one in ([paths] if isinstance(paths, str | Path) else paths))
    if not files:
        raise UsageError("found no file, expected measurements of a server")
    options = CalibrationOptions(
        name=name,
        prefix_caching=prefix_caching,
        layers=layers,
        graphs_per_variant=graphs_per_variant,
        kernel=kernel,
        table=table,
    )
    by_kind: dict[str, list[Path]] = {}
    for path in files:
        by_kind.setdefault(kind_of(path).name, []).append(path)
    _check_distinct(files)
    if list(by_kind) == [REQUESTS]:
        return calibrate_request_records(files, engine, options)
    server = ServerEngine.of(engine)
    evidence = [
        part
        for kind in KINDS
        if kind.name in by_kind
        for part in kind.read(by_kind[kind.name], server, options)
    ]
    return build_calibration(evidence, server, options)


def _check_distinct(files: Sequence[Path]) -> None:
    """Refuse a file named twice, or its copy: rows would count as new ones, and intervals shrink."""
    seen: dict[str, Path] = {}
    for path in files if len(files) > 1 else ():
        digest = sha256_of(path)
        if digest in seen:
            raise InputError(f"the same bytes as in {seen[digest]}", "each measurement once", path=path)
        seen[digest] = path


def kind_of(path: Path) -> Kind:
    """The kind of a file.

    Raises:
        InputError: it is of none.
    """
    found = next((one for one in KINDS if one.recognises(path)), None)
    if found is None:
        accepted = "; ".join(kind.description for kind in KINDS)
        raise InputError("no measurements that calibrate knows", accepted, path=path)
    return found
