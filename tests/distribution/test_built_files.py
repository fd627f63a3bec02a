"""The wheel and the sdist: what is in them, and that what is installed from the wheel works by itself.

Built with the hatchling of the test environment and installed without its dependencies, which are there
already: seconds, and nothing is downloaded. scripts/build-release.sh does it in clean environments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from ladder_opt._version import __version__
from scripts import check_dist

pytestmark = pytest.mark.distribution

REPOSITORY = Path(__file__).resolve().parents[2]


class Built(NamedTuple):
    wheel: Path
    sdist: Path


def build(tree: Path, into: Path, *targets: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    for target in targets:
        command += ["--target", target]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    build(REPOSITORY, folder, "sdist", "wheel")
    return Built(*folder.glob("*.whl"), *folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(built.wheel)], check=True)
    return folder


def test_the_wheel_is_the_package(built: Built) -> None:
    assert built.wheel.name == f"ladder_opt-{__version__}-py3-none-any.whl"
    assert check_dist.wheel_problems(built.wheel, REPOSITORY) == []
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"ladder_opt-{__version__}.dist-info/METADATA").decode())
    assert {"ladder_opt/py.typed", "ladder_opt/cost/builtin/spyre-granite-3.3-8b.json"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "scripts/"))]
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"dask", "torch", "vllm"} <= set(metadata.get_all("Provides-Extra", []))
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "vllm"))]


def test_the_sdist_is_the_tree(built: Built) -> None:
    assert built.sdist.name == f"ladder_opt-{__version__}.tar.gz"
    assert check_dist.sdist_problems(built.sdist, REPOSITORY) == []


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(built: Built, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", built.sdist, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.iterdir()
    assert not (unpacked / ".git").exists()
    build(unpacked, tmp_path / "again", "sdist", "wheel")
    assert (tmp_path / "again" / built.wheel.name).read_bytes() == built.wheel.read_bytes()
    assert check_dist.main([str(tmp_path / "again"), str(unpacked)]) == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tree: (tree / "ladder_opt/units.py").unlink(), " holds besides ladder_opt/units.py"),
        (lambda tree: (tree / "ladder_opt/new.json").touch(), " lacks ladder_opt/new.json"),
        (
            lambda tree: (tree / "ladder_opt/units.py").write_text("# other\n"),
            " holds with other bytes ladder_opt/units.py",
        ),
        (
            lambda tree: (tree / "ladder_opt/_version.py").write_text('__version__ = "9.9"\n'),
            ": found Version None, expected '9.9'",
        ),
    ],
)
def test_what_differs_is_told(
    built: Built, tmp_path: Path, change: Callable[[Path], object], problem: str
) -> None:
    shutil.copytree(
        REPOSITORY / "ladder_opt", tmp_path / "ladder_opt", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert check_dist.wheel_problems(built.wheel, tmp_path) == []
    change(tmp_path)
    told = check_dist.wheel_problems(built.wheel, tmp_path)
    if "Version" in problem:  # the folder of metadata has the version in its name
        assert any("9.9.dist-info/METADATA" in line for line in told)
    else:
        assert told == [f"{built.wheel.name}{problem}"]


def test_a_folder_without_files_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_dist.main([str(tmp_path), str(REPOSITORY)]) == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: found 0 files *.whl, expected one\n"
        f"error: {tmp_path}: found 0 files *.tar.gz, expected one\n"
    )


def test_what_an_sbom_leaves_out_is_told(tmp_path: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [Requirement(line).name for line in project["dependencies"]]
    names[names.index("typer")] = "torch"
    bill = {
        "metadata": {"component": {"name": "ladder-opt"}},
        "components": [{"name": name.upper()} for name in names],
    }
    file = tmp_path / "x.cdx.json"
    file.write_text(json.dumps(bill), encoding="utf-8")
    assert check_dist.sbom_problems(file, REPOSITORY) == [
        f"x.cdx.json: found version None, expected '{__version__}'",
        "x.cdx.json lacks typer",
        "x.cdx.json holds besides torch",
    ]


def run_installed(installed: Path, folder: Path, *arguments: str) -> str:
    """Run Python in another folder with the installed package before the checkout's.

    Kernels run as plain Python: compiling them for one small trace takes longer than all the rest.
    """
    environment = os.environ | {"PYTHONPATH": str(installed), "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_installed_tunes_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = run_installed(installed, tmp_path, "-c", "import ladder_opt; print(ladder_opt.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    assert (installed / "bin" / "ladder-opt").is_file()
    assert (
        run_installed(installed, tmp_path, "-m", "ladder_opt", "--version") == f"ladder-opt {__version__}\n"
    )
    synth = ("-m", "ladder_opt", "trace", "synth", "--requests", "40", "--seed", "1", "-o", "trace.parquet")
    run_installed(installed, tmp_path, *synth)
    engine = ("--max-num-seqs", "8", "--max-model-len", "4096")
    tune = ("-m", "ladder_opt", "tune", "trace.parquet", *engine, "-o", "plan.json", "--json")
    printed = run_installed(installed, tmp_path, *tune)
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert json.loads(printed) == plan
    assert plan["provenance"]["version"] == __version__
    assert plan["result"]["status"] == "optimal"
