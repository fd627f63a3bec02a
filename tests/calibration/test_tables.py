"""When a measured table takes a formula's place, and what is in it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.calibration.api import calibrate
from ladder_opt.calibration.interpolation import MOST_ROWS, Interpolation, log_sizes, table_sizes
from ladder_opt.calibration.samples import COMPILE, STEP, Samples
from ladder_opt.calibration.tables import choose_table
from ladder_opt.cost.geometry import get_kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders, default_ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.cost_warnings import cost_warnings
from ladder_opt.solve.price import price_ladders
from tests.calibration import measured as made

ENGINE = Engine(max_num_seqs=16, max_model_len=32 * 128)
# Seconds of a graph on a CPU by unrolled iterations: a jump between 8 and 12, all of it in the C++ compiler.
JUMP = {1: 2.7, 2: 3.0, 4: 3.9, 8: 5.1, 12: 13.0, 16: 16.5, 32: 36.0}
PAIRS = [(s, m) for s in (4, 8, 16) for m in (2, 4, 8, 16, 24, 32)]


def jump_seconds(num_seqs: int, num_blocks: int) -> float:
    _, chunks = made.chunking(num_seqs, num_blocks)
    return float(np.interp(chunks, list(JUMP), list(JUMP.values())))


def write(path: Path, seconds: Callable[[int, int], float], *, column: str, sigma: float = 0.0) -> Path:
    factors = iter(made.noise(1, sigma))
    lines = [f"num_seqs,num_blocks,{column}", *(f"{s},{m},{seconds(s, m) * next(factors)}" for s, m in PAIRS)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def table_of(cost: CostModel, name: str) -> dict[tuple[int, int], float]:
    rows = getattr(cost, f"{name}_table")
    assert rows is not None
    return {(s, m): seconds for s, m, seconds in rows}


def test_compiles_that_jump_become_a_table(tmp_path: Path) -> None:
    found = calibrate(write(tmp_path / "t.csv", jump_seconds, column="compile_seconds"), ENGINE)
    table = table_of(found.cost, "compile")
    for s, m in PAIRS:
        assert table[s, m] == pytest.approx(jump_seconds(s, m), rel=1e-4)
    # Between what was measured too, for every num_seqs: seconds of a compile are those of its iterations.
    assert {s for s, _ in table} == set(range(4, 17))
    assert max(m for _, m in table) == 32
    assert found.cost.fit is not None
    assert found.cost.fit["tables"]["compile"]["used"] is True
    assert "monotone curve over iterations" in found.cost.fit["tables"]["compile"]["reason"]


def test_a_formula_that_fits_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", made.compile_seconds, column="compile_seconds", sigma=0.05)
    cost = calibrate(path, ENGINE).cost
    assert cost.compile_table is None
    assert cost.fit is not None
    assert cost.fit["tables"]["compile"]["used"] is False


def test_noise_alone_makes_no_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", made.compile_seconds, column="compile_seconds", sigma=0.3)
    assert calibrate(path, ENGINE).cost.compile_table is None


def test_always_and_never(tmp_path: Path) -> None:
    jumps = write(tmp_path / "t.csv", jump_seconds, column="compile_seconds")
    assert calibrate(jumps, ENGINE, table="never").cost.compile_table is None
    smooth = write(tmp_path / "u.csv", made.compile_seconds, column="compile_seconds")
    assert calibrate(smooth, ENGINE, table="always").cost.compile_table is not None


def test_a_table_short_of_the_engines_limits_is_refused(tmp_path: Path) -> None:
    jumps = write(tmp_path / "t.csv", jump_seconds, column="compile_seconds")
    larger = Engine(max_num_seqs=32, max_model_len=64 * 128)
    found = calibrate(jumps, larger)
    assert found.cost.compile_table is None
    (line,) = [line for line in found.warnings if line.startswith("compile_seconds: the formula is off")]
    assert "the measurements do not reach the engine's limits (num_seqs 32, num_blocks 64)" in line
    with pytest.raises(InputError, match="expected pairs up to num_seqs 32, num_blocks 64"):
        calibrate(jumps, larger, table="always")


def odd_step(num_seqs: int, num_blocks: int) -> float:
    """Steps that no line through iterations and pages fits: eight sequences take four times as long."""
    return made.step_seconds(made.STEP, num_seqs, num_blocks) * (4.0 if num_seqs == 8 else 1.0)


def test_steps_become_a_table_of_the_num_seqs_measured(tmp_path: Path) -> None:
    found = calibrate(write(tmp_path / "t.csv", odd_step, column="seconds"), ENGINE)
    table = table_of(found.cost, "step")
    assert {s for s, _ in table} == {4, 8, 16}
    for s, m in PAIRS:
        assert table[s, m] == pytest.approx(odd_step(s, m), rel=1e-4)
    # From 2 blocks on, the fewest measured; what has the pages of a measured pair takes as long.
    assert {m for _, m in table} == set(range(2, 33))
    assert table[4, 10] == table[4, 16]
    assert found.cost.table_sizes() == ((4, 8, 16), tuple(range(2, 33)))


def test_attention_rows_become_whole_steps_in_a_table(tmp_path: Path) -> None:
    """Rows of the kernel alone, whole steps beside: the table holds the rest of a step too."""
    lines = ["kernel,num_seqs,num_blocks,step_seconds,layers"]
    lines += [f"chunked,{s},{m},{odd_step(s, m) - 0.1},1" for s, m in PAIRS]
    (tmp_path / "m.csv").write_text("\n".join(lines), encoding="utf-8")
    log = [made.iteration_line(0.3 + 0.01 * n, prefill=0, decodes=n, usage=1.0) for n in range(1, 17)]
    (tmp_path / "s.log").write_text("\n".join(log), encoding="utf-8")
    cost = calibrate([tmp_path / "m.csv", tmp_path / "s.log"], ENGINE).cost
    table = table_of(cost, "step")
    rest = table[16, 32] - (odd_step(16, 32) - 0.1)
    for s, m in [(16, 2), (16, 16)]:
        assert table[s, m] - (odd_step(s, m) - 0.1) == pytest.approx(rest, rel=1e-3)


SCATTERED = [(4, 3), (5, 31), (7, 12), (9, 1), (9, 24), (12, 6), (13, 17), (16, 2), (16, 9), (16, 32)]


def write_scattered(path: Path, seconds: Callable[[int, int], float]) -> Path:
    lines = ["num_seqs,num_blocks,seconds", *(f"{s},{m},{seconds(s, m)}" for s, m in SCATTERED)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def bent_step(num_seqs: int, num_blocks: int) -> float:
    """Steps that fewer sequences make slower, which no term of the formula does."""
    return float(made.step_seconds(made.STEP, num_seqs, num_blocks) * (16 / num_seqs))


def test_scattered_pairs_become_a_table_by_how_far_the_formula_is_off_nearby(tmp_path: Path) -> None:
    path = write_scattered(tmp_path / "t.csv", bent_step)
    formula = calibrate(path, ENGINE, table="never").cost
    found = calibrate(path, ENGINE, table="interpolated")
    table = table_of(found.cost, "step")
    assert set(table) == {(s, m) for s in range(4, 17) for m in range(1, 33)}
    seqs, blocks = (np.array(axis) for axis in zip(*table, strict=True))
    truth = np.array([bent_step(s, m) for s, m in table])
    errors = np.abs(np.array(list(table.values())) / truth - 1)
    assert errors.mean() < 0.5 * np.abs(formula.batched_step_seconds(seqs, blocks) / truth - 1).mean()
    for s, m in SCATTERED:  # smoothed, not joined through
        assert table[s, m] == pytest.approx(bent_step(s, m), rel=0.1)
    assert found.cost.fit is not None
    told = found.cost.fit["tables"]["step"]
    assert told["used"] is True
    assert "interpolated between 10 variants measured, each told by the others" in told["reason"]
    assert 0.3 * errors.mean() < told["relative_error"] < 5 * errors.mean()


def test_auto_interpolates_where_the_formula_misses_scattered_pairs(tmp_path: Path) -> None:
    def far_off(num_seqs: int, num_blocks: int) -> float:
        return bent_step(num_seqs, num_blocks) * (16 / num_seqs)

    found = calibrate(write_scattered(tmp_path / "t.csv", far_off), ENGINE)
    assert found.cost.fit is not None
    told = found.cost.fit["tables"]["step"]
    assert told["relative_error"] < told["formula_relative_error"] / 2
    assert "interpolated between" in told["reason"]
    assert (
        found.cost.step_table == calibrate(tmp_path / "t.csv", ENGINE, table="interpolated").cost.step_table
    )
    near = calibrate(
        write_scattered(tmp_path / "u.csv", lambda s, m: made.step_seconds(made.STEP, s, m)), ENGINE
    )
    assert near.cost.step_table is None


def test_a_plan_says_where_an_interpolated_table_is_extrapolated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{s},{m},{made.step_seconds(made.STEP, s, m)}" for s in (4, 5) for m in (1, 2, 3, 4)]
    path.write_text("\n".join(["num_seqs,num_blocks,seconds", *lines]), encoding="utf-8")
    cost = calibrate(path, ENGINE, table="interpolated").cost
    steps = StepHistogram(np.array([16]), np.array([32]), np.array([1000.0]))
    price = price_ladders(steps, ENGINE, cost, Ladders((16,), (32,)), restarts=0.0)
    told = [line for line in cost_warnings(cost, price) if "extrapolated" in line]
    assert told == [
        (
            "100% of the plan's step seconds are extrapolated: the cost model was fitted to num_seqs 4 to 5, "
            "iterations 1 to 1, gathers 4 to 20; rung pairs such as 16 x 32 lie beyond"
        )
    ]


def test_a_table_that_tells_pairs_worse_than_the_formula_is_warned_of(tmp_path: Path) -> None:
    signs = dict(zip(SCATTERED, [1.15, 0.85] * 5, strict=True))
    path = write_scattered(tmp_path / "t.csv", lambda s, m: made.step_seconds(made.STEP, s, m) * signs[s, m])
    (line,) = [
        one for one in calibrate(path, ENGINE, table="interpolated").warnings if "--table never" in one
    ]
    assert line.startswith("step_seconds: the table is off by ")
    assert not [one for one in calibrate(path, ENGINE).warnings if "--table never" in one]


def test_where_the_formula_holds_the_interpolated_table_is_the_formula(tmp_path: Path) -> None:
    path = write_scattered(tmp_path / "t.csv", lambda s, m: made.step_seconds(made.STEP, s, m))
    cost = calibrate(path, ENGINE, table="interpolated").cost
    for (s, m), seconds in table_of(cost, "step").items():
        assert seconds == pytest.approx(made.step_seconds(made.STEP, s, m), rel=1e-3)


def test_beyond_the_pairs_measured_the_correction_is_within_theirs() -> None:
    kernel = get_kernel("chunked")
    places = log_sizes(kernel, np.array([4, 5, 6, 7, 8, 6]), np.array([1, 2, 3, 4, 5, 6]))
    between = Interpolation.of(places, np.log([1.0, 1.1, 1.2, 1.3, 1.4, 1.3]), np.ones(3))
    far = between.factor(log_sizes(kernel, np.array([4, 64, 64]), np.array([900, 1, 900])))
    assert ((far >= 1.0) & (far <= 1.4)).all()


def test_too_few_pairs_to_interpolate_between(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("num_seqs,num_blocks,seconds\n4,1,1\n8,8,2\n16,32,4\n4,32,2\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        calibrate(path, ENGINE, table="interpolated")
    assert str(error.value) == "found step seconds of 4 variants, expected 6 to 1000 to interpolate between"


def test_a_large_engines_table_is_thinned_and_holds_its_default_ladders() -> None:
    engine = Engine(max_num_seqs=256, max_model_len=131_072)
    seqs, blocks = table_sizes(engine, 4)
    assert len(seqs) * len(blocks) <= MOST_ROWS
    default = default_ladders(engine)
    assert set(default.num_seqs) <= set(seqs.tolist())
    assert set(default.num_blocks) <= set(blocks.tolist())


@given(st.lists(st.floats(0.1, 100.0), min_size=len(PAIRS), max_size=len(PAIRS)))
def test_tables_never_fall_with_more_work(seconds: list[float]) -> None:
    for what, quantity in (("step", STEP), ("compile", COMPILE)):
        samples = Samples.of(
            quantity=quantity,
            kernel="chunked",
            num_seqs=[s for s, _ in PAIRS],
            num_blocks=[m for _, m in PAIRS],
            seconds=seconds,
        )
        found = choose_table(samples, lambda s, _: np.ones(len(s)), ENGINE, what=what, mode="always")  # type: ignore[arg-type]
        assert found.rows is not None
        by_seqs: dict[int, list[tuple[int, float]]] = {}
        for s, m, value in found.rows:
            by_seqs.setdefault(s, []).append((int(get_kernel("chunked").gathers(s, m)), value))
        for rows in by_seqs.values():
            values = [value for _, value in sorted(rows)]
            assert all(high >= low * (1 - 1e-6) for low, high in pairwise(values))
            assert min(values) >= min(seconds) * (1 - 1e-5)
            assert max(values) <= max(seconds) * (1 + 1e-5)


@pytest.mark.parametrize("seconds", ["0", "1e-300", "1e300"])
def test_times_whose_squares_overflow_are_refused(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"num_seqs,num_blocks,compile_seconds\n32,64,1.0\n4,1,{seconds}\n")
    with pytest.raises(InputError, match=r"t\.csv:3: .*expected a time above 0, from 1e-12 s to 1e9 s"):
        calibrate(path, ENGINE)
