"""How likely a candidate is to pass the gate: a Gaussian process on what the gate looks at, so that failures teach too.

The observation is not pass or fail but the measured bound, which says by how much: z = arcsin(sqrt(bound)), whose noise
hardly depends on the rate. The prior mean is the threshold, so an unseen space is feasible with probability 1/2;
P(feasible) = Phi((posterior mean - threshold) / posterior deviation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from regimen.experiments.search.gate import Gate, Rate
from regimen.experiments.search.gp import GP, Posterior
from regimen.experiments.search.space import Space

SMALLEST = 0.25  # scale of z at least: gates of all candidates just passed do not make the rest certain


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
        self.gp = GP.fit(space, index, z, [noise(r) for r in rates], mean=self.threshold, scale=max(spread, SMALLEST))
        self.posterior: Posterior = self.gp.posterior()

    def probability(self) -> np.ndarray:
        """P(feasible).  # [N]"""
        z = (self.posterior.mean - self.threshold) / np.maximum(self.posterior.std, 1e-9)
        return np.array([NormalDist().cdf(x) for x in z])

    def margin(self, rng: np.random.Generator) -> np.ndarray:
        """A draw of how far each candidate is above the threshold.  # [N]"""
        return self.posterior.draw(rng) - self.threshold
