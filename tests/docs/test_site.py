"""The documentation builds without a broken link, fetches nothing, and is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.trace.read import read_trace
from scripts import docs_figures, make_docs

REPOSITORY = make_docs.REPOSITORY
_LOADED = re.compile(r"""<(?:script|img|link|iframe)[^>]*?(?:src|href)=["'](?P<url>[^"']+)["'][^>]*>""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    pytest.importorskip("material", reason="needs the docs extra")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "tutorial.html", "reference/cli.html", "design/index.html", "traces.html"} <= pages
    notes = list((REPOSITORY / "docs" / "design").glob("[0-9]*.md"))
    assert {f"design/{note.stem}.html" for note in notes} <= pages


def test_a_reader_s_browser_fetches_nothing(site: Path) -> None:
    """Links to other sites are for clicking; what a page loads by itself comes with the site."""
    fetched = {
        (page.name, match["url"])
        for page in site.rglob("*.html")
        for match in _LOADED.finditer(page.read_text(encoding="utf-8"))
        if match["url"].startswith(("http:", "https:", "//")) and 'rel="canonical"' not in match[0]
    }
    assert fetched == set()
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any(re.search(r"url\(\s*[\"']?https?:", style) for style in styles)


def test_files_that_pages_link_to_come_along(site: Path) -> None:
    page = site / "explanation" / "mathematics.html"
    links = re.findall(r'href="([^"#]+\.py)"', page.read_text(encoding="utf-8"))
    assert len(links) >= 3
    assert all((page.parent / link).is_file() for link in links)
    assert (site / "reference" / "schemas" / "plan-1.json").is_file()


def test_made_pages_are_current() -> None:
    outdated = [path.relative_to(REPOSITORY).as_posix() for path in make_docs.outdated()]
    assert outdated == [], "python -m scripts.make_docs makes them anew"


def test_links_of_pages_outside_docs_lead_somewhere() -> None:
    """mkdocs looks at these too; here without it, as they are read beside the code."""
    pages = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "traces/README.md")]
    broken = [
        f"{page.name}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_pictures_are_drawn_by_the_script(tmp_path: Path) -> None:
    trace = read_trace(REPOSITORY / "traces" / "sample.parquet")
    drawn = docs_figures.draw(tmp_path, trace.take(np.arange(len(trace)) < 2000), replicas=4)
    for path in drawn:
        stored = docs_figures.FIGURES / path.name
        assert ET.parse(path).getroot().tag.endswith("svg")  # noqa: S314  (our own file)
        assert stored.is_file(), "python -m scripts.docs_figures draws it"
        assert stored.stat().st_size < 60_000
    shown = (REPOSITORY / "docs" / "explanation" / "problem.md").read_text(encoding="utf-8")
    assert {path.name for path in drawn} == set(re.findall(r"figures/(\w+\.svg)", shown))
