"""plotly itself, which an extra brings: where it is missing, one line says so."""

from __future__ import annotations

from ladder_opt.extras import brought_by

with brought_by("report"):
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

__all__ = ["go", "make_subplots"]
