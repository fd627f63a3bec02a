"""Files of measurements made up from known coefficients, one writer a format.

The geometry is written out here again, in plain Python.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

LAYERS = 40
STEP = {"base": 0.16, "per_seq": 0.002, "per_iteration": 0.02, "per_gather": 2e-4}
ATTENTION = {"base": 0.004, "per_seq": 0.0, "per_iteration": 0.02, "per_gather": 2e-4}
COMPILE = {"base": 0.4, "per_iteration": 0.05, "per_iteration_sq": 0.001}
PAIRS = [(s, m) for s in (4, 6, 8, 12, 16, 24, 32) for m in (1, 2, 3, 5, 8, 13, 20, 32, 45, 64)]


def chunking(num_seqs: int, num_blocks: int) -> tuple[int, int]:
    """(blocks of a chunk, chunks) of the chunked kernel."""
    chunk = max(1, min(32 // num_seqs, num_blocks))
    return chunk, math.ceil(num_blocks / chunk)


def step_seconds(terms: dict[str, float], num_seqs: int, num_blocks: int) -> float:
    """Seconds of a padded step."""
    chunk, chunks = chunking(num_seqs, num_blocks)
    return (
        terms["base"]
        + terms["per_seq"] * num_seqs
        + terms["per_iteration"] * chunks
        + terms["per_gather"] * num_seqs * chunk * chunks
    )


def compile_seconds(num_seqs: int, num_blocks: int, terms: dict[str, float] = COMPILE) -> float:
    """Seconds of one graph."""
    _, chunks = chunking(num_seqs, num_blocks)
    return terms["base"] + terms["per_iteration"] * chunks + terms["per_iteration_sq"] * chunks**2


def noise(seed: int, sigma: float = 0.01) -> Iterable[float]:
    """Factors of measurements."""
    rng = np.random.default_rng(seed)
    while True:
        yield float(np.exp(sigma * rng.standard_normal()))


def write_measurements(
    path: Path,
    *,
    pairs: Sequence[tuple[int, int]] = PAIRS,
    seed: int = 1,
    sigma: float = 0.01,
    layers: int = LAYERS,
    **others: object,
) -> Path:
    """As `ladder-opt measure` writes them."""
    factors = iter(noise(seed, sigma))
    with path.open("w", encoding="utf-8", newline="") as stream:
        names = ["kernel", "num_seqs", "num_blocks", "step_seconds", "compile_seconds", "layers", *others]
        writer = csv.writer(stream)
        writer.writerow(names)
        for s, m in pairs:
            call = step_seconds(ATTENTION, s, m) / layers * next(factors)
            writer.writerow(
                ["chunked", s, m, call, compile_seconds(s, m) * next(factors), layers, *others.values()]
            )
    return path


def write_table(
    path: Path,
    *,
    pairs: Sequence[tuple[int, int]] = PAIRS,
    seed: int = 2,
    sigma: float = 0.01,
    header: str = "num_seqs,num_blocks,seconds,compile_seconds",
    graphs: int = 1,
) -> Path:
    """Whole steps, whole variants."""
    factors = iter(noise(seed, sigma))
    lines = [header]
    for s, m in pairs:
        step = step_seconds(STEP, s, m) * next(factors)
        lines.append(f"{s},{m},{step},{graphs * compile_seconds(s, m) * next(factors)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def microbenchmark_row(num_seqs: int, num_blocks: int, milliseconds: float | str) -> dict[str, object]:
    """A batched row, with the columns of the present version of the benchmark that matter."""
    chunk, _ = chunking(num_seqs, num_blocks)
    return {
        "capture_name": f"decode_{num_seqs}",
        "capture_type": "decode",
        "num_reqs": num_seqs,
        "capture_max_query_len": 1,
        "max_seq_len": num_blocks * 128,
        "block_size": 128,
        "num_blocks": 2048,
        "num_kv_blocks_iterated": num_blocks,
        "span": "spyre_attn::layer",
        "ms": milliseconds,
        "min_ms": milliseconds if isinstance(milliseconds, str) else milliseconds * 0.98,
        "max_ms": milliseconds if isinstance(milliseconds, str) else milliseconds * 1.02,
        "allclose_pass": True,
        "fallback_clean": True,
        "attn_path": "batched",
        "padded_num_seqs": num_seqs,
        "blocks_per_chunk": chunk,
        "late_compile": False,
        "error": "",
    }


def write_tab_separated(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """Rows under the first one's names."""
    lines = ["\t".join(rows[0]), *("\t".join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_microbenchmark(
    path: Path, *, pairs: Sequence[tuple[int, int]] = PAIRS, seed: int = 3, sigma: float = 0.01
) -> Path:
    """Batched rows, and those of one sequence, whose blocks take 3 ms each in all layers."""
    factors = iter(noise(seed, sigma))
    rows = [
        microbenchmark_row(s, m, 1e3 * step_seconds(ATTENTION, s, m) / LAYERS * next(factors))
        for s, m in pairs
    ]
    for blocks in (1, 2, 4, 8, 16, 32, 64):
        alone = microbenchmark_row(1, blocks, 1e3 * (0.001 + 0.003 * blocks) / LAYERS * next(factors))
        rows.append(alone | {"attn_path": "per_seq", "padded_num_seqs": -1, "blocks_per_chunk": -1})
    return write_tab_separated(path, rows)


def iteration_line(seconds: float, *, prefill: int, decodes: int, usage: float, at: int = 7) -> str:
    """A step's line, as vLLM 0.28 logs it."""
    return (
        f"(APIServer pid=77) INFO 12-01 00:00:00 [loggers.py:180] Engine 000: Iteration({at}): "
        f"{1 if prefill else 0} context requests, {prefill} context tokens, {decodes} generation requests, "
        f"{decodes} generation tokens, iteration elapsed time: {1e3 * seconds:.2f} ms, "
        f"GPU KV cache usage: {usage:.1f}%"
    )


def warmup_lines(
    pairs: Iterable[tuple[int, int]],
    *,
    layers: int = LAYERS,
    sequences: int = 4,
    sequence_seconds: float = 0.5,
    debug: bool = False,
    workers: int = 1,
    seed: int = 4,
    sigma: float = 0.02,
) -> list[str]:
    """What the Spyre plugin logs of a warm-up with these rung pairs, every worker and every layer."""
    factors = iter(noise(seed, sigma))
    variants = sorted({(s, *chunking(s, m)) for s, m in pairs})
    lines, total = [], 0.0
    for layer in range(layers):
        lines.append(f"INFO [model_runner.py:1] Recording attention graphs for layer model.layers.{layer}...")
        lines.append(
            f"INFO Recording {sequences} per-seq + {len(variants)} batched-decode attention variants for "
            "layer..."
        )
        took = 0.0
        for at in range(1, sequences + 1):
            took += (spent := sequence_seconds * next(factors))
            if debug:
                bucket = f"SpyreAttnBucket(num_blocks={at}, padded_query_len=1)"
                lines.append(f"DEBUG   [{at}/{sequences}] recorded {bucket} in {spent:.2f}s")
        for at, (s, chunk, chunks) in enumerate(variants, start=1):
            took += (spent := compile_seconds(s, chunk * chunks) * next(factors))
            if debug:
                lines.append(f"DEBUG   [{at}/{len(variants)}] recorded {(s, chunk, chunks)} in {spent:.2f}s")
        counts = f"{sequences}/{sequences} per-seq and {len(variants)}/{len(variants)}"
        lines += [f"INFO Recorded {counts} batched-decode attention variants in {took:.2f}s."] * workers
        total += took
    graphs = layers * (sequences + len(variants))
    lines += [f"INFO Attention graph recording complete: {graphs} graphs in {total:.3f}s."] * workers
    return [*lines, "INFO Warmup complete in 141.60s for 7 buckets."]
