"""What `ladder-opt verify` found, as text for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_opt.units import duration_text


def verification_text(found: dict[str, Any]) -> RenderableType:
    """A headline, and what it stands on.

    Args:
        found: `ladder_opt.reference.verify.Verification.to_dict()`.
    """
    failures = found["failures"]
    skipped = found["variants"] - found["compiled"]
    headline = "holds: every batch met a recorded variant, and nothing compiled after warm-up"
    if failures:
        headline = f"fails: {'; '.join(failures)}"
    elif skipped:
        headline = f"holds for the {found['compiled']} variants that were compiled; {skipped} were not tried"
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("variants compiled", f"{found['compiled']:,} of {found['variants']:,}"),
        ("compiled in", duration_text(found["compile_seconds"])),
        ("batches built", f"{found['batches_built']:,}"),
        ("  run by the kernel", f"{found['batches_run']:,}"),
        ("  on the per-sequence path", f"{found['batches_per_sequence']:,}"),
        ("  on variants not compiled", f"{found['batches_skipped']:,}"),
        ("padded and unpadded differ by", f"{found['largest_difference']:.1e} at most"),
    ):
        table.add_row(name, value)
    return Group(Text(headline), "", table)
