"""The cost model against published hardware figures: ratios of the Spyre plugin's presets.

    python -m benchmarks.published                the table, and what else there is to say
    python -m benchmarks.published --write-doc    the same into docs/published-figures.md, with its figure

One set of parameters for all rows: attention's share of a step (base, per_seq and a chunk of the kernel),
seconds a compiled graph, the fixed warm-up. They are fitted by `derive_builtin_cost` to three workloads, as
its notes say; the two others are told by that fit, and each of the three by a fit to the other two, which is
the error to expect of rows that nobody has fitted.

Ends with code 1 where a limit below is not kept by the rows fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import least_squares, linprog

from benchmarks import common
from benchmarks.derive_builtin_cost import (
    WEIGHT,
    compile_terms,
    fit_compile,
    fit_step,
    published_warmup_ratios,
    step_terms,
    throughput_ratios,
)
from benchmarks.published_figures import (
    FITTED,
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

_PARTS: Final = 2e-5  # to which the smallest possible error is found


def fitted(weight: Floats = WEIGHT) -> tuple[Floats, Floats]:
    """Modelled (throughput, warm-up) ratios, each (workload, preset), of a fit to the weighted workloads."""
    return (
        throughput_ratios(step_terms(fit_step(MEASURED_THROUGHPUT, weight))),
        published_warmup_ratios(fit_compile(MEASURED_WARMUP, weight)),
    )


def told() -> tuple[Floats, Floats]:
    """The same, no workload fitted to its own rows: those fitted by the other two, the rest by all three."""
    ratios = [fitted(WEIGHT * (1.0 - row)) for row in np.eye(len(WORKLOADS))]
    throughput = np.array([each[0][at] for at, each in enumerate(ratios)])
    return throughput, np.array([each[1][at] for at, each in enumerate(ratios)])


def as_one_chain() -> Floats:
    """Warm-up ratios of a fit that takes all starts to be measured alike."""
    return published_warmup_ratios(fit_compile(MEASURED_WARMUP, WEIGHT, chains=False))


def three_presets(measured: Floats = MEASURED_WARMUP) -> tuple[float, Floats, Floats]:
    """What `pow2`, `4_3` and `9_8` say without the other two, in the workloads fitted.

    Seconds of a per-sequence graph, of a batched one and of its iterations are fitted to the ratios of the
    three presets' starts among each other, so that neither `8_5` nor `uniform` has a say.

    Returns:
        The largest relative residual of these ratios, and, for each workload, what the published starts of
        `8_5` and of `uniform` are over the fit's.
    """
    counts, logs = WARMUP[FITTED], np.log(measured[FITTED])
    used = [PRESETS.index(preset) for preset in ("pow2", "4_3", "9_8")]

    def beyond_fit(fit: Floats) -> Floats:
        """Logs of published starts, (workload, preset), up to a constant of the workload."""
        beyond = logs - np.log(counts @ compile_terms(fit))[:, 1:]
        return np.asarray(beyond - beyond[:, used].mean(axis=1, keepdims=True))

    def residuals(fit: Floats) -> Floats:
        return beyond_fit(fit)[:, used].ravel()

    found = least_squares(residuals, np.log([0.08, 0.2, 0.01]))
    seconds = np.log(counts @ compile_terms(found.x))
    baseline = (seconds[:, 1:] - logs)[:, used].mean(axis=1) - seconds[:, 0]
    uniform = beyond_fit(found.x)[:, PRESETS.index("uniform")]
    return float(np.abs(found.fun).max()), np.exp(baseline), np.exp(uniform)


def smallest_worst_error() -> float:
    """The least that the worst ratio fitted is off by, whatever the seconds, had starts been measured alike.

    A start is any sum, with seconds of 0 or more, of what `warmup_features` counts and of squared iterations.
    For an error e, `(r - e) start(8_5) <= start(preset) <= (r + e) start(8_5)` of all rows is a linear
    programme in the seconds, and e is found by bisection.
    """
    counts = np.concatenate([WARMUP, WARMUP[:, :, 3:] ** 2], axis=2)[FITTED]
    counts = counts / counts.mean(axis=(0, 1))
    reference, presets = counts[:, :1], counts[:, 1:]
    ratio = MEASURED_WARMUP[FITTED][:, :, None]
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
    throughput_told, warmup_told = told()
    return [
        {
            "workload (KV tokens, context, batch)": (
                f"{load.kv_low}-{load.kv_high}, {load.max_model_len}, {load.batch}"
                f"{'' if load.fitted else ' (set aside)'}"
            ),
            "preset": preset,
            "throughput": f"{MEASURED_THROUGHPUT[at, column]:.2f}",
            "modelled": f"{throughput[at, column]:.3f}",
            "told": f"{throughput_told[at, column]:.3f}",
            "warm-up": f"{MEASURED_WARMUP[at, column]:.2f}",
            "modelled ": f"{warmup[at, column]:.2f}",
            "told ": f"{warmup_told[at, column]:.2f}",
        }
        for at, load in enumerate(WORKLOADS)
        for column, preset in enumerate(PRESETS)
    ]


def summary() -> list[dict[str, object]]:
    """Errors of each way to fit, a row each."""
    throughput, warmup = fitted()
    kinds = [
        ("three workloads, fitted", (throughput, warmup), FITTED),
        ("two set aside, told by the three", (throughput, warmup), ~FITTED),
        ("all five, as the three tell them", (throughput, warmup), FITTED | True),
        ("each of the three told by the other two", told(), FITTED),
        ("three fitted, starts taken as measured alike", (throughput, as_one_chain()), FITTED),
    ]
    made: list[dict[str, object]] = []
    for name, (one, other), which in kinds:
        mean, worst = error(one[which], MEASURED_THROUGHPUT[which])
        warm_mean, warm_worst = error(other[which], MEASURED_WARMUP[which])
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
    """What is not kept by the workloads fitted, a line each."""
    throughput, warmup = fitted()
    found = {
        "throughput": error(throughput[FITTED], MEASURED_THROUGHPUT[FITTED]),
        "warm-up": error(warmup[FITTED], MEASURED_WARMUP[FITTED]),
    }
    return [
        f"{name}: {kind} error {value:.3f}, expected at most {limit:g}"
        for name, values in found.items()
        for kind, value, limit in zip(("mean", "largest"), values, LIMITS[name], strict=True)
        if value > limit
    ]


def figure(path: Path) -> None:
    """Modelled against measured, both kinds of ratio; crosses are workloads told by others."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "published"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    panes, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    measured = {"throughput": MEASURED_THROUGHPUT, "warm-up": MEASURED_WARMUP}
    for axis, name, modelled, unfitted in zip(axes, measured, fitted(), told(), strict=True):
        ends = np.array([measured[name].min(), measured[name].max()])
        axis.plot(ends, ends, color="black", lw=0.8)
        limit = LIMITS[name][1]
        axis.fill_between(ends, ends - limit, ends + limit, color="0.93", label=f"within {limit:g}")
        for column, preset in enumerate(PRESETS):
            color = f"C{column}"
            published = measured[name][:, column]
            axis.plot(published[FITTED], modelled[FITTED, column], "o", ms=5, color=color, label=preset)
            axis.plot(published, unfitted[:, column], "x", ms=5, color=color)
        axis.set(xlabel=f"{name} relative to 8_5, published", ylabel="modelled")
    axes[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    panes.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(panes)


def starts_measured_apart() -> str:
    """What the workloads fitted say of how starts were measured."""
    residual, baseline, uniform = three_presets()

    def each(factors: Floats) -> str:
        return ", ".join(f"{factor:.2f}" for factor in factors)

    return (
        "If all starts had been measured alike, no seconds of 0 or more would bring the worst warm-up ratio "
        f"of the three below an error of {smallest_worst_error():.3f}. The starts of `pow2`, `4_3` and `9_8` "
        f"among each other follow the counts to {100 * residual:.1f} %; against that fit the starts of `8_5` "
        f"took {each(baseline)} times as long in the three workloads, those of `uniform` {each(uniform)}."
    )


def document() -> str:
    """What stands between the markers of the page."""
    return (
        f"\n{common.markdown_table(summary())}\n\n{starts_measured_apart()}\n\n"
        f"{common.markdown_table(rows())}\n"
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
    print(starts_measured_apart())
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
