"""Which rung pairs to measure, so that few of them tell the seconds of all.

Problem. The cost model says y = theta . x for terms x of a rung pair (base, num_seqs, iterations, gathers;
for compiles base, iterations, iterations^2), and a real kernel is a little off it, smoothly in the sizes. Let
z = y / (theta . x) be the relative time. We take z as a Gaussian process: its mean in the span of the scaled
terms x / (theta . x), its deviations of standard deviation `misfit` with correlation
exp(-distance / `CORRELATION`) in the logarithms of sequences, iterations and blocks an iteration, and
measuring noise on top (universal kriging). The variance of the prediction at a pair not measured is then
known from the points measured so far, without their values.

Rule. The next point is the candidate whose measurement lowers the mean relative variance of steps and
compiles over all candidates the most (I-optimality). Lower corners of a plain linear model's design would be
measured again and again; here a point nearby says little more. Before there is a fit, points are spread: the
next is the candidate farthest from those taken, starting with the corners.

Candidates are one pair for each variant, its largest num_blocks, on all sizes where they are few, else on
sizes spaced evenly in their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.interpolation import log_sizes, spaced
from ladder_opt.calibration.term_fit import TermFit
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.engine import Engine
from ladder_opt.measurement.bench import Point

CORRELATION = 0.35  # of the axis' whole range of logarithms
_LEAST_MISFIT = 0.02
_USUAL_MISFIT = 0.1  # of a kernel from its formula, where rows are too few to say
NOISE = 0.02  # relative, of one measured point
MOST_CANDIDATES = 1_200
_LOOKED_AT = 200  # pairs whose variance a choice looks at
_SPREAD_FIRST = 6  # points before the first fit: as many as the larger of the fits needs, and a half more

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rung pairs of one kernel that may be measured; all arrays are (candidates,).

    Attributes:
        kernel: its name.
        num_seqs: padded sequences.
        num_blocks: padded blocks.
    """

    kernel: str
    num_seqs: NDArray[np.int64]
    num_blocks: NDArray[np.int64]

    @classmethod
    def of(cls, engine: Engine, kernel: str, *, most: int = MOST_CANDIDATES) -> Candidates:
        """One pair for each variant that the engine's pool can run, thinned to about `most`."""
        geometry = get_kernel(kernel)
        seqs = np.arange(engine.min_batched_seqs, engine.max_num_seqs + 1)
        blocks = np.arange(1, engine.max_num_blocks + 1)
        if len(seqs) * len(blocks) > 4 * most:
            side = max(int(np.sqrt(4 * most * len(seqs) / len(blocks))), 4)
            seqs = spaced(seqs, side)
            blocks = spaced(blocks, 4 * most // len(seqs))
        s, m = (axis.ravel() for axis in np.meshgrid(seqs, blocks, indexing="ij"))
        runs = geometry.entries(s, m) < engine.num_pages
        s, m = s[runs], m[runs]
        keys = geometry.variant_key(s, m)
        order = np.lexsort((-m, keys))  # of each variant the largest first
        _, first = np.unique(keys[order], return_index=True)
        s, m = s[order][first], m[order][first]
        if len(s) > most:
            at = np.unique(np.linspace(0, len(s) - 1, most).round().astype(int))
            s, m = s[at], m[at]
        return cls(kernel, s, m)

    def __len__(self) -> int:
        return len(self.num_seqs)

    def point(self, at: int) -> Point:
        """The candidate at an index."""
        return Point(self.kernel, int(self.num_seqs[at]), int(self.num_blocks[at]))

    def with_points(self, points: Sequence[Point]) -> Candidates:
        """These, and before them points from elsewhere."""
        return Candidates(
            self.kernel,
            np.concatenate([np.array([p.num_seqs for p in points], np.int64), self.num_seqs]),
            np.concatenate([np.array([p.num_blocks for p in points], np.int64), self.num_blocks]),
        )

    def step_terms(self) -> dict[str, Floats]:
        """Units of each term of `CostModel.step_seconds`."""
        geometry = get_kernel(self.kernel)
        return {
            "base": np.ones(len(self)),
            "per_seq": self.num_seqs.astype(np.float64),
            "per_iteration": geometry.iterations(self.num_seqs, self.num_blocks).astype(np.float64),
            "per_gather": geometry.gathers(self.num_seqs, self.num_blocks).astype(np.float64),
        }

    def compile_terms(self) -> dict[str, Floats]:
        """Units of each term of `CostModel.compile_seconds`."""
        iterations = get_kernel(self.kernel).iterations(self.num_seqs, self.num_blocks).astype(np.float64)
        return {"base": np.ones(len(self)), "per_iteration": iterations, "per_iteration_sq": iterations**2}

    def places(self) -> Floats:
        """(candidates, 3): logarithms of sequences, iterations and blocks an iteration; each axis 0 to 1."""
        axes = log_sizes(get_kernel(self.kernel), self.num_seqs, self.num_blocks)
        low, high = axes.min(axis=0), axes.max(axis=0)
        return np.asarray((axes - low) / np.maximum(high - low, 1e-9))


def next_point(
    candidates: Candidates,
    measured: Sequence[Point],
    fits: Mapping[str, TermFit],
    *,
    noise: float = NOISE,
) -> Point | None:
    """The candidate to measure next; None where all are.

    Args:
        candidates: of one kernel.
        measured: points of that kernel that are measured, candidates or not.
        fits: the fits so far, `step` and `compile`; none yet: points are spread.
        noise: relative standard error of a measured point.
    """
    taken = set(measured)
    left = np.array([candidates.point(at) not in taken for at in range(len(candidates))])
    if not left.any():
        return None
    every = candidates.with_points(measured)
    places = every.places()
    count = len(measured)
    if not fits or count < _SPREAD_FIRST:
        return candidates.point(_farthest(places[:count], places[count:], left))
    gain = np.zeros(len(candidates))
    for name, fit in fits.items():
        terms = every.step_terms() if name == "step" else every.compile_terms()
        gain += _gain(places, _scaled(terms, fit), count, misfit=_misfit(fit), noise=noise)
    gain[~left] = -np.inf
    return candidates.point(int(np.argmax(gain)))


def expected_error(
    candidates: Candidates, measured: Sequence[Point], name: str, fit: TermFit, *, noise: float = NOISE
) -> Floats:
    """Standard deviation of each candidate's relative prediction error, (candidates,)."""
    every = candidates.with_points(measured)
    terms = every.step_terms() if name == "step" else every.compile_terms()
    scaled = _scaled(terms, fit)
    kriging = _Kriging(every.places(), scaled, len(measured), misfit=_misfit(fit), noise=noise)
    return np.asarray(np.sqrt(kriging.variance[len(measured) :]))


def _farthest(taken: Floats, places: Floats, left: NDArray[np.bool_]) -> int:
    """The candidate farthest from those taken; the largest one first, then the other ends."""
    if not len(taken):
        score = places.sum(axis=1)
    else:
        score = np.linalg.norm(places[:, None, :] - taken[None, :, :], axis=2).min(axis=1)
    return int(np.argmax(np.where(left, score, -np.inf)))


def _misfit(fit: TermFit) -> float:
    """Relative size of the deviations: that of the residuals; of few rows at least a share of the usual."""
    free = fit.rows - len(fit.names)
    if free < 1:
        return _USUAL_MISFIT
    found = fit.relative_error * math.sqrt(fit.rows / free)
    return max(found, _USUAL_MISFIT / math.sqrt(1 + free), _LEAST_MISFIT)


def _scaled(terms: Mapping[str, Floats], fit: TermFit) -> Floats:
    """(pairs, terms): each term's share of a pair's fitted time, were its value 1."""
    columns = np.column_stack([terms[name] for name in fit.names])
    fitted = np.maximum(fit.predict(terms), 1e-12)
    scaled = columns / fitted[:, None]
    return np.asarray(scaled / np.maximum(np.abs(scaled).max(axis=0), 1e-300))


class _Kriging:
    """Relative predictions from the first `count` of some pairs, as a Gaussian process.

    Attributes:
        variance: of the prediction at every pair, (pairs,).
    """

    def __init__(self, places: Floats, terms: Floats, count: int, *, misfit: float, noise: float) -> None:
        self._places, self._count, self._misfit = places, count, misfit
        known = self.prior(np.arange(count))
        inner = known[:, :count] + noise**2 * np.eye(count)
        self._cross = np.linalg.solve(inner, known)  # (count, pairs): the weights of what was measured
        self._rest = terms.T - terms[:count].T @ self._cross
        information = terms[:count].T @ np.linalg.solve(inner, terms[:count])
        ridge = 1e-9 * max(float(np.trace(information)) / len(information), 1e-300)  # terms not told apart
        self._spread = np.linalg.solve(information + ridge * np.eye(len(information)), self._rest)
        variance = misfit**2 - (known * self._cross).sum(axis=0) + (self._rest * self._spread).sum(axis=0)
        self.variance = np.maximum(variance, 0.0)

    def prior(self, rows: NDArray[np.intp]) -> Floats:
        """Covariance of some pairs with all, before anything is measured."""
        apart = self._places[rows][:, None, :] - self._places[None, :, :]
        return np.asarray(self._misfit**2 * np.exp(-np.linalg.norm(apart, axis=2) / CORRELATION))

    def covariance(self, rows: NDArray[np.intp]) -> Floats:
        """The same once the first pairs are measured."""
        prior = self.prior(rows)
        mean = self._rest[:, rows].T @ self._spread
        return np.asarray(prior - prior[:, : self._count] @ self._cross + mean)


def _gain(places: Floats, terms: Floats, count: int, *, misfit: float, noise: float) -> Floats:
    """The share of the mean variance that a measurement takes away, for each pair after the first `count`."""
    kriging = _Kriging(places, terms, count, misfit=misfit, noise=noise)
    pairs = np.arange(count, len(places))
    looked_at = pairs[:: max(len(pairs) // _LOOKED_AT, 1)]
    lowered = (kriging.covariance(looked_at)[:, count:] ** 2).sum(axis=0)
    lowered /= kriging.variance[count:] + noise**2
    return np.asarray(lowered / max(float(kriging.variance[looked_at].sum()), 1e-300))
