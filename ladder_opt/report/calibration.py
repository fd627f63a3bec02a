"""A calibrated cost model as text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ladder_opt.cost.model import CostModel


def calibration_text(cost: CostModel) -> RenderableType:
    """What a calibration found, how sure it is, and where it holds."""
    fit: dict[str, Any] = cost.fit or {}
    return _server_text(fit) if fit.get("kind") == "request_records" else _mixed_text(cost, fit)


def _mixed_text(cost: CostModel, fit: dict[str, Any]) -> RenderableType:
    """A model of several joint fits."""
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter", no_wrap=True)
    for column in ("value", "95% interval", "unit"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    files = list(dict.fromkeys(path for one in fit["parameters"].values() for path in one["told_by"]))
    for name, one in fit["parameters"].items():
        sure = "" if one["told_from_zero"] else " *"
        interval = f"{one['low']:.3g} to {one['high']:.3g}"
        by = ", ".join(str(files.index(path) + 1) for path in one["told_by"])
        table.add_row(name, f"{one['value']:.4g}", interval, one["unit"].replace("/graph", ""), f"{by}{sure}")
    entries = fit["parameters"].values()
    legend = ", ".join(f"{at} {Path(path).name}" for at, path in enumerate(files, start=1))
    if not all(one["told_from_zero"] for one in entries):
        legend += "; *: not told from zero"
    graphs = "1 graph" if cost.graphs_per_variant == 1 else f"{cost.graphs_per_variant} graphs"
    lines: list[RenderableType] = [
        f"kernel {cost.kernel}; {graphs} a variant",
        "",
        table,
        f"from: {legend}",
        *(["compile_seconds: of one graph"] if any("/graph" in each["unit"] for each in entries) else []),
        "",
    ]
    for name, each in fit["residuals"].items():
        spread = each["relative"]
        lines.append(
            f"{name}: {each['rows']:,} rows, R2 {each['r_squared']:.3f}; measured {spread['p5']:+.1%} to "
            f"{spread['p95']:+.1%} off fitted (p5 to p95), {each['largest_relative']:.0%} at most"
        )
    for name, sizes in fit["range"].items():
        spans = ", ".join(f"{what} {low:,} to {high:,}" for what, (low, high) in sizes.items())
        lines.append(f"{name} measured at {spans}")
    if cost.startup_seconds:
        lines.append(f"start-up that no ladder changes: {cost.startup_seconds:.4g} s")
    for name, one in fit["tables"].items():
        lines.append(f"{name}: {'a table' if one['used'] else 'no table'}: {one['reason']}")
    return Group(*lines)


def _server_text(fit: dict[str, Any]) -> RenderableType:
    """A server's own steps, from its requests."""
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter", no_wrap=True)
    for column in ("value", "95% interval", "unit", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for name, one in fit["parameters"].items():
        sure = "" if one["told_from_zero"] else "not told from zero"
        table.add_row(
            name,
            f"{one['value']:.4g}",
            f"{one['low']:.4g} to {one['high']:.4g}",
            one["unit"],
            f"{one['share_of_mean_step']:.0%}",
            sure,
        )
    residuals = fit["residuals"]
    per_step = residuals["seconds_per_step"]
    ranges = ", ".join(
        f"{low:,.4g} to {high:,.4g} {name.replace('_per_step', '').replace('_', ' ')}"
        for name, (low, high) in fit["ranges"].items()
    )
    late = [residuals[f"{which}_token_mean_absolute_error_seconds"] for which in ("first", "last")]
    return Group(
        f"{fit['requests']:,} requests, {fit['rows']:,} with more than one token; {fit['rounds']} rounds of "
        "replay and fit",
        "",
        table,
        "",
        f"mean step {residuals['mean_step_seconds']:.4g} s, of which the shares above; half of the residuals "
        f"lie from {per_step['p25']:.2g} to {per_step['p75']:.2g} s",
        f"R2 {residuals['r_squared']:.2f}, outliers left out {residuals['robust_r_squared']:.2f}",
        f"the replay's first tokens are off by {late[0]:.3g} s on average, its last ones by {late[1]:.3g} s",
        f"seen in a step: {ranges}",
    )
