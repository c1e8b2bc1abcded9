"""The gate's bound, P(feasible), and what is proposed next."""

import itertools

import numpy as np
import pytest

from regimen.errors import ConfigError
from regimen.experiments.search import space as spaces
from regimen.experiments.search.gate import STAKES, Gate, Rate, lower_bound
from regimen.experiments.search.gp import GP
from regimen.experiments.search.methods import Feasibility, choose, thompson, ucb

SPACE = spaces.permutations("abcd")


@pytest.mark.parametrize(("a", "b", "n"), [(40, 1, 60), (9, 1, 60), (0.3, 0.02, 100), (1, 1, 30)])
def test_the_bound_holds_as_often_as_it_says(a, b, n):
    rng = np.random.default_rng(0)
    mean = a / (a + b)
    bounds = [lower_bound(rng.beta(a, b, n)) for _ in range(200)]
    assert np.mean(np.array(bounds) > mean) <= 0.05
    assert np.mean(bounds) > mean - 0.25  # and says something


def test_the_bound_is_honest_where_students_is_not():
    """Rare failures: most samples are all ones, and a bound from their spread would be 1."""
    rng = np.random.default_rng(1)
    missed = [lower_bound(rng.random(40) < 0.97) > 0.97 for _ in range(200)]
    assert np.mean(missed) <= 0.05
    assert 0.85 < lower_bound(np.ones(40)) < 0.95


def test_the_bound_is_where_the_capital_refutes_one_in_twenty():
    """At the bound m, bets against a mean of m have made 20 of 1, a mean over the stakes: 95% leave 1 in 20."""
    rng = np.random.default_rng(2)
    for x in (np.ones(40), rng.random(30), np.tile([0.0, 1.0, 1.0], 20)):
        m = lower_bound(x)
        capital = np.mean([np.prod(1 + stake / m * (x - m)) for stake in STAKES])
        assert capital == pytest.approx(20.0, rel=1e-6) and m < x.mean()
        assert Rate.of(x).bound == m


def test_the_bound_narrows_and_follows_the_spread():
    x = np.tile([0.9, 1.0], 500)
    widths = [x[:n].mean() - lower_bound(x[:n]) for n in (20, 100, 1000)]
    assert widths[0] > widths[1] > widths[2] and widths[2] < 0.01
    assert lower_bound(np.tile([0.0, 1.0], 50)) < lower_bound(np.full(100, 0.5))
    assert lower_bound([]) == 0 and lower_bound(np.zeros(10)) == 0
    assert lower_bound(np.ones(100), 0.99) < lower_bound(np.ones(100), 0.9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        lower_bound([1.2])


def test_gates():
    gate = Gate(0.95)
    n = gate.episodes_needed()
    assert gate.met(Rate.of(np.ones(n))) and not gate.met(Rate.of(np.ones(n - 1)))
    assert 59 <= n <= 120  # 59 is the fewest that any honest bound can do: 0.95^59 < 0.05
    assert not gate.met(Rate.of(np.ones(500), events=9)), "never repairing is not compliance"
    assert Gate(1.0).met(Rate.of(np.ones(20))) and not Gate(1.0).met(Rate.of([1.0, 1.0, 0.9]))
    for bad in (0.0, -0.5, 1.01):
        with pytest.raises(ConfigError, match="is out of range"):
            Gate(bad)


@pytest.mark.parametrize("threshold", [0.01, 0.5, 0.95, 0.99])
def test_the_fewest_episodes_are_the_fewest(threshold):
    gate = Gate(threshold)
    n = gate.episodes_needed()
    assert gate.met(Rate.of(np.ones(n))) and not gate.met(Rate.of(np.ones(n - 1)))


def test_a_gate_close_to_one_is_no_work():
    fewest = [Gate(1 - 10.0**-k).episodes_needed() for k in range(2, 12)]  # counting to them would take days
    assert all(9 < b / a < 11 for a, b in itertools.pairwise(fewest))
    assert Gate(1.0).episodes_needed() == 1


def test_failures_teach():
    gate = Gate(0.9)
    good, bad = Rate.of(np.ones(300)), Rate.of(np.tile([0.4, 0.6], 150))
    blank = Feasibility(SPACE, gate, [], []).probability()
    assert np.allclose(blank, 0.5)
    model = Feasibility(SPACE, gate, [0, 23], [good, bad]).probability()
    assert model[0] > 0.9 and model[23] < 0.05
    near_good, near_bad = SPACE.distance[0] == 1 / 6, SPACE.distance[23] == 1 / 6
    assert model[near_good].min() > 0.5 > model[near_bad].max()
    all_bad = Feasibility(SPACE, gate, range(0, 24, 2), [bad] * 12).probability()
    assert all_bad.max() < 0.2  # failures everywhere make every neighbour unlikely


def test_ucb_weighs_improvement_by_feasibility():
    gate = Gate(0.9)
    good, bad = Rate.of(np.ones(300)), Rate.of(np.full(300, 0.5))
    index, y = [0, 23, 12], [1.0, 3.0, 0.0]
    values = GP.fit(SPACE, index, y, [0.05] * 3).posterior()
    passed = np.zeros(24, bool)
    passed[0] = True
    tried = np.zeros(24, bool)
    free = ucb(values, None, passed, tried)
    assert SPACE.distance[23, free.argmax()] < 0.5  # towards the best value
    scores = ucb(values, Feasibility(SPACE, gate, index, [good, bad, good]), passed, tried)
    assert (scores >= 0).all() and scores[23] < 0.05 * free[23]
    assert SPACE.distance[0, scores.argmax()] < SPACE.distance[23, scores.argmax()]
    assert ucb(values, None, passed, tried, kappa=5.0).max() > free.max()
    pick = choose(scores, values, None, np.random.default_rng(0))
    assert scores[pick.candidate] == pytest.approx(scores.max()) == pick.acquisition


def test_ucb_looks_for_one_that_passes_before_it_looks_at_values():
    good, bad = Rate.of(np.ones(300)), Rate.of(np.full(300, 0.5))
    index = [0, 23]
    values = GP.fit(SPACE, index, [100.0, 0.0], [0.05] * 2).posterior()
    feasibility = Feasibility(SPACE, Gate(0.9), index, [bad, good])
    tried = np.isin(np.arange(24), index)
    scores = ucb(values, feasibility, np.zeros(24, bool), tried)
    assert (scores[tried] == -np.inf).all()
    np.testing.assert_array_equal(scores[~tried], feasibility.probability()[~tried])


def test_thompson_draws_differ_and_respect_the_gate():
    gate = Gate(0.9)
    good, bad = Rate.of(np.ones(300)), Rate.of(np.full(300, 0.5))
    index = list(range(24))
    values = GP.fit(SPACE, index, np.arange(24.0), [0.5] * 24).posterior()
    feasibility = Feasibility(SPACE, gate, index, [bad if i >= 12 else good for i in index])
    picks = [int(thompson(values, feasibility, np.random.default_rng(s)).argmax()) for s in range(30)]
    assert len(set(picks)) > 1 and max(picks) < 12
    free = [int(thompson(values, None, np.random.default_rng(s)).argmax()) for s in range(30)]
    assert min(free) >= 12
    none = Feasibility(SPACE, gate, index, [bad] * 24)
    assert np.isfinite(thompson(values, none, np.random.default_rng(0))).all()
