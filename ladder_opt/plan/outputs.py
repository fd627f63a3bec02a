"""What a command that reads a plan may write over: no file that the plan was made from."""

from __future__ import annotations

import os
from pathlib import Path

from ladder_opt.errors import InputError
from ladder_opt.files import is_file, sha256_of
from ladder_opt.plan.plan import Plan


def check_not_an_input(path: str | Path | None, plan: Plan) -> None:
    """Refuse to write over a file that the plan was made from, under its old path or any other.

    Raises:
        InputError: `path` is one, by where it lies or by what it holds.
    """
    if path is None or not is_file(path):
        return
    target = os.path.realpath(path)
    known = plan.provenance.inputs
    if any("\0" not in each.path and os.path.realpath(each.path) == target for each in known) or (
        known and sha256_of(path) in {each.sha256 for each in known}
    ):
        raise InputError("a file that the plan was made from", "another file for the output", path=path)
