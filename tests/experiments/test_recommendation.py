"""How sure a search is of what it recommends: the normal distribution's own formula, and sums that must come out."""

from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from regimen.experiments.search.gp import Posterior
from regimen.experiments.search.recommendation import Recommendation, probabilities, recommendation, samples
from regimen.experiments.search.space import grid

MEAN, COV = np.array([1.0, 0.6, -9.0]), np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.0], [0.0, 0.0, 0.1]])


def belief(mean=MEAN, cov=COV, margin=None):
    gate = None
    if margin is not None:
        gate = SimpleNamespace(posterior=Posterior(np.array(margin), 1e-12 * np.eye(len(mean))), threshold=0.0)
    values = SimpleNamespace(posterior=lambda: Posterior(mean, cov))
    return SimpleNamespace(values=values, feasibility=gate, passed=np.array([True, True, False]))


def test_the_probability_of_being_the_best_is_that_of_the_normal_distribution():
    expected = NormalDist().cdf(0.4 / (0.3 + 0.2 - 2 * 0.1) ** 0.5)  # correlated values: their difference is surer
    best = probabilities(belief(), seed=0, draws=40_000)
    assert best[0] == pytest.approx(expected, abs=0.01) and best.sum() == pytest.approx(1) and best[2] == 0
    drawn = samples(Posterior(MEAN, COV), np.random.default_rng(0), 40_000)
    np.testing.assert_allclose(np.cov(drawn.T), COV, atol=0.01)


def test_who_does_not_pass_the_gate_is_never_the_best():
    assert probabilities(belief(margin=[-1, 1, -1]), 0).tolist() == [0, 1, 0]
    assert probabilities(belief(margin=[-1, -1, -1]), 0).sum() == 0


def test_the_sentence():
    space = grid({"x": ["a", "b", "c"]})
    said = recommendation(belief(), 0, seed=0)
    assert said.following == 1 and said.gap == pytest.approx(0.4)
    text = Recommendation(0, 0.93, 1, 0.4).words(space)
    assert text == "x=a is the best of 3 with probability 0.93; the next is x=b, 0.4 worse"
    assert Recommendation(0, 1.0).words(space).endswith("no other has passed")
