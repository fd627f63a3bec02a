"""What all tests with a real vLLM share: a model and a cache of compiled kernels."""

from __future__ import annotations

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
    folder = tmp_path_factory.mktemp("tiny_model")
    subprocess.run(
        python("tests.serving.tiny_model", "make", folder),
        env=environment(inductor_cache),
        check=True,
        capture_output=True,
    )
    return folder
