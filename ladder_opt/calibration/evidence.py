"""What files of measurements say, whatever kind they are of: the common ground on which kinds are mixed.

A file's reader gives `Evidence`: samples of rung pairs, or equations (rows of units of named terms that took
so many seconds together, where a row is no single pair), or the fit of a server's requests. `combine` makes
one cost model of all of it. Names of terms are key paths of the cost file; those of `NUISANCES` are fitted
beside them and are no part of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.samples import Samples

BASE: Final = "step_seconds.base"
PER_SEQ: Final = "step_seconds.per_seq"
PER_ITERATION: Final = "step_seconds.per_iteration"
PER_GATHER: Final = "step_seconds.per_gather"
COMPILE_BASE: Final = "compile_seconds.base"
COMPILE_PER_ITERATION: Final = "compile_seconds.per_iteration"
COMPILE_PER_ITERATION_SQ: Final = "compile_seconds.per_iteration_sq"
SEQUENCE_COMPILE_BASE: Final = "per_sequence.compile_seconds.base"
SEQUENCE_COMPILE_PER_ITERATION: Final = "per_sequence.compile_seconds.per_iteration"
REPLAY_PER_SEQ: Final = "replay_seconds.per_seq"
PER_SEQUENCE_GATHER: Final = "replay_seconds.per_sequence_gather"
PER_PREFILL_TOKEN: Final = "replay_seconds.per_prefill_token"  # noqa: S105 - a token of text
STARTUP: Final = "startup_seconds"
ATTENTION_CALL: Final = "attention.call"  # of the batched kernel, all layers: in a whole step's base
ATTENTION_PER_SEQ: Final = "attention.per_seq"  # likewise in a whole step's per_seq
SEQUENCE_CALL: Final = "attention.sequence_call"  # of the per-sequence kernel, all layers
NUISANCES: Final = (ATTENTION_CALL, ATTENTION_PER_SEQ, SEQUENCE_CALL)

UNITS: Final[Mapping[str, str]] = {
    BASE: "s",
    PER_SEQ: "s/sequence",
    PER_ITERATION: "s/iteration",
    PER_GATHER: "s/page",
    COMPILE_BASE: "s/graph",
    COMPILE_PER_ITERATION: "s/graph/iteration",
    COMPILE_PER_ITERATION_SQ: "s/graph/iteration^2",
    SEQUENCE_COMPILE_BASE: "s/graph",
    SEQUENCE_COMPILE_PER_ITERATION: "s/graph/block",
    REPLAY_PER_SEQ: "s/decode",
    PER_SEQUENCE_GATHER: "s/block",
    PER_PREFILL_TOKEN: "s/token",
    STARTUP: "s",
    ATTENTION_CALL: "s",
    ATTENTION_PER_SEQ: "s/sequence",
    SEQUENCE_CALL: "s/sequence",
}


@dataclass(frozen=True)
class Source:
    """A file read.

    Attributes:
        path: as named.
        sha256: of its bytes.
        rows: measurements used.
        kind: of the file, a `Kind.name`.
    """

    path: str
    sha256: str
    rows: int
    kind: str


@dataclass(frozen=True, eq=False)
class Equations:
    """Rows whose seconds are a sum over named terms.

    Attributes:
        columns: units of each term, (rows,); a term that is not named has none.
        seconds: measured, (rows,), above 0.
        spread: relative standard error of them, (rows,); NaN where it is not known.
        source: the file.
    """

    columns: Mapping[str, NDArray[np.float64]]
    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: str

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, kw_only=True)
class ServerTerms:
    """Terms of a server's own steps (each by its own sequences and blocks), already fitted.

    Attributes:
        values: seconds for each unit by term, among base, per_seq, per_sequence_gather and per_prefill_token.
        draws: of the fit, by term, (draws,).
        parameters: for each term the entry of the cost file's `fit.parameters`.
        fit: other entries of the cost file's `fit`: requests, residuals, ranges.
        source: the files, for messages.
    """

    values: Mapping[str, float]
    draws: Mapping[str, NDArray[np.float64]]
    parameters: Mapping[str, dict[str, Any]]
    fit: Mapping[str, Any]
    source: str


@dataclass(frozen=True, kw_only=True)
class Startup:
    """What one server start took, as its log says.

    Attributes:
        warmup_seconds: of the model's own graphs, which no ladder changes; None where it is not there.
        recording_seconds: of all attention graphs.
        batched_iterations: of every batched graph compiled, one layer; empty where they are not known.
        batched_graphs: batched graphs, one layer.
        layers: that recorded.
    """

    warmup_seconds: float | None
    recording_seconds: float | None
    batched_iterations: tuple[int, ...]
    batched_graphs: int
    layers: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What files of one kind say.

    Attributes:
        samples: of rung pairs; compiles are of one graph.
        variant_samples: of rung pairs, compiles of whole variants: all graphs of them.
        layer_samples: of rung pairs, attention of one layer alone, for the number of layers to scale.
        layer_steps: rows of one layer's attention that are no rung pair, likewise.
        steps: rows of whole steps that are no single pair.
        compiles: rows of one graph each, or sums over graphs, that are no single pair.
        mean_graphs: seconds of one graph on average, where nothing says of which graphs.
        server: of requests, fitted already.
        startup: of server starts.
        layers: attention layers of the model, where the files say.
        graphs_per_variant: where the files say.
        sources: the files.
        warnings: what not to read out of them.
        notes: remarks, set-aside rows by reason.
    """

    samples: Samples = field(default_factory=Samples.empty)
    variant_samples: Samples = field(default_factory=Samples.empty)
    layer_samples: Samples = field(default_factory=Samples.empty)
    layer_steps: tuple[Equations, ...] = ()
    steps: tuple[Equations, ...] = ()
    compiles: tuple[Equations, ...] = ()
    mean_graphs: tuple[Equations, ...] = ()
    server: ServerTerms | None = None
    startup: tuple[Startup, ...] = ()
    layers: int | None = None
    graphs_per_variant: int | None = None
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def stacked(parts: Sequence[Equations]) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Columns of all parts, 0 where a part does not have one, and their spread."""
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    columns = {
        name: np.concatenate([part.columns.get(name, np.zeros(len(part))) for part in parts])
        for name in names
    }
    return columns, np.concatenate([part.spread for part in parts])
