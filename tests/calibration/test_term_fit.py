"""The robust fit of named terms: known coefficients, coverage of intervals, what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.coverage import SETTINGS, coverage
from ladder_opt.calibration import robust_fit
from ladder_opt.calibration.term_fit import _leverage, fit_terms

SIZES = np.array([(s, k) for s in (4, 8, 16, 32) for k in (1, 2, 4, 8, 16)], np.float64)


def columns() -> dict[str, NDArray[np.float64]]:
    return {"base": np.ones(len(SIZES)), "per_seq": SIZES[:, 0], "per_iteration": SIZES[:, 1]}


def seconds(truth: list[float]) -> NDArray[np.float64]:
    return np.asarray(truth[0] + truth[1] * SIZES[:, 0] + truth[2] * SIZES[:, 1])


@given(
    st.lists(st.floats(1e-4, 10.0), min_size=3, max_size=3),
    st.floats(1e-3, 1e3),
)
def test_exact_rows_give_their_coefficients_in_any_unit(truth: list[float], unit: float) -> None:
    fit = fit_terms(columns(), seconds(truth) * unit, bootstraps=20)
    np.testing.assert_allclose(fit.values, np.array(truth) * unit, rtol=1e-4, atol=1e-6 * unit * sum(truth))
    np.testing.assert_allclose(fit.residuals, 0.0, atol=1e-6)
    assert fit.r_squared == pytest.approx(1.0)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.3))
def test_terms_are_never_negative(seed: int, sigma: float) -> None:
    rng = np.random.default_rng(seed)
    measured = rng.uniform(0.5, 2.0, len(SIZES)) * np.exp(sigma * rng.standard_normal(len(SIZES)))
    fit = fit_terms(columns(), measured, bootstraps=10)
    assert (fit.values >= 0).all()
    assert (fit.draws >= 0).all()
    for term in fit.terms:
        assert term.low <= term.value <= term.high


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """95% intervals of 150 fits: with that many, a true 95% is seen as 90% or less once in 250 times."""
    truth = [1.0, 0.02, 0.1]
    covered = np.zeros(3)
    fits = 150
    for seed in range(fits):
        noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(SIZES)))
        fit = fit_terms(columns(), seconds(truth) * noise, seed=seed, bootstraps=100)
        covered += [term.low <= true <= term.high for term, true in zip(fit.terms, truth, strict=True)]
    assert (covered / fits > 0.86).all()


def test_intervals_hold_beside_a_term_at_its_bound() -> None:
    """With draws held at 0 the base and the iterations were covered 80 times in 100; 60 fits, as above."""
    setting = next(each for each in SETTINGS if each.truth.get("per_iteration_sq") == 0.0)
    assert min(coverage(setting, 60).values()) > 0.86


def test_outliers_do_not_move_the_fit() -> None:
    truth = [1.0, 0.02, 0.1]
    rng = np.random.default_rng(0)
    measured = seconds(truth) * np.exp(0.01 * rng.standard_normal(len(SIZES)))
    measured[[3, 11]] *= 5
    np.testing.assert_allclose(fit_terms(columns(), measured).values, truth, rtol=0.1)


def test_rows_measured_badly_weigh_little() -> None:
    truth = [1.0, 0.02, 0.1]
    measured = seconds(truth)
    bad = np.arange(len(SIZES)) % 2 == 0
    measured[bad] *= 1.3
    spread = np.where(bad, 0.5, 0.001)
    fit = fit_terms(columns(), measured, spread=spread, bootstraps=1)
    np.testing.assert_allclose(fit.values, truth, rtol=0.02)


def told(seed: int, per_seq: float) -> bool:
    noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(SIZES)))
    return (
        fit_terms(columns(), seconds([1.0, per_seq, 0.1]) * noise, seed=seed)
        .term("per_seq")
        .is_told_from_zero
    )


def test_a_term_of_zero_is_seldom_told_from_zero() -> None:
    assert sum(told(seed, 0.0) for seed in range(40)) <= 5
    assert sum(told(seed, 0.02) for seed in range(40)) >= 38


def test_terms_that_move_together_are_named() -> None:
    twins = columns() | {"twice": 2 * SIZES[:, 1] + 1e-3 * SIZES[:, 0]}
    fit = fit_terms(twins, seconds([1.0, 0.02, 0.1]), bootstraps=1)
    assert fit.term("twice").moves_with_others
    assert not fit_terms(columns(), seconds([1.0, 0.02, 0.1]), bootstraps=1).term("per_seq").moves_with_others


def test_the_same_seed_gives_the_same_draws() -> None:
    measured = seconds([1.0, 0.02, 0.1]) * np.linspace(0.9, 1.1, len(SIZES))
    one, other = (fit_terms(columns(), measured, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.draws, other.draws)
    assert (fit_terms(columns(), measured, seed=6).draws != one.draws).any()


def test_leverages_are_the_diagonal_of_the_hat_matrix() -> None:
    x = np.column_stack(list(columns().values()))
    ones = np.ones(len(x))
    hat = x @ np.linalg.inv(x.T @ x) @ x.T
    np.testing.assert_allclose(_leverage(x, ones, ones, ones), np.diag(hat), rtol=1e-9)
    twice = np.column_stack([x, 2 * x[:, 1]])  # a mix of others adds nothing
    np.testing.assert_allclose(_leverage(twice, ones, ones, ones), np.diag(hat), rtol=1e-9)


def test_a_single_row_is_fitted_by_one_term() -> None:
    fit = fit_terms({"base": 1.0}, [2.0])
    assert fit.values.tolist() == pytest.approx([2.0])
    assert fit.terms[0].low < 2.0 < fit.terms[0].high


@pytest.mark.parametrize(("names", "rows"), [({}, [1.0]), ({"base": 1.0}, [])])
def test_nothing_to_fit_is_an_error(names: dict[str, float], rows: list[float]) -> None:
    with pytest.raises(ValueError, match="expected rows and terms"):
        fit_terms(names, rows)


def test_draws_fitted_in_parts_are_those_fitted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x = np.c_[np.ones(40), rng.uniform(1, 9, (40, 2))]
    y = (x @ [1.0, 0.5, 0.2]) * rng.lognormal(0, 0.05, (30, 40))
    whole = robust_fit.robust_free_fits(x, y, np.ones(40), tuning=2.0)
    monkeypatch.setattr(robust_fit, "_CELLS_AT_ONCE", 7 * 40 * 3)
    parts = robust_fit.robust_free_fits(x, y, np.ones(40), tuning=2.0)
    assert parts == pytest.approx(whole, rel=1e-4)
