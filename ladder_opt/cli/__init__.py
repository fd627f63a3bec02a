"""The command line: thin over the library, errors as one line, exit codes 0, 1, 2."""

from ladder_opt.cli.app import main

__all__ = ["main"]
