"""Requests of the serving tests, and their tokens from a model that is not vLLM's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.serving.environment import environment, python
from tests.serving.server import Request
from tests.serving.tiny_model import VOCABULARY


def draw(prompts: Sequence[int], outputs: Sequence[int], *, seed: int) -> list[Request]:
    """Requests of given lengths, with random prompts."""
    rng = np.random.default_rng(seed)
    return [
        Request(tuple(rng.integers(3, VOCABULARY, prompt).tolist()), output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def mixed(count: int, *, seed: int, longest_prompt: int = 330, longest_output: int = 60) -> list[Request]:
    """Requests of mixed lengths, many of which end a token before or after a block does."""
    rng = np.random.default_rng(seed)
    prompts = np.where(
        rng.random(count) < 0.3,
        rng.choice([127, 128, 129, 256], count),
        rng.integers(4, longest_prompt, count),
    )
    return draw(prompts.tolist(), rng.integers(2, longest_output, count).tolist(), seed=seed)


def dense_tokens(model: Path, requests: Sequence[Request], inductor_cache: Path) -> list[list[int]]:
    """Greedy tokens of transformers' own model, each request by itself."""
    asked = [[list(request.prompt), request.output_tokens] for request in requests]
    run = subprocess.run(
        python("tests.serving.tiny_model", "greedy", model),
        input=json.dumps(asked).encode(),
        env=environment(inductor_cache),
        check=True,
        capture_output=True,
    )
    tokens: list[list[int]] = json.loads(run.stdout)
    return tokens
