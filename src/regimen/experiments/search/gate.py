"""The gate: when a measured rate is high enough, with a confidence bound that is honest for few episodes.

An episode's rate is a number in [0, 1], often 1 in every episode seen: then a normal or Student bound has width
zero and a lucky handful would pass. `lower_bound` is exact for every distribution on [0, 1]: it tests each mean m by
betting against it. With E[x] <= m and a fixed stake s in [0, 1/m] the capital prod_i (1 + s (x_i - m)) has an expected
value of at most 1, and so has the mean over several stakes; by Markov's inequality it exceeds 1/alpha in at most a
share alpha of all samples. The bound is the smallest m that is not refuted (Waudby-Smith & Ramdas
2024, arXiv 2010.09686).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from regimen.errors import ConfigError

LEVEL = 0.95  # of the bound
STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 0.99])  # of the largest possible, 1/m


def lower_bound(x, level: float = LEVEL) -> float:
    """The one-sided lower confidence bound of the mean of values in [0, 1]."""
    x = np.asarray(x, np.float64).ravel()
    if not x.size:
        return 0.0
    if x.min() < 0 or x.max() > 1 or not np.isfinite(x).all():
        raise ValueError("lower_bound needs values between 0 and 1")
    if x.mean() == 0:
        return 0.0
    needed = -math.log(1 - level)

    def capital(m: float) -> float:
        """log of the mean capital over stakes: falls as m grows."""
        logs = np.log1p(np.outer(STAKES / m, x - m)).sum(1)  # by stake
        return float(np.logaddexp.reduce(logs)) - math.log(len(STAKES))

    low, high = 0.0, float(x.mean())
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle <= 0 or capital(middle) >= needed else (low, middle)
    return low


def standard_error(x) -> float:
    """Standard error of the mean; with one more, opposite value where all are equal, so that it is never 0 by luck."""
    x = np.asarray(x, np.float64).ravel()
    if x.size < 2:
        return 0.5
    return max(float(x.std(ddof=1)) / math.sqrt(x.size), 0.5 / (x.size + 1))


@dataclass(frozen=True)
class Rate:
    """A measured rate: its mean over episodes, the standard error and the lower confidence bound."""

    mean: float
    se: float
    bound: float
    episodes: int
    events: float = math.inf  # what the rate is of, in all: with too few of them nothing is known

    @classmethod
    def of(cls, x, events: float = math.inf) -> Rate:
        x = np.asarray(x, np.float64).ravel()
        mean = float(x.mean()) if x.size else 0.0
        return cls(mean, standard_error(x), lower_bound(x), int(x.size), float(events))


@dataclass(frozen=True)
class Gate:
    """Met when the rate's lower bound is at least `threshold`, on at least `min_events` events."""

    threshold: float = 0.95
    min_events: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"gate: {self.threshold:g} is out of range; it must be above 0 and at most 1")

    def measure(self, rate: Rate) -> float:
        """What must reach the threshold: the bound. No bound can show a rate of exactly 1: a threshold of 1 asks that
        every episode had it. With too few events the rate is not known, and counts as 0."""
        if rate.events < self.min_events:
            return 0.0
        return rate.mean if self.threshold == 1 else rate.bound

    def met(self, rate: Rate) -> bool:
        return self.measure(rate) >= self.threshold

    def episodes_needed(self) -> int:
        """The fewest episodes that can meet the gate: with a rate of 1 in every one of them."""
        if self.threshold == 1:
            return 1
        gains = np.log1p(STAKES * (1 / self.threshold - 1))  # of the log capital in such an episode, by stake
        needed = math.log(len(STAKES)) - math.log(1 - LEVEL)
        low, high = 0, 1  # too few, enough
        while np.logaddexp.reduce(high * gains) < needed:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            enough = np.logaddexp.reduce(middle * gains) >= needed
            low, high = (low, middle) if enough else (middle, high)
        return high
