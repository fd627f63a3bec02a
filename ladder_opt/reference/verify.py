"""A plan tried out without a server: its variants compiled, its traffic's batches built, late compiles told.

What is the server's own here: the bucketer, the builder, the recorder and the kernel. What is made up: the
model's shape, the contents of the KV cache, and which pages a sequence has (they are dealt from a small pool,
so that memory stays small; a graph does not depend on them).

Every batch is built and has to land on a recorded variant. Of each variant some batches are run, the first of
them also sequence by sequence without padding, and both have to agree.
"""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.bucketer import BatchedVariant, Bucketer
from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError, did_you_mean
from ladder_opt.occupancy.histogram import StepHistogram

if TYPE_CHECKING:
    from ladder_opt.reference.batch import BatchPadder
    from ladder_opt.reference.compiled import AttentionLayer, CompiledKernels
    from ladder_opt.reference.recorder import LayerCache

COMPILERS = ("inductor", "eager")
TOLERANCE = 1e-4  # float32, values of order 1, sums of up to max_model_len terms
_MOST_HEADS, _LARGEST_HEAD = 1024, 1024
_SPARE_PAGES = 8

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """How a plan is tried.

    Attributes:
        num_heads: query heads of the layer.
        num_kv_heads: its KV heads, a divisor.
        head_size: width of a head.
        compiler: `inductor` writes and compiles C++; `eager` traces and guards alone, in a tenth of the time.
        compile_at_most: variants to compile, largest first; None for all.
        runs_per_variant: batches of each variant that are run, not only built.
        seed: of lengths and contents.
    """

    num_heads: int = 4
    num_kv_heads: int = 1
    head_size: int = 64
    compiler: str = "inductor"
    compile_at_most: int | None = None
    runs_per_variant: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (
            ("num_heads", _MOST_HEADS),
            ("num_kv_heads", _MOST_HEADS),
            ("head_size", _LARGEST_HEAD),
            ("compile_at_most", None),
            ("runs_per_variant", None),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= (most or value):
                limit = "1 or more" if most is None else f"1 to {most}"
                raise UsageError(f"--{name.replace('_', '-')}: found {value}, expected {limit}")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"--num-kv-heads: found {self.num_kv_heads}, expected a divisor of --num-heads "
                f"{self.num_heads}"
            )
        if self.compiler not in COMPILERS:
            hint = did_you_mean(self.compiler, COMPILERS)
            raise UsageError(f"--compiler: found {self.compiler!r}, expected {' or '.join(COMPILERS)}{hint}")


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was tried, and what came of it.

    Attributes:
        variants: batched decode variants that the bucketer enumerates.
        compiled: of them, those compiled here; the others were asked to be skipped.
        compile_seconds: wall time of the warm-up.
        batches_built: batches padded by the builder.
        batches_run: of them, those that the kernel ran.
        batches_per_sequence: of those built, the ones that take the per-sequence path.
        batches_skipped: of those built, the ones whose variant was skipped; they were not run.
        late_compiles: graphs compiled after warm-up, by variant.
        unrecorded: batches that landed on a variant which was not enumerated, by variant.
        largest_difference: between padded and unpadded attention, over the variants compared.
        seconds: wall time in all.
    """

    variants: int
    compiled: int
    compile_seconds: float
    batches_built: int
    batches_run: int
    batches_per_sequence: int
    batches_skipped: int
    late_compiles: dict[str, int] = field(default_factory=dict)
    unrecorded: dict[str, int] = field(default_factory=dict)
    largest_difference: float
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Why the plan fails, one line each; empty where it holds."""
        told = [
            f"{count} graphs compiled after warm-up at {key}" for key, count in self.late_compiles.items()
        ]
        told += [
            f"{count} batches dispatched to {key}, never recorded" for key, count in self.unrecorded.items()
        ]
        if not self.largest_difference <= TOLERANCE:
            told.append(
                f"padded attention differs by {self.largest_difference:g}, expected {TOLERANCE:g} at most"
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "failures": self.failures}


def rung_corners(bucketer: Bucketer) -> StepHistogram:
    """For each rung pair the smallest and the largest batch that it takes, on either axis, once each."""
    engine, cells = bucketer.engine, set()
    for below, rung in pairwise((engine.min_batched_seqs - 1, *bucketer.ladders.num_seqs)):
        blocks = bucketer.ladders.blocks_by_rung()[rung]
        for shorter, longest in pairwise((0, *blocks)):
            cells |= {(n, b) for n in (below + 1, rung) for b in (shorter + 1, longest)}
    held = [(n, b) for n, b in sorted(cells) if n - 1 + b <= engine.usable_kv_blocks]
    seqs, blocks_ = zip(*held, strict=True) if held else ((), ())
    return StepHistogram(np.array(seqs, np.int64), np.array(blocks_, np.int64), np.ones(len(held)))


@checked
def verify_plan(
    bucketer: Bucketer,
    steps: StepHistogram | None = None,
    *,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compile what the bucketer enumerates and try decode steps on it.

    Args:
        bucketer: the ladders, as a server would load them (`Bucketer.from_engine`).
        steps: the decode steps to build batches for; None for `rung_corners`.
        options: the model's shape and how much to try.
        progress: told what is being done, and the share done.

    Raises:
        UsageError: torch is not installed.
        InputError: steps beyond the engine's limits.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("found no torch, expected it for verify: pip install 'ladder-opt[torch]'")
    from ladder_opt.reference.batch import BatchPadder  # noqa: PLC0415  (needs torch, as all of these)
    from ladder_opt.reference.compiled import CompiledKernels, shape_text  # noqa: PLC0415
    from ladder_opt.reference.recorder import record  # noqa: PLC0415

    options = options or VerifyOptions()
    tried = rung_corners(bucketer) if steps is None else steps
    tried.check_limits(bucketer.engine)
    started = time.perf_counter()
    layer, cache = _layer(bucketer.engine, options)
    padder, kernels = BatchPadder(bucketer), CompiledKernels(compiler=options.compiler)
    variants = bucketer.batched_variants()
    recording = record(
        padder,
        kernels,
        {layer: cache},
        variants=variants[: options.compile_at_most],
        progress=None if progress is None else lambda done, of: progress("compiling", done / of),
    )
    trial = _Trial(padder, kernels, options, layer=layer, cache=cache, enumerated=frozenset(variants))
    order = np.argsort(-tried.steps, kind="stable")
    for done, cell in enumerate(order):
        trial.build(int(tried.num_seqs[cell]), int(tried.num_blocks[cell]))
        if progress is not None:
            progress("trying batches", (done + 1) / len(order))
    return Verification(
        variants=len(variants),
        compiled=len(recording.variants),
        compile_seconds=recording.seconds,
        batches_built=len(order),
        batches_run=sum(trial.runs.values()),
        batches_per_sequence=trial.per_sequence,
        batches_skipped=trial.skipped,
        late_compiles={shape_text(key): count for (key, _), count in kernels.late_compiles.items()},
        unrecorded={shape_text(key): count for key, count in trial.unrecorded.items()},
        largest_difference=trial.largest_difference,
        seconds=time.perf_counter() - started,
    )


class _Trial:
    """Batches built and run on recorded variants."""

    def __init__(
        self,
        padder: BatchPadder,
        kernels: CompiledKernels,
        options: VerifyOptions,
        *,
        layer: AttentionLayer,
        cache: LayerCache,
        enumerated: frozenset[BatchedVariant],
    ) -> None:
        self.padder, self.kernels, self.layer, self.cache = padder, kernels, layer, cache
        self.runs_per_variant = options.runs_per_variant
        self.enumerated = enumerated
        self.recorded = {key for key, _ in kernels.recorded}
        self.rng = np.random.default_rng(options.seed)
        self.runs: Counter[tuple[int, int, int]] = Counter()
        self.unrecorded: Counter[tuple[int, int, int]] = Counter()
        self.per_sequence = self.skipped = 0
        self.largest_difference = 0.0

    def build(self, num_seqs: int, num_blocks: int) -> None:
        """Build a batch of that size, its other sequences no longer than one; run it where it is due."""
        import torch  # noqa: PLC0415

        engine = self.padder.bucketer.engine
        top = min(num_blocks * engine.block_size, engine.max_model_len)
        longest = int(self.rng.integers((num_blocks - 1) * engine.block_size + 1, top + 1))
        lengths = [longest, *self.rng.integers(1, longest + 1, num_seqs - 1).tolist()]
        pages = self.rng.integers(1, len(self.cache.pages), (num_seqs, engine.max_num_blocks))
        table = torch.tensor(pages.astype(np.int32))
        batch = self.padder.pad(table, torch.tensor(lengths, dtype=torch.int32))
        if batch is None:
            self.per_sequence += 1
            return
        key = batch.variant.key
        if batch.variant not in self.enumerated:
            self.unrecorded[key] += 1
        elif key not in self.recorded:
            self.skipped += 1
        elif self.runs[key] < self.runs_per_variant:
            self.runs[key] += 1
            shape = (num_seqs, self.layer.num_heads, self.layer.head_size)
            query = torch.tensor(self.rng.normal(size=shape), dtype=self.cache.dtype)
            out = self.kernels.run(batch, self.layer, query, self.cache.pages)
            if self.runs[key] == 1:
                self._compare(out, query, table, lengths)

    def _compare(self, out: Any, query: Any, table: Any, lengths: list[int]) -> None:
        from ladder_opt.reference.compiled import run_sequences  # noqa: PLC0415

        starts = list(range(len(lengths) + 1))
        plain = run_sequences(
            self.layer, query, self.cache.pages, table, query_starts=starts, seq_lens=lengths
        )
        difference = float((out - plain).abs().max())
        self.largest_difference = max(self.largest_difference, difference)


def _layer(engine: Engine, options: VerifyOptions) -> tuple[AttentionLayer, LayerCache]:
    import torch  # noqa: PLC0415

    from ladder_opt.reference.compiled import AttentionLayer  # noqa: PLC0415
    from ladder_opt.reference.recorder import LayerCache  # noqa: PLC0415

    layer = AttentionLayer(options.num_heads, options.head_size, options.head_size**-0.5)
    generator = torch.Generator().manual_seed(options.seed)
    pages = torch.randn(
        (
            engine.max_num_blocks + _SPARE_PAGES,
            options.num_kv_heads,
            engine.block_size,
            2 * options.head_size,
        ),
        generator=generator,
    )
    return layer, LayerCache(pages, torch.float32)
