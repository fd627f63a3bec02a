"""What all tests with a real vLLM share: a model and a cache of compiled kernels."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.serving.environment import environment, python


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all engines of the run; TORCHINDUCTOR_CACHE_DIR keeps it from run to run."""
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(named) if named else tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, inductor_cache: Path) -> Path:
    """A folder with a small Llama of random weights."""
    return make_model(tmp_path_factory.mktemp("tiny_model"), inductor_cache)


@pytest.fixture(scope="session")
def sliding_model(tmp_path_factory: pytest.TempPathFactory, inductor_cache: Path) -> Path:
    """A small Mistral, whose tokens see the last 150 alone."""
    return make_model(tmp_path_factory.mktemp("sliding_model"), inductor_cache, sliding_window=150)


def make_model(folder: Path, inductor_cache: Path, **changes: int) -> Path:
    subprocess.run(
        python("tests.serving.tiny_model", "make", folder, json.dumps(changes)),
        env=environment(inductor_cache),
        check=True,
        capture_output=True,
    )
    return folder
