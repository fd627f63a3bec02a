"""Runs a command again and again, killed each time at a later touch of its folder: COMMAND OUTPUT.

Prints, as JSON, for each kill whether the output then held the old content, the new, or neither.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.faults.commands import WRITES, run

_TOUCHES = ("open", "os.rename", "os.remove", "os.chmod", "os.truncate", "shutil.copyfile", "os.mkdir")
OLD = b"an old file\n"


class Touches:
    """Counts touches of a folder, and kills the process at one of them (a hook cannot be taken back)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.kill_at = str(folder), 0, 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _TOUCHES and any(str(each).startswith(self.folder) for each in arguments[:2]):
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the module."""
    name, output = sys.argv[1], Path(sys.argv[2]).resolve()
    run(name, str(output))
    touches = Touches(output.parent)
    output.write_bytes(OLD)
    start = touches.count
    run(name, str(output))
    total = touches.count - start
    found = []
    for kill_at in range(1, total + 1):
        output.write_bytes(OLD)
        child = os.fork()
        if not child:
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            touches.count, touches.kill_at = 0, kill_at
            run(name, str(output))
            os._exit(0)
        os.waitpid(child, 0)
        content = output.read_bytes()
        state = "old" if content == OLD else "new"
        if state == "new":
            WRITES[name].check(output)
        found.append(state)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
