"""Settings for tests that run torch."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Shapes are small here; threads that wait for each other on a busy machine would cost the most."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _no_compile_traces() -> Iterator[None]:
    """Dynamo tells a tracer of every graph at length; pytest would keep all of it for a failure's report."""
    tracer = logging.getLogger("torch.__trace")
    propagates, tracer.propagate = tracer.propagate, False
    yield
    tracer.propagate = propagates
