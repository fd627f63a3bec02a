"""The commands and the Python that pages of the documentation show, as steps that a test can run.

What counts as a step, in the order of a page:

- a line of an indented or `sh` block that calls `ladder-opt`, with variables set before it or not;
- a `python` block;
- `<!-- setup: ladder-opt ... -->`, a command that readers need not see;
- `<!-- output:begin -->` and `<!-- output:end -->` enclose what the last command prints, indented.

`<!-- not run: REASON -->` before a block says why none of it can be run (it needs a server, a card, or
hours); its commands are still read by the command line's own parser. Other programs' lines are for the reader
alone.

python -m scripts.doc_commands            run every page and write what its commands print between the markers
python -m scripts.doc_commands PAGE...    those pages alone
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ladder_opt.cli.app import app, main

REPOSITORY = Path(__file__).resolve().parent.parent
OUTPUT_BEGIN, OUTPUT_END = "<!-- output:begin -->", "<!-- output:end -->"
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_SETUP = re.compile(r"<!-- setup: (ladder-opt .+?) -->")
_COMMAND = re.compile(r"(?:[A-Z][A-Z0-9_]*=\S* )*ladder-opt (?!COMMAND)\S")
_OPERATORS = {"|", ">", ">>", "2>", "<", "&", "&&", "||", ";"}
_SHELLS = {"sh", "bash", "shell", "console"}


@dataclass
class Step:
    """Something that a page shows.

    Attributes:
        text: a command line, or Python.
        line: where it starts, 1-based.
        language: `sh` or `python`.
        not_run: why it is not run; None where it is.
        output: the lines between the output markers that follow it; None without markers.
        output_at: index of the first of those lines in the page, and of the one after the last.
    """

    text: str
    line: int
    language: str
    not_run: str | None = None
    output: list[str] | None = None
    output_at: tuple[int, int] = (0, 0)


@dataclass
class _Reader:
    """Reads a page line by line."""

    steps: list[Step] = field(default_factory=list)
    fence: str | None = None
    code: list[str] = field(default_factory=list)
    start: int = 0
    reason: str | None = None
    in_block: bool = False
    output_from: int | None = None

    def take(self, index: int, line: str, lines: list[str]) -> None:
        """One line of the page."""
        if self.output_from is not None:
            if line == OUTPUT_END:
                self.steps[-1].output = lines[self.output_from : index]
                self.steps[-1].output_at = (self.output_from, index)
                self.output_from = None
            return
        if line.lstrip().startswith("```"):
            self._fence(index, line)
        elif self.fence is not None:
            self._fenced(index, line)
        elif line == OUTPUT_BEGIN:
            self.output_from = index + 1
        elif setup := _SETUP.fullmatch(line.strip()):
            self.steps.append(Step(setup[1], index + 1, "sh"))
        elif reason := _NOT_RUN.fullmatch(line.strip()):
            self.reason, self.in_block = reason[1], False
        elif line.startswith("    "):
            self.in_block = True
            self._command(index, line)
        elif line.strip():  # prose ends a block, and with it what was said of it
            self.reason = None if self.in_block or self.reason is None else self.reason
            self.reason, self.in_block = None, False

    def _fence(self, index: int, line: str) -> None:
        if self.fence is None:
            self.fence, self.code, self.start = (
                line.strip().removeprefix("```").split(" ")[0] or "text",
                [],
                index + 2,
            )
            return
        if self.fence == "python":
            self.steps.append(Step("\n".join(self.code), self.start, "python", self.reason))
        self.fence, self.reason = None, None

    def _fenced(self, index: int, line: str) -> None:
        if self.fence in _SHELLS:
            self._command(index, line)
        self.code.append(line)

    def _command(self, index: int, line: str) -> None:
        text = line.strip().removeprefix("$ ")
        if self.steps and self.steps[-1].language == "sh" and self.steps[-1].text.endswith("\\"):
            self.steps[-1].text = f"{self.steps[-1].text[:-1].rstrip()} {text}"
        elif _COMMAND.match(text):
            self.steps.append(Step(text, index + 1, "sh", self.reason))


def steps_of(page: Path) -> list[Step]:
    """The steps of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    reader = _Reader()
    for index, line in enumerate(lines):
        reader.take(index, line, lines)
    return reader.steps


def words_of(step: Step) -> tuple[dict[str, str], list[str]]:
    """A command's variables, and its words after `ladder-opt`.

    Raises:
        ValueError: it is to be run, and uses the shell for more than that.
    """
    words = shlex.split(step.text, comments=True)
    variables = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    operators = [index for index, word in enumerate(words) if word in _OPERATORS]
    if operators and step.not_run is None:
        raise ValueError(f"line {step.line}: found a shell's operator, expected one command: {step.text}")
    return variables, words[1 : operators[0] if operators else None]


def parse(step: Step) -> None:
    """Have the command line read a command without running it.

    Raises:
        Exception: the command line's own, where there is no such command or option.
    """
    _, words = words_of(step)
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    command.make_context("ladder-opt", words)


def run(step: Step) -> tuple[int, str, str]:
    """Run a command in the current folder; its exit code, stdout and stderr."""
    variables, words = words_of(step)
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def reader_s_folder(sample: Path | None = None, *, inside: str = ".") -> Iterator[Path]:
    """A fresh folder with `traces/sample.parquet` in it; the current one is it, or a folder inside.

    Args:
        sample: a trace in place of the bundled one.
        inside: the folder that a page's commands start from.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        shutil.copy(sample or REPOSITORY / "traces" / "sample.parquet", folder / "traces" / "sample.parquet")
        (folder / inside).mkdir(exist_ok=True)
        os.chdir(folder / inside)
        try:
            yield folder
        finally:
            os.chdir(before)


def as_block(text: str) -> list[str]:
    """Output as the lines between the markers."""
    return ["", *(f"    {line}".rstrip() for line in text.rstrip().splitlines()), ""]


def pages() -> list[Path]:
    """All pages with steps or without."""
    found = [REPOSITORY / name for name in ("README.md", "traces/README.md", "notebooks/README.md")]
    return [*found, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def _refresh(page: Path) -> None:
    steps = steps_of(page)
    if not any(step.output is not None for step in steps):
        return
    lines = page.read_text(encoding="utf-8").splitlines()
    written: list[tuple[tuple[int, int], list[str]]] = []
    with reader_s_folder():
        for step in steps:
            if step.language != "sh" or step.not_run is not None:
                continue
            code, out, err = run(step)
            if code:
                sys.exit(f"{page}:{step.line}: ended with {code}: {err}")
            if step.output is not None:
                written.append((step.output_at, as_block(out)))
    for (start, stop), block in reversed(written):
        lines[start:stop] = block
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        _refresh(each)
