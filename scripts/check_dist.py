"""Holds a wheel and an sdist to the files that they are made from.

    python -m scripts.check_dist DIST_FOLDER [TREE]

TREE is the folder they were built from (here by default). The rules are equalities, so that neither a
forgotten folder nor a stray file gets through:

- the wheel is every file of TREE/ladder_opt, byte for byte, and five files of metadata;
- the sdist is every file of TREE, byte for byte and with its executable bit, and PKG-INFO;
- both say the version that ladder_opt/_version.py says;
- an SBOM (*.cdx.json), where there is one, is of that version and lists all dependencies of the core, but
  neither torch nor vllm.

"Every file" is what git tracks or, where TREE is no repository, what lies there and .gitignore does not name.
"""

from __future__ import annotations

import argparse
import json
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path

PACKAGE = "ladder_opt"
_METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
_IGNORED = re.compile(
    r"(^|/)(__pycache__|build|dist|demo|[^/]*\.egg-info|\.(venv|git$|git/|.*_cache|hypothesis)[^/]*)(/|$)"
)
_SHOWN = 5


def version_of(tree: Path) -> str:
    """The version that a tree's `_version.py` holds.

    Raises:
        ValueError: it holds none.
    """
    file = tree / PACKAGE / "_version.py"
    found = re.search(r'^__version__ = "([^"]+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        message = f'{file}: found no line __version__ = "..."'
        raise ValueError(message)
    return found[1]


def files_of(tree: Path) -> list[str]:
    """Paths of a tree's files, relative and sorted: what git tracks, or would if all were added."""
    if (tree / ".git").exists():
        command = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        return sorted({name for name in listed if name and (tree / name).is_file()})
    every = (path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    return sorted(name for name in every if not _IGNORED.search(name) and name != "PKG-INFO")


def wheel_problems(wheel: Path, tree: Path) -> list[str]:
    """What is wrong with a wheel, one line each; none when it is right."""
    version = version_of(tree)
    info = f"{PACKAGE}-{version}.dist-info"
    expected = {name: tree / name for name in files_of(tree) if name.startswith(f"{PACKAGE}/")}
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    metadata = {f"{info}/{name}" for name in _METADATA}
    problems = _differences(wheel.name, found, expected, metadata)
    return problems + _metadata_problems(wheel.name, found.get(f"{info}/METADATA"), version)


def sdist_problems(sdist: Path, tree: Path) -> list[str]:
    """What is wrong with an sdist, one line each; none when it is right."""
    version = version_of(tree)
    top = f"{PACKAGE}-{version}"
    expected = {f"{top}/{name}": tree / name for name in files_of(tree)}
    found: dict[str, bytes] = {}
    problems = []
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            if stream is None:
                problems.append(f"{sdist.name}: {member.name} is no plain file")
                continue
            found[member.name] = stream.read()
            source = expected.get(member.name)
            if source and bool(member.mode & stat.S_IXUSR) != bool(source.stat().st_mode & stat.S_IXUSR):
                problems.append(f"{sdist.name}: {member.name} has another executable bit than {source}")
    problems += _differences(sdist.name, found, expected, {f"{top}/PKG-INFO"})
    return problems + _metadata_problems(sdist.name, found.get(f"{top}/PKG-INFO"), version)


def sbom_problems(sbom: Path, tree: Path) -> list[str]:
    """What is wrong with a CycloneDX SBOM of the core environment, one line each; none when it is right."""
    bill = json.loads(sbom.read_text(encoding="utf-8"))
    found = bill["metadata"]["component"]
    expected = {"name": "ladder-opt", "version": version_of(tree)}
    problems = [
        f"{sbom.name}: found {key} {found.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]
    listed = {component["name"].lower() for component in bill["components"]}
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in project["dependencies"]}
    if asked - listed:
        problems.append(f"{sbom.name} lacks {_listed(asked - listed)}")
    if listed & {"torch", "vllm"}:
        problems.append(f"{sbom.name} holds besides {_listed(listed & {'torch', 'vllm'})}")
    return problems


def _differences(
    name: str, found: Mapping[str, bytes], expected: Mapping[str, Path], generated: set[str]
) -> list[str]:
    wanted = expected.keys() | generated
    other = [
        path for path, source in expected.items() if path in found and found[path] != source.read_bytes()
    ]
    kinds = {
        "lacks": wanted - found.keys(),
        "holds besides": found.keys() - wanted,
        "holds with other bytes": other,
    }
    return [f"{name} {kind} {_listed(paths)}" for kind, paths in kinds.items() if paths]


def _listed(paths: Iterable[str]) -> str:
    every = sorted(paths)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _metadata_problems(name: str, text: bytes | None, version: str) -> list[str]:
    if text is None:
        return []  # already told as a file that is lacking
    fields = Parser().parsestr(text.decode("utf-8"))
    problems = []
    for field, expected in (
        ("Name", "ladder-opt"),
        ("Version", version),
        ("License-Expression", "Apache-2.0"),
    ):
        if fields[field] != expected:
            problems.append(f"{name}: found {field} {fields[field]!r}, expected {expected!r}")
    if not str(fields.get_payload()).strip().startswith("# ladder_opt"):
        problems.append(f"{name}: the README is not its description")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Check one wheel and one sdist; 0 when both are right, else 1 with the reasons on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dist", type=Path, help="folder with one wheel and one sdist")
    parser.add_argument("tree", type=Path, nargs="?", default=Path(), help="what they were built from")
    options = parser.parse_args(arguments)
    problems = []
    for pattern, check in (("*.whl", wheel_problems), ("*.tar.gz", sdist_problems)):
        files = sorted(options.dist.glob(pattern))
        if len(files) != 1:
            problems.append(f"{options.dist}: found {len(files)} files {pattern}, expected one")
        problems += [problem for file in files for problem in check(file, options.tree)]
    for file in sorted(options.dist.glob("*.cdx.json")):
        problems += sbom_problems(file, options.tree)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
