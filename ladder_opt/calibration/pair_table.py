"""A plain table of rung pairs and seconds, as anybody may write one down.

Columns (names are taken in any case, with spaces or dashes for underscores): `num_seqs` and `num_blocks`, the
rung pair; `seconds`, of a whole decode step padded to it (`step_seconds`, `ms` and `step_ms` will do); and
`compile_seconds`, of the whole variant, all its graphs (`compile_ms` will do); one of the two times at
least. `kernel` may say whose geometry the pair has. Other columns are told and left aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ladder_opt.calibration.delimited import Row, read_table
from ladder_opt.calibration.evidence import Evidence, Source
from ladder_opt.calibration.samples import COMPILE, STEP, Samples
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.errors import InputError

KIND: Final = "table"
_NAMES: Final = {
    "num_seqs": ("num_seqs", "seqs", "batch_size", "padded_num_seqs"),
    "num_blocks": ("num_blocks", "blocks", "kv_blocks", "padded_num_blocks"),
    "step": ("seconds", "step_seconds", "s", "ms", "step_ms", "milliseconds"),
    "compile": ("compile_seconds", "compile_s", "compile_ms"),
    "kernel": ("kernel",),
}
_IN_MILLISECONDS: Final = {"ms", "step_ms", "milliseconds", "compile_ms"}
EXPECTED: Final = "columns num_seqs, num_blocks and seconds or compile_seconds"


def plain_name(name: str) -> str:
    """A header's name as it is looked up."""
    return "_".join(name.strip().lower().replace("-", " ").replace("_", " ").split())


def is_pair_table(header: Sequence[str]) -> bool:
    """Whether a file's first line names a pair and a time."""
    names = {plain_name(name) for name in header}

    def has(role: str) -> bool:
        return not names.isdisjoint(_NAMES[role])

    return has("num_seqs") and has("num_blocks") and (has("step") or has("compile"))


def read_pair_table(path: str | Path, *, kernel: str) -> Evidence:
    """Read a table.

    Args:
        path: the file.
        kernel: of rows that do not say.

    Raises:
        InputError: with file, line and column of the first fault.
    """
    table = read_table(path, what="a table of rung pairs and seconds")
    found = {role: _column(table.header, role, path) for role in _NAMES}
    if found["num_seqs"] is None or found["num_blocks"] is None or not (found["step"] or found["compile"]):
        raise InputError(f"columns {', '.join(table.header)[:200]}", EXPECTED, path=path, line=1)
    parts = []
    for row in table.rows:
        timed = [
            (quantity, seconds)
            for quantity, role in ((STEP, "step"), (COMPILE, "compile"))
            if (seconds := _seconds(row, found[role])) is not None
        ]
        if not timed:
            row.refuse(found["step"] or found["compile"] or "", "seconds of a step or of a compile")
        own = row.text(found["kernel"] or "", kernel)
        if own not in KERNELS:
            row.refuse(found["kernel"] or "", f"one of {', '.join(KERNELS)}")
        pair = row.size(found["num_seqs"]), row.size(found["num_blocks"])
        parts += [(quantity, own, *pair, seconds) for quantity, seconds in timed]
    samples = {
        quantity: Samples.of(
            quantity=quantity,
            kernel=[part[1] for part in chosen],
            num_seqs=[part[2] for part in chosen],
            num_blocks=[part[3] for part in chosen],
            seconds=[part[4] for part in chosen],
            source=str(path),
        )
        for quantity in (STEP, COMPILE)
        if (chosen := [part for part in parts if part[0] == quantity])
    }
    known = {name for name in found.values() if name is not None}
    return Evidence(
        samples=samples.get(STEP, Samples.empty()),
        variant_samples=samples.get(COMPILE, Samples.empty()),
        sources=(Source(str(path), table.sha256, len(table.rows), KIND),),
        notes=tuple(
            f"{path}: column {name!r} is none of a table's and was left aside"
            for name in table.header
            if name not in known
        ),
    )


def _column(header: Sequence[str], role: str, path: str | Path) -> str | None:
    meant = [name for name in header if plain_name(name) in _NAMES[role]]
    if len(meant) > 1:
        raise InputError(f"columns {' and '.join(meant)}", "one of them", path=path, line=1)
    return meant[0] if meant else None


def _seconds(row: Row, column: str | None) -> float | None:
    if column is None:
        return None
    return row.seconds_or_none(column, unit_seconds=1e-3 if plain_name(column) in _IN_MILLISECONDS else 1.0)
