"""Ladders: the defaults, a user's list fitted to an engine, and what a size is padded to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine
from ladder_opt.errors import UsageError
from ladder_opt.ladder import (
    AXES,
    Axis,
    Ladder,
    Ladders,
    clamp,
    clamp_query_lens,
    default_ladders,
    default_query_lens,
    parse_rungs,
    powers_of_two,
)

ENGINE = Engine(max_num_seqs=8, max_model_len=32 * 128)


@pytest.mark.parametrize(
    ("max_num_seqs", "rungs"),
    [
        (8, (4, 8)),
        (6, (4, 6)),
        (5, (4, 5)),
        (4, (4,)),
        (3, ()),
        (1, ()),
        (32, (4, 8, 16, 32)),
        (33, (4, 8, 16, 32, 33)),
    ],
)
def test_default_num_seqs(max_num_seqs: int, rungs: tuple[int, ...]) -> None:
    assert default_ladders(Engine(max_num_seqs=max_num_seqs)).num_seqs == rungs


@pytest.mark.parametrize(
    ("max_num_blocks", "rungs"),
    [(32, (1, 2, 4, 8, 16, 32)), (1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (33, (1, 2, 4, 8, 16, 32, 33))],
)
def test_default_num_blocks(max_num_blocks: int, rungs: tuple[int, ...]) -> None:
    assert default_ladders(Engine(max_model_len=max_num_blocks * 128)).num_blocks == rungs


@given(st.integers(1, 64), st.integers(1, 5000))
def test_powers_of_two_end_on_the_limit_and_no_rung_doubles_past_the_next(start: int, limit: int) -> None:
    rungs = powers_of_two(start, limit)
    if limit < start:
        assert rungs == ()
        return
    assert rungs[-1] == limit
    assert rungs[0] == min(start, limit)
    assert all(high <= 2 * low for low, high in pairwise(rungs))


@given(st.sets(st.integers(1, 100)), st.integers(-5, 120))
def test_a_size_is_padded_to_the_smallest_rung_at_least_as_large(rungs: set[int], size: int) -> None:
    ladder = Ladder(tuple(sorted(rungs)))
    assert ladder.smallest_at_least(size) == min((rung for rung in rungs if rung >= size), default=None)


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ((8, 4), "ladder [8, 4]: found 4 after 8, expected a larger integer"),
        ((4, 4), "ladder [4, 4]: found 4 after 4, expected a larger integer"),
        ((0, 4), "ladder [0, 4]: found 0 after 0, expected a larger integer"),
        ((4.0,), "ladder [4.0]: found 4.0 after 0, expected a larger integer"),
        ((True, 4), "ladder [True, 4]: found True after 0, expected a larger integer"),
    ],
)
def test_rungs_that_do_not_ascend(rungs: tuple[int, ...], message: str) -> None:
    for make in (Ladder, lambda bad: Ladders(bad, (1,)), lambda bad: Ladders((4,), bad)):
        with pytest.raises(UsageError) as error:
            make(rungs)
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "rungs"),
    [("4,8,32", [4, 8, 32]), (" 4 , 8", [4, 8]), ("[4, 8]", [4, 8]), ("8,4,4", [8, 4, 4]), ("-1", [-1])],
)
def test_lists_are_read(text: str, rungs: list[int]) -> None:
    assert parse_rungs(text, option="--num-seqs") == rungs


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("", ""),
        ("4,,8", ""),
        ("4,8,", ""),
        ("4;8", "4;8"),
        ("4,eight", "eight"),
        ("4.0", "4.0"),
        ("1_000", "1_000"),
        ("\u0664", "\u0664"),
        ("9" * 30, "9" * 30),
    ],
)
def test_lists_that_are_none(text: str, entry: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_rungs(text, option="--num-seqs")
    assert str(error.value) == (f"--num-seqs: found {entry!r} in {text!r}, expected integers such as 4,8,32")


@pytest.mark.parametrize(
    ("axis", "rungs", "kept", "warnings"),
    [
        ("num_seqs", [4, 8], (4, 8), []),
        ("num_seqs", [8], (8,), []),
        ("num_seqs", [8, 4, 4], (4, 8), ["num_seqs: [8, 4, 4] was sorted and freed of duplicates"]),
        (
            "num_seqs",
            [4, 6],
            (4, 6, 8),
            ["num_seqs: max_num_seqs = 8 was missing and was added as the top rung"],
        ),
        (
            "num_seqs",
            [4, 16],
            (4, 8),
            [
                "num_seqs: 16 is above max_num_seqs = 8 and was dropped",
                "num_seqs: max_num_seqs = 8 was missing and was added as the top rung",
            ],
        ),
        ("num_seqs", [2, 8], (8,), ["num_seqs: 2 is below min_batched_seqs = 4 and was dropped"]),
        ("num_blocks", [1, 32], (1, 32), []),
        (
            "num_blocks",
            [64, 3],
            (3, 32),
            [
                "num_blocks: [64, 3] was sorted and freed of duplicates",
                "num_blocks: 64 is above ceil(max_model_len / block_size) = 32 and was dropped",
                "num_blocks: ceil(max_model_len / block_size) = 32 was missing and was added as the top rung",
            ],
        ),
    ],
)
def test_a_users_list_is_fitted_and_each_change_told(
    axis: Axis, rungs: list[int], kept: tuple[int, ...], warnings: list[str]
) -> None:
    assert clamp(rungs, axis, ENGINE) == (kept, warnings)


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ([], "num_seqs: found an empty list, expected at least one rung"),
        ([4, 0], "num_seqs: found 0, expected integers of 1 or more"),
        ([-4], "num_seqs: found -4, expected integers of 1 or more"),
        ([4.5], "num_seqs: found 4.5, expected integers of 1 or more"),
        (["4"], "num_seqs: found '4', expected integers of 1 or more"),
        ([True], "num_seqs: found True, expected integers of 1 or more"),
    ],
)
def test_a_users_list_that_is_none(rungs: list[int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        clamp(rungs, "num_seqs", ENGINE)
    assert str(error.value) == message


def test_an_engine_that_batches_nothing_uses_no_list() -> None:
    assert clamp([4, 8], "num_seqs", Engine(max_num_seqs=3)) == (
        (),
        ["num_seqs: max_num_seqs 3 is below min_batched_seqs 4: the list is not used"],
    )


@given(
    st.sampled_from(AXES),
    st.lists(st.integers(1, 80), min_size=1, max_size=12),
    st.integers(4, 40),
    st.integers(1, 40),
)
def test_a_fitted_list_is_a_ladder_that_ends_on_the_limit(
    axis: Axis, rungs: list[int], max_num_seqs: int, max_num_blocks: int
) -> None:
    engine = Engine(max_num_seqs=max_num_seqs, max_model_len=max_num_blocks * 128)
    limit, floor = (max_num_seqs, 4) if axis == "num_seqs" else (max_num_blocks, 1)
    kept, warnings = clamp(rungs, axis, engine)
    assert kept == tuple(sorted({rung for rung in rungs if floor <= rung <= limit} | {limit}))
    assert clamp(kept, axis, engine) == (kept, [])
    assert bool(warnings) == (list(kept) != rungs)


def test_other_num_seqs_rungs_take_the_block_ladder_next_above() -> None:
    ragged = Ladders.from_ragged({4: (2, 9), 8: (1, 9), 16: (3, 9)})
    assert ragged.ragged_dict() == {"4": [2, 9], "8": [1, 9], "16": [3, 9]}
    assert ragged.with_num_seqs((3, 8, 10, 20)) == Ladders.from_ragged(
        {3: (2, 9), 8: (1, 9), 10: (3, 9), 20: (3, 9)}
    )
    assert ragged.with_num_seqs(()) == Ladders((), (1, 2, 3, 9))
    product = Ladders((4, 8), (1, 9), query_lens=(1, 512))
    assert product.with_num_seqs((5,)) == Ladders((5,), (1, 9), query_lens=(1, 512))
    assert product.ragged_dict() is None


def test_query_lens_are_fitted_to_an_engine() -> None:
    engine = Engine(max_num_batched_tokens=512)
    assert clamp_query_lens([1, 64, 512], engine) == ((1, 64, 512), [])
    assert clamp_query_lens([700, 64, 600], engine) == (
        (1, 64, 512),
        [
            "query_lens: 600 is above max_num_batched_tokens = 512 and was dropped",
            "query_lens: 700 is above max_num_batched_tokens = 512 and was dropped",
            "query_lens: 1, the length of a decode, was missing and was added",
            "query_lens: max_num_batched_tokens = 512 was missing and was added",
        ],
    )


@pytest.mark.parametrize(
    ("query_lens", "message"),
    [
        ([], "query_lens: found an empty list, expected at least one rung"),
        ([1, 0], "query_lens: found 0, expected integers of 1 or more"),
        ([1, True], "query_lens: found True, expected integers of 1 or more"),
        ([1, 64.0], "query_lens: found 64.0, expected integers of 1 or more"),
    ],
)
def test_query_lens_that_are_none(query_lens: list[int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        clamp_query_lens(query_lens, Engine())
    assert str(error.value) == message


@pytest.mark.parametrize("blocks", [(), (2, 9), (1, 3)])
def test_ragged_ladders_hold_rungs_of_the_whole_up_to_the_last(blocks: tuple[int, ...]) -> None:
    """None at all, one that is not among them, and without the last: each by itself."""
    with pytest.raises(UsageError, match=r"expected rungs of \[1, 3, 9\] up to the last"):
        Ladders((4, 8), (1, 3, 9), ((1, 9), blocks))
    assert Ladders((4, 8), (1, 3, 9), ((1, 9), (3, 9))).blocks_of(1) == (3, 9)


@pytest.mark.parametrize(
    ("tokens", "lens"),
    [(1500, (1, 512, 1024, 1500)), (1024, (1, 512, 1024)), (1023, (1, 512, 1023)), (300, (1, 300))],
)
def test_the_spyre_plugins_own_query_lens(tokens: int, lens: tuple[int, ...]) -> None:
    engine = Engine(max_num_seqs=8, max_model_len=2048, max_num_batched_tokens=tokens)
    assert default_query_lens(engine) == lens


def test_rungs_in_a_tuple_become_pythons_own_numbers_too() -> None:
    given: Any = (np.int64(4), 8)
    ladders = Ladders(given, (1, 3))
    assert [type(rung) for rung in ladders.num_seqs] == [int, int]
    assert type(ladders.num_seqs) is tuple
    with pytest.raises(UsageError, match="found 1 after 1, expected a larger integer"):
        Ladders((4, 8), (1, 1))
