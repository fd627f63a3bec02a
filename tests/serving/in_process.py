"""An engine in this process, told what to do in JSON: a script, so that vLLM stays out of the tests' process.

    python -m tests.serving.in_process < JOB > RESULT

JOB: {"engine": arguments of vllm.LLM, "requests": [[[prompt token ids], new tokens], ...]}.
RESULT: {"tokens": [[...], ...], "report": the worker's report, null without the reference backend, "modules":
names of the modules loaded}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, run the requests together, end."""
    from vllm import LLM, SamplingParams

    engine = LLM(**job["engine"])
    prompts: Any = [{"prompt_token_ids": prompt} for prompt, _ in job["requests"]]
    outputs = engine.generate(
        prompts,
        [
            SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
            for _, count in job["requests"]
        ],
        use_tqdm=False,
    )
    worker = engine.llm_engine.model_executor.driver_worker.worker
    report = getattr(worker, "ladder_opt_report", lambda: None)()
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return {"tokens": tokens, "report": report, "modules": sorted(sys.modules)}


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else prints goes to stderr
    result = run(wanted)
    with os.fdopen(out, "w") as stream:
        json.dump(result, stream)
