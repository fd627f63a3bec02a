"""An engine with the package installed and no plan is the engine without the package."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.plan.plan import write_plan
from tests.serving import in_process, plain_attention
from tests.serving.environment import ENGINE_ARGUMENTS, environment
from tests.serving.test_serve import ARGUMENTS, make_plan
from tests.serving.traffic import dense_tokens, mixed
from tests.serving.without_package import make_interpreter

pytestmark = [pytest.mark.vllm, pytest.mark.serving]

REQUESTS = mixed(16, seed=7, longest_output=24)


def run(
    interpreter: Path,
    model: Path,
    cache: Path,
    plain: Path,
    *,
    config: dict[str, Any],
) -> dict[str, Any]:
    """Run the requests on an engine of an interpreter; what `in_process` tells, and what it logged."""
    job = {
        "engine": {
            **ENGINE_ARGUMENTS,
            **ARGUMENTS,
            "max_num_batched_tokens": 256,
            "model": str(model),
            "compilation_config": plain_attention.COMPILATION,
            "additional_config": config,
        },
        "requests": [[list(request.prompt), request.output_tokens] for request in REQUESTS],
    }
    done = subprocess.run(
        [interpreter, in_process.__file__],
        input=json.dumps(job).encode(),
        env=environment(cache, VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONPATH=str(plain)),
        cwd=plain,
        check=False,
        capture_output=True,
    )
    log = done.stderr.decode(errors="replace")
    assert done.returncode == 0, log[-9000:]
    return {**json.loads(done.stdout), "log": log}


def said(log: str) -> set[str]:
    """The lines that vLLM logged, without numbers, folders, and the list of the plugins there are."""
    lines = (line for line in log.splitlines() if line.startswith(("INFO", "WARNING", "ERROR")))
    plain = (re.sub(r"/\S*/", "/", re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", line)) for line in lines)
    return {line for line in plain if "ladder_opt" not in line}


def test_without_a_plan_the_package_changes_nothing(
    tiny_model: Path, inductor_cache: Path, tmp_path: Path
) -> None:
    plain = plain_attention.install(tmp_path / "plain")
    write_plan(make_plan(), tmp_path / "plan.json")
    without = make_interpreter(tmp_path / "without", with_package=False)
    interpreter = make_interpreter(tmp_path / "with", with_package=True)
    absent = run(without, tiny_model, inductor_cache, plain, config={})
    installed = run(interpreter, tiny_model, inductor_cache, plain, config={})
    planned = run(
        interpreter,
        tiny_model,
        inductor_cache,
        plain,
        config={"ladder_opt": str(tmp_path / "plan.json"), "ladder_opt_backend": "reference"},
    )
    assert not [name for name in absent["modules"] if name.startswith("ladder_opt")]
    added = set(installed["modules"]) - set(absent["modules"])
    assert "ladder_opt.vllm_plugin" in added
    assert {name.partition(".")[0] for name in added} == {"ladder_opt"}
    assert len(said(absent["log"])) > 10
    assert said(installed["log"]) == said(absent["log"])
    assert installed["report"] is absent["report"] is None
    assert absent["tokens"] == dense_tokens(tiny_model, REQUESTS, inductor_cache)
    assert installed["tokens"] == absent["tokens"]
    assert planned["tokens"] == absent["tokens"]
    assert sum(planned["report"]["dispatched"].values()) > 10
