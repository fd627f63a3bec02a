"""What is said in more than one place is the same in all: versions, commands, pins, changelog fragments."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from typer.main import get_command

from ladder_opt._version import __version__
from ladder_opt.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[2]
FRAGMENT = re.compile(r"\d+\.(added|changed|fixed|removed)(\.\d+)?\.md")


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


PROJECT: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["project"]


def listed(name: str) -> list[str]:
    """Lines of a requirements file without comments."""
    lines = (line.split("#")[0].strip() for line in text_of(name).splitlines())
    return [line for line in lines if line]


def pins() -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in listed("requirements/constraints-test.txt"):
        name, _, version = line.partition("==")
        assert version, f"found {line}, expected NAME==VERSION"
        assert canonicalize_name(name) not in found, f"{name} is pinned twice"
        found[canonicalize_name(name)] = Version(version)
    return found


def asked_for() -> list[Requirement]:
    lines = [
        *PROJECT["dependencies"],
        *listed("requirements/vllm-build.txt"),
        *listed("requirements/release.txt"),
    ]
    for extra in PROJECT["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def variable(name: str) -> str:
    """A variable of the Makefile."""
    found = re.search(rf"^{name} := (.*)$", text_of("Makefile"), re.MULTILINE)
    assert found
    return found[1]


def test_each_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in asked_for():
        name = canonicalize_name(requirement.name)
        if name == "vllm":  # built by the Makefile, which pins it
            assert requirement.specifier.contains(variable("VLLM_VERSION"))
            continue
        assert name in pinned, f"requirements/constraints-test.txt has no line for {requirement}"
        assert requirement.specifier.contains(pinned[name]), (
            f"found {name}=={pinned[name]}, asked {requirement}"
        )


def test_torch_and_vllm_are_pinned_alike_everywhere() -> None:
    torch = variable("TORCH")
    minor = ".".join(variable("VLLM_VERSION").split(".")[:2])
    extras = PROJECT["optional-dependencies"]
    assert extras["torch"] == [torch]
    assert extras["vllm"] == [f"vllm=={minor}.*", torch]
    assert f"torch=={pins()['torch']}" == torch
    for name in ("README.md", "docs/vllm-upgrade.md", "ladder_opt/occupancy/replay.py"):
        assert re.search(
            rf"v(llm|LLM)'?s?( is pinned to one minor version,)? {re.escape(minor)}\b", text_of(name)
        ), name
    for name in ("README.md", "docs/install.md"):
        assert torch in text_of(name), name


def test_the_python_versions_agree() -> None:
    minimum = re.fullmatch(r">=(3\.\d+)", PROJECT["requires-python"])
    assert minimum
    assert f"Needs Python {minimum[1]} or newer" in text_of("README.md")
    versions = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert versions[0] == minimum[1]
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in versions)
    config = tomllib.loads(text_of("pyproject.toml"))["tool"]
    assert config["mypy"]["python_version"] == minimum[1]
    assert config["ruff"]["target-version"] == f"py{minimum[1].replace('.', '')}"


def test_the_version_is_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", __version__)
    assert str(Version(__version__)) == __version__


@pytest.mark.parametrize("document", ["README.md", "docs/install.md", "docs/releasing.md", "CONTRIBUTING.md"])
def test_commands_that_documents_show_exist(document: str) -> None:
    group: Any = get_command(app)
    shown = re.findall(r"^ {4}(?:\S*/)?ladder-opt ([a-z]+)", text_of(document), re.MULTILINE)
    assert set(shown) <= set(group.commands)
    made = re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text_of(document), re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE)
    assert phony
    assert set(made) <= set(phony[1].split())


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/install.md",
        "docs/releasing.md",
        "docs/vllm-upgrade.md",
    ],
)
def test_links_lead_somewhere(document: str) -> None:
    folder = (REPOSITORY / document).parent
    links = re.findall(r"\]\(([^)\s]+)\)", text_of(document))
    gone = [
        link
        for link in links
        if not link.startswith(("http:", "https:", "mailto:", "#"))
        and not (folder / link.split("#")[0]).exists()
    ]
    assert gone == []


def fragments() -> list[Path]:
    return [file for file in (REPOSITORY / "changelog.d").iterdir() if FRAGMENT.fullmatch(file.name)]


def draft(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "towncrier", "build", "--draft", "--version", "9.8.7", "--date", "2030-01-02"]
    options = ["--dir", str(folder), "--config", str(folder / "pyproject.toml")]
    return subprocess.run([sys.executable, *command, *options], capture_output=True, text=True, check=False)


def test_fragments_have_names_that_the_changelog_takes() -> None:
    others = {"README.md", "template.md.jinja"}
    names = {file.name for file in (REPOSITORY / "changelog.d").iterdir() if not file.name.startswith(".")}
    assert names - others == {file.name for file in fragments()}


def test_the_changelog_shows_every_change_of_every_fragment() -> None:
    done = draft(REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "## 9.8.7 (2030-01-02)" in done.stdout
    shown = " ".join(done.stdout.split())
    for file in fragments():
        for change in file.read_text(encoding="utf-8").split("\n\n"):
            assert f"- {' '.join(change.split())}" in shown, f"{file.name}: {change[:60]}"


def test_a_release_gathers_the_fragments_and_deletes_them(tmp_path: Path) -> None:
    """A release on a copy: kinds in order, one bullet for each change, the place for the next one kept."""
    (tmp_path / "changelog.d").mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md", "changelog.d/README.md", "changelog.d/template.md.jinja"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    before = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    (tmp_path / "changelog.d" / "7.fixed.md").write_text("A mended\nthing.\n")
    (tmp_path / "changelog.d" / "7.added.md").write_text("One thing.\n\nAnother thing.\n")
    command = ["-m", "towncrier", "build", "--yes", "--version", "9.8.7", "--date", "2030-01-02"]
    subprocess.run([sys.executable, *command, "--dir", str(tmp_path)], check=True, capture_output=True)
    assert before.endswith("<!-- releases -->\n")
    section = (
        "\n## 9.8.7 (2030-01-02)\n\n### Added\n\n- One thing.\n- Another thing.\n\n"
        "### Fixed\n\n- A mended\n  thing.\n"
    )
    assert (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8") == before + section
    left = {file.name for file in (tmp_path / "changelog.d").iterdir()}
    assert left == {"README.md", "template.md.jinja"}
