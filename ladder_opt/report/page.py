"""The HTML page around a report's sections: one file, no request, nothing in it runs but our two scripts.

Text from files is escaped where it is put in (`markup`), data for the scripts cannot close its element
(`script_json`), and a content security policy names the two scripts by their digests and allows no request at
all: whatever slipped through would neither run nor load.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from ladder_opt.markup import text
from ladder_opt.plot.theme import template

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Chart:
    """A figure of the page.

    Attributes:
        figure: as plotly draws it.
        alt: what it shows, for those who cannot see it.
        caption: what to look for, HTML.
    """

    figure: go.Figure
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page.

    Attributes:
        key: its anchor.
        title: its heading.
        body: HTML above the chart.
        chart: its figure, or None.
        table: HTML below it: the chart's numbers, folded up; empty for none.
        summary: what the fold says.
    """

    key: str
    title: str
    body: str = ""
    chart: Chart | None = None
    table: str = ""
    summary: str = "The same in numbers"


def page(*, title: str, header: str, sections: Sequence[Section], footer: str) -> str:
    """The whole file as text.

    Args:
        title: of the document.
        header: HTML before the first section.
        sections: in their order.
        footer: HTML after the last.
    """
    scripts = [_plotly_js(), _asset("page.js")] if any(each.chart for each in sections) else []
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{text(each.key)}">{text(each.title)}</a></li>' for each in sections)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        f"<title>{text(title)}</title>",
        f"<style>\n{_asset('page.css')}</style>",
        "</head>",
        "<body>",
        f'<header>\n{header}\n<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>',
        "<main>",
    ]
    if scripts:
        parts.append("<noscript><p>Charts need JavaScript; the tables hold the same numbers.</p></noscript>")
    parts += [_section(each) for each in sections]
    parts += ["</main>", f"<footer>\n{footer}\n</footer>"]
    if scripts:
        templates = {scheme: template(scheme) for scheme in ("light", "dark")}
        parts.append(_data("chart-templates", json.dumps(templates)))
        parts += [f"<script>{script}</script>" for script in scripts]
    parts += ["</body>", "</html>"]
    return "\n".join(parts) + "\n"


def _section(section: Section) -> str:
    key = text(section.key)
    parts = [
        f'<section id="{key}" aria-labelledby="{key}-title">',
        f'<h2 id="{key}-title">{text(section.title)}</h2>',
    ]
    parts.append(section.body)
    if section.chart is not None:
        height = int(section.chart.figure.layout.height or 400)
        about = f'role="img" aria-label="{text(section.chart.alt)}" style="min-height:{height}px"'
        parts += [
            "<figure>",
            f'<div class="chart" id="chart-{key}" {about}></div>',
            f"<figcaption>{section.chart.caption}</figcaption>",
            "</figure>",
            _data(f"chart-{key}-data", section.chart.figure.to_json()),
        ]
    if section.table:
        parts.append(f"<details><summary>{text(section.summary)}</summary>\n{section.table}\n</details>")
    parts.append("</section>")
    return "\n".join(part for part in parts if part)


def scrolled(table: str, *, label: str) -> str:
    """A table in a box that scrolls by itself where it is wider than the page."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">\n{table}\n</div>'


def script_json(source: str) -> str:
    """JSON text for a script element: no character in it can end the element or a JavaScript line."""
    return "".join(_ESCAPES.get(character, character) for character in source)


def _data(key: str, source: str) -> str:
    return f'<script type="application/json" id="{text(key)}">{script_json(source)}</script>'


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


@functools.cache
def _asset(name: str) -> str:
    return (resources.files("ladder_opt.report") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _plotly_js() -> str:
    """plotly.js as its Python package carries it: whole (4.8 MB), the wheel has no smaller bundle."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    # Browsers hash and read a script with newlines as they normalise them.
    source: str = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
    return source.replace("</script", "<\\/script")
