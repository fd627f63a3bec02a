"""Examples for each command's help, as lines that work where `traces/sample.parquet` is.

The documentation shows the same lines, and a test runs them in this order, each in the
folder that those before it have left. `ladder-opt trace synth` makes a trace where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "trace info": (("what a trace holds, and what cannot be used", "traces/sample.parquet"),),
    "trace convert": (
        (
            "a table of your own, its columns named, as the canonical Parquet",
            "log.csv --columns arrival=at,prompt=tokens_in,output=tokens_out -o trace.parquet",
        ),
    ),
    "trace synth": (
        ("two thousand requests like published traffic", "--requests 2000 --rate 3 -o night.parquet"),
    ),
    "simulate": (
        (
            "decode steps of the traffic under the default ladders",
            "traces/sample.parquet --replicas 80 -o steps.csv",
        ),
        (
            "and by the pages of all sequences together, for vllm-gaudi",
            "traces/sample.parquet --replicas 80 -o steps.csv --total-blocks totals.csv",
        ),
    ),
    "tune": (
        (
            "the best ladders for a trace that 80 engines serve",
            "traces/sample.parquet --replicas 80 -o plan.json",
        ),
        (
            "the best that are ready in 25 minutes",
            "traces/sample.parquet --replicas 80 --warmup-budget 25m -o small.json",
        ),
        ("from steps that were counted already", "--steps steps.csv --span 24h -o plan2.json"),
        (
            "the least worst regret over two traces",
            "traces/sample.parquet night.parquet --robust --replicas 80 -o robust.json",
        ),
    ),
    "evaluate": (
        ("a plan under twice the load", "traces/sample.parquet plan.json --replicas 80 --rate-scale 2"),
        ("ladders given by hand", "--steps steps.csv --num-seqs 4,8,16,32 --num-blocks 4,8,16,32,64"),
    ),
    "frontier": (
        ("every trade-off of warm-up and step time", "--steps steps.csv --span 24h -o frontier.csv"),
    ),
    "sweep": (
        ("a plan for each of two engines", "traces/sample.parquet --replicas 80 --max-num-seqs 16,32"),
    ),
    "calibrate": (
        (
            "prices from the requests that a server recorded",
            "requests.jsonl --engine serve.yaml -o cost.json",
        ),
    ),
    "export": (
        ("a file for vllm serve --config", "plan.json --format vllm-yaml -o serve.yaml"),
        ("CUDA graph sizes for the traffic of the plan", "plan.json --format vllm-capture-sizes"),
        (
            "decode buckets for vllm-gaudi",
            (
                "plan.json --format gaudi-file --total-blocks totals.csv --max-graphs 40 --row-seconds 1e-4"
                " --page-seconds 1e-5"
            ),
        ),
    ),
    "check": (
        ("what a smaller engine would make of a plan", "plan.json --max-num-seqs 16"),
        ("what a server with this file would use, and why", "--engine serve.yaml"),
    ),
    "measure": (
        (
            "the kernel's seconds on this machine, for calibrate (needs torch, takes hours)",
            "--model CONFIG.json --max-num-seqs 8 --max-model-len 4096 -o rows.csv",
        ),
        (
            "a quick try, in less than a minute: nothing is compiled, and no compile recorded",
            "--compiler eager --points 6 --repeats 9 --max-num-seqs 8 --max-model-len 1024 -o quick.csv",
        ),
    ),
    "drift": (
        ("whether a plan is still the one to load, under other traffic", "plan.json night.parquet"),
        ("or under what a server recorded, for cron", "plan.json --steps records --max-regret 5% --json"),
    ),
    "report": (("a page with charts, of one file", "plan.json -o report.html"),),
    "verify": (("whether anything compiles after warm-up (needs torch)", "plan.json --compiler eager"),),
}
"""For each command, by the words that call it: what a line is for, and what follows the command."""


def epilog_of(command: str) -> str | None:
    """The examples as help shows them: each on lines of its own, unwrapped; None where there are none."""
    examples = EXAMPLES.get(command)
    if examples is None:
        return None
    lines = ["\b", "Examples:"]
    for purpose, line in examples:
        lines += [f"  # {purpose}", *_wrapped(f"ladder-opt {command} {line}")]
    return "\n".join(lines)


def _wrapped(line: str, width: int = 76) -> list[str]:
    """A command on lines that a shell reads as one."""
    lines, current = [], "  "
    for word in line.split(" "):
        if len(current) + len(word) + 3 > width and current.strip():
            lines.append(f"{current.rstrip()} \\")
            current = "      "
        current += f"{word} "
    return [*lines, current.rstrip()]
