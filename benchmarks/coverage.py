"""How often do the 95 % intervals of `ladder-opt calibrate` hold the truth?

Seconds of rung pairs are made up from known coefficients and noise, and fitted `--seeds` times in each of the
settings below, as `calibrate` fits its rows. The table says in what share of the fits each term's interval
held its coefficient. With 200 fits a true 95 % is seen as 92 to 98 % (two standard deviations either way).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from ladder_opt.calibration.term_fit import fit_terms
from ladder_opt.measurement.design import Candidates

STEP: Final = {"base": 0.16, "per_seq": 0.002, "per_iteration": 0.02, "per_gather": 2e-4}
COMPILE: Final = {"base": 0.4, "per_iteration": 0.05, "per_iteration_sq": 0.001}
GRID: Final = [(s, m) for s in (4, 8, 16, 32) for m in (1, 4, 16, 64)]
LOW_GRID: Final = [(s, m) for s in (4, 8, 16) for m in (1, 4, 8, 16)]
CHOSEN: Final = [(32, 64), (4, 1), (32, 1), (4, 64), (11, 16), (32, 8), (16, 64), (8, 64), (4, 20), (20, 3)]
LOWEST: Final = 0.90  # of any term in any setting: of 200 fits, a true 95 % is lower once in a thousand times


@dataclass(frozen=True)
class Setting:
    """Rows of known coefficients.

    Attributes:
        name: in words.
        pairs: rung pairs measured.
        truth: seconds by term, of steps or of compiles.
        noise: relative standard deviation of a row; of `uneven` rows from 0.4 to 1.6 times that.
        shape: of the noise: "normal", "heavy" (Student's t of 3 degrees) or "uneven".
    """

    name: str
    pairs: Sequence[tuple[int, int]]
    truth: Mapping[str, float]
    noise: float = 0.05
    shape: str = "normal"

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Units of each term."""
        seqs, blocks = np.array(self.pairs).T
        rows = Candidates("chunked", seqs, blocks)
        return rows.step_terms() if "per_gather" in self.truth else rows.compile_terms()

    def factors(self, seed: int) -> NDArray[np.float64]:
        """What the rows are off by."""
        rng, rows = np.random.default_rng(seed), len(self.pairs)
        if self.shape == "heavy":
            return np.asarray(np.exp(self.noise * rng.standard_t(3, rows) / np.sqrt(3)))
        sizes = np.linspace(0.4, 1.6, rows) if self.shape == "uneven" else np.ones(rows)
        return np.asarray(np.exp(self.noise * sizes * rng.standard_normal(rows)))


SETTINGS: Final = (
    Setting("steps, 16 pairs", GRID, STEP),
    Setting("steps, 10 pairs", CHOSEN, STEP),
    Setting("steps, 16 pairs, uneven noise", GRID, STEP, shape="uneven"),
    Setting("compiles, 16 pairs", GRID, COMPILE),
    Setting("compiles, 10 pairs, 10 % noise", CHOSEN, COMPILE, noise=0.1),
    Setting("compiles, up to 8 iterations", LOW_GRID, COMPILE | {"per_iteration_sq": 0.0}),
    Setting("compiles, 16 pairs, heavy tails", GRID, COMPILE, shape="heavy"),
)


def coverage(setting: Setting, seeds: int) -> dict[str, float]:
    """For each term the share of the intervals that hold its coefficient."""
    columns = setting.columns()
    exact = np.sum([columns[name] * value for name, value in setting.truth.items()], axis=0)
    held = dict.fromkeys(setting.truth, 0)
    for seed in range(seeds):
        fit = fit_terms(columns, exact * setting.factors(seed), seed=seed)
        for name, value in setting.truth.items():
            term = fit.term(name)
            held[name] += term.low <= value * (1 + 1e-9) and value * (1 - 1e-9) <= term.high
    return {name: count / seeds for name, count in held.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where an interval holds the truth too seldom."""
    parser = common.parser("coverage", __doc__)
    parser.add_argument("--seeds", type=int, default=200, help="fits of each setting [200]")
    options = parser.parse_args(arguments)
    print(common.machine_line())
    found = {setting.name: coverage(setting, options.seeds) for setting in SETTINGS}
    names = list(dict.fromkeys([*STEP, *COMPILE]))
    rows = [
        {"setting": setting} | {name: f"{each[name]:.1%}" if name in each else "" for name in names}
        for setting, each in found.items()
    ]
    print(common.text_table(rows))
    common.write_json(options.json, "coverage", found)
    lowest = min(min(each.values()) for each in found.values())
    print(f"{options.seeds} fits of each setting; lowest {lowest:.1%} (limit {LOWEST:.0%})")
    return int(lowest < LOWEST)


if __name__ == "__main__":
    sys.exit(main())
