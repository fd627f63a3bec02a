"""The pictures of docs/explanation/problem.md, drawn from the bundled sample trace.

python -m scripts.docs_figures          draw them into docs/figures/ (about a minute)
"""

# mypy: disable-error-code="attr-defined,name-defined"
# Names of the package load on first use; mypy's strict mode takes none of them as exported.

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import ladder_opt as lo

REPOSITORY = Path(__file__).resolve().parent.parent
FIGURES = REPOSITORY / "docs" / "figures"
REPLICAS = 80
_DEFAULT, _PLAN = "tab:orange", "tab:blue"


def padding_figure(steps: lo.StepHistogram, engine: lo.Engine, plan: lo.Plan) -> Figure:
    """How often the longest sequence of a step has b blocks, and what each ladder pads it to."""
    blocks = np.arange(1, engine.max_num_blocks + 1)
    batched = steps.batched(engine)
    counts = np.bincount(steps.num_blocks[batched], steps.steps[batched], minlength=len(blocks) + 1)[1:]
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.4])
    top.bar(blocks, counts / counts.sum(), width=1.0, color="0.6")
    top.set_ylabel("share of steps")
    for label, rungs, colour in (
        ("default ladder", lo.default_ladders(engine).num_blocks, _DEFAULT),
        ("plan", plan.num_blocks, _PLAN),
    ):
        padded = np.array(rungs)[np.searchsorted(rungs, blocks)]
        below.step(blocks, padded, where="post", color=colour, label=f"{label}, {len(rungs)} rungs")
    below.plot(blocks, blocks, color="0.6", linestyle=":", label="no padding")
    below.set_xlabel("blocks of the step's longest sequence")
    below.set_ylabel("padded to")
    below.legend(frameon=False, fontsize="small")
    return figure


def grid_figure(steps: lo.StepHistogram, engine: lo.Engine, plan: lo.Plan) -> Figure:
    """Where the steps are on the grid of batch shapes, and the cells that ladders cut it into."""
    grid = steps.to_grid(engine)[engine.min_batched_seqs :, 1:]
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    default = lo.default_ladders(engine)
    both = figure.subplots(1, 2)
    for axes, title, seqs, blocks in (
        (both[0], "default ladders", default.num_seqs, default.num_blocks),
        (both[1], "plan", plan.num_seqs, plan.num_blocks),
    ):
        extent = (0.5, engine.max_num_blocks + 0.5, engine.min_batched_seqs - 0.5, engine.max_num_seqs + 0.5)
        axes.imshow(
            np.log10(np.maximum(grid, 0.5)),
            origin="lower", aspect="auto", extent=extent, cmap="Greys", interpolation="none",
        )  # fmt: skip
        for rung in seqs:
            axes.axhline(rung + 0.5, color=_PLAN, linewidth=0.6)
        for rung in blocks:
            axes.axvline(rung + 0.5, color=_PLAN, linewidth=0.6)
        axes.set_title(f"{title}: {len(seqs)} x {len(blocks)} rungs", fontsize="medium")
        axes.set_xlabel("blocks of the longest sequence")
        axes.set_ylabel("sequences")
    return figure


def frontier_figure(frontier: lo.Frontier, plan: lo.Plan) -> Figure:
    """Every warm-up that some ladders have, and the least step time that goes with it."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    warmup = [price.warmup_seconds / 60 for price in frontier.prices]
    step = [price.step_seconds / 3600 for price in frontier.prices]
    axes.plot(warmup, step, color=_PLAN, linewidth=1.2, label="best possible")
    default = plan.default
    if default is not None:
        axes.plot(
            default.warmup_seconds / 60, default.step_seconds / 3600,
            "o", color=_DEFAULT, label="default ladders",
        )  # fmt: skip
    chosen = frontier.prices[frontier.chosen]
    axes.plot(
        chosen.warmup_seconds / 60, chosen.step_seconds / 3600,
        "o", color=_PLAN, label="least in all, at a start a day",
    )  # fmt: skip
    axes.set_xlabel("warm-up, minutes")
    axes.set_ylabel("step time of the trace, hours")
    axes.legend(frameon=False, fontsize="small")
    return figure


def draw(folder: Path, trace: lo.Trace, *, replicas: int) -> list[Path]:
    """Draw all of them, the same bytes from the same versions.

    Returns:
        The files.
    """
    mpl.use("svg")
    engine = lo.Engine()
    plan = lo.tune(trace, replay_options=lo.ReplayOptions(replicas=replicas))
    replay = lo.simulate(trace, engine, lo.read_cost_model(), ladders=plan.ladders, replicas=replicas)
    frontier = lo.frontier(replay, options=lo.SolveOptions())
    figures = {
        "padding.svg": padding_figure(replay.steps, engine, plan),
        "grid.svg": grid_figure(replay.steps, engine, plan),
        "frontier.svg": frontier_figure(frontier, plan),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "ladder_opt", "svg.fonttype": "none", "font.size": 9}):
        for name, figure in figures.items():
            figure.savefig(folder / name, metadata={"Date": None})
    return [folder / name for name in figures]


def main() -> int:
    """Draw them into docs/figures."""
    trace = lo.read_trace(REPOSITORY / "traces" / "sample.parquet")
    for path in draw(FIGURES, trace, replicas=REPLICAS):
        sys.stdout.write(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
