"""What `ladder-opt measure` did, as text for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.engine import Engine

_ENGINE_OPTIONS = ("block_size", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "num_kv_blocks")
_STOPPED = {
    "done": "measured all points asked for",
    "time limit": "stopped at the time limit",
    "interrupted": "interrupted",
}


def measurement_text(found: dict[str, Any], engine: Engine) -> RenderableType:
    """A headline, how far predictions from the rows may be off, and what to do next; not to be wrapped.

    Args:
        found: `ladder_opt.measurement.api.Measurements.to_dict()`.
        engine: what was measured for.
    """
    headline = (
        f"{_STOPPED[found['stopped']]}: {found['rows']} rows in {found['path']}, {found['new']} of them new"
    )
    parts: list[RenderableType] = [Text(headline)]
    if found["left"]:
        parts.append(Text(f"{found['left']} points are left; the same command goes on with them"))
    if found["expected_errors"]:
        table = Table(box=None, pad_edge=False)
        table.add_column("kernel")
        table.add_column("predictions of")
        for column in ("expected error", "90% below"):
            table.add_column(column, justify="right")
        for kernel, errors in found["expected_errors"].items():
            for name, error in errors.items():
                what = "steps" if name == "step" else "compiles"
                table.add_row(kernel, what, f"{error['median']:.1%}", f"{error['p90']:.1%}")
        parts += ["", table]
    if found["rows"]:
        kernel = f" --kernel {found['kernels'][0]}" if len(found["kernels"]) > 1 else ""
        parts += [
            "",
            Text(f"next: ladder-opt calibrate {found['path']}{kernel}{_options_of(engine)} -o COST.json"),
        ]
    return Group(*parts)


def _options_of(engine: Engine) -> str:
    """The options of the command line that name an engine, as far as it is not the default one."""
    values = {name: getattr(engine, name) for name in _ENGINE_OPTIONS}
    given = {name: value for name, value in values.items() if value != getattr(Engine(), name)}
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items())
