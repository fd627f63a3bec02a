"""The least worst regret over several workloads: brute force, plain twins of the kernels, laws."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_opt.cost.model import CostModel, read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError, SolveError, UsageError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.replay import simulate
from ladder_opt.plan.baselines import price_baselines
from ladder_opt.solve._robust import search_workloads
from ladder_opt.solve._workloads import Workloads
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.problem import Floats, Limits, build_problem
from ladder_opt.solve.result import RELATIVE_TOLERANCE, Status, StopReason
from ladder_opt.solve.robust import RobustResult, Workload, solve_robust
from ladder_opt.solve.verify import check_robust
from ladder_opt.trace.read import read_trace
from tests import oracles
from tests.seeds import seeds
from tests.solve.test_product import cost_of, engine_of, random_instance, steps_of
from tests.solve.test_spyre_env import MAX_TOKENS, QUERY_CANDIDATES, random_shared
from tests.solve.test_spyre_env import price as spyre_price

SOME = settings(max_examples=max(1, settings().max_examples // 4))  # each example is several solves
REGRET_TOLERANCE = 5 * RELATIVE_TOLERANCE  # of a share whose own optimum is known to the tolerance too


def random_family(seed: int, *, most: int = 4, largest: int = 17) -> list[oracles.Instance]:
    """One to `most` workloads on one engine and one cost model."""
    rng = np.random.default_rng([seed, 99])
    base = next(
        instance
        for instance in (random_instance(seed + 100_000 * shift) for shift in itertools.count())
        if instance.max_num_seqs + instance.max_num_blocks <= largest
    )
    family = [base]
    for _ in range(int(rng.integers(0, most))):
        cells = tuple(
            (
                int(rng.integers(1, base.max_num_seqs + 1)),
                int(rng.integers(1, base.max_num_blocks + 1)),
                float(rng.integers(1, 2000)),
            )
            for _ in range(int(rng.integers(1, 14)))
        )
        restarts = float(rng.choice([0.0, 0.05, 1.0, 4.0]))
        family.append(dataclasses.replace(base, cells=cells, restarts=restarts))
    return family


def workloads_of(family: list[oracles.Instance]) -> list[Workload]:
    return [Workload(steps=steps_of(each), restarts=each.restarts) for each in family]


def solved(family: list[oracles.Instance], **options: Any) -> RobustResult:
    return solve_robust(workloads_of(family), engine_of(family[0]), cost_of(family[0]), **options)


def worst_regret(family: list[oracles.Instance], ladders: Ladders, optima: list[float]) -> float:
    regrets = [
        oracles.price(each, ladders.num_seqs, ladders.num_blocks)[0] / optimum - 1
        for each, optimum in zip(family, optima, strict=True)
        if optimum > 0
    ]
    return max(regrets, default=0.0)


def assert_is_least(result: RobustResult, family: list[oracles.Instance], **limits: Any) -> None:
    expected, optima = oracles.least_worst_regret(family, **limits)
    assert result.status is Status.OPTIMAL
    if not math.isnan(expected):  # a regret beside an optimum of 0 s is of our own making
        assert result.worst_regret == pytest.approx(expected, abs=REGRET_TOLERANCE)
        assert worst_regret(family, result.ladders, optima) == pytest.approx(expected, abs=REGRET_TOLERANCE)
    for each, optimum in zip(result.workloads, optima, strict=True):
        assert each.optimum.objective_seconds == pytest.approx(optimum, rel=RELATIVE_TOLERANCE, abs=1e-12)
    assert max(each.regret for each in result.workloads) == result.worst_regret


@pytest.mark.parametrize("seed", seeds(70))
def test_equals_brute_force(seed: int) -> None:
    family = random_family(seed)
    assert_is_least(solved(family), family)


@pytest.mark.parametrize("seed", seeds(70))
def test_equals_brute_force_within_limits(seed: int) -> None:
    family = random_family(1000 + seed)
    rng = np.random.default_rng(seed)
    top = family[0]
    one = oracles.price(top, (top.max_num_seqs,), (top.max_num_blocks,))[2]
    max_variants = int(rng.integers(1, 12)) if seed % 3 != 1 else None
    budget = float(one * rng.uniform(1.0, 8.0)) if seed % 3 != 0 else None
    result = solved(family, limits=Limits(max_variants=max_variants, max_compile_seconds=budget))
    assert_is_least(result, family, max_variants=max_variants, max_compile_seconds=budget)


@pytest.mark.parametrize("seed", seeds(45))
def test_equals_brute_force_with_a_guard_and_a_short_pool(seed: int) -> None:
    rng = np.random.default_rng(5000 + seed)
    family = random_family(5000 + seed)
    usable = float("inf")
    if seed % 3:
        top = family[0]
        usable = float(rng.integers(top.max_num_blocks, top.max_num_blocks + top.max_num_seqs))
        family = [
            dataclasses.replace(
                each,
                cells=tuple(c for c in each.cells if c[0] - 1 + c[1] <= usable) or ((1, 1, 1.0),),
                usable_kv_blocks=usable,
            )
            for each in family
        ]
    guard = float(rng.choice([1.0, 1.25, 1.5, 2.0, 4.0])) if seed % 2 else None
    assert_is_least(solved(family, limits=Limits(guard=guard)), family, guard=guard)


@pytest.mark.parametrize("axes", ["num_seqs", "num_blocks", "both"])
@pytest.mark.parametrize("seed", seeds(15))
def test_pinned_axes_stay(seed: int, axes: str) -> None:
    family = random_family(2000 + seed)
    top = family[0]
    rng = np.random.default_rng(seed)
    seqs = list(oracles.ladders(4, top.max_num_seqs))
    blocks = list(oracles.ladders(1, top.max_num_blocks))
    pinned_seqs = seqs[int(rng.integers(len(seqs)))] if axes != "num_blocks" else ()
    pinned_blocks = blocks[int(rng.integers(len(blocks)))] if axes != "num_seqs" else ()
    result = solved(family, pins=Ladders(pinned_seqs, pinned_blocks))
    assert_is_least(result, family, pinned_seqs=pinned_seqs, pinned_blocks=pinned_blocks)
    assert pinned_seqs in ((), result.ladders.num_seqs)
    assert pinned_blocks in ((), result.ladders.num_blocks)


@pytest.mark.parametrize("seed", seeds(10))
def test_a_pinned_axis_within_limits(seed: int) -> None:
    family = random_family(2500 + seed)
    pinned = (family[0].max_num_seqs,)
    limits = {"max_variants": 1 + seed % 4}
    result = solved(family, pins=Ladders(pinned, ()), limits=Limits(**limits))
    assert_is_least(result, family, pinned_seqs=pinned, **limits)


def random_tables(seed: int, workloads: int) -> tuple[CostModel, Engine, list[list[tuple[int, int, float]]]]:
    rng = np.random.default_rng(seed)
    seqs, blocks = int(rng.integers(5, 10)), int(rng.integers(2, 8))
    sizes = list(itertools.product(range(4, seqs + 1), range(1, blocks + 1)))
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "table",
            "kernel": "per_block",
            "step_seconds": {},
            "compile_seconds": {},
            "step_table": [[s, m, float(rng.uniform(0.1, 1.0))] for s, m in sizes],
            "compile_table": [[s, m, float(rng.uniform(1, 30))] for s, m in sizes],
        }
    )
    cells = [
        [(int(rng.integers(4, seqs + 1)), int(rng.integers(1, blocks + 1)), 40.0) for _ in range(10)]
        for _ in range(workloads)
    ]
    return cost, Engine(max_num_seqs=seqs, max_model_len=blocks * 128), cells


@pytest.mark.parametrize("seed", seeds(40))
def test_unstructured_tables_equal_brute_force(seed: int) -> None:
    cost, engine, cells = random_tables(seed, 1 + seed % 4)
    assert cost.step_table is not None
    assert cost.compile_table is not None
    step = {(s, m): t for s, m, t in cost.step_table}
    price = {(s, m): t for s, m, t in cost.compile_table}
    table = []
    for num_seqs in oracles.ladders(4, engine.max_num_seqs):
        for num_blocks in oracles.ladders(1, engine.max_num_blocks):
            compiles = sum(price[s, m] for s in num_seqs for m in num_blocks)
            table.append(
                [
                    compiles
                    + sum(
                        weight
                        * step[next(r for r in num_seqs if r >= n), next(r for r in num_blocks if r >= b)]
                        for n, b, weight in each
                    )
                    for each in cells
                ]
            )
    optima = [min(column) for column in zip(*table, strict=True)]
    expected = min(max(c / o for c, o in zip(row, optima, strict=True)) for row in table) - 1
    result = solve_robust([Workload(steps=histogram(each), restarts=1.0) for each in cells], engine, cost)
    assert result.status is Status.OPTIMAL
    assert result.worst_regret == pytest.approx(expected, abs=REGRET_TOLERANCE)


@pytest.mark.parametrize("seed", seeds(40))
def test_the_shared_block_ladder_equals_brute_force(seed: int) -> None:
    """Target spyre-env: query lengths are chosen too, and the per-sequence kernel's calls count."""
    first = random_shared(seed)
    rng = np.random.default_rng(seed)
    family = [first]
    for other in range(1, 1 + seed % 3):
        batched = random_shared(1000 * other + seed).batched
        top = first.batched.max_num_seqs, first.batched.max_num_blocks
        cells = tuple((min(n, top[0]), min(b, top[1]), w) for n, b, w in batched.cells)
        calls = tuple((b, length, w * float(rng.uniform(0.1, 9))) for b, length, w in first.calls[::other])
        family.append(
            dataclasses.replace(
                first, batched=dataclasses.replace(first.batched, cells=cells, restarts=2.0), calls=calls
            )
        )
    table = [
        [spyre_price(each, seqs, blocks, queries)[0] for each in family]
        for seqs in oracles.ladders(4, first.batched.max_num_seqs)
        for blocks in oracles.ladders(1, first.batched.max_num_blocks)
        for queries in ((1, *chosen, MAX_TOKENS) for chosen in subsets(QUERY_CANDIDATES))
    ]
    optima = [min(column) for column in zip(*table, strict=True)]
    workloads = [Workload(steps=each.steps, restarts=each.batched.restarts) for each in family]
    result = solve_robust(workloads, first.engine, first.cost, target="spyre-env")
    assert result.status is Status.OPTIMAL
    assert result.ladders.query_lens is not None
    if min(optima) > 0:
        expected = min(max(c / o for c, o in zip(row, optima, strict=True)) for row in table) - 1
        assert result.worst_regret == pytest.approx(expected, abs=REGRET_TOLERANCE)


def subsets(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [each for count in range(len(sizes) + 1) for each in itertools.combinations(sizes, count)]


def histogram(cells: list[tuple[int, int, float]]) -> StepHistogram:
    grid = np.array(cells)
    return StepHistogram(grid[:, 0].astype(int), grid[:, 1].astype(int), grid[:, 2])


def test_an_optimum_of_nothing_is_kept_where_it_can_be() -> None:
    """4 x 1 costs nothing there; a workload with steps of that size alone has an optimum of 0 s."""
    cost = CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "table",
            "kernel": "per_block",
            "step_seconds": {},
            "compile_seconds": {},
            "step_table": [[4, 1, 0.0], [4, 2, 1.0], [5, 1, 1.0], [5, 2, 1.5]],
        }
    )
    engine = Engine(max_num_seqs=5, max_model_len=256)
    nothing = Workload(steps=histogram([(4, 1, 10.0)]), restarts=1.0)
    empty = Workload(steps=histogram([(1, 1, 10.0)]), restarts=1.0)
    other = Workload(steps=histogram([(5, 2, 10.0), (4, 2, 3.0)]), restarts=1.0)
    result = solve_robust([nothing, other, empty], engine, cost)
    assert result.status is Status.OPTIMAL
    assert result.worst_regret == 0.0
    assert result.ladders == Ladders((4, 5), (1, 2))
    assert [each.objective_seconds for each in result.workloads] == [0.0, 18.0, 0.0]
    # 4 x 2 in place of it costs 10 s of the 15 s that the dearest rung pair would.
    pinned = solve_robust([other, nothing], engine, cost, pins=Ladders((5,), ()))
    assert pinned.worst_regret == 0.0
    assert solve_robust([empty, empty], engine, cost).worst_regret == 0.0


@given(st.integers(0, 10_000))
def test_one_workload_is_the_plain_problem(seed: int) -> None:
    family = random_family(seed)[:1]
    result = solved(family)
    plain = solve_ladders(
        steps_of(family[0]), engine_of(family[0]), cost_of(family[0]), restarts=family[0].restarts
    )
    assert result.status is Status.OPTIMAL
    assert result.worst_regret <= REGRET_TOLERANCE
    assert result.workloads[0].objective_seconds == pytest.approx(
        plain.objective_seconds, rel=2 * RELATIVE_TOLERANCE, abs=1e-12
    )


@SOME
@given(st.integers(0, 10_000), st.data())
def test_never_worse_than_other_ladders(seed: int, data: st.DataObject) -> None:
    """Baselines, each workload's own plan, the plan for the sum, and any ladders at all."""
    family = random_family(seed, largest=20)
    engine, cost = engine_of(family[0]), cost_of(family[0])
    result = solved(family)
    optima = [each.optimum.objective_seconds for each in result.workloads]
    mix = solve_ladders(
        StepHistogram.sum_of([steps_of(each) for each in family]),
        engine,
        cost,
        restarts=sum(each.restarts for each in family),
    )
    seqs = data.draw(st.sets(st.integers(4, engine.max_num_seqs))) | {engine.max_num_seqs}
    blocks = data.draw(st.sets(st.integers(1, engine.max_num_blocks))) | {engine.max_num_blocks}
    others = [
        mix.ladders,
        default_ladders(engine),
        Ladders(tuple(sorted(seqs)), tuple(sorted(blocks))),
        *(each.optimum.ladders for each in result.workloads),
        *(price.ladders for _, price in price_baselines(steps_of(family[0]), engine, cost, restarts=1.0)),
    ]
    for ladders in others:
        assert result.worst_regret <= worst_regret(family, ladders, optima) + REGRET_TOLERANCE
    assert result.lower_bound <= result.worst_regret + RELATIVE_TOLERANCE


@SOME
@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
def test_a_workload_counts_the_same_at_any_size_and_twice(seed: int, scale: float) -> None:
    family = random_family(seed, most=3)
    plain = solved(family)
    first = family[0]
    larger = dataclasses.replace(
        first,
        cells=tuple((n, b, weight * scale) for n, b, weight in first.cells),
        restarts=first.restarts * scale,
    )
    assert solved([larger, *family[1:]]).worst_regret == pytest.approx(
        plain.worst_regret, abs=REGRET_TOLERANCE
    )
    assert solved([*family, first]).worst_regret == pytest.approx(plain.worst_regret, abs=REGRET_TOLERANCE)


@SOME
@given(st.integers(0, 10_000))
def test_one_more_workload_never_lowers_the_least_worst_regret(seed: int) -> None:
    family = random_family(seed)
    fewer = solved(family[:-1] or family)
    assert solved(family).worst_regret >= fewer.worst_regret - REGRET_TOLERANCE


@SOME
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(0, 20))
def test_a_larger_budget_is_never_worse_beside_the_same_optima(seed: int, budget: int, more: int) -> None:
    family = [each for each in random_family(seed) if brute_optimum_is_positive(each)]
    if not family:
        return
    optima = np.array(
        [
            solve_ladders(
                steps_of(each), engine_of(each), cost_of(each), restarts=each.restarts
            ).objective_seconds
            for each in family
        ]
    )
    small, large = (
        search_workloads(workloads_within(family, optima, variants), [], time_limit_seconds=60.0)
        for variants in (budget, budget + more)
    )
    assert small.proven
    assert large.proven
    assert large.best.ratios.max() <= small.best.ratios.max() * (1 + REGRET_TOLERANCE)


def brute_optimum_is_positive(instance: oracles.Instance) -> bool:
    return oracles.price(instance, (instance.max_num_seqs,), (instance.max_num_blocks,))[0] > 0


def workloads_within(family: list[oracles.Instance], optima: Floats, variants: int) -> Workloads:
    """The robust solver's instance under a limit, beside optima without it."""
    base = build_problem(
        StepHistogram.sum_of([steps_of(each) for each in family]),
        engine_of(family[0]),
        cost_of(family[0]),
        restarts=1.0,
        limits=Limits(max_variants=variants),
    )
    cumulative = [
        [
            [sum(w for n, b, w in each.cells if 4 <= n <= s and b <= m) for m in (0, *base.columns)]
            for s in (0, *base.rows)
        ]
        for each in family
    ]
    return Workloads(
        base=base,
        cumulative=np.array(cumulative),
        restarts=np.array([each.restarts for each in family]),
        optima=optima,
        scales=optima,
    )


def test_infeasible_limits_say_the_least_that_would_do() -> None:
    family = random_family(1)
    with pytest.raises(SolveError, match=r"--warmup-budget: found 0\.0001 s, expected at least"):
        solved(family, limits=Limits(max_compile_seconds=0.0001))
    with pytest.raises(UsageError, match="workloads: found none, expected one or more"):
        solve_robust([], Engine(), read_cost_model())


def hard_workloads(count: int, engine: Engine) -> list[Workload]:
    rng = np.random.default_rng(11)
    found = []
    for _ in range(count):
        seqs = rng.integers(4, engine.max_num_seqs + 1, 200)
        blocks = rng.integers(1, engine.max_num_blocks + 1, 200)
        found.append(Workload(steps=StepHistogram(seqs, blocks, np.exp(rng.normal(4, 2, 200))), restarts=1.0))
    return found


def test_out_of_time_the_gap_is_stated() -> None:
    engine = Engine(max_num_seqs=32, max_model_len=64 * 128)
    workloads = hard_workloads(3, engine)
    cost = read_cost_model()
    hurried = solve_robust(workloads, engine, cost, time_limit_seconds=0.0)
    assert hurried.status is Status.FEASIBLE
    assert hurried.stop_reason is StopReason.TIME_LIMIT
    assert 0 <= hurried.lower_bound <= hurried.worst_regret
    patient = solve_robust(workloads, engine, cost, time_limit_seconds=120.0)
    assert patient.status is Status.OPTIMAL
    assert hurried.lower_bound <= patient.worst_regret + REGRET_TOLERANCE
    assert hurried.gap == pytest.approx(hurried.worst_regret - hurried.lower_bound)
    # Its regrets are over bounds on the optima, and so never understated.
    for rough, exact in zip(hurried.workloads, patient.workloads, strict=True):
        true = rough.objective_seconds / exact.optimum.objective_seconds - 1
        assert rough.regret >= true - REGRET_TOLERANCE


def test_the_check_finds_wrong_prices_and_regrets() -> None:
    family = random_family(3)
    result = solved(family)
    right: dict[str, Any] = {
        "objectives_seconds": [each.objective_seconds for each in result.workloads],
        "optima_seconds": [each.optimum.lower_bound_seconds for each in result.workloads],
        "worst_regret": result.worst_regret,
    }

    def check(**changes: Any) -> None:
        check_robust(
            [(each.steps, each.restarts) for each in workloads_of(family)],
            engine_of(family[0]),
            cost_of(family[0]),
            result.ladders,
            **{**right, **changes},
        )

    check()
    with pytest.raises(InternalError, match="the solver says a worst regret of"):
        check(worst_regret=result.worst_regret + 1e-6)
    with pytest.raises(InternalError, match=r"the solver says .* s, the check"):
        check(objectives_seconds=[seconds + 1e-3 for seconds in right["objectives_seconds"]])
    with pytest.raises(InternalError, match="variants, 0 allowed"):
        check(max_variants=0)


@pytest.mark.parametrize("restarts", [0.05, 1.0])
@pytest.mark.parametrize("limits", [Limits(), Limits(max_variants=28)])
def test_public_traces(shared_dir: Path, restarts: float, limits: Limits) -> None:
    """Azure conversation, BurstGPT and Mooncake on one engine: proven, and priced by other code."""
    engine = Engine()
    cost = read_cost_model()
    files = (
        "AzureLLMInferenceTrace_conv.csv.gz",
        "burstgpt_1_head.csv",
        "mooncake_conversation_trace.jsonl.gz",
    )
    paths = [shared_dir / "traces" / name for name in files]
    for path in paths:
        if not path.is_file():
            pytest.skip(f"no public trace {path}")
    workloads = [
        Workload(steps=simulate(read_trace(path), engine, cost, replicas=8).steps, restarts=restarts)
        for path in paths
    ]
    result = solve_robust(workloads, engine, cost, limits=limits)
    assert result.status is Status.OPTIMAL
    optima = [each.optimum.objective_seconds for each in result.workloads]

    def worst(ladders: Ladders) -> float:
        return max(
            price_ladders(each.steps, engine, cost, ladders, restarts=restarts).objective_seconds / optimum
            - 1
            for each, optimum in zip(workloads, optima, strict=True)
        )

    assert worst(result.ladders) == pytest.approx(result.worst_regret, abs=REGRET_TOLERANCE)
    for each in result.workloads:
        assert result.worst_regret <= worst(each.optimum.ladders) + REGRET_TOLERANCE
    assert not math.isinf(result.worst_regret)
