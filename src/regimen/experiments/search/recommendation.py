"""What a search recommends and how sure of it the model is, and what it has spent on which candidate.

The probability that a candidate is the best is its share of joint draws of the posterior in which it has the highest
value among those that pass the gate; candidates that were never visited take part with what the model believes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.search.gp import Posterior
from regimen.experiments.search.methods import Belief
from regimen.experiments.search.space import Space
from regimen.reports.table import Table
from regimen.words import plural

if TYPE_CHECKING:
    from regimen.experiments.search.loop import Verdict

DRAWS = 2000


@dataclass(frozen=True)
class Recommendation:
    """A candidate, the probability that it is the best of all, and the next by posterior mean that has passed."""

    candidate: int
    probability: float
    following: int | None = None
    gap: float | None = None  # by which the next is worse

    def words(self, space: Space) -> str:
        """The recommendation in one sentence."""
        text = f"{space.keys[self.candidate]} is the best of {len(space)} with probability {self.probability:.2f}"
        if self.following is None or self.gap is None:
            return f"{text}; no other has passed"
        return f"{text}; the next is {space.keys[self.following]}, {self.gap:.2g} worse"


def samples(posterior: Posterior, rng: np.random.Generator, n: int) -> np.ndarray:
    """Joint draws of the values of all candidates.  # [n, N]"""
    values, vectors = np.linalg.eigh(posterior.cov)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    return posterior.mean + rng.standard_normal((n, len(posterior.mean))) @ half.T


def probabilities(belief: Belief, seed: int, draws: int = DRAWS) -> np.ndarray:
    """P(best) of every candidate; they add up to at most 1: in some draws none passes.  # [N]"""
    rng = np.random.default_rng([seed, 4])
    values = samples(belief.values.posterior(), rng, draws)
    passes = np.ones(values.shape, bool)
    if belief.feasibility is not None:
        passes = samples(belief.feasibility.posterior, rng, draws) >= belief.feasibility.threshold
    best = np.where(passes, values, -np.inf).argmax(1)[passes.any(1)]
    return np.bincount(best, minlength=values.shape[1]) / draws


def recommendation(belief: Belief, candidate: int, seed: int) -> Recommendation:
    """What is to be said of the candidate that a search recommends."""
    mean = belief.values.posterior().mean
    others = [int(c) for c in np.argsort(-mean, kind="stable") if belief.passed[c] and c != candidate]
    probability = float(probabilities(belief, seed)[candidate])
    if not others:
        return Recommendation(candidate, probability)
    return Recommendation(candidate, probability, others[0], float(mean[candidate] - mean[others[0]]))


def spending(space: Space, verdicts: Sequence[Verdict], belief: Belief, seed: int) -> Table:
    """A row for every candidate, the dearest first: what was spent on it, why that ended, what is believed of it."""
    posterior, likely = belief.values.posterior(), belief.likely()
    best = probabilities(belief, seed)
    rows = []
    for c, key in enumerate(space.keys):
        visits = [v for v in verdicts if v.candidate == c]
        parts = [sum(v.trained for v in visits), sum(v.checks for v in visits), sum(v.outcome.episodes for v in visits)]
        why = visits[-1].cause if visits else "not visited"
        chance = None if likely is None else float(likely[c])
        rows.append([key, len(visits), *parts, sum(parts), why, posterior.mean[c], posterior.std[c], chance, best[c]])
    rows.sort(key=lambda row: -row[5])
    head = ["candidate", "visits", "training", "checks", "evaluation", "episodes", "ended by"]
    return Table([*head, "mean", "std", "p_feasible", "p_best"], rows)


def spent_words(table: Table) -> str:
    """The dearest candidates in a line."""
    rows = [row for row in table.rows if row[1]]
    whole = sum(int(str(row[5])) for row in rows) or 1
    top = ", ".join(f"{row[0]} {int(str(row[5])) / whole:.0%}" for row in rows[:3])
    return f"spent on {plural(len(rows), 'candidate')} of {len(table.rows)}: {top}" + (", ..." if len(rows) > 3 else "")
