"""Colours of lines and marks stand out from the page, light and dark: a contrast of 3 (WCAG 2.2, 1.4.11)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from ladder_opt.plot import palette
from ladder_opt.plot.theme import template

CSS = (resources.files("ladder_opt.report") / "assets" / "page.css").read_text(encoding="utf-8")
COLOURS = {name: value for name, value in vars(palette).items() if re.fullmatch(r"#[0-9A-F]{6}", str(value))}


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # WebAIM's checker


def pages() -> list[str]:
    """Backgrounds: of the light page, the dark one, and paper."""
    return re.findall(r"--page: (#[0-9a-f]{6})", CSS)


def test_there_is_a_light_and_a_dark_page() -> None:
    assert len(pages()) == 3
    assert max(map(luminance, pages())) > 0.9
    assert min(map(luminance, pages())) < 0.02


@pytest.mark.parametrize("name", sorted(COLOURS))
def test_every_colour_stands_out_from_every_page(name: str) -> None:
    assert min(contrast(COLOURS[name], page) for page in pages()) >= 3


def test_the_rungs_of_the_default_stand_out_more_than_that() -> None:
    assert min(contrast(palette.DEFAULT, page) for page in pages()) >= 4


def test_text_is_readable_in_both_schemes() -> None:
    light, dark = (template(scheme)["layout"]["font"]["color"] for scheme in ("light", "dark"))
    assert contrast(light, pages()[0]) >= 7
    assert contrast(dark, pages()[1]) >= 7
