"""What a rung pair compiles to and gathers: the design's table by hand, and its laws."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from ladder_opt.cost.geometry import KERNELS, Chunked, FlatPages, Integers, Kernel, PerBlock, get_kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError, UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.api import solve_ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.problem import build_problem

SIZES = st.integers(1, 300)


@pytest.mark.parametrize(
    ("s", "m", "c", "k", "gathers"),
    [
        (9, 4, 3, 2, 54),  # 32 // 9 = 3 blocks a chunk: 2 chunks of 27
        (11, 4, 2, 2, 44),  # 32 // 11 = 2 blocks a chunk: 2 chunks of 22
        (4, 8, 8, 1, 32),
        (4, 9, 8, 2, 64),
        (4, 16, 8, 2, 64),
        (4, 17, 8, 3, 96),
        (4, 3, 3, 1, 12),  # the chunk is no longer than the rung
        (16, 5, 2, 3, 96),
        (32, 7, 1, 7, 224),
        (33, 7, 1, 7, 231),  # 32 // 33 = 0: a chunk holds at least one block
        (64, 1, 1, 1, 64),
        (4, 64, 8, 8, 256),
    ],
)
def test_chunked_by_hand(s: int, m: int, c: int, k: int, gathers: int) -> None:
    kernel = Chunked()
    assert int(kernel.chunk_blocks(s, m)) == c
    assert int(kernel.iterations(s, m)) == k
    assert int(kernel.gathers(s, m)) == gathers


@pytest.mark.parametrize(("s", "m"), [(4, 1), (9, 4), (32, 64)])
def test_per_block_by_hand(s: int, m: int) -> None:
    kernel = PerBlock()
    assert int(kernel.iterations(s, m)) == m
    assert int(kernel.gathers(s, m)) == s * m


def test_nine_to_sixteen_blocks_of_four_sequences_are_one_variant() -> None:
    keys = Chunked().variant_key(4, np.arange(1, 65))
    assert len(set(keys[8:16].tolist())) == 1
    assert len(set(keys.tolist())) == 8 + 7  # a variant each up to 8 blocks, then one for each 8 blocks


@given(SIZES, SIZES, SIZES, SIZES)
def test_chunked_variants_are_equal_where_and_only_where_s_c_k_are(s: int, m: int, t: int, n: int) -> None:
    def shape(seqs: int, blocks: int) -> tuple[int, int, int]:
        chunk = max(1, min(32 // seqs, blocks))
        return seqs, chunk, (blocks + chunk - 1) // chunk

    kernel = Chunked()
    assert (int(kernel.variant_key(s, m)) == int(kernel.variant_key(t, n))) == (shape(s, m) == shape(t, n))


@given(SIZES, SIZES, SIZES, SIZES)
def test_per_block_variants_are_rung_pairs(s: int, m: int, t: int, n: int) -> None:
    kernel = PerBlock()
    assert (int(kernel.variant_key(s, m)) == int(kernel.variant_key(t, n))) == ((s, m) == (t, n))


@given(st.sampled_from(sorted(KERNELS)), SIZES, SIZES)
def test_no_kernel_gathers_less_than_the_rungs_hold(name: str, s: int, m: int) -> None:
    kernel = get_kernel(name)
    assert int(kernel.gathers(s, m)) >= s * m
    assert int(kernel.gathers(s, m + 1)) >= int(kernel.gathers(s, m))  # in m, not in s


@given(st.sampled_from(sorted(KERNELS)), st.lists(SIZES, min_size=1), st.lists(SIZES, min_size=1))
def test_arrays_and_numbers_give_the_same(name: str, seqs: list[int], blocks: list[int]) -> None:
    kernel = get_kernel(name)
    for method in (kernel.iterations, kernel.gathers, kernel.variant_key):
        grid = method(np.array(seqs)[:, None], np.array(blocks)[None, :])
        assert grid.shape == (len(seqs), len(blocks))
        assert grid.dtype == np.int64
        assert grid.tolist() == [[int(method(s, m)) for m in blocks] for s in seqs]


def test_an_unknown_kernel_is_told() -> None:
    with pytest.raises(UsageError) as error:
        get_kernel("flash")
    assert str(error.value) == "kernel: found 'flash', expected one of per_block, chunked"


class Paired(Kernel):
    """A kernel that takes two blocks an iteration."""

    name: ClassVar[str] = "paired"

    def iterations(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        return (np.asarray(num_blocks, np.int64) + 1) // 2 + 0 * np.asarray(num_seqs, np.int64)

    def gathers(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        return np.asarray(num_seqs, np.int64) * 2 * self.iterations(num_seqs, num_blocks)

    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        return (np.asarray(num_seqs, np.int64) << 32) + self.iterations(num_seqs, num_blocks)


class Alternating(Paired):
    """Breaks what the solver relies on: every other block shares a variant."""

    name: ClassVar[str] = "alternating"

    def variant_key(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> Integers:
        return (np.asarray(num_seqs, np.int64) << 32) + np.asarray(num_blocks, np.int64) % 2


def cost_with(kernel: str) -> CostModel:
    return CostModel.model_validate(
        {
            "schema": "ladder_opt/cost/1",
            "name": "test",
            "kernel": kernel,
            "step_seconds": {"per_gather": 1.0},
            "compile_seconds": {"base": 7.0},
        }
    )


STEPS = StepHistogram(np.array([4, 4, 8]), np.array([3, 4, 8]), np.array([5.0, 6.0, 2.0]))
ENGINE = Engine(max_num_seqs=8, max_model_len=8 * 128)


def test_a_new_kernel_is_one_small_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "paired", Paired())
    cost = cost_with("paired")
    problem = build_problem(STEPS, ENGINE, cost, restarts=1.0)
    columns = problem.columns.tolist()
    assert problem.first_column[0, columns.index(4)] == columns.index(3)  # 3 and 4 blocks: one variant
    result = solve_ladders(STEPS, ENGINE, cost, restarts=1.0)
    price = price_ladders(STEPS, ENGINE, cost, result.ladders, restarts=1.0)
    assert result.objective_seconds == pytest.approx(price.objective_seconds)
    # 11 steps of 4 sequences at 4 blocks, 2 of 8 at 8; both rungs on both axes: 4 variants.
    assert price.objective_seconds == pytest.approx(11 * 16 + 2 * 64 + 4 * 7)


def test_a_kernel_that_the_solver_would_misprice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "alternating", Alternating())
    with pytest.raises(InternalError) as error:
        build_problem(STEPS, ENGINE, cost_with("alternating"), restarts=1.0)
    assert str(error.value) == (
        "the kernel's variants are not consecutive in num_blocks, or shared between num_seqs"
    )


def test_page_rungs_count_single_pages_unless_told() -> None:
    assert FlatPages(8) == FlatPages(8, 1)
    assert FlatPages(8).pages(2, 5) == 5
