"""Colours that people with any colour vision can tell apart, and what each stands for in every figure.

Okabe and Ito, "Color Universal Design" (2008), for lines and bars; cividis (Nunez, Anderton and Renslow,
2018) for the heat map. No figure tells two things apart by colour alone: dashes, markers or places
differ too.
"""

from __future__ import annotations

ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"

PLAN, DEFAULT, PRESET = VERMILLION, BLUE, GREY
REAL, RAGGED, FIXABLE = GREEN, SKY_BLUE, ORANGE
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE, GREY)

HEAT = "cividis"
