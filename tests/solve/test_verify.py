"""The independent check: it agrees with plain Python, and nothing wrong passes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cost.model import CostModel
from ladder_opt.errors import InternalError
from ladder_opt.ladder import Ladders
from ladder_opt.solve.price import price_ladders
from ladder_opt.solve.result import SolveResult, Status, StopReason, relative_gap
from ladder_opt.solve.verify import check_result, price_plain
from tests import oracles
from tests.solve.test_product import cost_of, engine_of, random_instance, steps_of

INSTANCE = oracles.Instance(
    "chunked", ((2, 1, 7.0), (5, 3, 10.0), (8, 9, 1.0)), 8, 16, (1.0, 0.0, 0.0, 0.0), (5.0, 0.0, 0.0), 2.0
)
LADDERS = Ladders((4, 8), (4, 9, 16))
OBJECTIVE = 11.0 + 2 * 5 * 5.0  # 11 batched steps of 1 s, 5 variants of 5 s, 2 restarts


def check(ladders: Ladders = LADDERS, objective: float = OBJECTIVE, **limits: Any) -> None:
    check_result(
        steps_of(INSTANCE),
        engine_of(INSTANCE),
        cost_of(INSTANCE),
        ladders,
        restarts=2.0,
        objective_seconds=objective,
        **limits,
    )


@given(st.integers(0, 10_000), st.data())
def test_prices_equal_plain_python_and_price_ladders(seed: int, data: st.DataObject) -> None:
    instance = random_instance(seed)
    seqs = data.draw(st.sets(st.integers(4, instance.max_num_seqs))) | {instance.max_num_seqs}
    blocks = data.draw(st.sets(st.integers(1, instance.max_num_blocks))) | {instance.max_num_blocks}
    ladders = Ladders(tuple(sorted(seqs)), tuple(sorted(blocks)))
    problem = (steps_of(instance), engine_of(instance), cost_of(instance))
    step_seconds, compile_seconds, variants = price_plain(*problem, ladders)
    objective, expected_variants, expected_compiles = oracles.price(
        instance, ladders.num_seqs, ladders.num_blocks
    )
    assert step_seconds + instance.restarts * compile_seconds == pytest.approx(objective, rel=1e-12)
    assert variants == expected_variants
    assert compile_seconds == pytest.approx(expected_compiles, rel=1e-12)
    price = price_ladders(*problem, ladders, restarts=instance.restarts)
    check_result(*problem, ladders, restarts=instance.restarts, objective_seconds=price.objective_seconds)


def test_measured_tables_are_checked_too() -> None:
    table = [[s, m, s + m / 8] for s in (4, 8) for m in (4, 9, 16)]
    compiles = [[s, m, float(s * m)] for s in (4, 8) for m in (4, 9, 16)]
    cost = CostModel.model_validate(
        cost_of(INSTANCE).to_dict() | {"step_table": table, "compile_table": compiles}
    )
    step_seconds, compile_seconds, variants = price_plain(
        steps_of(INSTANCE), engine_of(INSTANCE), cost, LADDERS
    )
    assert step_seconds == 10 * (8 + 4 / 8) + (8 + 9 / 8)
    # 9 and 16 blocks of 4 sequences are one variant: the mean of 36 and 64 is 50.
    assert (compile_seconds, variants) == (16 + 50 + 32 + 72 + 128, 5)


def test_what_is_right_passes() -> None:
    check()
    check(max_variants=5, max_compile_seconds=25.0, pins=Ladders((4, 8), ()))
    check(pins=Ladders((), (4, 9, 16)))
    check(guard=4.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": OBJECTIVE + 1e-6}, "the solver says 61.000001 s, the check 61.0 s"),
        ({"objective": OBJECTIVE - 1e-6}, "the solver says 60.999999 s, the check 61.0 s"),
        ({"ladders": Ladders((4, 6), (4, 9, 16))}, "num_seqs ends on 6, not on 8"),
        ({"ladders": Ladders((4, 8), (4, 9))}, "num_blocks ends on 9, not on 16"),
        ({"ladders": Ladders((3, 8), (4, 9, 16))}, "num_seqs starts at 3, below 4"),
        ({"pins": Ladders((8,), ())}, "num_seqs is (4, 8), pinned to (8,)"),
        ({"pins": Ladders((), (4, 16))}, "num_blocks is (4, 9, 16), pinned to (4, 16)"),
        ({"guard": 1.5}, "size 5 is padded to 8, past the guard 1.5"),
        (
            {"guard": 3.0, "ladders": Ladders((4, 8), (3, 16))},
            "size 4 is padded to 16, past the guard 3.0",
        ),
        ({"max_variants": 4}, "5 variants, 4 allowed"),
        ({"max_compile_seconds": 24.9}, "25.0 s of compiles, 24.9 s allowed"),
    ],
)
def test_what_is_wrong_is_our_bug(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InternalError) as error:
        check(**arguments)
    assert str(error.value) == message


def result(**changes: Any) -> SolveResult:
    values: dict[str, Any] = {
        "ladders": LADDERS,
        "status": Status.OPTIMAL,
        "stop_reason": StopReason.PROVEN,
        "objective_seconds": 10.0,
        "lower_bound_seconds": 10.0,
        "ragged_bound_seconds": 9.0,
        "nodes": 1,
        "bound_evaluations": 1,
        "solve_seconds": 0.1,
    }
    return SolveResult(**values | changes)


def test_a_result_that_contradicts_itself_is_our_bug() -> None:
    assert result().gap == 0.0
    feasible = result(status=Status.FEASIBLE, stop_reason=StopReason.TIME_LIMIT, lower_bound_seconds=8.0)
    assert feasible.gap == pytest.approx(0.2)
    for changes, message in (
        ({"lower_bound_seconds": 11.0}, "lower bound 11.0 above the objective 10.0"),
        ({"status": Status.FEASIBLE}, "status feasible does not go with stop reason proven"),
        ({"stop_reason": StopReason.TIME_LIMIT}, "status optimal does not go with stop reason time limit"),
        ({"lower_bound_seconds": 9.0}, "called optimal with a gap of 0.1"),
    ):
        with pytest.raises(InternalError) as error:
            result(**changes)
        assert str(error.value) == message


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_gap_is_a_share(objective: float, bound: float) -> None:
    gap = relative_gap(objective, bound)
    assert 0.0 <= gap <= 1.0
    assert (gap == 0.0) == (objective <= bound or objective == 0.0)
