"""Settings and fixtures for all tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.vllm_oracle import VLLM_ENVIRONMENT

for _name, _value in VLLM_ENVIRONMENT.items():  # before any test imports vLLM
    os.environ.setdefault(_name, _value)

# `default` is for every run, the same examples each time in CI; `slow` is for a change to what the
# properties are about: pytest --hypothesis-profile=slow; `few` is for what an example more does not change,
# such as the lines that run: make coverage
settings.register_profile("default", max_examples=100, deadline=None, derandomize="CI" in os.environ)
settings.register_profile("few", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("slow", max_examples=10_000, deadline=None)
settings.load_profile("default")

_REPOSITORY = Path(__file__).resolve().parent.parent

# What vLLM and torch warn about as they are imported; a warning of ours is an error in these tests too.
_VLLM_WARNINGS = ("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `vllm` where it is not installed, and lets its import warnings pass where it is."""
    installed = importlib.util.find_spec("vllm") is not None
    for item in items:
        if item.get_closest_marker("vllm") is None:
            continue
        if installed:
            for warning in _VLLM_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
        else:
            item.add_marker(pytest.mark.skip(reason="vllm is not installed; `make test` builds it"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of public traces beside the repository, or the one that LADDER_OPT_SHARED names."""
    folder = Path(os.environ.get("LADDER_OPT_SHARED", _REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no public traces: {folder} is not a folder; LADDER_OPT_SHARED names another")
    return folder
