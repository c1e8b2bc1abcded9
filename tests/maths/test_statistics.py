import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen.statistics import (
    bootstrap_band,
    bootstrap_interval,
    interval_from_moments,
    iqm,
    mean_interval,
    sample_interval,
    stratified_bootstrap,
    t_quantile,
    wilson,
)

RNG = np.random.default_rng(7)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_iqm_is_the_quarter_trimmed_mean(values):
    assert iqm(values) == pytest.approx(scipy.stats.trim_mean(values, 0.25), rel=1e-9, abs=1e-6)


def test_iqm_along_an_axis_and_of_a_table():
    x = RNG.normal(size=(5, 12))
    np.testing.assert_allclose(iqm(x, axis=1), scipy.stats.trim_mean(x, 0.25, axis=1))
    assert iqm(x) == pytest.approx(scipy.stats.trim_mean(x.ravel(), 0.25))
    with pytest.raises(ValueError, match="no values"):
        iqm([])


@pytest.mark.parametrize("statistic", [np.mean, iqm])
def test_bootstrap_agrees_with_scipy(statistic):
    x = RNG.normal(10.0, 3.0, size=30)
    ours = bootstrap_interval(x, statistic, n=20_000)
    theirs = scipy.stats.bootstrap(
        (x,), statistic, n_resamples=20_000, method="percentile", vectorized=True, rng=np.random.default_rng(0)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.04 * width)


def test_band_agrees_with_scipy_at_every_point():
    curves = RNG.normal([0.0, 5.0, -2.0], [1.0, 3.0, 0.1], size=(25, 3))  # [runs, grid]
    low, high = bootstrap_band(curves, iqm, n=20_000)
    theirs = scipy.stats.bootstrap((curves,), iqm, n_resamples=20_000, method="percentile", rng=0).confidence_interval
    width = theirs.high - theirs.low
    np.testing.assert_allclose((low - theirs.low) / width, 0, atol=0.04)
    np.testing.assert_allclose((high - theirs.high) / width, 0, atol=0.04)


def test_bootstrap_is_reproducible():
    x = RNG.normal(size=8)
    assert bootstrap_interval(x, n=200) == bootstrap_interval(x, n=200)
    assert bootstrap_interval(x, n=200) != bootstrap_interval(x, n=200, seed=1)
    low, high = bootstrap_interval(x, np.max, n=200)
    assert low <= high == max(x)


def test_one_run_has_no_interval():
    assert all(map(math.isnan, bootstrap_interval([3.0])))
    assert all(map(math.isnan, stratified_bootstrap([[3.0], [4.0]])))
    assert all(map(math.isnan, mean_interval([3.0])))


def test_stratified_bootstrap_does_not_mix_groups():
    # two tasks of very different scale without any spread inside: the pooled mean never moves
    assert stratified_bootstrap([[1.0, 1.0], [100.0, 100.0, 100.0]], np.mean) == pytest.approx((60.4, 60.4))
    groups = [RNG.normal(0, 1, 20), RNG.normal(50, 1, 20)]
    low, high = stratified_bootstrap(groups, np.mean)
    pooled_low, pooled_high = bootstrap_interval(np.concatenate(groups), np.mean)
    assert (high - low) < 0.2 * (pooled_high - pooled_low)
    assert low < np.mean(np.concatenate(groups)) < high


@pytest.mark.parametrize("df", [1, 2, 3, 9, 31, 99, 5000])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.975, 0.995])
def test_t_quantile(df, p):
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-6, abs=1e-9)


def test_mean_interval_agrees_with_scipy():
    x = RNG.normal(5.0, 2.0, size=10)
    expected = scipy.stats.t.interval(0.95, 9, x.mean(), scipy.stats.sem(x))
    assert mean_interval(x) == pytest.approx(expected)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (97, 100)])
def test_wilson_agrees_with_scipy(k, n):
    expected = scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson(0, 0) == (0.0, 1.0)


def test_intervals_of_episodes():
    x = np.random.default_rng(0).normal(3, 2, 30)
    assert interval_from_moments(x.mean(), x.std(), 30) == pytest.approx(mean_interval(x))
    assert interval_from_moments(1.0, 0.0, 1) is None
    assert sample_interval(x) == mean_interval(x)
    assert sample_interval([0, 0, 1, 0]) == wilson(1, 4)
    assert sample_interval(np.zeros(0)) == pytest.approx((np.nan, np.nan), nan_ok=True)
