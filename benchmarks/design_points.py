"""Do twenty points that `ladder-opt measure` chooses predict a whole grid of this machine's seconds?

The batched decode kernel of a small model is measured here at `--points` rung pairs, chosen as the tool does,
and a cost model fitted to them (`ladder-opt calibrate`). Then the same rows file is gone on with to a full
grid of 8 x 8 pairs, in units of the same references, and the fit, which has seen the chosen points alone, is
held against it: steps and compiles, over the pairs of the grid that were not among the points. Seconds are
CPU time, of steps the lower quartiles, as the tool takes them; a row of the grid is measured once, and its
own noise counts as error too. Predictions are the formula's, and those of a table interpolated between the
points (`calibrate --table interpolated`); the limit is on the latter. Beside it: how far a formula fitted to
the whole grid is off its own rows, which no choice of points could better by much.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from ladder_opt.calibration.api import calibrate
from ladder_opt.calibration.measurement_rows import MeasurementRow
from ladder_opt.engine import Engine
from ladder_opt.measurement.api import Measurements, OpenBench, kernel_bench, measure
from ladder_opt.measurement.bench import Bench
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.measurement.options import MeasureOptions

ENGINE: Final = Engine(block_size=64, max_num_seqs=32, max_model_len=8 * 64)
SHAPE: Final = ModelShape(num_query_heads=4, num_kv_heads=2, head_size=64, layers=2)
NUM_SEQS: Final = (4, 6, 8, 11, 16, 20, 26, 32)
NUM_BLOCKS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
PAGE: Final = common.REPOSITORY / "docs" / "measure.md"


@dataclass(frozen=True)
class Outcome:
    """What was predicted of the grid, and measured.

    Attributes:
        points: rung pairs that the fit has seen.
        own: for "steps" and "compiles" how far a fit to the whole grid is off its rows: what the formula
            itself misses on this machine, whatever the points.
        errors: for the same predicted / measured - 1, of the pairs that the fit has not seen.
        between: the same of tables interpolated between the points.
        expected: for the same the 90th percentile of errors that `measure` said to expect.
        warnings: of the measurement.
    """

    points: int
    own: dict[str, NDArray[np.float64]]
    errors: dict[str, NDArray[np.float64]]
    between: dict[str, NDArray[np.float64]]
    expected: dict[str, float]
    warnings: tuple[str, ...]

    def worst(self) -> float:
        """Largest error of all, interpolated."""
        return max(float(np.abs(each).max()) for each in self.between.values())


def run(
    folder: Path,
    options: MeasureOptions,
    *,
    engine: Engine = ENGINE,
    shape: ModelShape = SHAPE,
    grid: tuple[Sequence[int], Sequence[int]] = (NUM_SEQS, NUM_BLOCKS),
    open_bench: OpenBench = kernel_bench,
) -> Outcome:
    """Measure the points and fit; measure the grid and compare, on one bench: no pair compiles twice."""
    with open_bench(engine, shape, options) as bench:

        @contextlib.contextmanager
        def opened(*_: object) -> Iterator[Bench]:
            yield bench

        chosen = measure(folder / "points.csv", engine, shape, options=options, open_bench=opened)
        shutil.copy(folder / "points.csv", folder / "grid.csv")
        asked = replace(options, num_seqs=tuple(grid[0]), num_blocks=tuple(grid[1]))
        whole = measure(folder / "grid.csv", engine, shape, options=asked, open_bench=opened)
    return _compared(chosen, whole, engine, options.kernels[0])


def _compared(chosen: Measurements, whole: Measurements, engine: Engine, kernel: str) -> Outcome:
    rows = whole.rows[len(chosen.rows) :]
    said = chosen.expected_errors[kernel]
    return Outcome(
        points=len(chosen.rows),
        own=_errors(whole.path, whole.rows, engine, kernel),
        errors=_errors(chosen.path, rows, engine, kernel),
        between=_errors(chosen.path, rows, engine, kernel, table="interpolated"),
        expected={f"{name}s": high for name, (_, high) in said.items()},
        warnings=tuple(dict.fromkeys((*chosen.warnings, *whole.warnings))),
    )


def _errors(
    fitted_to: Path,
    rows: Sequence[MeasurementRow],
    engine: Engine,
    kernel: str,
    *,
    table: Literal["never", "interpolated"] = "never",
) -> dict[str, NDArray[np.float64]]:
    """Predicted / measured - 1 of rows, by the formula fitted to a file or a table interpolated in it."""
    cost = calibrate(fitted_to, engine, kernel=kernel, table=table).cost
    seqs, blocks = ([getattr(row, name) for row in rows] for name in ("num_seqs", "num_blocks"))
    predicted = {"steps": cost.batched_step_seconds(seqs, blocks) / (rows[0].layers or 1)}
    measured = {"steps": [row.step_seconds for row in rows]}
    if all(row.compile_seconds for row in rows):
        predicted["compiles"] = cost.variant_compile_seconds(seqs, blocks) / cost.graphs_per_variant
        measured["compiles"] = [row.compile_seconds for row in rows]
    return {name: each / np.array(measured[name], np.float64) - 1 for name, each in predicted.items()}


def table_rows(outcome: Outcome) -> list[dict[str, str]]:
    """Steps and compiles: a row for the formula, and one for the table."""
    rows = []
    for how, found in (("by the formula", outcome.errors), ("interpolated", outcome.between)):
        for name, errors in found.items():
            sizes = np.abs(errors)
            said, own = outcome.expected[name], np.abs(outcome.own[name])
            is_formula = found is outcome.errors
            rows.append(
                {
                    "predictions of": f"{name}, {how}",
                    "points": str(outcome.points),
                    "pairs predicted": str(len(sizes)),
                    "mean error": f"{sizes.mean():.1%}",
                    "90% below": f"{np.quantile(sizes, 0.9):.1%}",
                    "worst": f"{sizes.max():.1%}",
                    "90% below, as expected": f"{said:.1%}" if is_formula else "",
                    "fit to all: mean": f"{own.mean():.1%}" if is_formula else "",
                    "worst ": f"{own.max():.1%}" if is_formula else "",
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a pair of the grid is predicted worse than the limit."""
    parser = common.parser("design_points", __doc__)
    parser.add_argument("--points", type=int, default=20, help="rung pairs to fit to [20]")
    parser.add_argument("--kernel", choices=["chunked", "per_block"], default="chunked")
    parser.add_argument("--compiler", default="inductor", help="eager: steps alone, in a minute")
    parser.add_argument("--head-size", type=int, default=SHAPE.head_size, help=f"[{SHAPE.head_size}]")
    parser.add_argument("--within", type=float, default=0.1, help="largest error allowed, interpolated [0.1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-doc", action="store_true", help="put the outcome into docs/measure.md")
    options = parser.parse_args(arguments)
    print(common.machine_line())
    asked = MeasureOptions(
        kernels=(options.kernel,), points=options.points, compiler=options.compiler, seed=options.seed
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), asked, shape=replace(SHAPE, head_size=options.head_size))
    verdict = f"worst error {outcome.worst():.1%} (limit {options.within:.0%})"
    print(common.text_table(table_rows(outcome)))
    print(verdict)
    for line in outcome.warnings:
        print(f"warning: {line}")
    if options.write_doc:
        calm = " ".join(f"Of the measurement: {line}." for line in outcome.warnings)
        body = "\n".join((common.markdown_table(table_rows(outcome)), "", f"{verdict}. {calm}".rstrip()))
        marks = ("<!-- design-points:begin -->", "<!-- design-points:end -->")
        PAGE.write_text(common.between(PAGE.read_text(encoding="utf-8"), *marks, body), encoding="utf-8")
    common.write_json(
        options.json, "design_points", {name: each.tolist() for name, each in outcome.between.items()}
    )
    return int(outcome.worst() > options.within)


if __name__ == "__main__":
    sys.exit(main())
