"""What mkdocs is told besides mkdocs.yml: pages that lie outside docs/, and links to other files.

Pages read well where they are stored, so their links are those of the repository (`../traces/README.md`,
`../ladder_opt/solve/_product.py`). In the site, the few pages named here become pages of it, and any other
file that a page links to is copied beside it. A link to a file that is not there stays as it is, and `mkdocs
build --strict` refuses it.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = {
    "traces/README.md": "traces.md",
    "benchmarks/README.md": "benchmarks.md",
    "notebooks/README.md": "notebooks.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "readme.md",
}
"""Pages outside docs/ by their path in the repository: what they are called in the site."""

_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_COPIED = "repository"
_NOTES = "design/index.md"


def _in_repository(page: File) -> str:
    """Where a page's text comes from, as a path in the repository."""
    return Path(os.path.realpath(page.abs_src_path or "")).relative_to(REPOSITORY).as_posix()


def _target(page: File, link: str) -> str | None:
    """The file in the repository that a relative link means; None for others, and where there is none."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_in_repository(page)), link))
    return path if not path.startswith("..") and (REPOSITORY / path).is_file() else None


def _in_site(path: str) -> str:
    """What a file of the repository is called in the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{_COPIED}/{path}"


def on_config(config: Any) -> Any:
    """The design notes stand below their list in the navigation, whichever there are."""
    notes = sorted(path.name for path in (REPOSITORY / "docs" / "design").glob("[0-9]*.md"))
    config["nav"] = _with_notes(config["nav"], [_NOTES, *(f"design/{name}" for name in notes)])
    return config


def _with_notes(nav: Any, notes: list[str]) -> Any:
    if isinstance(nav, list):
        return [_with_notes(one, notes) for one in nav]
    if isinstance(nav, dict):
        return {
            title: notes if target == _NOTES else _with_notes(target, notes) for title, target in nav.items()
        }
    return nav


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/, then what any page links to."""
    for path, name in PAGES.items():
        if (REPOSITORY / path).is_file():
            files.append(File.generated(config, name, abs_src_path=str(REPOSITORY / path)))
    for page in list(files.documentation_pages()):
        for match in _LINK.finditer(Path(page.abs_src_path).read_text(encoding="utf-8")):
            linked = _target(page, match[2])
            name = "" if linked is None else _in_site(linked)
            if linked is not None and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(REPOSITORY / linked)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point each link to what its file is called in the site."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        path = _target(page.file, match[2])
        if path is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(_in_site(path), here or '.')}{match[3] or ''}{match[4]}"

    return _LINK.sub(moved, markdown)
