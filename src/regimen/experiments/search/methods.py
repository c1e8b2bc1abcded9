"""Which candidate next: by a model of what has been measured, or by one of the plain ways it is compared with.

Values are maximised; a candidate counts only if it passes the gate. How likely that is says a Gaussian process of its
own, so that failures teach too. It observes not pass or fail but the measured bound, which says by how much: z =
arcsin(sqrt(bound)), whose noise hardly depends on the rate. Its prior mean is the threshold, so an unseen space is
feasible with probability 1/2; P(feasible) = Phi((posterior mean - threshold) / posterior deviation).

UCB (Srinivas et al. 2010, arXiv 0912.3995), constrained as expected improvement is in Gardner et al. 2014:

    a(x) = max(mean(x) + kappa std(x) - best, 0) * P(feasible at x)

where `best` is the highest posterior mean of a candidate that has passed. While none has, a(x) = P(feasible at x): one
that passes is looked for first. Candidates not yet tried come first as long as one of them promises a gain; then the
highest upper bound that is likely to pass is looked at, again if need be: that is most often the leader itself.

Thompson sampling (Eriksson & Poloczek 2021, arXiv 2002.08526): draw a value function and a constraint function;
take the best candidate that passes in the draw, or the one that comes nearest to passing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from regimen.errors import ConfigError, nearest
from regimen.experiments.search.gate import Gate, Rate
from regimen.experiments.search.gp import GP, Posterior
from regimen.experiments.search.space import Space
from regimen.experiments.search.trial import Measurement

METHODS = ("gp", "random", "round_robin", "exhaustive")
ACQUISITIONS = ("ucb", "thompson")
WORTH = 1e-3  # of the spread of the upper bounds: a smaller gain promises nothing
SMALLEST = 0.25  # scale of z at least: gates of all candidates just passed do not make the rest certain


@dataclass(frozen=True)
class Choice:
    """A proposal and why: the acquisition value, and what the models said of it before the trial."""

    candidate: int
    acquisition: float | None = None
    mean: float | None = None
    std: float | None = None
    feasible: float | None = None  # probability


@dataclass(frozen=True)
class Evidence:
    """What one trial says of a candidate."""

    candidate: int
    outcome: Measurement
    feasible: bool
    trained: int  # episodes of training in it


def current(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence on the policies as they are: what came before a candidate was trained again is of another policy;
    without training in between, evaluations add up."""
    latest: list[Evidence] = []
    for one in evidence:
        if one.trained:
            latest = [earlier for earlier in latest if earlier.candidate != one.candidate]
        latest.append(one)
    return latest


def stabilised(rate: float) -> float:
    return math.asin(math.sqrt(min(max(rate, 0.0), 1.0)))


def noise(rate: Rate) -> float:
    """The standard error of z by the delta method, dz = dc / (2 sqrt(c (1 - c))); at the ends of one episode."""
    inside = min(max(rate.mean, 0.5 / (rate.episodes + 1)), 1 - 0.5 / (rate.episodes + 1))
    return min(rate.se / (2 * math.sqrt(inside * (1 - inside))), 0.5)


class Feasibility:
    """P(feasible) of every candidate, and draws of the constraint."""

    def __init__(self, space: Space, gate: Gate, index: Sequence[int], rates: Sequence[Rate]):
        self.threshold = stabilised(gate.threshold)
        z = np.array([stabilised(gate.measure(rate)) for rate in rates])
        spread = float(np.sqrt(np.mean((z - self.threshold) ** 2))) if len(z) else 0.0
        gp = GP.fit(space, index, z, [noise(r) for r in rates], mean=self.threshold, scale=max(spread, SMALLEST))
        self.posterior: Posterior = gp.posterior()

    def probability(self) -> np.ndarray:
        """P(feasible).  # [N]"""
        z = (self.posterior.mean - self.threshold) / np.maximum(self.posterior.std, 1e-9)
        return np.array([NormalDist().cdf(x) for x in z])

    def margin(self, rng: np.random.Generator) -> np.ndarray:
        """A draw of how far each candidate is above the threshold.  # [N]"""
        return self.posterior.draw(rng) - self.threshold


@dataclass(frozen=True)
class Belief:
    """What is believed of every candidate after some trials."""

    values: GP
    feasibility: Feasibility | None
    passed: np.ndarray  # [N] met the gate when last evaluated

    @classmethod
    def of(cls, space: Space, gate: Gate | None, evidence: Sequence[Evidence]) -> Belief:
        evidence = current(evidence)
        passed = np.zeros(len(space), bool)
        for one in evidence:
            passed[one.candidate] = one.feasible
        index = [one.candidate for one in evidence]
        outcomes = [one.outcome for one in evidence]
        values = GP.fit(space, index, [o.value for o in outcomes], [o.se for o in outcomes])
        if gate is None:
            return cls(values, None, passed)
        return cls(values, Feasibility(space, gate, index, [o.rate for o in outcomes if o.rate is not None]), passed)

    def likely(self) -> np.ndarray | None:
        """P(feasible) of every candidate; None without a gate.  # [N]"""
        return None if self.feasibility is None else self.feasibility.probability()


def ucb(
    values: Posterior, feasibility: Feasibility | None, passed: np.ndarray, visits: np.ndarray, kappa: float = 2.0
) -> np.ndarray:
    """Acquisition values of all candidates, -inf where it must not be chosen. `passed` [N] says which have met the
    gate, `visits` [N] which had a visit.  # [N]"""
    upper = values.mean + kappa * values.std
    likely = np.ones(len(upper)) if feasibility is None else feasibility.probability()
    if not passed.any():
        return untried_first(likely, visits)
    gain = np.maximum(upper - values.mean[passed].max(), 0.0) * likely
    if (gain[~visits] > WORTH * np.ptp(upper)).any():
        return untried_first(gain, visits)
    return (upper - upper.min()) * likely


def untried_first(scores: np.ndarray, visits: np.ndarray) -> np.ndarray:
    """The scores where no candidate is visited a second time before all have had a visit.  # [N]"""
    return scores if visits.all() else np.where(visits, -np.inf, scores)


def thompson(values: Posterior, feasibility: Feasibility | None, rng: np.random.Generator) -> np.ndarray:
    """Scores by Thompson sampling: a draw's values; where the draw fails the gate, below all that pass it, by how far
    it fails. # [N]"""
    scores = values.draw(rng)
    if feasibility is None:
        return scores
    margin = feasibility.margin(rng)
    ok = margin >= 0
    floor = scores[ok].min() if ok.any() else 0.0
    return np.where(ok, scores, floor + margin)


def choose(scores: np.ndarray, values: Posterior, feasibility: Feasibility | None, rng: np.random.Generator) -> Choice:
    """The highest score; ties are broken at random."""
    top = np.flatnonzero(scores >= scores.max() - 1e-12 * max(1.0, abs(float(scores.max()))))
    pick = int(rng.choice(top))
    likely = None if feasibility is None else float(feasibility.probability()[pick])
    return Choice(pick, float(scores[pick]), float(values.mean[pick]), float(values.std[pick]), likely)


def propose(
    method: str,
    space: Space,
    gate: Gate | None,
    evidence: Sequence[Evidence],
    seed: int,
    acquisition: str = "ucb",
    kappa: float = 2.0,
) -> Choice | None:
    """The next candidate; None when the method is through. Depends on nothing but its arguments."""
    n, turn = len(space), len(evidence)
    if method == "exhaustive":
        return Choice(turn) if turn < n else None
    if method == "round_robin":
        return Choice(turn % n)
    if method == "random":  # a new order of all of them in every round
        return Choice(int(np.random.default_rng([seed, 1, turn // n]).permutation(n)[turn % n]))
    if method != "gp":
        raise ConfigError(f"method: unknown '{method}'{nearest(method, METHODS)}")
    rng = np.random.default_rng([seed, 2, turn])
    belief = Belief.of(space, gate, evidence)
    values = belief.values.posterior()
    visits = np.zeros(n, bool)
    visits[[one.candidate for one in evidence]] = True
    if acquisition == "ucb":
        scores = ucb(values, belief.feasibility, belief.passed, visits, kappa)
    elif acquisition == "thompson":
        scores = untried_first(thompson(values, belief.feasibility, rng), visits)
    else:
        raise ConfigError(f"acquisition: unknown '{acquisition}'{nearest(acquisition, ACQUISITIONS)}")
    return choose(scores, values, belief.feasibility, rng)


def recommend(method: str, space: Space, evidence: Sequence[Evidence]) -> int | None:
    """The candidate to use: the best of those that passed, by the model's mean, or by what was measured without one."""
    latest = {one.candidate: one for one in evidence}
    passed = [candidate for candidate, one in latest.items() if one.feasible]
    if not passed:
        return None
    if method == "gp":
        mean = Belief.of(space, None, evidence).values.posterior().mean
        return max(passed, key=lambda c: float(mean[c]))
    return max(passed, key=lambda c: measured(evidence, c))


def measured(evidence: Sequence[Evidence], candidate: int) -> float:
    """The mean value of a candidate's policy as it is, over all episodes played with it."""
    outcomes = [one.outcome for one in current(evidence) if one.candidate == candidate]
    return sum(o.value * o.episodes for o in outcomes) / sum(o.episodes for o in outcomes)
