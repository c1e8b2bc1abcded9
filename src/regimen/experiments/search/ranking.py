"""Which candidate of a race may still be the best: merits at the end, and how likely each passes the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.search.gate import Gate
from regimen.experiments.search.gp import Posterior
from regimen.experiments.search.growth import Growth, Look
from regimen.experiments.search.methods import SMALLEST, noise, stabilised
from regimen.experiments.search.recommendation import DRAWS, samples
from regimen.experiments.search.space import Space

if TYPE_CHECKING:
    from regimen.experiments.search.race import RaceLook


@dataclass(frozen=True)
class Ranking:
    """Merits above the mean of all candidates; margins of the rate above the gate, on the scale of `stabilised`."""

    values: Posterior
    margins: Posterior | None
    luck: float  # standard deviation of the value of one training
    spread: float  # and of merits

    def policies_needed(self, policies: int) -> int | None:
        """How many policies leave a luck of a quarter of the variance of merits; None if so many are trained."""
        needed = math.ceil((2 * self.luck / max(self.spread, 1e-9)) ** 2)
        return needed if needed > policies else None

    def likely(self) -> np.ndarray:
        """P(feasible).  # [N]"""
        if self.margins is None:
            return np.ones(len(self.values.mean))
        z = self.margins.mean / np.maximum(self.margins.std, 1e-9)
        return np.array([NormalDist().cdf(x) for x in z])

    def leader(self, kappa: float) -> int | None:
        """The candidate with the highest lower bound among those that are more likely to pass than not."""
        likely = self.likely() >= 0.5
        if not likely.any():
            return None
        return int(np.where(likely, self.values.mean - kappa * self.values.std, -np.inf).argmax())

    def lower(self, kappa: float) -> float:
        """The highest lower bound of the value among those that pass by the lower bound of their rate: who may yet miss
        the gate takes nobody's place."""
        bounds = self.values.mean - kappa * self.values.std
        if self.margins is not None:
            bounds = bounds[self.margins.mean - kappa * self.margins.std >= 0]
        return float(bounds.max(initial=-np.inf))

    def hopeless(self, kappa: float, value: str = "value", rate: str = "rate") -> dict[int, str]:
        """The candidates that cannot be the best, and why."""
        out: dict[int, str] = {}
        upper, lower = self.values.mean + kappa * self.values.std, self.lower(kappa)
        for c in np.flatnonzero(upper < lower):
            out[int(c)] = f"its upper bound of {value} is {lower - upper[c]:.2g} below the best's lower bound"
        if self.margins is not None and self.leader(kappa) is not None:
            for c in np.flatnonzero(self.margins.mean + kappa * self.margins.std < 0):
                out.setdefault(int(c), f"the upper bound of its {rate} is below the gate")
        return out

    def scores(self, kappa: float) -> np.ndarray:
        """What the race gives places by: the upper bound above the lowest one, times P(feasible); that probability
        alone while none is likely to pass.  # [N]"""
        likely = self.likely()
        if likely.max() < 0.5:
            return likely
        upper = self.values.mean + kappa * self.values.std
        return (upper - upper.min() + 1e-9) * likely

    def probabilities(self, seed: int, draws: int = DRAWS) -> np.ndarray:
        """P(best) of every candidate: its share of joint draws in which it is the best that passes.  # [N]"""
        rng = np.random.default_rng([seed, 4])
        values = samples(self.values, rng, draws)
        passes = np.ones(values.shape, bool) if self.margins is None else samples(self.margins, rng, draws) >= 0
        best = np.where(passes, values, -np.inf).argmax(1)[passes.any(1)]
        return np.bincount(best, minlength=values.shape[1]) / draws


def rank(space: Space, gate: Gate | None, looks_so_far: Sequence[RaceLook], horizon: int) -> Ranking:
    """What is believed after some looks of every candidate as it will be after `horizon` episodes of training."""
    growth = Growth.fit(space, [one.look for one in looks_so_far])
    values = growth.posterior(horizon)
    if gate is None:
        return Ranking(values, None, growth.luck, growth.spread)
    threshold = stabilised(gate.threshold)
    looks = []
    for one in looks_so_far:
        assert one.rates is not None
        z = np.array([[stabilised(r.mean) for r in of_candidate] for of_candidate in one.rates])
        error = np.array([[noise(r) for r in of_candidate] for of_candidate in one.rates])
        looks.append(Look(one.training, np.array(one.index), z - threshold, error))
    spread = float(np.sqrt(np.mean(np.concatenate([look.value.ravel() for look in looks]) ** 2))) if looks else 0.0
    margins = Growth.fit(space, looks, mean=0.0, scale=max(spread, SMALLEST)).posterior(horizon)
    return Ranking(values, margins, growth.luck, growth.spread)
