"""Fixtures that all tests of the command line share."""

from __future__ import annotations

from tests.cli.test_cli import folder, run  # noqa: F401
