"""The cost model against published hardware figures: ratios of the Spyre plugin's presets.

    python -m benchmarks.published                the table, and what else there is to say
    python -m benchmarks.published --write-doc    the same into docs/published-figures.md, with its figure

One set of parameters for all rows: attention's share of a step (base, per_seq and a chunk of the kernel),
seconds a compiled graph, the fixed warm-up. They are fitted by `derive_builtin_cost`, whose notes say how;
here each workload is also left out in turn and told from the others, which is the error to expect of rows
that nobody has fitted.

Ends with code 1 where a limit below is not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import linprog

from benchmarks import common
from benchmarks.derive_builtin_cost import (
    fit_compile,
    fit_step,
    published_warmup_ratios,
    step_terms,
    throughput_ratios,
)
from benchmarks.published_figures import (
    MEASURED_THROUGHPUT,
    MEASURED_WARMUP,
    PRESETS,
    WARMUP,
    WORKLOADS,
    Floats,
)

DOC: Final = common.REPOSITORY / "docs" / "published-figures.md"
FIGURE: Final = common.REPOSITORY / "docs" / "figures" / "published.svg"
BEGIN, END = "<!-- published:begin -->", "<!-- published:end -->"

LIMITS: Final = {"throughput": (0.015, 0.03), "warm-up": (0.06, 0.14)}
"""(mean, largest) absolute error that a model with the right form should keep, in ratios."""

FIRST_THREE: Final = (0, 2, 4)
"""Workloads at contexts 16384 and 4096: to fit on these alone is the hardest test that the figures allow."""

_PARTS: Final = 2e-5  # to which the smallest possible error is found


def fitted(weight: Floats | None = None) -> tuple[Floats, Floats]:
    """Modelled (throughput, warm-up) ratios, each (workload, preset), of a fit to the weighted workloads."""
    weight = np.ones(len(WORKLOADS)) if weight is None else weight
    return (
        throughput_ratios(step_terms(fit_step(MEASURED_THROUGHPUT, weight))),
        published_warmup_ratios(fit_compile(MEASURED_WARMUP, weight)),
    )


def left_out() -> tuple[Floats, Floats]:
    """The same, each workload told by a fit to all others."""
    ratios = [fitted(1.0 - row) for row in np.eye(len(WORKLOADS))]
    throughput = np.array([each[0][at] for at, each in enumerate(ratios)])
    return throughput, np.array([each[1][at] for at, each in enumerate(ratios)])


def told_by_first_three() -> tuple[Floats, Floats]:
    """Ratios of the other workloads by a fit to `FIRST_THREE`."""
    weight = np.zeros(len(WORKLOADS))
    weight[list(FIRST_THREE)] = 1.0
    throughput, warmup = fitted(weight)
    return throughput[weight == 0], warmup[weight == 0]


def as_one_chain() -> Floats:
    """Warm-up ratios of a fit that takes all starts to be measured alike."""
    return published_warmup_ratios(fit_compile(MEASURED_WARMUP, np.ones(len(WORKLOADS)), chains=False))


def smallest_worst_error() -> float:
    """The least that the worst warm-up ratio is off by, whatever the seconds, had starts been measured alike.

    A start is any sum, with seconds of 0 or more, of what `warmup_features` counts and of squared iterations.
    For an error e, `(r - e) start(8_5) <= start(preset) <= (r + e) start(8_5)` of all rows is a linear
    programme in the seconds, and e is found by bisection.
    """
    counts = np.concatenate([WARMUP, WARMUP[:, :, 3:] ** 2], axis=2)
    counts = counts / counts.mean(axis=(0, 1))
    reference, presets = counts[:, :1], counts[:, 1:]
    ratio = MEASURED_WARMUP[:, :, None]
    low, high = 0.0, 1.0
    while high - low > _PARTS:
        error = (low + high) / 2
        rows = np.concatenate(
            [
                ((ratio - error) * reference - presets).reshape(-1, counts.shape[2]),
                (presets - (ratio + error) * reference).reshape(-1, counts.shape[2]),
            ]
        )
        found = linprog(
            np.zeros(counts.shape[2]),
            A_ub=rows,
            b_ub=np.zeros(len(rows)),
            A_eq=np.ones((1, counts.shape[2])),
            b_eq=[1.0],
        )
        low, high = (low, error) if found.status == 0 else (error, high)
    return low


def error(modelled: Floats, measured: Floats) -> tuple[float, float]:
    """(mean, largest) absolute difference."""
    off = np.abs(modelled - measured)
    return float(off.mean()), float(off.max())


def rows() -> list[dict[str, object]]:
    """Measured beside modelled, a row for each workload and preset."""
    throughput, warmup = fitted()
    throughput_left_out, warmup_left_out = left_out()
    return [
        {
            "workload (KV tokens, context, batch)": (
                f"{load.kv_low}-{load.kv_high}, {load.max_model_len}, {load.batch}"
            ),
            "preset": preset,
            "throughput": f"{MEASURED_THROUGHPUT[at, column]:.2f}",
            "modelled": f"{throughput[at, column]:.3f}",
            "left out": f"{throughput_left_out[at, column]:.3f}",
            "warm-up": f"{MEASURED_WARMUP[at, column]:.2f}",
            "modelled ": f"{warmup[at, column]:.2f}",
            "left out ": f"{warmup_left_out[at, column]:.2f}",
        }
        for at, load in enumerate(WORKLOADS)
        for column, preset in enumerate(PRESETS)
    ]


def summary() -> list[dict[str, object]]:
    """Errors of each way to fit, a row each."""
    others = [at for at in range(len(WORKLOADS)) if at not in FIRST_THREE]
    throughput, warmup = fitted()
    kinds: list[tuple[str, tuple[Floats, Floats], Any]] = [
        ("all workloads fitted", (throughput, warmup), slice(None)),
        ("each workload told by the others", left_out(), slice(None)),
        ("two told by the other three", told_by_first_three(), others),
        ("all fitted, starts taken as measured alike", (throughput, as_one_chain()), slice(None)),
    ]
    made: list[dict[str, object]] = []
    for name, (one, other), which in kinds:
        mean, worst = error(one, MEASURED_THROUGHPUT[which])
        warm_mean, warm_worst = error(other, MEASURED_WARMUP[which])
        made.append(
            {
                "": name,
                "throughput: mean error": f"{mean:.3f}",
                "largest": f"{worst:.3f}",
                "warm-up: mean error": f"{warm_mean:.3f}",
                "largest ": f"{warm_worst:.3f}",
            }
        )
    bounds: dict[str, object] = {"": "limits"}
    for name, (low, high) in LIMITS.items():
        bounds[f"{name}: mean error"], bounds["largest" if name == "throughput" else "largest "] = (
            f"{low:g}",
            f"{high:g}",
        )
    return [*made, bounds]


def broken_limits() -> list[str]:
    """What is not kept by the fit to all workloads, a line each."""
    throughput, warmup = fitted()
    found = {
        "throughput": error(throughput, MEASURED_THROUGHPUT),
        "warm-up": error(warmup, MEASURED_WARMUP),
    }
    return [
        f"{name}: {kind} error {value:.3f}, expected at most {limit:g}"
        for name, values in found.items()
        for kind, value, limit in zip(("mean", "largest"), values, LIMITS[name], strict=True)
        if value > limit
    ]


def figure(path: Path) -> None:
    """Modelled against measured, both kinds of ratio; crosses are workloads told by the others."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "published"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    panes, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    measured = {"throughput": MEASURED_THROUGHPUT, "warm-up": MEASURED_WARMUP}
    for axis, name, modelled, told in zip(axes, measured, fitted(), left_out(), strict=True):
        ends = np.array([measured[name].min(), measured[name].max()])
        axis.plot(ends, ends, color="black", lw=0.8)
        limit = LIMITS[name][1]
        axis.fill_between(ends, ends - limit, ends + limit, color="0.93", label=f"within {limit:g}")
        for column, preset in enumerate(PRESETS):
            color = f"C{column}"
            axis.plot(measured[name][:, column], modelled[:, column], "o", ms=5, color=color, label=preset)
            axis.plot(measured[name][:, column], told[:, column], "x", ms=5, color=color)
        axis.set(xlabel=f"{name} relative to 8_5, published", ylabel="modelled")
    axes[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    panes.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(panes)


def document() -> str:
    """What stands between the markers of the page."""
    return (
        f"\n{common.markdown_table(summary())}\n\n"
        "If all starts had been measured alike, no seconds of 0 or more would bring the worst warm-up ratio "
        f"below {smallest_worst_error():.3f}.\n\n{common.markdown_table(rows())}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write page and figure when asked to; 1 where a limit is broken."""
    parser = common.parser("published", __doc__)
    parser.add_argument("--write-doc", action="store_true", help="write the page's tables and the figure")
    options = parser.parse_args(arguments)
    print(common.text_table(rows()))
    print()
    print(common.text_table(summary()))
    print()
    print(f"smallest possible worst warm-up error, starts measured alike: {smallest_worst_error():.3f}")
    common.write_json(options.json, "published", {"rows": rows(), "errors": summary()})
    if options.write_doc:
        page = DOC.read_text(encoding="utf-8")
        DOC.write_text(common.between(page, BEGIN, END, document()), encoding="utf-8")
        figure(FIGURE)
    broken = broken_limits()
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
