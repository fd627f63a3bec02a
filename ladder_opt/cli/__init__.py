"""The command line: thin over the library, errors as one line, exit codes (`app.main` lists them)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED, EXIT_INTERRUPTED = "ladder-opt: interrupted\n", 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Ctrl-C ends it cleanly while it still loads, too."""
    try:
        from ladder_opt.cli.app import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write(INTERRUPTED)
        return EXIT_INTERRUPTED
    return run(arguments)
