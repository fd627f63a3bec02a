"""Fuzz every loader for as long as asked: `python -m tests.fuzz --seconds 60 [--seed 1] [--only plan,trace]`.

Inputs that reach lines of this package which none before them reached are kept, and mutated further. Whatever
a loader lets out besides an error of ours, and whatever takes long, is printed with the file that did it; the
exit code is 1 then.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, Self

from tests.fuzz.loaders import LOADERS, judge, seeds
from tests.fuzz.mutations import mutated

_SLOW_SECONDS = 5.0
_PACKAGE = str(Path(__file__).resolve().parents[2] / "ladder_opt")

Edge = tuple[str, int, int]


class Coverage:
    """Lines of this package, each with the one before it, that a call goes through."""

    def __init__(self) -> None:
        self.edges: set[Edge] = set()

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            del argument
            if event == "line":
                self.edges.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(LOADERS), help="loaders, separated by commas")
    parser.add_argument("--keep", type=Path, default=None, help="folder for files that fail")
    given = parser.parse_args()
    warnings.simplefilter("error")
    rng = random.Random(given.seed)  # noqa: S311  (to be run again)
    wanted = set(given.only.split(","))
    start = [(name, each.content) for each in seeds().values() for name in each.loaders if name in wanted]
    corpus = list(start)
    seen: set[Edge] = set()
    failures: dict[str, str] = {}
    runs = kept = 0
    keep = given.keep or Path(tempfile.mkdtemp(prefix="ladder-opt-fuzz-"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        until = time.monotonic() + given.seconds
        while time.monotonic() < until:
            if runs < len(start):
                name, content = start[runs]
            else:
                name, content = rng.choice(corpus)
                content = mutated(content, rng)
            path.write_bytes(content)
            coverage = Coverage()
            started = time.process_time()
            try:
                with coverage:
                    judge(name, path)
            except Exception as error:  # noqa: BLE001  (whatever comes out is what is looked for)
                last = traceback.extract_tb(error.__traceback__)[-1]
                key = f"{name}: {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
                _note(failures, key, f"{key}: {error}", keep, content)
            seconds = time.process_time() - started
            if seconds > _SLOW_SECONDS:
                _note(failures, f"{name} slow", f"{name}: {seconds:.1f} s", keep, content)
            runs += 1
            if not coverage.edges <= seen:
                seen |= coverage.edges
                corpus.append((name, content))
                kept += 1
    print(f"{runs} inputs, {kept} of them kept, {len(seen)} edges, {len(failures)} failures")  # noqa: T201
    return 1 if failures else 0


def _note(failures: dict[str, str], key: str, found: str, keep: Path, content: bytes) -> None:
    if key in failures:
        return
    keep.mkdir(parents=True, exist_ok=True)
    failures[key] = found
    path = keep / f"failure-{len(failures)}"
    path.write_bytes(content)
    print(f"{found[:300]}\n  {path}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
