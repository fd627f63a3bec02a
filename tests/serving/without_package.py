"""Interpreters that have all that this one has, one of them except this package: no module, no entry point.

Both find their packages in the same way, through links to this environment's own, so that what is measured of
one can be compared with what is measured of the other. Nothing is copied and nothing installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ladder_opt

_OURS = "ladder_opt"


def make_interpreter(folder: Path, *, with_package: bool) -> Path:
    """Make a virtual environment in `folder` that sees this one's packages; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    seen = folder / "packages"
    seen.mkdir()
    (site_packages / "packages.pth").write_text(f"{seen}\n")
    for source in _package_folders():
        for entry in source.iterdir():
            link = seen / entry.name
            ours = _OURS in entry.name.lower().replace("-", "_")
            if entry.suffix != ".pth" and (with_package or not ours) and not link.is_symlink():
                link.symlink_to(entry)
    if with_package and not (seen / _OURS).is_symlink():  # an editable install is a .pth file
        (seen / _OURS).symlink_to(Path(ladder_opt.__file__).parent)
    return folder / "bin" / "python"


def _package_folders() -> list[Path]:
    names = {"site-packages", "dist-packages"}
    return [Path(entry) for entry in sys.path if entry and Path(entry).name in names]
