"""Files in a report that is handed on: their names; the folders they lay in are their owner's concern."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath

DIGITS_SHOWN = 12  # of a SHA-256, where it only has to tell files apart


def file_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path's name, with as many folders before it as tell it from the others'."""
    parts = {path: PurePath(path).parts for path in dict.fromkeys(paths)}
    found, unsure, length = dict.fromkeys(parts, ""), set(parts), 1
    while unsure:
        same = Counter(own[-length:] for own in parts.values())
        for path in [
            each for each in unsure if same[parts[each][-length:]] == 1 or length >= len(parts[each])
        ]:
            found[path] = "/".join(parts[path][-length:]).replace("//", "/") or path
            unsure.remove(path)
        length += 1
    return found


def without_folders(line: str, names: Mapping[str, str]) -> str:
    """A line with known paths as their names."""
    for path in sorted(names, key=len, reverse=True):
        if names[path] != path and path in line:
            shown = names[path].replace("\\", r"\\")
            line = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w/])", shown, line)
    return line
