"""Server logs, with anything else in them: the lines of a warm-up, and one line for each step.

Lines of the warm-up (torch-spyre/spyre-inference, `v1/attention/backends/spyre_attn.py` and
`v1/worker/spyre_model_runner.py`), of which every worker and every layer writes its own:

    Recorded A/. per-seq and C/. batched-decode attention variants in Ns     one layer's graphs, all of them
    Recorded A/. attention variants in Ns                                    likewise, before batched decode
    [i/n] recorded (num_seqs, blocks_per_chunk, num_chunks) in Ns            one graph, where DEBUG is logged
    [i/n] recorded SpyreAttnBucket(num_blocks=B, padded_query_len=Q) in Ns   of the per-sequence kernel
    Attention graph recording complete: N graphs in Ss                       all layers
    Warmup complete in Ss for N buckets                                      the model's own graphs
    SpyreAttnBucketer: ... num_blocks buckets [...]                          the block ladder, in later ones

Lines of steps (vLLM 0.28 with `--enable-logging-iteration-details`, `v1/metrics/loggers.py`):

    Iteration(i): n context requests, n context tokens, n generation requests, n generation tokens,
        iteration elapsed time: t ms, GPU KV cache usage: u%

The steps are taken as those of a server without rungs: by their own sequences, prefill tokens and, where the
engine's `num_kv_blocks` is given, the KV blocks in use. A log may hold several server starts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration.delimited import LARGEST_SECONDS, SMALLEST_SECONDS
from ladder_opt.calibration.evidence import (
    BASE,
    COMPILE_BASE,
    COMPILE_PER_ITERATION,
    COMPILE_PER_ITERATION_SQ,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    SEQUENCE_COMPILE_BASE,
    SEQUENCE_COMPILE_PER_ITERATION,
    Equations,
    Evidence,
    Source,
    Startup,
)
from ladder_opt.calibration.samples import COMPILE, Samples
from ladder_opt.cost.geometry import KERNELS
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import default_ladders, default_query_lens
from ladder_opt.trace.readers.stored import load

KIND: Final = "server_log"
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_RECORDED: Final = re.compile(
    rf"Recorded (\d+)/\d+ per-seq and (\d+)/\d+ batched-decode attention variants in {_NUMBER} ?s\b"
)
_RECORDED_BEFORE: Final = re.compile(rf"Recorded (\d+)/\d+ attention variants in {_NUMBER} ?s\b")
_BATCHED_VARIANT: Final = re.compile(rf"\[\d+/\d+\] recorded \((\d+), (\d+), (\d+)\) in {_NUMBER} ?s\b")
_SEQUENCE_VARIANT: Final = re.compile(
    rf"\[\d+/\d+\] recorded SpyreAttnBucket\(num_blocks=(\d+), padded_query_len=(\d+)\) in {_NUMBER} ?s\b"
)
_COMPLETE: Final = re.compile(rf"Attention graph recording complete: (\d+) graphs in {_NUMBER} ?s\b")
_WARMUP: Final = re.compile(rf"Warmup complete in {_NUMBER} ?s for (\d+) buckets")
_BLOCK_LADDER: Final = re.compile(r"SpyreAttnBucketer: .*num_blocks buckets \[([\d, ]+)\]")
_NEW_START: Final = re.compile(r"vLLM API server version|Initializing a V1 LLM engine")
_ITERATION: Final = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    rf"(\d+) generation tokens, iteration elapsed time: {_NUMBER} ms( \(dummy\))?"
    rf"(?:, GPU KV cache usage: {_NUMBER}%)?"
)
_LINES: Final = (_RECORDED, _RECORDED_BEFORE, _BATCHED_VARIANT, _COMPLETE, _ITERATION)
_LARGEST: Final = 1 << 31
_MOST_DIGITS: Final = 12


@dataclass
class _Start:
    """What one server start logged; times by what took them."""

    layers: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    batched: dict[tuple[int, int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    sequences: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    complete: list[tuple[int, float]] = field(default_factory=list)
    warmup: list[float] = field(default_factory=list)
    num_blocks: tuple[int, ...] | None = None


def is_server_log(path: str | Path) -> bool:
    """Whether any line of a file is one of those above."""
    text = _text(path)
    return any(pattern.search(text) for pattern in _LINES)


def read_server_log(path: str | Path, engine: Engine) -> Evidence:
    """Read one log.

    Args:
        path: the file, plain, gzip or zstd.
        engine: the server's limits: its default ladders are those recorded where the log does not say,
            if their numbers of variants agree.

    Raises:
        InputError: none of the lines is there, all are set aside, or a warm-up took longer than any does.
    """
    stored = load(path)
    lines = stored.data.decode("utf-8", "replace").splitlines()
    starts, steps, set_aside = [_Start()], [], Counter[str]()
    for number, line in enumerate(lines, start=1):
        if _NEW_START.search(line):
            starts.append(_Start())
        if (match := _ITERATION.search(line)) is not None:
            row, doubt = _iteration(match, engine)
            if doubt is None:
                steps.append(row)
            else:
                set_aside[doubt] += 1
            continue
        try:
            _note_warmup_line(starts[-1], line)
        except ValueError as error:
            expected = f"seconds of a warm-up, up to {LARGEST_SECONDS:g}"
            raise InputError(f"{str(error)[:40]} s", expected, path=path, line=number) from None
    starts = [start for start in starts if start.layers or start.batched or start.complete]
    if not starts and not steps:
        left = ", ".join(f"{count} {reason}" for reason, count in set_aside.items()) or "no such line"
        raise InputError(left, "warm-up lines of the Spyre plugin, or lines of iterations", path=path)
    warmups = [_warmup_evidence(start, engine, str(path)) for start in starts]
    notes = [f"{path}: {count} iterations set aside: {reason}" for reason, count in sorted(set_aside.items())]
    rows = len(steps) + sum(
        len(each.samples) + len(each.compiles) + len(each.mean_graphs) for each in warmups
    )
    return Evidence(
        samples=Samples.concat([each.samples for each in warmups]),
        steps=_step_rows(steps, str(path)),
        compiles=tuple(part for each in warmups for part in each.compiles),
        mean_graphs=tuple(part for each in warmups for part in each.mean_graphs),
        startup=tuple(part for each in warmups for part in each.startup),
        layers=next((each.layers for each in reversed(warmups) if each.layers), None),
        graphs_per_variant=next((each.layers for each in reversed(warmups) if each.layers), None),
        sources=(Source(str(path), stored.sha256, rows, KIND),),
        notes=(*notes, *(note for each in warmups for note in each.notes)),
    )


def _text(path: str | Path) -> str:
    return load(path).data.decode("utf-8", "replace")


def _note_warmup_line(start: _Start, line: str) -> None:
    if (match := _RECORDED.search(line)) is not None:
        start.layers[_whole(match[1]), _whole(match[2])].append(_seconds(match[3]))
    elif (match := _RECORDED_BEFORE.search(line)) is not None:
        start.layers[_whole(match[1]), 0].append(_seconds(match[2]))
    elif (match := _BATCHED_VARIANT.search(line)) is not None:
        start.batched[_whole(match[1]), _whole(match[2]), _whole(match[3])].append(_seconds(match[4]))
    elif (match := _SEQUENCE_VARIANT.search(line)) is not None:
        start.sequences[_whole(match[1]), _whole(match[2])].append(_seconds(match[3]))
    elif (match := _COMPLETE.search(line)) is not None:
        start.complete.append((_whole(match[1]), _seconds(match[2])))
    elif (match := _WARMUP.search(line)) is not None:
        start.warmup.append(_seconds(match[1]))
    elif (match := _BLOCK_LADDER.search(line)) is not None:
        start.num_blocks = tuple(sorted({_whole(part) for part in match[1].split(",") if part.strip()}))


def _whole(digits: str) -> int:
    """A whole number; of more digits than any size has, its first ones, which is too large all the same."""
    return int(digits[:_MOST_DIGITS])


def _seconds(number: str) -> float:
    """Seconds of a warm-up's line.

    Raises:
        ValueError: more than a number of a log can be.
    """
    seconds = float(number)
    if seconds > LARGEST_SECONDS:
        raise ValueError(number)
    return seconds


def _iteration(match: re.Match[str], engine: Engine) -> tuple[tuple[float, ...], str | None]:
    """(seconds, decodes, prefill tokens, blocks), and why the step is set aside, if it is."""
    requests, tokens, decodes, decoded = (_whole(match[group]) for group in (1, 2, 3, 4))
    seconds = float(match[5]) / 1e3
    used = float(match[7]) / 100 if match[7] and engine.num_kv_blocks is not None else float("nan")
    limits = f"{SMALLEST_SECONDS:g} s to {LARGEST_SECONDS:g} s"
    doubts = {
        "dummy": match[6] is not None,
        "several tokens a decode": decoded != decodes,
        "without time or work": not seconds or not requests + decodes or requests > tokens,
        f"a time that is not from {limits}": not SMALLEST_SECONDS <= seconds <= LARGEST_SECONDS,
        f"more sequences than max_num_seqs {engine.max_num_seqs}": requests + decodes > engine.max_num_seqs,
        f"more tokens than max_num_batched_tokens {engine.max_num_batched_tokens}": tokens + decodes
        > engine.max_num_batched_tokens,
        "more than all KV blocks in use": used > 1,
    }
    row = (seconds, float(decodes), float(tokens), used * engine.usable_kv_blocks)
    return row, next((reason for reason, holds in doubts.items() if holds), None)


def _step_rows(steps: Sequence[tuple[float, ...]], path: str) -> tuple[Equations, ...]:
    if not steps:
        return ()
    seconds, decodes, tokens, blocks = np.array(steps, np.float64).T
    columns = {BASE: np.ones(len(seconds)), PER_SEQ: decodes, PER_PREFILL_TOKEN: tokens}
    if np.isfinite(blocks).all():
        columns[PER_SEQUENCE_GATHER] = blocks
    return (Equations(columns, seconds, np.full(len(seconds), np.nan), path),)


def _warmup_evidence(start: _Start, engine: Engine, path: str) -> Evidence:
    """One start's graphs: each by itself where the log says so, else their sum over a layer."""
    layers = _layers(start)
    batched, sequences, notes = _single_graphs(start, path)
    compiles, mean_graphs = list(sequences), []
    iterations: tuple[int, ...] = tuple(sorted(key[2] for key in start.batched))
    if not len(batched):
        for (of_sequences, of_batches), seconds in start.layers.items():
            known = _default_units(engine, start.num_blocks, of_sequences, of_batches)
            if known is None:
                count = {COMPILE_BASE: np.array([float(of_sequences + of_batches)])}
                mean_graphs += _sums(count, seconds, path)
            else:
                columns, iterations = known
                compiles += _sums(columns, seconds, path)
    if any(of_batches == 0 for _, of_batches in start.layers) and not start.batched:
        notes.append(f"{path}: a start that recorded no batched decode")
    complete = max((seconds for _, seconds in start.complete), default=None)
    graphs = max((each for _, each in start.layers), default=len(start.batched))
    startup = Startup(
        warmup_seconds=max(start.warmup, default=None),
        recording_seconds=complete,
        batched_iterations=iterations,
        batched_graphs=graphs,
        layers=layers or 1,
    )
    return Evidence(
        samples=batched,
        compiles=tuple(compiles),
        mean_graphs=tuple(mean_graphs),
        startup=(startup,),
        layers=layers,
        notes=tuple(notes),
    )


def _layers(start: _Start) -> int | None:
    """Graphs of all layers over those of one: a layer has lines of every worker."""
    for of_sequences, of_batches in start.layers:
        for graphs, _ in start.complete:
            each = of_sequences + of_batches
            if each and graphs and graphs % each == 0:
                return graphs // each
    return None


def _single_graphs(start: _Start, path: str) -> tuple[Samples, tuple[Equations, ...], list[str]]:
    """The mean over layers: it is their sum that a warm-up takes, and the first may pay for others."""
    keys, odd = [], 0
    for seqs, chunk, chunks in start.batched:
        blocks = chunk * chunks
        if 0 < seqs * blocks < _LARGEST and _is_chunked(seqs, chunk, chunks):
            keys.append((seqs, chunk, chunks))
        else:
            odd += 1
    times = [np.array(start.batched[key]) for key in keys]
    samples = Samples.of(
        quantity=COMPILE,
        kernel="chunked",
        num_seqs=[key[0] for key in keys],
        num_blocks=[key[1] * key[2] for key in keys],
        seconds=[float(each.mean()) for each in times],
        spread=[_spread(each.tolist()) for each in times],
        source=path,
    )
    positive = samples.take(samples.seconds > 0)
    notes = [f"{path}: {odd} variants set aside: not of the chunked kernel"] if odd else []
    sequences = [
        part
        for (blocks, _), seconds in start.sequences.items()
        for part in _sums(
            {SEQUENCE_COMPILE_BASE: np.ones(1), SEQUENCE_COMPILE_PER_ITERATION: np.array([float(blocks)])},
            seconds,
            path,
        )
    ]
    return positive, tuple(sequences), notes


def _is_chunked(seqs: int, chunk: int, chunks: int) -> bool:
    """Whether a variant is one that the chunked kernel has."""
    kernel = KERNELS["chunked"]
    of_rung = int(kernel.entries(seqs, chunk * chunks)) // seqs, int(kernel.iterations(seqs, chunk * chunks))
    return of_rung == (chunk, chunks)


def _sums(columns: dict[str, NDArray[np.float64]], seconds: Sequence[float], path: str) -> list[Equations]:
    mean = float(np.mean(seconds))
    if mean <= 0:
        return []
    return [Equations(columns, np.array([mean]), np.array([_spread(seconds)]), path)]


def _spread(seconds: Sequence[float]) -> float:
    if len(seconds) < 2 or not sum(seconds):
        return float("nan")
    return float(np.std(seconds, ddof=1) / np.sqrt(len(seconds)) / np.mean(seconds))


def _default_units(
    engine: Engine, num_blocks: tuple[int, ...] | None, of_sequences: int, of_batches: int
) -> tuple[dict[str, NDArray[np.float64]], tuple[int, ...]] | None:
    """Units of one layer's graphs under the default ladders; None where these have other numbers of them."""
    try:
        spyre = Engine(**engine.server_limits())  # type: ignore[arg-type]  # whole numbers, but for one None
    except UsageError:
        return None
    ladders, kernel = default_ladders(spyre), KERNELS["chunked"]
    blocks = np.array(num_blocks or ladders.num_blocks)
    queries = default_query_lens(spyre)
    if not len(ladders.num_seqs) or len(blocks) * len(queries) != of_sequences:
        return None
    seqs, pair_blocks = (each.ravel() for each in np.meshgrid(ladders.num_seqs, blocks, indexing="ij"))
    held = kernel.entries(seqs, pair_blocks) < spyre.num_pages
    _, first = np.unique(kernel.variant_key(seqs, pair_blocks)[held], return_index=True)
    iterations = kernel.iterations(seqs, pair_blocks)[held][first].astype(np.float64)
    if len(iterations) != of_batches:
        return None
    columns = {
        COMPILE_BASE: np.array([float(of_batches)]),
        COMPILE_PER_ITERATION: np.array([iterations.sum()]),
        COMPILE_PER_ITERATION_SQ: np.array([(iterations**2).sum()]),
        SEQUENCE_COMPILE_BASE: np.array([float(of_sequences)]),
        SEQUENCE_COMPILE_PER_ITERATION: np.array([float(len(queries) * blocks.sum())]),
    }
    return columns, tuple(int(each) for each in iterations)
