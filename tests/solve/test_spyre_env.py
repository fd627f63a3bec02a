"""Ladders that batched decode shares with the per-sequence kernel, beside brute force over all three axes."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from ladder_opt.cost.model import CompileSeconds, CostModel, PerSequence, ReplaySeconds
from ladder_opt.engine import Engine
from ladder_opt.errors import SolveError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.sequences import SequenceHistogram
from ladder_opt.solve.api import solve_frontier_of, solve_ladders
from ladder_opt.solve.price import best_absent_rung, price_ladders, value_rungs
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import RELATIVE_TOLERANCE, SolveResult, Status
from tests import oracles
from tests.seeds import seeds
from tests.solve.test_product import cost_of, random_instance, steps_of

BLOCK_SIZE = 64
QUERY_CANDIDATES = (64, 128, 192)
MAX_TOKENS = 256


@dataclass(frozen=True)
class Shared:
    """A batched instance, and what the per-sequence kernel adds."""

    batched: oracles.Instance
    calls: tuple[tuple[int, int, float], ...]  # blocks, query tokens, how often
    per_gather: float
    per_query_gather: float
    compile: tuple[float, float, float]

    @property
    def engine(self) -> Engine:
        usable = self.batched.usable_kv_blocks
        return Engine(
            block_size=BLOCK_SIZE,
            max_num_seqs=self.batched.max_num_seqs,
            max_model_len=self.batched.max_num_blocks * BLOCK_SIZE - 1,
            max_num_batched_tokens=MAX_TOKENS,
            num_kv_blocks=None if usable == float("inf") else int(usable) + 1,
        )

    @property
    def steps(self) -> StepHistogram:
        columns = [np.array(column) for column in zip(*self.calls, strict=True)]
        return dataclasses.replace(steps_of(self.batched), sequences=SequenceHistogram(*columns))

    @property
    def cost(self) -> CostModel:
        base, per_iteration, per_iteration_sq = self.compile
        return cost_of(self.batched).model_copy(
            update={
                "replay_seconds": ReplaySeconds(per_sequence_gather=self.per_gather),
                "per_sequence": PerSequence(
                    per_query_gather=self.per_query_gather,
                    compile_seconds=CompileSeconds(
                        base=base, per_iteration=per_iteration, per_iteration_sq=per_iteration_sq
                    ),
                ),
            }
        )


def random_shared(seed: int, *, short_pool: bool = False) -> Shared:
    rng = np.random.default_rng(seed)
    batched = dataclasses.replace(
        random_instance(seed),
        max_num_seqs=int(rng.integers(4, 8)),
        max_num_blocks=int(rng.integers(1, 7)),
    )
    usable = float(rng.integers(batched.max_num_blocks, 34)) if short_pool else float("inf")
    cells = {
        (min(n, batched.max_num_seqs), min(b, batched.max_num_blocks)): weight
        for n, b, weight in batched.cells
    }
    kept = tuple((n, b, w) for (n, b), w in cells.items() if n - 1 + b <= usable) or ((1, 1, 1.0),)
    calls = []
    for _ in range(int(rng.integers(1, 12))):
        blocks = int(rng.integers(1, batched.max_num_blocks + 1))
        length = (
            1 if rng.random() < 0.4 else int(rng.integers(1, min(MAX_TOKENS, blocks * BLOCK_SIZE - 1) + 1))
        )
        calls.append((blocks, length, float(rng.integers(1, 2000))))
    scale = 10.0 ** rng.uniform(-4, -1)
    return Shared(
        batched=dataclasses.replace(batched, cells=kept, usable_kv_blocks=usable),
        calls=tuple(calls),
        per_gather=float(scale * rng.integers(0, 3)),
        per_query_gather=float(scale / 50 * rng.integers(0, 4)),
        compile=(float(rng.integers(0, 3)), float(rng.integers(0, 2)), float(rng.integers(0, 2)) / 4),
    )


def price(
    shared: Shared, seqs: tuple[int, ...], blocks: tuple[int, ...], queries: tuple[int, ...]
) -> tuple[float, int, float]:
    """(objective, variants, compile seconds), by the plugin's rules."""
    batched = shared.batched
    pages = batched.usable_kv_blocks + 1
    # The Spyre plugin's recorder compiles pairs that no batch in the pool can reach.
    every_pair = dataclasses.replace(batched, usable_kv_blocks=float("inf"))
    steps = oracles.price(dataclasses.replace(every_pair, restarts=0.0), seqs, blocks)[0]
    base, per_iteration, per_iteration_sq = batched.compile
    variants: dict[tuple[int, ...], float] = {}
    for s, m in itertools.product(seqs, blocks):
        variant, iterations, gathers = oracles.shape(batched.kernel, s, m)
        if gathers // iterations < pages:
            variants[variant] = base + per_iteration * iterations + per_iteration_sq * iterations**2
    compile_base, compile_block, compile_sq = shared.compile
    for m in blocks:
        for index, q in enumerate(queries):
            shortest = queries[index - 1] + 1 if index else 1
            if shortest <= m * BLOCK_SIZE and m <= pages:
                variants[-1, m, q] = compile_base + compile_block * m + compile_sq * m * m
    for b, length, weight in shared.calls:
        m = next(rung for rung in blocks if rung >= b)
        q = next(rung for rung in queries if rung >= length)
        steps += weight * (shared.per_gather * m + shared.per_query_gather * m * q)
    compiles = batched.graphs * sum(variants.values())
    return steps + batched.restarts * compiles, len(variants), compiles


def solve_shared(shared: Shared, limits: Limits, pins: Ladders | None = None) -> SolveResult:
    """What the solver makes of an instance."""
    return solve_ladders(
        shared.steps,
        shared.engine,
        shared.cost,
        restarts=shared.batched.restarts,
        limits=limits,
        pins=pins,
        target="spyre-env",
    )


def every_choice(
    shared: Shared, pinned_queries: tuple[int, ...] | None = None
) -> list[tuple[tuple[float, int, float], tuple[tuple[int, ...], ...]]]:
    queries = [
        (1, *inner, MAX_TOKENS)
        for size in range(len(QUERY_CANDIDATES) + 1)
        for inner in itertools.combinations(QUERY_CANDIDATES, size)
    ]
    seqs = list(oracles.ladders(4, shared.batched.max_num_seqs))
    blocks = list(oracles.ladders(1, shared.batched.max_num_blocks))
    return [
        (price(shared, *choice), choice)
        for choice in itertools.product(seqs, blocks, [pinned_queries] if pinned_queries else queries)
    ]


@pytest.mark.parametrize("seed", seeds(120))
def test_equals_brute_force_over_all_three_ladders(seed: int) -> None:
    shared = random_shared(seed, short_pool=seed % 4 == 3)
    rng = np.random.default_rng(seed)
    pinned = (1, 100, MAX_TOKENS) if seed % 5 == 4 else None
    choices = every_choice(shared, pinned)
    max_variants = int(rng.integers(4, 24)) if seed % 3 == 1 else None
    budget = float(min(p[2] for p, _ in choices) * rng.uniform(1.0, 3.0)) if seed % 3 == 2 else None
    allowed = [
        p
        for p, _ in choices
        if (max_variants is None or p[1] <= max_variants)
        and (budget is None or p[2] <= budget * (1 + 1e-12) + 1e-12)
    ]
    limits = Limits(max_variants=max_variants, max_compile_seconds=budget)
    pins = Ladders((), (), query_lens=pinned)
    if not allowed:
        with pytest.raises(SolveError, match=f"--max-variants: found {max_variants}, expected at least"):
            solve_shared(shared, limits, pins)
        return
    result = solve_shared(shared, limits, pins)
    expected = min(p[0] for p in allowed)
    assert result.status is Status.OPTIMAL
    assert result.objective_seconds == pytest.approx(expected, rel=RELATIVE_TOLERANCE, abs=1e-12)
    assert result.lower_bound_seconds <= expected * (1 + RELATIVE_TOLERANCE) + 1e-12
    ladders = result.ladders
    assert ladders.query_lens is not None
    ours = price(shared, ladders.num_seqs, ladders.num_blocks, ladders.query_lens)
    found = price_ladders(shared.steps, shared.engine, shared.cost, ladders, restarts=shared.batched.restarts)
    assert found.num_variants == ours[1]
    assert found.compile_seconds == pytest.approx(ours[2])
    assert found.objective_seconds == pytest.approx(ours[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", seeds(12))
def test_the_frontier_is_complete(seed: int) -> None:
    shared = random_shared(9000 + seed)
    points: dict[float, float] = {}
    for (objective, _, compiles), _ in every_choice(shared):
        steps = objective - shared.batched.restarts * compiles
        key = round(compiles, 9)
        points[key] = min(points.get(key, np.inf), steps)
    best = np.inf
    expected = []
    for compiles, steps in sorted(points.items()):
        if steps < best * (1 - 1e-9):
            expected.append(compiles)
            best = steps
    ladders, complete = solve_frontier_of(shared.steps, shared.engine, shared.cost, target="spyre-env")
    found = [price_ladders(shared.steps, shared.engine, shared.cost, each, restarts=1.0) for each in ladders]
    assert complete
    assert [each.compile_seconds for each in found] == pytest.approx(expected)


def test_an_engine_that_batches_nothing_still_has_a_block_ladder() -> None:
    shared = random_shared(3)
    engine = dataclasses.replace(shared.engine, max_num_seqs=3)
    steps = StepHistogram(np.array([3]), np.array([1]), np.array([5.0]), sequences=shared.steps.sequences)
    result = solve_ladders(steps, engine, shared.cost, restarts=0.0, target="spyre-env")
    assert result.ladders.num_seqs == ()
    assert result.ladders.num_blocks[-1] == engine.max_num_blocks


def test_a_variant_that_no_query_fits_is_not_compiled() -> None:
    # Two blocks of 64 hold queries of up to 128 tokens: for 2 and 3 blocks, 129..256 only fits 3.
    shared = random_shared(1)
    engine = dataclasses.replace(shared.engine, max_model_len=3 * 64)
    calls = SequenceHistogram(np.array([2]), np.array([64]), np.array([1.0]))
    steps = StepHistogram(np.array([1]), np.array([1]), np.array([1.0]), sequences=calls)
    ladders = Ladders((engine.max_num_seqs,), (2, 3), query_lens=(1, 128, 256))
    price_of = price_ladders(steps, engine, shared.cost, ladders, restarts=1.0)
    assert price_of.sequences is not None
    assert price_of.sequences.num_variants == 5
    assert price_of.sequences.gathers_padded == 2
    assert price_of.sequences.query_tokens_padded == 128


def test_rungs_are_valued_on_all_axes() -> None:
    shared = random_shared(12)
    ladders = Ladders(
        (4, shared.batched.max_num_seqs) if shared.batched.max_num_seqs > 4 else (4,),
        tuple(range(1, shared.batched.max_num_blocks + 1)),
        query_lens=(1, 64, MAX_TOKENS),
    )
    priced = price_ladders(shared.steps, shared.engine, shared.cost, ladders, restarts=1.0)
    values = {(v.axis, v.rung): v for v in value_rungs(shared.steps, shared.engine, shared.cost, priced)}
    assert values["query_lens", 1].forced
    assert values["query_lens", MAX_TOKENS].forced
    assert not values["query_lens", 64].forced
    assert sum(v.hits for (axis, _), v in values.items() if axis == "query_lens") == pytest.approx(
        sum(weight for _, _, weight in shared.calls)
    )
    without = dataclasses.replace(ladders, query_lens=(1, MAX_TOKENS))
    other = price_ladders(shared.steps, shared.engine, shared.cost, without, restarts=1.0)
    assert values["query_lens", 64].marginal_seconds == pytest.approx(
        other.objective_seconds - priced.objective_seconds
    )
    absent = best_absent_rung(shared.steps, shared.engine, shared.cost, priced)
    assert absent is not None
    assert absent.axis == "query_lens"


def test_calls_are_asked_for() -> None:
    shared = random_shared(0)
    steps = dataclasses.replace(shared.steps, sequences=None)
    with pytest.raises(UsageError, match="without calls"):
        solve_ladders(steps, shared.engine, shared.cost, restarts=1.0, target="spyre-env")
    with pytest.raises(UsageError, match="expected product"):
        solve_ladders(
            shared.steps, shared.engine, shared.cost, restarts=1.0, target="spyre-env", structure="ragged"
        )


def test_more_query_lengths_than_can_be_told_apart_are_refused_at_once() -> None:
    steps = StepHistogram(np.array([4]), np.array([1]), np.array([1.0]))
    calls = SequenceHistogram(np.array([1]), np.array([1]), np.array([1.0]))
    cost = CostModel(
        name="x",
        step_seconds={},
        compile_seconds={},
        per_sequence=PerSequence(per_query_gather=1.0),
    )
    engine = Engine(max_model_len=1_000_000, max_num_batched_tokens=50_000_000)
    with pytest.raises(UsageError, match="--query-lens: found 15627 query lengths and 7813 block rungs"):
        solve_ladders(
            dataclasses.replace(steps, sequences=calls), engine, cost, restarts=1.0, target="spyre-env"
        )
