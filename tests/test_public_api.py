"""What `import ladder_opt` offers and costs, and the order in which modules may import each other."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ladder_opt

PACKAGE = Path(ladder_opt.__file__).parent
HEAVY = ("numba", "pandas", "pyarrow", "scipy", "matplotlib", "plotly", "torch", "vllm", "rich", "typer")

# Data flows down this list: a part imports from itself and from those above it. What is not listed is an
# edge: it may import from any part above it, and only what stands below imports it.
STAGES = (
    "_version",
    "_jit",
    "errors",
    "extras",
    "arguments",
    "files",
    "validation",
    "units",
    "markup",
    "executor",
    "engine",
    "ladder",
    "trace",
    "cost",
    "presets",
    "occupancy",
    "solve",
    "plan",
    "monitor",
    "bucketer",
    "plot",
    "report",
    "vllm_plugin",
    "edge",
    "measurement",
    "cli",
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Names of the modules that a module imports, anywhere in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: found a relative import, expected absolute ones"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def stage(dotted: str) -> str:
    part = dotted.split(".")[1]
    return part if part in STAGES else "edge"


def test_data_flows_one_way() -> None:
    upstream = []
    for path in modules():
        name = ".".join(("ladder_opt", *path.relative_to(PACKAGE).with_suffix("").parts))
        if name in ("ladder_opt.__init__", "ladder_opt.__main__"):
            continue
        own = stage(name)
        for target in imports(path):
            if not target.startswith("ladder_opt."):
                continue
            wanted = stage(target)
            same_edge = target.split(".")[1] == name.split(".")[1]
            if STAGES.index(wanted) > STAGES.index(own) or (own == wanted == "edge" and not same_edge):
                upstream.append(f"{name} imports {target}")
    assert upstream == []


def test_only_private_modules_import_numba() -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if not path.name.startswith("_") and any(name.split(".")[0] == "numba" for name in imports(path))
    ]
    assert found == []


def test_a_bare_import_loads_nothing_heavy() -> None:
    code = (
        "import json, sys, ladder_opt; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=True)
    assert json.loads(run.stdout) == []
    assert run.stderr == b""


def test_every_public_name_resolves() -> None:
    assert len(set(ladder_opt.__all__)) == len(ladder_opt.__all__)
    for name in ladder_opt.__all__:
        assert getattr(ladder_opt, name) is not None
    assert dir(ladder_opt) == sorted(ladder_opt.__all__)


def test_the_table_and_what_type_checkers_see_name_the_same_things() -> None:
    seen: dict[str, str] = {}
    modules_seen: set[str] = set()
    for node in parsed(PACKAGE / "__init__.py").body:
        if isinstance(node, ast.If):
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                assert line.module is not None
                if line.module == "ladder_opt":
                    modules_seen |= {name.name for name in line.names}
                    continue
                seen |= {name.name: line.module.removeprefix("ladder_opt.") for name in line.names}
    assert seen == ladder_opt._MODULE_OF
    assert modules_seen == set(ladder_opt._MODULES)
    # A literal list: type checkers take no other as what the package exports.
    assert set(ladder_opt.__all__) == {"__version__", *ladder_opt._MODULES, *ladder_opt._MODULE_OF}
    for name, module in seen.items():
        home = importlib.import_module(f"ladder_opt.{module}")
        assert getattr(home, name) is getattr(ladder_opt, name)
        defined_in = getattr(getattr(home, name), "__module__", home.__name__)  # constants do not say
        assert defined_in == home.__name__, f"{name} is not defined in {module}"


def test_an_unknown_name_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError) as error:
        ladder_opt.tuna  # noqa: B018
    assert str(error.value) == "module 'ladder_opt' has no attribute 'tuna'"


def test_the_version_is_that_of_the_installed_package() -> None:
    assert ladder_opt.__version__ == importlib.import_module("ladder_opt._version").__version__
    assert (PACKAGE / "py.typed").is_file()
