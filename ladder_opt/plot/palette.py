"""Colours that people with any colour vision can tell apart, and what each stands for in every figure.

Okabe and Ito, "Color Universal Design" (2008), for lines and bars, with orange, sky blue and blue moved to a
lightness that stands out from a white page and from a dark one (contrast of 3 and more: WCAG 2.2, 1.4.11);
cividis (Nunez, Anderton and Renslow, 2018) for the heat map. No figure tells two things apart by colour
alone: dashes, markers or places differ too.
"""

from __future__ import annotations

ORANGE = "#C58200"
SKY_BLUE = "#4C9BC9"
GREEN = "#009E73"
BLUE = "#1F83C4"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"

PLAN, DEFAULT, PRESET = VERMILLION, BLUE, GREY
REAL, RAGGED, FIXABLE = GREEN, SKY_BLUE, ORANGE
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GREY)

HEAT = "cividis"
