"""What an installation costs: pip's CPU time for the core from wheels and with its extras, and by package.

Each row is an environment of its own, made anew with the interpreter that runs this; pip's time includes that
of unpacking, and of compiling to bytecode unless it is told not to. Wheels come out of pip's cache, which a
run before fills. The second table is the largest installation taken apart: size on disk, and the CPU time of
compiling each package again.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks import common

AT_MOST: Final = 15.0
EXTRAS: Final = ("", "[report]", "[frames]", "[report,frames]")
ROWS_SHOWN: Final = 14


@dataclass(frozen=True)
class Installed:
    """One installation.

    Attributes:
        what: the package with its extras.
        compiled: whether pip compiled it to bytecode.
        cpu_seconds: user and system, of pip and what it starts; the least of the repeats.
        packages: distributions that it brought, ladder_opt among them.
        mebibytes: their files.
    """

    what: str
    compiled: bool
    cpu_seconds: float
    packages: int
    mebibytes: float


@dataclass(frozen=True)
class Part:
    """One package of an installation."""

    name: str
    mebibytes: float
    files: int
    compile_cpu_seconds: float


def run(command: Sequence[str | Path]) -> float:
    """CPU seconds of a command and all that it starts.

    Raises:
        RuntimeError: it failed.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    told = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:4]))}: {told[-500:]}")
    return usage.ru_utime + usage.ru_stime


def environment(folder: Path) -> Path:
    """A new environment's interpreter."""
    run([sys.executable, "-m", "venv", "--clear", folder])
    return folder / "bin" / "python"


def packages(folder: Path) -> list[importlib.metadata.Distribution]:
    """What is installed in an environment, pip and setuptools left out."""
    (site,) = folder.glob("lib/python*/site-packages")
    found = importlib.metadata.distributions(path=[str(site)])
    return [each for each in found if each.metadata["Name"].lower() not in ("pip", "setuptools")]


def files(package: importlib.metadata.Distribution) -> list[Path]:
    """The files of a package that are there."""
    paths = (Path(str(package.locate_file(each))) for each in package.files or ())
    return [path for path in paths if path.is_file()]


def mebibytes(paths: Sequence[Path]) -> float:
    """Their size."""
    return sum(path.stat().st_size for path in paths) / 2**20


def installed(wheel: Path, extras: str, folder: Path, *, compiled: bool, repeats: int) -> Installed:
    """Install a wheel in new environments."""
    options = ["--quiet", "--only-binary", ":all:", *([] if compiled else ["--no-compile"])]
    seconds = []
    for _ in range(repeats):
        python = environment(folder)
        seconds.append(run([python, "-m", "pip", "install", *options, f"{wheel}{extras}"]))
    found = packages(folder)
    size = sum(mebibytes(files(each)) for each in found)
    return Installed(f"ladder-opt{extras}", compiled, min(seconds), len(found), size)


def parts(folder: Path) -> list[Part]:
    """The packages of an environment, the dearest to compile first."""
    found = []
    for package in packages(folder):
        paths = files(package)
        sources = [path for path in paths if path.suffix == ".py"]
        start = time.process_time()
        with tempfile.NamedTemporaryFile(suffix=".pyc") as sink:
            for source in sources:
                _compile(source, Path(sink.name))
        seconds = time.process_time() - start
        found.append(Part(package.metadata["Name"], mebibytes(paths), len(paths), seconds))
    return sorted(found, key=lambda each: -each.compile_cpu_seconds)


def _compile(source: Path, sink: Path) -> None:
    import py_compile

    try:
        py_compile.compile(str(source), cfile=str(sink), doraise=True)
    except (py_compile.PyCompileError, OSError):  # templates that are no Python, as pip finds them too
        return


def _row(each: Installed) -> common.Row:
    return {
        "installed": each.what,
        "bytecode": "yes" if each.compiled else "no",
        "CPU s": f"{each.cpu_seconds:.1f}",
        "packages": each.packages,
        "MiB": f"{each.mebibytes:.0f}",
    }


def _part_row(each: Part) -> common.Row:
    return {
        "package": each.name,
        "CPU s to compile": f"{each.compile_cpu_seconds:.2f}",
        "MiB": f"{each.mebibytes:.0f}",
        "files": each.files,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code is 1 where the core takes more than `--at-most`."""
    parser = common.parser("install", __doc__)
    parser.add_argument("--repeats", type=int, default=2, help="of each row; the least counts [%(default)s]")
    parser.add_argument(
        "--at-most", type=float, default=AT_MOST, help="CPU seconds of the core [%(default)s]"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ladder-opt-install-") as name:
        work = Path(name)
        run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", work])
        (wheel,) = work.glob("*.whl")
        rows = [
            installed(wheel, extras, work / "environment", compiled=compiled, repeats=given.repeats)
            for extras, compiled in (("", False), *((extras, True) for extras in EXTRAS))
        ]
        taken_apart = parts(work / "environment")
    print(common.machine_line())
    print(common.text_table([_row(each) for each in rows]))
    print()
    print(common.text_table([_part_row(each) for each in taken_apart[:ROWS_SHOWN]]))
    common.write_json(given.json, "install", [*map(asdict, rows), *map(asdict, taken_apart)])
    core = next(row for row in rows if row.what == "ladder-opt" and row.compiled)
    if core.cpu_seconds > given.at_most:
        print(
            f"failed: found {core.cpu_seconds:.1f} s, expected at most {given.at_most:g} s", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
