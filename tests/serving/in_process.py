"""An engine in this process, told what to do in JSON: a script, so that vLLM stays out of the tests' process.

    python -m tests.serving.in_process < JOB > RESULT

JOB: {"engine": arguments of vllm.LLM, "requests": [[[prompt token ids], new tokens], ...], "aborts": {step:
[indices of requests aborted after it], ...}, which may be left out}.
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
    if job.get("aborts"):
        tokens = _with_aborts(engine.llm_engine, job)
        report = engine.llm_engine.model_executor.driver_worker.worker.ladder_opt_report()
        return {"tokens": tokens, "report": report, "modules": []}
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


def _with_aborts(engine: Any, job: dict[str, Any]) -> list[list[int]]:
    """Step by step; of a request that is aborted, the tokens that it had by then."""
    from vllm import SamplingParams

    for index, (prompt, count) in enumerate(job["requests"]):
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    tokens: list[list[int]] = [[] for _ in job["requests"]]
    step = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[int(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
        engine.abort_request([str(index) for index in job["aborts"].get(str(step), [])])
    return tokens


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else prints goes to stderr
    result = run(wanted)
    with os.fdopen(out, "w") as stream:
        json.dump(result, stream)
