"""Every command and every Python block that README and the documentation show, run as a reader would.

Pages that show output are run on the bundled sample; the others on its first requests, to save time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.cli.examples import EXAMPLES
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.read import read_trace
from scripts import doc_commands
from scripts.doc_commands import REPOSITORY, Step

SHORT_REQUESTS = 2000
MADE = {REPOSITORY / "docs" / "reference" / "cli.md"}  # its examples are those of the help, run below
PAGES = {
    page.relative_to(REPOSITORY).as_posix(): steps
    for page in doc_commands.pages()
    if page not in MADE and (steps := doc_commands.steps_of(page))
}


@pytest.fixture(scope="session")
def short_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first requests of the bundled sample."""
    trace = read_trace(REPOSITORY / "traces" / "sample.parquet")
    path = tmp_path_factory.mktemp("sample") / "sample.parquet"
    write_trace(trace.take(np.arange(len(trace)) < SHORT_REQUESTS), path)
    return path


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LADDER_OPT_PLAN", "SPYRE_ATTN_NUM_SEQS_BUCKETS", "SPYRE_ATTN_KV_BUCKETS"):
        monkeypatch.delenv(name, raising=False)


def test_pages_are_found() -> None:
    assert {"README.md", "docs/tutorial.md", "traces/README.md"} <= set(PAGES)
    assert sum(len(steps) for steps in PAGES.values()) > 60


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_works(page: str, short_sample: Path) -> None:
    steps = PAGES[page]
    shows_output = any(step.output is not None for step in steps)
    inside = "notebooks" if page.startswith("notebooks/") else "."
    names: dict[str, object] = {}
    with doc_commands.reader_s_folder(None if shows_output else short_sample, inside=inside):
        for step in steps:
            check(step, page, names)


def check(step: Step, page: str, names: dict[str, object]) -> None:
    if step.language == "python":
        compiled = compile(step.text, f"{page}:{step.line}", "exec")
        if step.not_run is None:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compiled, names)  # noqa: S102  (our own pages)
        return
    doc_commands.parse(step)
    if step.not_run is not None:
        return
    code, out, err = doc_commands.run(step)
    assert code == 0, f"{page}:{step.line}: {step.text}\n{err}"
    if step.output is not None:
        assert step.output == doc_commands.as_block(out), (
            f"{page}:{step.line} shows other output than {step.text!r} prints; "
            f"python -m scripts.doc_commands {page} writes it anew"
        )


def example_steps() -> Iterator[Step]:
    for command, examples in EXAMPLES.items():
        for _, rest in examples:
            yield Step(f"ladder-opt {command} {rest}", 0, "sh")


def test_the_examples_of_the_help_work(short_sample: Path) -> None:
    torch_is_here = importlib.util.find_spec("torch") is not None
    with doc_commands.reader_s_folder(short_sample) as folder:
        (folder / "log.csv").write_text("at,tokens_in,tokens_out\n0.0,100,20\n1.5,300,40\n", encoding="utf-8")
        for step in example_steps():
            doc_commands.parse(step)
            _, words = doc_commands.words_of(step)
            if words[0] in ("calibrate", "drift") or "CONFIG.json" in words:
                continue  # what they read comes from a server or a card
            if words[0] in ("measure", "verify") and not torch_is_here:
                continue
            if words[0] == "verify":  # of a plan with few variants: the same line in a hundredth of the time
                assert doc_commands.run(Step(TINY, 0, "sh"))[0] == 0
            code, _, err = doc_commands.run(step)
            assert code == 0, f"{step.text}\n{err}"
        assert (
            json.loads((folder / "plan2.json").read_text(encoding="utf-8"))["result"]["status"] == "optimal"
        )


TINY = "ladder-opt tune --steps steps.csv --num-seqs 32 --num-blocks 16,64 --restarts 1 -o plan.json"


def test_every_command_that_is_not_run_says_why() -> None:
    for page, steps in PAGES.items():
        for step in steps:
            assert step.not_run is None or len(step.not_run.split()) >= 3, f"{page}:{step.line}"


def read(text: str, tmp_path: Path) -> list[Step]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return doc_commands.steps_of(page)


def test_how_a_page_is_read(tmp_path: Path) -> None:
    steps = read(
        "# T\n\n    ladder-opt tune a \\\n      -o p.json   # why\n    vllm serve M\n"
        "    X=1 ladder-opt check\n\n"
        "<!-- not run: needs a card -->\n\n    ladder-opt verify p.json\n\n    ladder-opt report p.json\n\n"
        "Then\n\n    ladder-opt trace info t\n\n<!-- output:begin -->\n\n"
        "    ladder-opt is no command here\n\n"
        "<!-- output:end -->\n\n```python\nx = 1\n```\n\n<!-- setup: ladder-opt trace synth -o t -->\n"
        "\n```sh\nladder-opt sweep t\n```\n\n```\nladder-opt in a text\n```\n",
        tmp_path,
    )
    assert [(step.text, step.language, step.not_run) for step in steps] == [
        ("ladder-opt tune a -o p.json   # why", "sh", None),
        ("X=1 ladder-opt check", "sh", None),
        ("ladder-opt verify p.json", "sh", "needs a card"),
        ("ladder-opt report p.json", "sh", "needs a card"),
        ("ladder-opt trace info t", "sh", None),
        ("x = 1", "python", None),
        ("ladder-opt trace synth -o t", "sh", None),
        ("ladder-opt sweep t", "sh", None),
    ]
    assert steps[4].output == ["", "    ladder-opt is no command here", ""]
    assert doc_commands.words_of(steps[0]) == ({}, ["tune", "a", "-o", "p.json"])
    assert doc_commands.words_of(steps[1]) == ({"X": "1"}, ["check"])


def test_a_page_with_a_wrong_option_or_a_pipe_fails(tmp_path: Path) -> None:
    wrong, piped = read("    ladder-opt tune t --no-such 3\n    ladder-opt tune t | cat\n", tmp_path)
    with pytest.raises(Exception, match="found no option '--no-such', expected one that"):
        doc_commands.parse(wrong)
    with pytest.raises(ValueError, match="found a shell's operator, expected one command"):
        doc_commands.parse(piped)
