"""The bucketer: every ladder a server pads to, the one look-up on them, and the shapes that warm-up compiles.

A decode step of n sequences, the longest of b KV blocks, is padded to the rung pair (S^(n), M^(b)), where
S^(n) is the smallest num_seqs rung >= n and M^(b) the smallest num_blocks rung >= b (of ragged ladders,
that of S^(n)). Steps below min_batched_seqs take the per-sequence path, each sequence padded on the KV
ladder (tokens) and the query ladder of its own; those two have no part in batched decode, nor it in them.

**Guarantee.** Let B be `batched_variants()`. For every step that the engine can run, `dispatch` returns
either None (the per-sequence path) or a rung pair whose variant is in B; and every variant in B has a step
that is dispatched to it (`batched_witness`). So what warm-up compiles is what serving asks for, neither
more nor less. (Of a plan with target spyre-env, B is what the Spyre plugin's own recorder compiles: also
variants that no step reaches in a short KV pool.)

**KV pool.** The smallest batch padded to the pair (s, m) has one sequence more than the num_seqs rung below s
(min_batched_seqs at the bottom), one of them with one block more than the num_blocks rung below m, the others
with one block. Where the pool holds fewer blocks than that at the variant's lowest rung, no step is ever
padded there and the variant is left out (`ladder_opt/solve/problem.py` has the proof). The Spyre backend
also runs no kernel whose entries, s * blocks_per_chunk, reach the number of KV pages: those variants are
left out too, and `dispatch` sends their steps down the per-sequence path.

Example: max_num_seqs 8, max_model_len 2048, block_size 64. S = 4, 8 and M = 1, 2, 4, 8, 16, 32 by default; a
step of 5 sequences, the longest of 70 tokens, has n = 5 and b = 2 and runs the kernel of (8, 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ladder_opt.bucketer.environment import (
    kv_ladder,
    num_seqs_list,
    query_ladder,
    read_list,
)
from ladder_opt.engine import Engine
from ladder_opt.ladder import KV_LIST, NUM_SEQS_LIST, QUERY_LIST, Ladder, Ladders, default_ladders

if TYPE_CHECKING:
    from ladder_opt.plan.plan import Plan

DEFAULT_KERNEL = "chunked"
_SHORTEST_DECODE_TOKENS = 2  # a prompt token and the one that is being decoded


@dataclass(frozen=True)
class BatchedVariant:
    """One batched decode kernel to compile.

    Attributes:
        num_seqs: sequences of the compiled shape, a num_seqs rung.
        num_blocks: the lowest num_blocks rung that is padded to this shape.
        blocks_per_chunk: blocks of each sequence that an iteration gathers.
        num_chunks: unrolled iterations; blocks_per_chunk * num_chunks >= num_blocks.
    """

    num_seqs: int
    num_blocks: int
    blocks_per_chunk: int
    num_chunks: int

    @property
    def key(self) -> tuple[int, int, int]:
        """What the kernel is compiled for: (num_seqs, blocks_per_chunk, num_chunks)."""
        return self.num_seqs, self.blocks_per_chunk, self.num_chunks


@dataclass(frozen=True)
class SequenceVariant:
    """One per-sequence kernel to compile.

    Attributes:
        num_blocks: padded KV blocks of the sequence.
        query_len: padded query tokens; 1 for a decode.
    """

    num_blocks: int
    query_len: int


@dataclass(frozen=True)
class WitnessBatch:
    """A batch that is dispatched to a variant, for warm-up to build.

    Attributes:
        kv_lens: KV tokens of each sequence, the step's own tokens counted.
        query_len: tokens that each sequence runs in the step.
    """

    kv_lens: tuple[int, ...]
    query_len: int


class Bucketer:
    """Owns the ladders of one engine.

    Attributes:
        engine: the engine's limits.
        ladders: those of batched decode, checked and fitted to the engine.
        kv_tokens: KV ladder of the per-sequence path, tokens.
        query_tokens: query ladder of the per-sequence path, tokens.
        kernel: name of the batched kernel's geometry.
        source: where the ladders of batched decode come from, for people.
        sources: the same for each ladder: num_seqs, num_blocks, kv_tokens, query_tokens.
        planned: the ladders among these that are a plan's.
        warnings: what was changed to fit, and which of two settings won; a line each.
    """

    def __init__(
        self,
        engine: Engine,
        ladders: Ladders,
        *,
        kv_tokens: tuple[int, ...],
        query_tokens: tuple[int, ...],
        kernel: str = DEFAULT_KERNEL,
        sources: Mapping[str, str] | None = None,
        planned: frozenset[str] = frozenset(),
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.engine = engine
        self.ladders = ladders
        self.kv_tokens = Ladder(kv_tokens)
        self.query_tokens = Ladder(query_tokens)
        self.kernel = kernel
        self.sources = MappingProxyType(dict(sources or {}))
        self.source = " and ".join(
            dict.fromkeys(self.sources[axis] for axis in ("num_seqs", "num_blocks") if axis in self.sources)
        )
        self.planned = planned
        self.warnings = warnings
        self._num_seqs = Ladder(ladders.num_seqs)
        self._num_blocks = Ladder(ladders.num_blocks)
        self._blocks_of = {
            rung: self._num_blocks if ladders.ragged is None else Ladder(blocks)
            for rung, blocks in ladders.blocks_by_rung().items()
        }
        self._variants = self._enumerate()
        self._variant_at = {
            (variant.num_seqs, blocks): variant
            for variant, rungs in self._variants.items()
            for blocks in rungs
        }
        self._declined = frozenset(
            pair for pair, variant in self._variant_at.items() if self._exceeds_pages(variant)
        )

    @classmethod
    def from_engine(
        cls,
        engine: Engine,
        *,
        plan: Plan | None = None,
        environ: Mapping[str, str] | None = None,
        plan_path: str | None = None,
        kernel: str | None = None,
    ) -> Bucketer:
        """The ladders of a plan, or the default ones, with the environment's lists over them.

        Args:
            engine: the engine's limits.
            plan: what to load; None for the default ladders.
            environ: variables that may hold `SPYRE_ATTN_NUM_SEQS_BUCKETS`, `SPYRE_ATTN_KV_BUCKETS` and
                `SPYRE_ATTN_QUERY_BUCKETS`; a list wins over the plan, with a warning where they differ.
            plan_path: the plan's file, for messages.
            kernel: geometry of the batched kernel; by default the plan's, or `chunked`.

        Raises:
            InputError: the plan was made for another block_size.
            UsageError: a list of the environment is malformed.
        """
        environ = {} if environ is None else environ
        ladders, named, warnings = _planned(plan, engine, plan_path)
        sources = {"num_seqs": named, "num_blocks": named}
        rungs, told = num_seqs_list(environ, engine)
        warnings += told
        planned = set() if plan is None else {"num_blocks"}
        if plan is not None and plan.num_seqs and rungs is None:
            planned.add("num_seqs")
        if rungs is not None:
            if plan is not None and rungs != ladders.num_seqs:
                warnings.append(
                    f"{NUM_SEQS_LIST} asks for num_seqs {_joined(rungs)}, {named} for "
                    f"{_joined(ladders.num_seqs)}: the variable wins"
                )
            ladders = ladders.with_num_seqs(rungs)
            sources["num_seqs"] = NUM_SEQS_LIST
        kv_planned, query_planned = _planned_sequence_lists(plan)
        if kv_planned is not None and not environ.get(KV_LIST):
            planned.add("kv_tokens")
        if query_planned is not None and not environ.get(QUERY_LIST):
            planned.add("query_tokens")
        kv_asked, sources["kv_tokens"], told = _asked(environ, KV_LIST, kv_planned, named)
        warnings += told
        kv_tokens, told = kv_ladder(kv_asked, engine, name=sources["kv_tokens"])
        warnings += told
        query_asked, sources["query_tokens"], told = _asked(environ, QUERY_LIST, query_planned, named)
        warnings += told
        query_tokens, told = query_ladder(query_asked, engine, name=sources["query_tokens"])
        warnings += told
        return cls(
            engine,
            ladders,
            kv_tokens=kv_tokens,
            query_tokens=query_tokens,
            kernel=kernel or (DEFAULT_KERNEL if plan is None else plan.kernel),
            sources=sources,
            planned=frozenset(planned),
            warnings=tuple(warnings),
        )

    def with_ladders(self, ladders: Ladders, *, source: str | None = None) -> Bucketer:
        """The same engine and per-sequence ladders with other ladders of batched decode."""
        sources = dict(self.sources)
        if source is not None:
            sources |= {"num_seqs": source, "num_blocks": source}
        return Bucketer(
            self.engine,
            ladders,
            kv_tokens=self.kv_tokens.rungs,
            query_tokens=self.query_tokens.rungs,
            kernel=self.kernel,
            sources=sources,
            planned=self.planned if source is None else self.planned - {"num_seqs", "num_blocks"},
            warnings=self.warnings,
        )

    def num_seqs_rung(self, num_seqs: int) -> int | None:
        """The rung that a batch of `num_seqs` decoding sequences is padded to; None past the last."""
        return self._num_seqs.smallest_at_least(num_seqs)

    def num_blocks_rung(self, num_blocks: int, num_seqs_rung: int | None = None) -> int | None:
        """The num_blocks rung that a batch is padded to whose longest sequence has `num_blocks` blocks.

        Args:
            num_blocks: KV blocks of the longest sequence.
            num_seqs_rung: the batch's rung, whose own ladder ragged ladders are looked up in; None looks in
                all num_blocks rungs, which of two independent ladders is the same.

        Returns:
            The rung, or None past the last one.
        """
        ladder = self._num_blocks if num_seqs_rung is None else self._blocks_of[num_seqs_rung]
        return ladder.smallest_at_least(num_blocks)

    def kv_rung(self, kv_len: int) -> int | None:
        """The KV rung, in tokens, of a sequence on the per-sequence path; None past the last."""
        return self.kv_tokens.smallest_at_least(kv_len)

    def query_rung(self, query_len: int) -> int | None:
        """The query rung, in tokens, that a sequence's query is padded to; None past the last."""
        return self.query_tokens.smallest_at_least(query_len)

    def sequence_blocks_rung(self, num_blocks: int) -> int | None:
        """KV blocks that a sequence is padded to on the per-sequence path; None past the last rung.

        It is the block count of the KV rung that holds the first token of the sequence's last block.
        """
        tokens = self.kv_rung((num_blocks - 1) * self.engine.block_size + 1)
        return None if tokens is None else self._blocks(tokens)

    @property
    def sequence_blocks(self) -> tuple[int, ...]:
        """KV blocks of each rung of the KV ladder."""
        return tuple(dict.fromkeys(self._blocks(tokens) for tokens in self.kv_tokens.rungs))

    def dispatch(self, num_seqs: int, num_blocks: int) -> tuple[int, int] | None:
        """The rung pair that a decode step runs at, or None for the per-sequence path.

        Args:
            num_seqs: decoding sequences in the step.
            num_blocks: KV blocks of the longest of them.
        """
        if num_seqs < self.engine.min_batched_seqs:
            return None
        seqs = self._num_seqs.smallest_at_least(num_seqs)
        if seqs is None:
            return None
        blocks = self._blocks_of[seqs].smallest_at_least(num_blocks)
        if blocks is None or (seqs, blocks) in self._declined:
            return None
        return seqs, blocks

    def variant_of(self, num_seqs: int, num_blocks: int) -> BatchedVariant:
        """The kernel that a rung pair runs (its `num_blocks` is the lowest rung that shares it).

        Raises:
            KeyError: it is no rung pair of these ladders.
        """
        return self._variant_at[num_seqs, num_blocks]

    def rungs_of(self, variant: BatchedVariant) -> tuple[int, ...]:
        """The num_blocks rungs that share a variant, ascending."""
        return self._variants[variant]

    def batched_variants(self) -> list[BatchedVariant]:
        """The distinct batched decode kernels that warm-up compiles, largest first.

        Those that a step can reach; of ladders with `query_lens` (target spyre-env) those that the Spyre
        plugin's own recorder compiles, which does not ask whether the KV pool can hold such a batch. The
        solver counts the same: `solve.price.distinct_variants`.
        """
        return [
            variant
            for variant in sorted(
                self._variants, key=lambda each: (each.num_blocks, each.num_seqs), reverse=True
            )
            if (self._is_recorded_upstream or self._pool_holds(variant)) and not self._exceeds_pages(variant)
        ]

    def sequence_variants(self) -> list[SequenceVariant]:
        """The per-sequence kernels that warm-up compiles, largest first.

        A sequence has at least as many KV tokens as its query, so a query rung pairs with the block counts
        that hold the shortest query padded to it. Which of these count depends on the ladders:

        - With `query_lens` (target spyre-env), those that the Spyre plugin's own recorder compiles: every
          pair of no more blocks than the KV cache has pages. It asks neither for max_model_len nor for the
          pool. The solver counts the same: `solve.sequence_price.compiled_sequence_variants`.
        - Else those that a sequence of max_model_len tokens or less reaches in the pool, which holds a block
          more than the rung below.
        """
        if self._is_recorded_upstream:
            return [
                SequenceVariant(blocks, rung)
                for blocks in reversed(self.sequence_blocks)
                if blocks <= self.engine.num_pages
                for rung in reversed(self.query_tokens.rungs)
                if self._shortest_query(rung) <= blocks * self.engine.block_size
            ]
        below = 0
        found = []
        for blocks in self.sequence_blocks:
            longest = self._longest(blocks)
            fits_pool = below + 1 <= self.engine.usable_kv_blocks
            found += [
                SequenceVariant(blocks, rung)
                for rung in self.query_tokens.rungs
                if fits_pool and self._shortest_query(rung) <= longest
            ]
            below = blocks
        return sorted(found, key=lambda each: (each.num_blocks, each.query_len), reverse=True)

    def batched_witness(self, variant: BatchedVariant) -> WitnessBatch:
        """The smallest batch that `dispatch` sends to a variant; the pool holds it, if any step does."""
        seqs = max(self._below(self._num_seqs, variant.num_seqs) + 1, self.engine.min_batched_seqs)
        blocks = self._below(self._blocks_of[variant.num_seqs], variant.num_blocks)
        longest = max(blocks * self.engine.block_size + 1, _SHORTEST_DECODE_TOKENS)
        return WitnessBatch((longest, *[_SHORTEST_DECODE_TOKENS] * (seqs - 1)), 1)

    def sequence_witness(self, variant: SequenceVariant) -> WitnessBatch:
        """A sequence that is padded to a per-sequence variant, as long as the variant takes."""
        return WitnessBatch((self._longest(variant.num_blocks),), self._shortest_query(variant.query_len))

    def _enumerate(self) -> dict[BatchedVariant, tuple[int, ...]]:
        """{variant: the num_blocks rungs that share it}, for each rung pair."""
        if not self.ladders.num_seqs:
            return {}
        from ladder_opt.cost.geometry import get_kernel  # noqa: PLC0415  (numpy, at start-up alone)

        kernel = get_kernel(self.kernel)
        found: dict[tuple[int, int, int], list[int]] = {}
        for rung, blocks in self.ladders.blocks_by_rung().items():
            chunks = kernel.iterations(rung, blocks).tolist()
            gathers = kernel.gathers(rung, blocks).tolist()
            for each, num_chunks, pages in zip(blocks, chunks, gathers, strict=True):
                found.setdefault((rung, pages // (rung * num_chunks), num_chunks), []).append(each)
        return {
            BatchedVariant(rung, blocks[0], per_chunk, chunks): tuple(blocks)
            for (rung, per_chunk, chunks), blocks in found.items()
        }

    @property
    def _is_recorded_upstream(self) -> bool:
        """Whether these are a spyre-env plan's ladders: the Spyre plugin itself says what is compiled."""
        return self.ladders.query_lens is not None

    def _pool_holds(self, variant: BatchedVariant) -> bool:
        others = max(self._below(self._num_seqs, variant.num_seqs), self.engine.min_batched_seqs - 1)
        longest = self._below(self._blocks_of[variant.num_seqs], variant.num_blocks) + 1
        return others + longest <= self.engine.usable_kv_blocks

    def _exceeds_pages(self, variant: BatchedVariant) -> bool:
        return variant.num_seqs * variant.blocks_per_chunk >= self.engine.num_pages

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.engine.block_size)

    def _longest(self, num_blocks: int) -> int:
        """Tokens of the longest sequence of that many blocks."""
        return min(num_blocks * self.engine.block_size, self.engine.max_model_len)

    def _shortest_query(self, rung: int) -> int:
        return self._below(self.query_tokens, rung) + 1

    @staticmethod
    def _below(ladder: Ladder, rung: int) -> int:
        """The rung below a rung; 0 below the first."""
        at = ladder.rungs.index(rung)
        return ladder.rungs[at - 1] if at else 0


def _planned(plan: Plan | None, engine: Engine, path: str | None) -> tuple[Ladders, str, list[str]]:
    if plan is None:
        return default_ladders(engine), "the default ladders", []
    from ladder_opt.plan.resolve import resolve_plan  # noqa: PLC0415  (a plan brings pydantic and numpy)

    resolved = resolve_plan(plan, engine, path=path)
    return resolved.ladders, resolved.source, list(resolved.warnings)


def _planned_sequence_lists(plan: Plan | None) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """KV tokens and query tokens that a plan asks for: one of target spyre-env has them, another has not."""
    if plan is None or plan.query_lens is None:
        return None, None
    from ladder_opt.plan.spyre_environment import kv_buckets  # noqa: PLC0415

    return kv_buckets(plan), tuple(plan.query_lens)


def _asked(
    environ: Mapping[str, str], name: str, planned: tuple[int, ...] | None, plan_name: str
) -> tuple[tuple[int, ...] | None, str, list[str]]:
    """What is asked for in a variable, else in the plan; who asks; and a warning where the two differ."""
    entries = read_list(environ, name)
    if entries is None:
        return planned, "the default" if planned is None else plan_name, []
    if planned is None or planned == entries:
        return entries, name, []
    told = f"{name} asks for {_joined(entries)}, {plan_name} for {_joined(planned)}: the variable wins"
    return entries, name, [told]


def _joined(rungs: tuple[int, ...]) -> str:
    return ",".join(map(str, rungs)) or "none"
