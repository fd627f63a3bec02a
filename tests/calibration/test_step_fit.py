"""The robust fit by itself: rows made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ladder_opt.calibration.step_fit import StepFit, fit_steps

NAMES = ("per_seq", "per_block")


def rows(seed: int = 0, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    steps = rng.integers(50, 1000, count).astype(np.float64)
    return steps, np.column_stack([rng.uniform(1, 40, count), rng.uniform(10, 2000, count)]) * steps[:, None]


def seconds_of(steps: np.ndarray, work: np.ndarray, *theta: float) -> np.ndarray:
    return np.asarray(theta[0] * steps + work @ np.array(theta[1:]))


def values(fit: StepFit) -> list[float]:
    return [term.seconds for term in fit.terms]


def test_exact_rows_give_the_parameters_back() -> None:
    steps, work = rows()
    fit = fit_steps(seconds_of(steps, work, 0.02, 3e-4, 2e-6), steps, work, NAMES)
    assert values(fit) == pytest.approx([0.02, 3e-4, 2e-6], rel=1e-6)
    assert fit.r_squared == pytest.approx(1.0)
    assert fit.warnings() == ()
    assert [term.name for term in fit.terms] == ["base", *NAMES]
    assert sum(term.share for term in fit.terms) == pytest.approx(1.0)


def test_a_fifth_of_wrong_rows_moves_little() -> None:
    steps, work = rows()
    rng = np.random.default_rng(1)
    seconds = seconds_of(steps, work, 0.02, 3e-4, 2e-6) * rng.normal(1, 0.005, len(steps))
    wrong = rng.random(len(steps)) < 0.2
    seconds[wrong] *= rng.uniform(1.2, 2.5, wrong.sum())  # preempted, and nobody told
    fit = fit_steps(seconds, steps, work, NAMES)
    assert values(fit) == pytest.approx([0.02, 3e-4, 2e-6], rel=0.06)
    for term, truth in zip(fit.terms, (0.02, 3e-4, 2e-6), strict=True):
        assert term.low <= truth * 1.03
        assert term.high >= truth * 0.97
    assert fit.robust_r_squared > 0.9
    assert fit.r_squared < fit.robust_r_squared


def test_what_costs_nothing_is_not_told_from_zero() -> None:
    steps, work = rows()
    rng = np.random.default_rng(2)
    seconds = seconds_of(steps, work, 0.02, 0.0, 2e-6) * rng.normal(1, 0.01, len(steps))
    fit = fit_steps(seconds, steps, work, NAMES)
    assert not fit.terms[1].is_told_from_zero
    assert fit.terms[0].is_told_from_zero
    assert fit.terms[2].is_told_from_zero
    (warning,) = fit.warnings()
    assert warning.startswith("per_seq: the data cannot tell it from zero (")
    assert all(value >= 0 for value in values(fit))


def test_terms_that_move_together_are_told() -> None:
    steps, work = rows()
    rng = np.random.default_rng(3)
    work[:, 1] = work[:, 0] * rng.normal(50, 0.5, len(steps))
    seconds = seconds_of(steps, work, 0.02, 3e-4, 2e-6) * rng.normal(1, 1e-6, len(steps))
    fit = fit_steps(seconds, steps, work, NAMES)
    assert fit.terms[1].explained_by_others > 0.99
    assert any("only their sum is sure" in line for line in fit.warnings())


def test_work_that_never_varies_is_told() -> None:
    steps, work = rows()
    work[:, 1] = 7 * steps
    fit = fit_steps(seconds_of(steps, work, 0.02, 3e-4, 2e-6), steps, work, NAMES)
    assert any("per_block: the same 7 in every row" in line for line in fit.warnings())


def test_the_same_seed_gives_the_same_intervals() -> None:
    steps, work = rows()
    seconds = seconds_of(steps, work, 0.02, 3e-4, 2e-6) * np.random.default_rng(4).normal(1, 0.1, len(steps))
    one, other = (fit_steps(seconds, steps, work, NAMES, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.draws, other.draws)
    assert replace(one, draws=other.draws) == other
    plain = fit_steps(seconds, steps, work, NAMES, bootstraps=0)
    assert values(plain) == values(one)
    assert all(term.low == term.high == term.seconds for term in plain.terms)
