"""Plain-Python oracles that import none of the solver: brute force over every pair of ladders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    """A small problem: formulas only, all numbers plain."""

    kernel: str
    cells: tuple[tuple[int, int, float], ...]
    max_num_seqs: int
    max_num_blocks: int
    step: tuple[float, float, float, float]
    compile: tuple[float, float, float]
    restarts: float
    graphs: int = 1
    min_batched_seqs: int = 4
    usable_kv_blocks: float = float("inf")


def shape(kernel: str, s: int, m: int) -> tuple[tuple[int, ...], int, int]:
    """(variant, iterations, gathers) of a rung pair."""
    if kernel == "per_block":
        return (s, m), m, s * m
    c = max(1, min(32 // s, m))
    k = (m + c - 1) // c
    return (s, c, k), k, s * c * k


def price(instance: Instance, seqs: tuple[int, ...], blocks: tuple[int, ...]) -> tuple[float, int, float]:
    """(objective, variants, compile seconds)."""
    base, per_seq, per_iteration, per_gather = instance.step
    total = 0.0
    for n, b, weight in instance.cells:
        if n < instance.min_batched_seqs:
            continue
        s = next(rung for rung in seqs if rung >= n)
        m = next(rung for rung in blocks if rung >= b)
        _, iterations, gathers = shape(instance.kernel, s, m)
        total += weight * (base + per_seq * s + per_iteration * iterations + per_gather * gathers)
    compile_base, compile_it, compile_sq = instance.compile
    variants = {}
    for s, m in _pairs_in_use(instance, seqs, blocks):
        variant, iterations, _ = shape(instance.kernel, s, m)
        variants[variant] = instance.graphs * (
            compile_base + compile_it * iterations + compile_sq * iterations**2
        )
    compiles = sum(variants.values())
    return total + instance.restarts * compiles, len(variants), compiles


def _pairs_in_use(instance: Instance, seqs: tuple[int, ...], blocks: tuple[int, ...]) -> set[tuple[int, int]]:
    """Rung pairs that some batch in the pool is padded to (one sequence of b blocks, the others of one).

    Those that read all pages of the pool in one iteration are left out: the recorder skips them.
    """
    if instance.usable_kv_blocks == float("inf"):
        return set(itertools.product(seqs, blocks))
    pairs = {
        (next(r for r in seqs if r >= n), next(r for r in blocks if r >= b))
        for n in range(instance.min_batched_seqs, seqs[-1] + 1)
        for b in range(1, blocks[-1] + 1)
        if (n - 1) + b <= instance.usable_kv_blocks
    }
    return {(s, m) for s, m in pairs if _entries(instance.kernel, s, m) < instance.usable_kv_blocks + 1}


def _entries(kernel: str, s: int, m: int) -> int:
    return s if kernel == "per_block" else s * max(1, min(32 // s, m))


def ladders(low: int, top: int) -> Iterator[tuple[int, ...]]:
    """Every ladder from low that ends on top."""
    inner = range(low, top)
    for size in range(len(inner) + 1):
        for chosen in itertools.combinations(inner, size):
            yield (*chosen, top)


def keeps_guard(rungs: tuple[int, ...], smallest: int, guard: float) -> bool:
    """Whether every size is padded by no more than the guard."""
    return all(
        next(rung for rung in rungs if rung >= size) <= guard * size * (1 + 1e-12)
        for size in range(smallest, rungs[-1] + 1)
    )


def least_worst_regret(
    instances: list[Instance],
    *,
    max_variants: int | None = None,
    max_compile_seconds: float | None = None,
    guard: float | None = None,
    pinned_seqs: tuple[int, ...] = (),
    pinned_blocks: tuple[int, ...] = (),
) -> tuple[float, list[float]]:
    """(least worst regret, each workload's optimum) over all pairs of ladders within limits.

    Instances differ in cells and restarts alone. inf where no ladders keep the limits, nan where a share of
    an optimum of 0 would be asked for.
    """
    first = instances[0]
    every_seqs = [pinned_seqs] if pinned_seqs else ladders(first.min_batched_seqs, first.max_num_seqs)
    every_blocks = [pinned_blocks] if pinned_blocks else list(ladders(1, first.max_num_blocks))
    table: list[list[float]] = []
    for seqs in every_seqs:
        if guard is not None and not keeps_guard(seqs, first.min_batched_seqs, guard):
            continue
        for blocks in every_blocks:
            if guard is not None and not keeps_guard(blocks, 1, guard):
                continue
            priced = [price(instance, seqs, blocks) for instance in instances]
            _, variants, compiles = priced[0]
            if max_variants is not None and variants > max_variants:
                continue
            if max_compile_seconds is not None and compiles > max_compile_seconds * (1 + 1e-12):
                continue
            table.append([objective for objective, _, _ in priced])
    optima = [min(column) for column in zip(*table, strict=True)]
    if any(best <= 0 < max(column) for best, column in zip(optima, zip(*table, strict=True), strict=True)):
        return float("nan"), optima
    regrets = [
        max((cost / best - 1 for cost, best in zip(row, optima, strict=True) if best > 0), default=0.0)
        for row in table
    ]
    return min(regrets, default=float("inf")), optima


def brute_force(
    instance: Instance,
    *,
    max_variants: int | None = None,
    max_compile_seconds: float | None = None,
    guard: float | None = None,
) -> tuple[float, int]:
    """(objective, variants) of the optimum within limits; fewest variants among equals."""
    best = (float("inf"), 0)
    for seqs in ladders(instance.min_batched_seqs, instance.max_num_seqs):
        if guard is not None and not keeps_guard(seqs, instance.min_batched_seqs, guard):
            continue
        for blocks in ladders(1, instance.max_num_blocks):
            if guard is not None and not keeps_guard(blocks, 1, guard):
                continue
            objective, variants, compiles = price(instance, seqs, blocks)
            if max_variants is not None and variants > max_variants:
                continue
            if max_compile_seconds is not None and compiles > max_compile_seconds * (1 + 1e-12):
                continue
            if objective < best[0] * (1 - 1e-12) or (
                objective <= best[0] * (1 + 1e-12) and variants < best[1]
            ):
                best = (objective, variants)
    return best
