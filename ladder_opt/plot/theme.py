"""How figures look on a light page and on a dark one; everything else about them is the same."""

from __future__ import annotations

from typing import Any, Literal

from ladder_opt.plot import palette

Scheme = Literal["light", "dark"]

_INK: dict[Scheme, str] = {"light": "#1b1f24", "dark": "#e6e8eb"}
_GRID: dict[Scheme, str] = {"light": "#e3e6ea", "dark": "#363b42"}
_AXIS: dict[Scheme, str] = {"light": "#9aa1a9", "dark": "#6b727b"}
_HOVER: dict[Scheme, str] = {"light": "#ffffff", "dark": "#22262b"}


def template(scheme: Scheme) -> dict[str, Any]:
    """A plotly template; backgrounds are the page's own."""
    axis = {
        "gridcolor": _GRID[scheme],
        "linecolor": _AXIS[scheme],
        "zerolinecolor": _AXIS[scheme],
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": _AXIS[scheme],
        "showline": True,
        "zeroline": False,
        "title": {"standoff": 8},
    }
    return {
        "layout": {
            "font": {"color": _INK[scheme], "family": "system-ui, sans-serif", "size": 12},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(palette.CYCLE),
            "hoverlabel": {
                "bgcolor": _HOVER[scheme],
                "bordercolor": _AXIS[scheme],
                "font": {"color": _INK[scheme]},
                "align": "left",
                "namelength": -1,
            },
            "annotationdefaults": {"font": {"color": _INK[scheme]}},
            "xaxis": axis,
            "yaxis": axis,
        }
    }
