"""The core without the packages of its extras: commands work, and what needs one says which extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.faults.commands import WRITES, make_inputs

REPOSITORY = Path(__file__).resolve().parents[2]
_CORE_ONLY = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in ("matplotlib", "pandas", "plotly"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from ladder_opt.cli import main
"""
_EVERY = (
    _CORE_ONLY
    + """
from pathlib import Path
from tests.faults.commands import WRITES
for name, command in WRITES.items():
    if name != "report":
        output = name + command.suffix
        assert main([*command.arguments, command.option, output]) == 0, name
"""
)


def python(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_commands_of_the_core_need_no_extra(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    done = python(tmp_path, _EVERY)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, command in WRITES.items():
        if name not in ("report", "drift"):
            command.check(tmp_path / f"{name}{command.suffix}")


@pytest.mark.parametrize(
    ("program", "package", "extra"),
    [
        ("sys.exit(main(['report', 'plan.json', '-o', 'r.html']))", "plotly", "report"),
        ("sys.exit(main(['report', 'plan.json', '--figures', 'f']))", "matplotlib", "report"),
        ("import ladder_opt as lo; lo.read_plan('plan.json').to_frame()", "pandas", "frames"),
        ("import ladder_opt as lo; lo.plot.rungs(lo.read_plan('plan.json'))", "plotly", "report"),
    ],
)
def test_what_needs_an_extra_says_so(tmp_path: Path, program: str, package: str, extra: str) -> None:
    make_inputs(tmp_path)
    done = python(tmp_path, _CORE_ONLY + program)
    told = f"found no package {package}, expected it (pip install 'ladder-opt[{extra}]')"
    assert done.returncode == (2 if "main" in program else 1)
    assert done.stderr.splitlines()[-1].endswith(f": {told}")
    assert ("Traceback" in done.stderr) == ("main" not in program)


def test_packages_of_the_extras_are_in_no_other_place() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in ("report", "frames"):
        assert set(extras[name]) <= set(extras["test"])
        assert not set(extras[name]) & set(project["dependencies"])
