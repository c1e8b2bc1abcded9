"""Two one-sided tests against a table of Student's t and examples worked by hand, and intervals of rates."""

import math

import numpy as np
import pytest

from regimen.statistics import paired_difference, rate_difference, two_one_sided, unpaired_difference

# One-sided critical values of Student's t, as every textbook prints them: (degrees of freedom, level) -> t.
TABLE = {(4, 0.05): 2.132, (4, 0.025): 2.776, (9, 0.05): 1.833, (9, 0.01): 2.821, (30, 0.05): 1.697, (30, 0.005): 2.75}


@pytest.mark.parametrize(("df", "level"), TABLE)
@pytest.mark.parametrize("value", [0.5, -0.5, 0.0])
def test_p_is_the_level_where_the_margin_is_that_many_errors_away(df, level, value):
    error = 0.2
    margin = abs(value) + TABLE[df, level] * error
    assert two_one_sided(value, error, df, margin) == pytest.approx(level, rel=2e-3)


def test_a_difference_beyond_the_margin_is_never_equivalent():
    for value in (1.5, -1.5, 1.0, -1.0):
        assert two_one_sided(value, 0.01, 50, 1.0) >= 0.5
        assert two_one_sided(value, 0.0, 50, 1.0) == 1.0
    assert two_one_sided(0.99, 0.0, 50, 1.0) == 0.0


def test_pairs_by_hand():
    """Gaps 1 to 5: mean 3, deviation sqrt(2.5), error sqrt(0.5), four degrees of freedom, t(0.975) = 2.776."""
    x, gaps = np.array([10.0, 50.0, 20.0, 40.0, 30.0]), np.arange(1.0, 6.0)
    d = paired_difference(x, x + gaps, margin=3 + 2.776 * math.sqrt(0.5))
    assert d.value == pytest.approx(3.0)
    assert (d.low, d.high) == pytest.approx((3 - 2.776 * math.sqrt(0.5), 3 + 2.776 * math.sqrt(0.5)), abs=1e-3)
    assert d.p == pytest.approx(0.025, rel=2e-3)
    assert d.verdict == "equivalent"
    assert paired_difference(x, x + gaps, margin=4.0).verdict == "different"
    assert unpaired_difference(x, x + gaps, margin=4.0).verdict == "cannot be told"  # the pairing matters


def test_samples_without_pairs_by_hand():
    """Variances 5/3 and 10, so errors squared 5/12 and 2; Welch's degrees of freedom are 5.52."""
    d = unpaired_difference([1, 2, 3, 4], [2, 4, 6, 8, 10])
    error = math.sqrt(5 / 12 + 2)
    df = (5 / 12 + 2) ** 2 / ((5 / 12) ** 2 / 3 + 2**2 / 4)
    assert d.value == pytest.approx(3.5)
    assert df == pytest.approx(5.52, abs=0.01)
    assert 2.447 * error < d.high - d.value < 2.571 * error  # between t(0.975) of 6 and of 5 degrees of freedom


def test_a_verdict_without_a_margin_or_with_too_few_values():
    x = np.arange(6.0)
    assert paired_difference(x, x + np.array([1, 1.1, 0.9, 1, 1, 1])).verdict == "different"
    assert paired_difference(x, x[::-1]).verdict == "cannot be told"
    assert paired_difference([3.0], [3.0], margin=5.0).verdict == "cannot be told"
    assert paired_difference(x, x, margin=0.1).verdict == "equivalent"
    with pytest.raises(ValueError, match="6 and 5"):
        paired_difference(x, x[1:])


def test_rates_are_newcombes():
    """His example: 56 of 70 and 48 of 80 differ by 0.2, from 0.0524 to 0.3339."""
    d = rate_difference(np.repeat([1.0, 0.0], [48, 32]), np.repeat([1.0, 0.0], [56, 14]))
    assert (d.value, d.low, d.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_nothing_seen_in_few_episodes_proves_no_equivalence():
    """With no event in either, the 90% interval of the difference reaches z^2 / (n + z^2): 0.026 of 100 episodes."""
    few, many = (paired_difference(np.zeros(n), np.zeros(n), margin=0.02) for n in (100, 200))
    assert (few.verdict, many.verdict) == ("cannot be told", "equivalent")
    level = paired_difference(np.zeros(100), np.zeros(100), margin=2.7055 / 102.7055).p
    assert level == pytest.approx(0.05, abs=1e-4)


def test_enough_pairs_show_equivalence_four_times_out_of_five():
    draws = np.random.default_rng(0)
    pilot = draws.normal(size=50)
    n = paired_difference(np.zeros(50), pilot / pilot.std(ddof=1), margin=0.3).enough
    assert n is not None
    gaps = draws.normal(size=(1000, n))
    share = np.mean([paired_difference(np.zeros(n), g, margin=0.3).verdict == "equivalent" for g in gaps])
    assert 0.72 < share < 0.88
