"""Evidence of any kinds to one cost model: each term from whom it can be told.

Two joint fits (`term_fit`), and what a server's own steps say beside them:

* **Steps.** Rows of whole steps and rows of the attention kernel alone share `per_iteration` and
  `per_gather`; what an attention call takes besides is a term of its own, since a whole step's `base` and
  `per_seq` hold it.
* **Compiles.** One graph each, or sums over graphs: `base`, `per_iteration`, `per_iteration_sq`, and likewise
  of the per-sequence kernel where a log holds it.
* **A server.** `base`, `per_seq`, `per_sequence_gather`, `per_prefill_token` from lines of iterations or from
  requests; lines of iterations count where there are both, since they time steps one by one.

`base` and `per_seq` come from rows of whole steps where there are any, else from a server, else from the
attention kernel, with a warning. Terms that the rows cannot tell from a mix of the others are left at 0,
told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.doubts import moves_with_others, not_told_from_zero
from ladder_opt.calibration.evidence import (
    ATTENTION_CALL,
    ATTENTION_PER_SEQ,
    BASE,
    COMPILE_BASE,
    COMPILE_PER_ITERATION,
    COMPILE_PER_ITERATION_SQ,
    NUISANCES,
    PER_GATHER,
    PER_ITERATION,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    SEQUENCE_CALL,
    SEQUENCE_COMPILE_BASE,
    SEQUENCE_COMPILE_PER_ITERATION,
    UNITS,
    Equations,
    Evidence,
    ServerTerms,
    stacked,
)
from ladder_opt.calibration.samples import COMPILE, STEP, Samples
from ladder_opt.calibration.term_fit import TermFit, fit_terms
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.errors import InputError

KEPT_DRAWS: Final = 100
_DIGITS: Final = 5
_ORDER: Final = (  # who is kept where rows cannot tell terms apart
    BASE,
    ATTENTION_CALL,
    SEQUENCE_CALL,
    PER_SEQUENCE_GATHER,
    PER_ITERATION,
    PER_GATHER,
    PER_SEQ,
    ATTENTION_PER_SEQ,
    PER_PREFILL_TOKEN,
    COMPILE_BASE,
    COMPILE_PER_ITERATION,
    SEQUENCE_COMPILE_BASE,
    SEQUENCE_COMPILE_PER_ITERATION,
    COMPILE_PER_ITERATION_SQ,
)
_DISTINCT: Final = 1e-6  # smallest singular value of the scaled columns, over the largest

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PartFit:
    """A joint fit, and whose rows it was made of.

    Attributes:
        fit: the terms.
        rows: rows as fitted.
        left_out: terms that the rows cannot tell from a mix of the others.
    """

    fit: TermFit
    rows: Sequence[Equations]
    left_out: tuple[str, ...]

    def sources_of(self, name: str) -> list[str]:
        """Files whose rows hold a term."""
        holding = (
            part.source for part in self.rows if name in part.columns and (part.columns[name] > 0).any()
        )
        return list(dict.fromkeys(holding))

    def to_parameter(self, name: str) -> dict[str, Any]:
        """The entry of the cost file's `fit.parameters`."""
        term = self.fit.term(name)
        return {
            "value": term.value,
            "low": term.low,
            "high": term.high,
            "unit": UNITS[name],
            "how": "95% interval of a bootstrap of residuals",
            "share_of_mean_row": term.share,
            "explained_by_other_terms": term.explained_by_others,
            "told_from_zero": term.is_told_from_zero,
            "told_by": self.sources_of(name),
        }

    def residuals(self) -> dict[str, Any]:
        """The entry of the cost file's `fit.residuals`."""
        names = ("p5", "p25", "p50", "p75", "p95")
        shares = np.percentile(self.fit.residuals, (5, 25, 50, 75, 95))
        return {
            "rows": self.fit.rows,
            "relative": dict(zip(names, shares.tolist(), strict=True)),
            "largest_relative": float(np.abs(self.fit.residuals).max()),
            "r_squared": self.fit.r_squared,
        }

    def warnings(self) -> list[str]:
        """What nobody should read out of the numbers, one line each."""
        lines = [
            f"{name}: the rows cannot tell it from a mix of the others; left at 0" for name in self.left_out
        ]
        if self.fit.rows <= len(self.fit.names):
            lines.append(
                f"{', '.join(self.fit.names)}: no more rows than terms ({self.fit.rows}), which fit "
                "anything; their intervals say nothing, measure more"
            )
        for term in self.fit.terms:
            if term.name in (ATTENTION_CALL, ATTENTION_PER_SEQ, SEQUENCE_CALL):
                continue
            if not term.is_told_from_zero:
                unit = UNITS[term.name]
                lines.append(not_told_from_zero(term.name, term.value, term.low, term.high, unit=unit))
            elif term.moves_with_others:
                lines.append(moves_with_others(term.name, term.explained_by_others))
        return lines


def fit_equations(rows: Sequence[Equations], *, seed: int) -> PartFit:
    """Fit all terms that the rows can tell apart."""
    columns, spread = stacked(rows)
    seconds = np.concatenate([part.seconds for part in rows])
    kept, left_out = _tellable({name: columns[name] for name in _ORDER if name in columns}, seconds)
    fit = fit_terms(kept, seconds, spread=spread if np.isfinite(spread).any() else None, seed=seed)
    return PartFit(fit, tuple(rows), left_out)


def _tellable(columns: Mapping[str, Floats], seconds: Floats) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """The columns that are independent of those before them, fewer than rows where there are any."""
    kept: dict[str, Floats] = {}
    left_out = []
    for name, column in columns.items():
        if not (column > 0).any():
            continue
        tried = np.column_stack([*kept.values(), column]) / seconds[:, None]
        singular = np.linalg.svd(tried / np.sqrt((tried**2).sum(axis=0)), compute_uv=False)
        crowded = len(kept) >= max(1, len(seconds) - 1)
        if crowded or len(singular) < tried.shape[1] or singular[-1] < _DISTINCT * singular[0]:
            left_out.append(name)
        else:
            kept[name] = column
    return kept, tuple(left_out)


def step_rows(samples: Samples) -> list[Equations]:
    """Rows of steps and of attention calls, a part for each source and quantity."""
    parts = []
    for source in samples.sources:
        for quantity in np.unique(samples.quantity[samples.source == source]).tolist():
            own = samples.take((samples.source == source) & (samples.quantity == quantity))
            kernel = get_kernel(own.kernels[0])
            base, per_seq = (BASE, PER_SEQ) if quantity == STEP else (ATTENTION_CALL, ATTENTION_PER_SEQ)
            columns = {
                base: np.ones(len(own)),
                per_seq: own.num_seqs.astype(np.float64),
                PER_ITERATION: kernel.iterations(own.num_seqs, own.num_blocks).astype(np.float64),
                PER_GATHER: kernel.gathers(own.num_seqs, own.num_blocks).astype(np.float64),
            }
            parts.append(Equations(columns, own.seconds, own.spread, source))
    return parts


def compile_rows(samples: Samples) -> list[Equations]:
    """Rows of one graph each, a part for each source."""
    parts = []
    for source in samples.sources:
        own = samples.take(samples.source == source)
        iterations = get_kernel(own.kernels[0]).iterations(own.num_seqs, own.num_blocks).astype(np.float64)
        columns = {
            COMPILE_BASE: np.ones(len(own)),
            COMPILE_PER_ITERATION: iterations,
            COMPILE_PER_ITERATION_SQ: iterations**2,
        }
        parts.append(Equations(columns, own.seconds, own.spread, source))
    return parts


def server_terms_of(steps: Sequence[Equations], *, seed: int) -> tuple[ServerTerms, list[str]]:
    """A server's terms from lines of iterations."""
    part = fit_equations(steps, seed=seed)
    names = [
        name for name in (BASE, PER_SEQ, PER_SEQUENCE_GATHER, PER_PREFILL_TOKEN) if name in part.fit.names
    ]
    ranges = {
        name: [float(column.min()), float(column.max())]
        for name, column in stacked(steps)[0].items()
        if name != BASE
    }
    terms = ServerTerms(
        values={name: part.fit.value_of(name) for name in names},
        draws={name: part.fit.draws[:, part.fit.names.index(name)] for name in names},
        parameters={name: part.to_parameter(name) for name in names},
        fit={"residuals": part.residuals(), "units_per_step": ranges},
        source=", ".join(dict.fromkeys(each.source for each in steps)),
    )
    return terms, part.warnings()


def one_kernel(samples: Samples, kernel: str | None) -> tuple[Samples, list[str]]:
    """The rows of one kernel, and a note of those set aside.

    Raises:
        InputError: rows of several, and none was chosen.
    """
    if kernel is not None:
        kept = samples.take(samples.kernel == kernel)
        others = len(samples) - len(kept)
        notes = [f"{others} rows of another kernel than {kernel} set aside"] if others else []
        return kept, notes
    if len(samples.kernels) > 1:
        raise InputError(
            f"rows of the kernels {' and '.join(samples.kernels)}",
            "rows of one kernel, or --kernel to choose",
            path=samples.sources[-1],
        )
    return samples, []


def scaled(samples: Samples, factor: float) -> Samples:
    """The samples with all seconds multiplied."""
    return Samples(**{**vars(samples), "seconds": samples.seconds * factor})


def all_samples(evidence: Sequence[Evidence], *, layers: int | None, graphs: int) -> Samples:
    """All samples in the units of the fits: whole steps, all layers' attention, one graph."""
    parts = []
    for each in evidence:
        parts += [each.samples, scaled(each.variant_samples, 1 / graphs)]
        if len(each.layer_samples):
            parts.append(scaled(each.layer_samples, float(layers or 1)))
    return Samples.concat(parts)


def stored_draws(draws: Mapping[str, Floats]) -> dict[str, Any]:
    """The entry of the cost file's `fit.draws`: a row a draw, rounded, nuisances left out."""
    names = [name for name in draws if name not in NUISANCES]
    if not names:
        return {}
    count = min(KEPT_DRAWS, *(len(draws[name]) for name in names))
    values = np.column_stack([draws[name][:count] for name in names])
    return {
        "parameters": names,
        "values": [[float(f"{value:.{_DIGITS}g}") for value in row] for row in values.tolist()],
        "how": "bootstrap draws of each joint fit, the fits independent of each other",
    }


def is_compile(samples: Samples) -> NDArray[np.bool_]:
    """Which rows are of compiles."""
    return np.asarray(samples.quantity == COMPILE)
