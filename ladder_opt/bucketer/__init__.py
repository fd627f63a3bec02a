"""The ladders a server pads to and the shapes it compiles: one object, for warm-up and for dispatch."""

from __future__ import annotations

from ladder_opt.bucketer.bucketer import (
    BatchedVariant,
    Bucketer,
    SequenceVariant,
    WitnessBatch,
)

__all__ = ["BatchedVariant", "Bucketer", "SequenceVariant", "WitnessBatch"]
