#!/usr/bin/env python3
"""Run the notebooks and store them executed: `python scripts/run_notebooks.py [--check] [NAME...]`.

What changes from run to run without meaning anything (times, counters) is left out of what is stored. With
`--check` nothing is stored: a notebook that fails ends the run with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

import nbformat.v4
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER: Final = Path(__file__).resolve().parent.parent / "notebooks"
LARGEST_BYTES: Final = 400_000


def run(path: Path, *, at_end: str = "") -> Any:
    """The notebook executed in its own folder.

    Args:
        path: of the notebook.
        at_end: Python of one cell more.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    if at_end:
        notebook.cells.append(nbformat.v4.new_code_cell(at_end))
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=300, resources=resources)
    client.execute()
    return notebook


def without_noise(notebook: Any) -> Any:
    """The same without times of execution, and with the sizes that a page may have."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("text/plain", None) if "text/html" in output.get("data", {}) else None
    notebook.metadata.get("language_info", {}).pop("version", None)
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Run all notebooks, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 1_look_at_a_trace [all]")
    parser.add_argument("--check", action="store_true", help="store nothing")
    options = parser.parse_args(arguments)
    paths = [FOLDER / f"{name.removesuffix('.ipynb')}.ipynb" for name in options.names]
    for path in paths or sorted(FOLDER.glob("*.ipynb")):
        try:
            executed = without_noise(run(path))
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            return 1
        if not options.check:
            nbformat.write(executed, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
        if path.stat().st_size > LARGEST_BYTES:
            print(f"{path.name}: found more than {LARGEST_BYTES / 1000:.0f} kB", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
