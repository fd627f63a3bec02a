"""Derive the built-in cost model `spyre-granite-3.3-8b` from published measurements.

    python -m benchmarks.derive_builtin_cost            print measured against modelled, and the parameters
    python -m benchmarks.derive_builtin_cost --write    the same, and write the JSON file
    python -m benchmarks.derive_builtin_cost --check    exit 1 if the stored file is not what this derives

Three kinds of published figures go in, each named where it stands below: throughput and warm-up of KV-ladder
presets relative to one another (of three workloads; two others judge the fit), a few absolute times, and one
kernel microbenchmark. The step terms are fitted together to the throughput ratios and the absolute times, the
compile terms to the warm-up ratios.
The note `docs/design/0003-builtin-cost-model.md` says what that can and cannot tell.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.published_figures import (
    BLOCK_SIZE,
    CONFIGURATION,
    FITTED,
    KERNEL,
    LAYERS,
    MAX_NUM_BATCHED_TOKENS,
    MEASURED_THROUGHPUT,
    MEASURED_WARMUP,
    PRESETS,
    STEP,
    WARMUP,
    WORKLOADS,
    Floats,
)
from ladder_opt.files import write_text

NAME: Final = "spyre-granite-3.3-8b"
TARGET: Final = Path(__file__).resolve().parent.parent / "ladder_opt" / "cost" / "builtin" / f"{NAME}.json"

BRANCH: Final = "tdoublep/spyre-inference (public branches of a contributor, September 2026)"

# Source: BRANCH, benchmark-pr789-pr784.md: one card, max_model_len 8192, max_num_seqs 32.
BODY_WARMUP_SECONDS: Final = 141.6  # 7 token widths and 6 widths of logits
ATTENTION_RECORDING_SECONDS: Final = 532.4  # 14 per-sequence variants in each of 40 layers

# Source: BRANCH, experimental/MISSION.md: median seconds between tokens, input 1984 tokens (16 blocks),
# per-sequence attention.
TOKEN_SECONDS_BATCH_1: Final = 0.17590
TOKEN_SECONDS_BATCH_4: Final = 0.29309
# Source: BRANCH, itl-investigation.md: 4 sequences, one more padded block for each of them.
FOUR_BLOCKS_SECONDS: Final = 0.0115
# Source: BRANCH, CONCURRENCY-SWEEP.md, concurrency 1, 512-token chunks: prompts of 1537 tokens on average
# (median 1292, padded to 16 blocks), 31.6 % of them from the prefix cache.
SWEEP_TOKEN_SECONDS: Final = 0.2084
SWEEP_FIRST_TOKEN_SECONDS: Final = 1.208
SWEEP_PREFILL_TOKENS: Final = 1537 * (1 - 0.316)
BLOCKS_OF_2048_TOKENS: Final = 16
# Source: BRANCH, experimental/microbench_batched_decode.py: device seconds of one layer's decode attention,
# 4 sequences of 16 blocks. Token-major cache with 8 and with 4 blocks a chunk; head-major (as served) with 8.
TWO_CHUNKS_OF_32: Final = 1.953e-3
FOUR_CHUNKS_OF_16: Final = 3.330e-3
TWO_CHUNKS_OF_32_HEAD_MAJOR: Final = 1.645e-3

# Source: config.json of ibm-granite/granite-3.3-8b-instruct, and its parameters less the embedding table.
HIDDEN_SIZE: Final = 4096  # of 32 query heads
BODY_PARAMETERS: Final = 8.17e9 - 49_159 * HIDDEN_SIZE

RATIO_NOISE: Final = 0.015  # of a throughput ratio: 1 % of the runs, and the form's own error
WARMUP_NOISE: Final = 0.05
CHAIN_SPREAD: Final = 0.1  # believed of the logs by which chains of runs differ
ANCHOR_FACTOR: Final = 1.4  # by which an absolute time of another build may be off
COMPILE_FACTOR: Final = 3.0  # by which a batched compile may be off, as the note puts it
SMALLEST_SECONDS: Final = 1e-6  # of a term in a fit of logarithms: not told from 0
RESAMPLES: Final = 60
SEED: Final = 20260930
WEIGHT: Final = FITTED.astype(np.float64)  # of the workloads in a fit


def gather_share() -> tuple[float, float]:
    """Share of a 32-entry chunk's time that grows with its entries: (middle, half width) of what is possible.

    Two chunks of 32 entries take f + 2 t32 and four of 16 take f + 4 t16. Neither the fixed part f, nor the
    growth t32 - t16, nor t16 can be negative: so 2 (t32 - t16) / t32 lies between 0 and its value at f = 0.
    """
    chunk_32, chunk_16 = TWO_CHUNKS_OF_32 / 2, FOUR_CHUNKS_OF_16 / 4
    most = 2 * (chunk_32 - chunk_16) / chunk_32
    return most / 2, most / 2


def step_terms(logs: Floats, share: float | None = None) -> Floats:
    """(base, per_seq, per_iteration, per_gather) from the logs of (base, per_seq, chunk of 32 entries).

    Args:
        logs: natural logarithms of seconds.
        share: of a chunk's time, the part that grows with its entries; None for `gather_share`.
    """
    base, per_seq, chunk = np.exp(logs)
    if share is None:
        share, _ = gather_share()
    return np.array([base, per_seq, chunk * (1 - share), chunk * share / 32])


def throughput_ratios(terms: Floats) -> Floats:
    """Modelled throughput of every workload and preset, relative to `8_5`."""
    seconds = STEP @ terms
    return np.asarray(seconds[:, :1] / seconds[:, 1:])


def compile_terms(logs: Floats) -> Floats:
    """(body, per-sequence graphs, base, per_iteration) in seconds a start and seconds a variant."""
    return np.concatenate([[BODY_WARMUP_SECONDS], np.exp(logs) * LAYERS])


def warmup_ratios(terms: Floats) -> Floats:
    """Modelled warm-up of every workload and preset, relative to `8_5`, had all been measured alike."""
    seconds = WARMUP @ terms
    return np.asarray(seconds[:, 1:] / seconds[:, :1])


def published_warmup_ratios(logs: Floats) -> Floats:
    """The same as the figures were taken: not all starts were measured in one chain of runs.

    Args:
        logs: as `fit_compile` returns them; the last two are the logs of what the starts of `8_5`, and of
            `uniform`, took beyond those of the three other presets.
    """
    baseline, uniform = np.exp(logs[3:])
    chain = np.where(np.array(PRESETS) == "uniform", uniform, 1.0) / baseline
    return np.asarray(warmup_ratios(compile_terms(logs[:3])) * chain)


def per_sequence_gather_seconds() -> float:
    """Seconds a block of one sequence adds to a per-sequence step: two published slopes, geometric mean."""
    from_batch = (TOKEN_SECONDS_BATCH_4 - TOKEN_SECONDS_BATCH_1) / 3 / BLOCKS_OF_2048_TOKENS
    return math.sqrt(from_batch * FOUR_BLOCKS_SECONDS / 4)


def attention_share_of_a_token() -> float:
    """Multiply-adds of one query token against one page, as a share of the token's way through the body.

    Scores and their product with V are two matrix products of the hidden size for each of the page's tokens;
    the body multiplies the token with every parameter once.
    """
    return 2 * BLOCK_SIZE * HIDDEN_SIZE * LAYERS / BODY_PARAMETERS


def anchors() -> tuple[tuple[float, ...], float]:
    """Absolute seconds: what a step of one sequence takes beside attention, and a chunk of 32 entries."""
    attention = (TOKEN_SECONDS_BATCH_4 - TOKEN_SECONDS_BATCH_1) / 3
    bases = (
        TOKEN_SECONDS_BATCH_1 - attention,
        SWEEP_TOKEN_SECONDS - BLOCKS_OF_2048_TOKENS * per_sequence_gather_seconds(),
    )
    most_fixed = 2 * TWO_CHUNKS_OF_32 - FOUR_CHUNKS_OF_16  # in the head-major kernel scaled alike
    fixed = most_fixed / 2 / TWO_CHUNKS_OF_32
    return bases, LAYERS * TWO_CHUNKS_OF_32_HEAD_MAJOR * (1 - fixed) / 2


def fit_step(measured: Floats, weight: Floats, *, anchor_weight: float = 1.0) -> Floats:
    """Logs of (base, per_seq, chunk): robust, positive; `weight` 0 leaves a workload out."""
    bases, chunk = anchors()

    def residuals(logs: Floats) -> Floats:
        ratios = (throughput_ratios(step_terms(logs)) - measured) / RATIO_NOISE * weight[:, None]
        absolute = np.array([*(logs[0] - np.log(bases)), logs[2] - np.log(chunk)]) / math.log(ANCHOR_FACTOR)
        return np.concatenate([ratios.ravel(), absolute * anchor_weight])

    return _solve(residuals, (np.log([0.15, 0.01, 0.03]), np.log([0.15, 0.03, 0.02])))


def fit_compile(
    measured: Floats, weight: Floats, *, per_sequence_graph: float | None = None, chains: bool = True
) -> Floats:
    """Logs of seconds a graph and of chains of runs.

    In order: per-sequence graph (unless given), batched base, batched per_iteration, then what starts of
    `8_5` and of `uniform` took beyond the others'.

    Args:
        measured: published ratios (workload, preset).
        weight: of each workload; 0 leaves it out.
        per_sequence_graph: seconds, where they are not to be fitted.
        chains: whether chains of runs may differ; the last two logs are 0 where not.
    """

    def residuals(logs: Floats) -> Floats:
        if per_sequence_graph is not None:
            logs = np.array([math.log(per_sequence_graph), *logs[1:]])
        logs = logs if chains else np.array([*logs[:3], 0.0, 0.0])
        difference = (published_warmup_ratios(logs) - measured) / WARMUP_NOISE * weight[:, None]
        return np.concatenate([difference.ravel(), logs[3:] / CHAIN_SPREAD])

    logs = _solve(residuals, (np.log([0.08, 0.5, 0.01, 1, 1]), np.log([0.3, 0.3, 0.05, 1, 1])))
    return logs if chains else np.array([*logs[:3], 0.0, 0.0])


def _solve(residuals: Callable[[Floats], Floats], starts: tuple[Floats, ...]) -> Floats:
    bounds = (math.log(SMALLEST_SECONDS), math.log(10.0))
    fits = [
        least_squares(residuals, start, loss="soft_l1", bounds=bounds, xtol=1e-13, ftol=1e-13, gtol=1e-13)
        for start in starts
    ]
    return np.asarray(min(fits, key=lambda fit: float(fit.cost)).x, np.float64)


Fit = Callable[[Floats, Floats], Floats]


def spread(fit: Fit, ratios: Callable[[Floats], Floats], measured: Floats) -> tuple[Floats, Floats]:
    """Lower and upper end of each log parameter.

    The wider of resampling the residuals (5 to 95 %) and of leaving one fitted workload out.
    """
    modelled = ratios(fit(measured, WEIGHT))
    left_over = (measured - modelled)[FITTED].ravel()
    random = np.random.default_rng(SEED)
    resampled = [
        fit(modelled + random.choice(left_over, size=modelled.shape), WEIGHT) for _ in range(RESAMPLES)
    ]
    left_out = [fit(measured, WEIGHT - row) for row in np.eye(len(WORKLOADS))[FITTED]]
    low = np.minimum(np.quantile(resampled, 0.05, axis=0), np.min(left_out, axis=0))
    high = np.maximum(np.quantile(resampled, 0.95, axis=0), np.max(left_out, axis=0))
    return low, high


def table() -> pd.DataFrame:
    """Measured against modelled, a row for each workload and preset."""
    throughput = throughput_ratios(step_terms(fit_step(MEASURED_THROUGHPUT, WEIGHT)))
    warmup = published_warmup_ratios(fit_compile(MEASURED_WARMUP, WEIGHT))
    rows = []
    for at, workload in enumerate(WORKLOADS):
        for column, preset in enumerate(PRESETS):
            rows.append(
                {
                    "workload": workload.label,
                    "preset": preset,
                    "throughput": workload.throughput[column],
                    "modelled": throughput[at, column],
                    "residual": throughput[at, column] - workload.throughput[column],
                    "warm-up": workload.warmup[column],
                    "modelled ": warmup[at, column],
                    "residual ": warmup[at, column] - workload.warmup[column],
                }
            )
    return pd.DataFrame(rows)


def split_residuals() -> dict[float, float]:
    """Mean absolute throughput residual for several gather shares: what the ratios say about the split."""
    logs = fit_step(MEASURED_THROUGHPUT, WEIGHT)
    return {
        share: float(np.abs(throughput_ratios(step_terms(logs, share)) - MEASURED_THROUGHPUT)[FITTED].mean())
        for share in (0.0, gather_share()[0], 1.0)
    }


def cross_checks() -> list[str]:
    """What the note says beside the tables, a line each."""
    bases, chunk = anchors()
    shown = ", ".join(f"{base:.4f}" for base in bases)
    split = ", ".join(f"{mean:.4f} at {share:.3f}" for share, mean in split_residuals().items())
    without = [
        np.exp(fit_step(MEASURED_THROUGHPUT, WEIGHT - row, anchor_weight=1e-3))
        for row in (np.zeros(len(WORKLOADS)), *np.eye(len(WORKLOADS))[FITTED])
    ]
    shares = [round(float(parts[2] / parts[0]), 3) for parts in without]
    published = ATTENTION_RECORDING_SECONDS / 560
    forced = fit_compile(MEASURED_WARMUP, WEIGHT, per_sequence_graph=published)
    forced[0] = math.log(published)
    off = _summary((published_warmup_ratios(forced) - MEASURED_WARMUP)[FITTED])
    return [
        f"absolute times: base {shown} s; chunk of 32 entries {chunk:.4f} s",
        f"mean throughput residual by gather share: {split}",
        f"chunk over base from the ratios alone: {shares[0]:.3f}; a workload left out: {sorted(shares)}",
        f"per-sequence graph forced to {published:.3f} s: batched {np.exp(forced[1:3])} s, residuals {off}",
    ]


def derive() -> dict[str, Any]:
    """The cost file's JSON object."""
    step_logs = fit_step(MEASURED_THROUGHPUT, WEIGHT)
    compile_logs = fit_compile(MEASURED_WARMUP, WEIGHT)
    step = step_terms(step_logs)
    step_low, step_high = spread(
        fit_step, lambda logs: throughput_ratios(step_terms(logs)), MEASURED_THROUGHPUT
    )
    share, half = gather_share()
    chunk_low, chunk_high = np.exp(step_low[2]), np.exp(step_high[2])
    compile_low, compile_high = spread(fit_compile, published_warmup_ratios, MEASURED_WARMUP)
    chunks = math.ceil(SWEEP_PREFILL_TOKENS / MAX_NUM_BATCHED_TOKENS)
    prefill = (SWEEP_FIRST_TOKEN_SECONDS - chunks * step[0]) / SWEEP_PREFILL_TOKENS
    gather = per_sequence_gather_seconds()
    per_sequence_graph, compile_base, compile_iteration, baseline_chain, uniform_chain = np.exp(compile_logs)
    throughput = throughput_ratios(step) - MEASURED_THROUGHPUT
    warmup = published_warmup_ratios(compile_logs) - MEASURED_WARMUP
    as_one_chain = published_warmup_ratios(fit_compile(MEASURED_WARMUP, WEIGHT, chains=False))

    scale = "joint fit of throughput ratios and absolute times"
    split = "a chunk's time by that fit; its split by the microbenchmark with 16 and 32 entries a chunk"
    warm = "fit of warm-up ratios, in units of the body's 141.6 s"
    parameters = {
        "step_seconds.base": _entry(step[0], np.exp(step_low[0]), np.exp(step_high[0]), "s", scale),
        "step_seconds.per_seq": _entry(
            step[1], np.exp(step_low[1]), np.exp(step_high[1]), "s/sequence", scale
        ),
        "step_seconds.per_iteration": _entry(
            step[2], chunk_low * (1 - share - half), chunk_high, "s/iteration", split
        ),
        "step_seconds.per_gather": _entry(step[3], 0.0, chunk_high * (share + half) / 32, "s/page", split),
        "compile_seconds.base": _entry(
            compile_base, np.exp(compile_low[1]), max(0.95, np.exp(compile_high[1])), "s/graph", warm
        ),
        "compile_seconds.per_iteration": _entry(
            compile_iteration, 0.0, np.exp(compile_high[2]), "s/graph/iteration", warm
        ),
        "compile_seconds.per_iteration_sq": _entry(0.0, 0.0, 0.0, "s/graph/iteration^2", "not told from 0"),
        "replay_seconds.per_sequence_gather": _entry(
            gather,
            gather / 1.5,
            gather * 1.5,
            "s/block",
            "slopes against batch size and against padded blocks",
        ),
        "replay_seconds.per_prefill_token": _entry(
            prefill,
            prefill / 2,
            prefill * 2,
            "s/token",
            "median time to first token, less base for each chunk",
        ),
        "per_sequence.per_query_gather": _entry(
            prefill * attention_share_of_a_token(),
            0.0,
            prefill * 2 * attention_share_of_a_token(),
            "s/token/page",
            "per_prefill_token, by the share of multiply-adds in granite-3.3-8b; not measured",
        ),
        "per_sequence.compile_seconds.base": _entry(
            ATTENTION_RECORDING_SECONDS / 560,
            np.exp(compile_low[0]),
            1.05 * ATTENTION_RECORDING_SECONDS / 560,
            "s/graph",
            f"mean of a measured start, an upper end; below it the {warm}",
        ),
        "startup_seconds": _entry(
            BODY_WARMUP_SECONDS + ATTENTION_RECORDING_SECONDS,
            400.0,
            800.0,
            "s",
            "body graphs and per-sequence recording, both measured, at max_model_len 8192",
        ),
    }
    value = {name: entry["value"] for name, entry in parameters.items()}
    return {
        "schema": "ladder_opt/cost/1",
        "name": NAME,
        "kernel": KERNEL.name,
        **{
            part: {name.split(".")[1]: value[name] for name in value if name.startswith(part)}
            for part in ("step_seconds", "compile_seconds", "replay_seconds")
        },
        "per_sequence": {
            "per_query_gather": value["per_sequence.per_query_gather"],
            "compile_seconds": {"base": value["per_sequence.compile_seconds.base"]},
            "recorded_in_startup_seconds": ATTENTION_RECORDING_SECONDS,
        },
        "graphs_per_variant": LAYERS,
        "startup_seconds": value["startup_seconds"],
        "fit": {
            "source": {
                "ratios": CONFIGURATION,
                "absolute": BRANCH,
                "derived_by": "benchmarks/derive_builtin_cost.py",
                "reasons": "docs/design/0003-builtin-cost-model.md",
            },
            "parameters": parameters,
            "intervals": "ratios resampled (5-95 %) and a workload left out; the scale is not in them",
            "scale_uncertainty_factor": 1.5,
            "compile_uncertainty_factor": COMPILE_FACTOR,
            "gather_share_of_a_full_chunk": {
                "value": _round(share),
                "low": 0.0,
                "high": _round(share + half),
            },
            "per_sequence_graph_seconds": {
                "fitted": _round(float(per_sequence_graph)),
                "published": _round(ATTENTION_RECORDING_SECONDS / 560),
            },
            "chains_of_runs": {
                "8_5": _chain(baseline_chain, compile_low[3], compile_high[3]),
                "uniform": _chain(uniform_chain, compile_low[4], compile_high[4]),
                "how": "starts took so many times as long as those of pow2, 4_3 and 9_8 would have",
            },
            "residuals": {
                "throughput_ratio": _summary(throughput[FITTED]),
                "warmup_ratio": _summary(warmup[FITTED]),
                "warmup_ratio_as_one_chain": _summary((as_one_chain - MEASURED_WARMUP)[FITTED]),
                "throughput_ratio_set_aside": _summary(throughput[~FITTED]),
                "warmup_ratio_set_aside": _summary(warmup[~FITTED]),
            },
            "range": {
                "num_seqs_measured": [4, 32],
                "num_blocks": [4, 128],
                "max_model_len": [4096, 16384],
                "block_size": [BLOCK_SIZE, BLOCK_SIZE],
            },
        },
    }


def _chain(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": _round(value), "low": _round(np.exp(low)), "high": _round(np.exp(high))}


def _entry(value: float, low: float, high: float, unit: str, how: str) -> dict[str, Any]:
    if low < 2 * SMALLEST_SECONDS:
        low = 0.0
    return {"value": _round(value), "low": _round(low, 2), "high": _round(high, 2), "unit": unit, "how": how}


def _round(value: float, digits: int = 3) -> float:
    return float(f"{float(value):.{digits}g}") if abs(value) < 100 else round(float(value), 1)


def _summary(residuals: Floats) -> dict[str, Any]:
    absolute = np.abs(residuals)
    return {
        "rows": int(absolute.size),
        "mean_abs": round(float(absolute.mean()), 3),
        "max_abs": round(float(absolute.max()), 3),
    }


def to_text(model: dict[str, Any]) -> str:
    """The file's bytes."""
    return json.dumps(model, indent=2) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; write or check the file when asked to."""
    parser = argparse.ArgumentParser(
        description="Derive the built-in cost model from published measurements."
    )
    parser.add_argument("--write", action="store_true", help="write the JSON file")
    parser.add_argument("--check", action="store_true", help="exit 1 if the stored file differs")
    options = parser.parse_args(arguments)
    model = derive()
    text = to_text(model)
    if options.check:
        same = TARGET.is_file() and TARGET.read_bytes() == text.encode()
        print(f"{TARGET.name}: {'as derived' if same else 'differs from what is derived; run with --write'}")
        return 0 if same else 1
    print(table().round(3).to_string(index=False))
    print()
    print(pd.DataFrame(model["fit"]["parameters"]).T.to_string())
    print()
    print(json.dumps(model["fit"]["residuals"], indent=2))
    print(json.dumps(model["fit"]["per_sequence_graph_seconds"]))
    for line in cross_checks():
        print(line)
    if options.write:
        TARGET.parent.mkdir(exist_ok=True)
        write_text(TARGET, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
