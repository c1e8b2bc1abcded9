"""Which candidate next. Values are maximised; a candidate counts only if it passes the gate.

UCB (Srinivas et al. 2010, arXiv 0912.3995), constrained as expected improvement is in Gardner et al. 2014:

    a(x) = max(mean(x) + kappa std(x) - best, 0) * P(feasible at x)

where `best` is the highest posterior mean of a candidate that has passed. While none has, a(x) = P(feasible at x): one
that passes is looked for first. Candidates not yet tried come first as long as one of them promises a gain; then the
highest upper bound that is likely to pass is looked at, again if need be: that is most often the leader itself.

Thompson sampling (Eriksson & Poloczek 2021, arXiv 2002.08526): draw a value function and a constraint function;
take the best candidate that passes in the draw, or the one that comes nearest to passing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regimen.experiments.search.feasibility import Feasibility
from regimen.experiments.search.gp import Posterior

WORTH = 1e-3  # of the spread of the upper bounds: a smaller gain promises nothing


@dataclass(frozen=True)
class Choice:
    """A proposal and why: the acquisition value, and what the models said of it before the trial."""

    candidate: int
    acquisition: float | None = None
    mean: float | None = None
    std: float | None = None
    feasible: float | None = None  # probability


def ucb(
    values: Posterior, feasibility: Feasibility | None, passed: np.ndarray, tried: np.ndarray, kappa: float = 2.0
) -> np.ndarray:
    """Acquisition values of all candidates, -inf where it must not be chosen. `passed` [N] says which have met the
    gate, `tried` [N] which had a visit.  # [N]"""
    upper = values.mean + kappa * values.std
    likely = np.ones(len(upper)) if feasibility is None else feasibility.probability()
    if not passed.any():
        return untried_first(likely, tried)
    gain = np.maximum(upper - values.mean[passed].max(), 0.0) * likely
    if (gain[~tried] > WORTH * np.ptp(upper)).any():
        return untried_first(gain, tried)
    return (upper - upper.min()) * likely


def untried_first(scores: np.ndarray, tried: np.ndarray) -> np.ndarray:
    """A second visit is for when all have had one."""
    return scores if tried.all() else np.where(tried, -np.inf, scores)


def thompson(values: Posterior, feasibility: Feasibility | None, rng: np.random.Generator) -> np.ndarray:
    """A draw's values; where the draw fails the gate, below all that pass it, by how far it fails.  # [N]"""
    drawn = values.draw(rng)
    if feasibility is None:
        return drawn
    margin = feasibility.margin(rng)
    ok = margin >= 0
    floor = drawn[ok].min() if ok.any() else 0.0
    return np.where(ok, drawn, floor + margin)


def choose(scores: np.ndarray, values: Posterior, feasibility: Feasibility | None, rng: np.random.Generator) -> Choice:
    """The highest score; ties are broken at random."""
    top = np.flatnonzero(scores >= scores.max() - 1e-12 * max(1.0, abs(float(scores.max()))))
    pick = int(rng.choice(top))
    likely = None if feasibility is None else float(feasibility.probability()[pick])
    return Choice(pick, float(scores[pick]), float(values.mean[pick]), float(values.std[pick]), likely)
