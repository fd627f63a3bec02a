"""Files in a report that is handed on: their names; the folders they lay in are their owner's concern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

DIGITS_SHOWN = 12  # of a SHA-256, where it only has to tell files apart


def file_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path's name, with as many folders before it as tell it from the others'."""
    parts = {path: PurePath(path).parts for path in paths}
    found = {}
    for path, own in parts.items():
        others = [each for other, each in parts.items() if other != path]
        length = 1
        while length < len(own) and any(each[-length:] == own[-length:] for each in others):
            length += 1
        found[path] = "/".join(own[-length:]).replace("//", "/") or path
    return found


def without_folders(line: str, names: Mapping[str, str]) -> str:
    """A line with known paths as their names."""
    for path in sorted(names, key=len, reverse=True):
        if names[path] != path:
            shown = names[path].replace("\\", r"\\")
            line = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w/])", shown, line)
    return line
