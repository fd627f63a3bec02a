"""Runs a command again and again, killed each time at a later touch of its folder: COMMAND OUTPUT.

Touches are what Python tells its audit hooks, and each write to a file handle and each sync. Prints, as JSON,
for each kill whether the output then held the old content or another, which has to be whole; `measure` is run
again after each kill, and has to go on from what is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.commands import RECORDER, check, make_old, named, run

_TOUCHES = ("open", "os.rename", "os.remove", "os.chmod", "os.truncate", "shutil.copyfile", "os.mkdir")


class Touches:
    """Counts touches of a folder, and kills the process at one of them (a hook cannot be taken back)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.kill_at = str(folder), 0, 0
        sys.addaudithook(self._hear)
        os.write, os.fsync = self._told_of(os.write), self._told_of(os.fsync)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _TOUCHES and any(str(each).startswith(self.folder) for each in arguments[:2]):
            self._count()

    def _told_of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call by a file's handle, with a touch before it and one after."""

        def told(handle: int, *arguments: Any) -> Any:
            is_ours = str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(self.folder)
            if is_ours:
                self._count()
            done = call(handle, *arguments)
            if is_ours:
                self._count()
            return done

        return told

    def _count(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the module."""
    name, output = sys.argv[1], Path(sys.argv[2]).resolve()
    old = make_old(name, output)
    assert run(name, str(output)) == 0
    grows = name != RECORDER and named(name).grown_from is not None
    lines = output.read_bytes().count(b"\n")
    touches = Touches(output.parent)
    output.write_bytes(old)
    start = touches.count
    run(name, str(output))
    total = touches.count - start
    found = []
    for kill_at in range(1, total + 1):
        output.write_bytes(old)
        assert _in_a_child(name, output, touches, kill_at) == -signal.SIGKILL
        content = output.read_bytes()
        if content != old:
            assert content.startswith(old) or not grows
            check(name, output)
        found.append("old" if content == old else "new")
        if name == "measure":
            assert _in_a_child(name, output, touches, 0) == 0
            assert output.read_bytes().startswith(content)
            assert output.read_bytes().count(b"\n") == lines
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _in_a_child(name: str, output: Path, touches: Touches, kill_at: int) -> int:
    """Run the command in a fork; its exit code."""
    child = os.fork()
    if not child:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        touches.count, touches.kill_at = 0, kill_at
        os._exit(run(name, str(output)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main()
