"""What learning curves say: when a target was reached, whether learning collapsed, how long a recovery took.

What a seed never reached is `inf`. It sorts behind every number, so a median over seeds stays honest: it is `inf` when
half of them or more never got there. Numpy only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regimen.statistics import Estimate, bootstrap, iqm

Row = dict[str, Any]  # one line of a study's tables: labels, counts and Estimates by name
Results = dict[str, Any]  # what results.json holds, its Estimates not yet written out

RESAMPLES = 2000
ENOUGH = 5  # values for an interval: of fewer, even their whole range holds the median less than 93% of the time
REACH = 0.5  # of the way to the target, from which on a seed can collapse
STAY = 2  # evaluations at the end that must be below half of the best
TOLERANCE = 0.1  # of what had been learnt, that a recovery may still lack


@dataclass
class Curve:
    """One seed's training, a value per evaluation; `training` and `entropy` are means since the one before."""

    seed: int
    steps: list[int] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # of the greedy policy
    training: list[float] = field(default_factory=list)  # episode return
    entropy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of all seeds, without compilation and evaluation
    diverged: bool = False

    def reached(self, unit: str, target: float) -> float:
        """`steps`, `updates`, `episodes` or `seconds` at the target; inf when it was never reached."""
        return reached(getattr(self, unit), self.returns, target)


def reached(x: Sequence[float], returns: Sequence[float], target: float) -> float:
    """`x` at the first return at or above the target; inf when there is none."""
    return next((float(a) for a, r in zip(x, returns) if r >= target), math.inf)


def final(curve: Curve, last: int = 3) -> float:
    """Mean of the last evaluations: one alone says more of its episodes than of the seed."""
    return float(np.mean(curve.returns[-last:]))


def average(curve: Curve, budget: int) -> float:
    """Mean return over the budget, the area under the curve: it orders runs also where none reached the target."""
    grid = np.linspace(0, budget, 201)
    return float(np.mean(np.interp(grid, curve.steps, curve.returns)))


def collapsed(returns: ArrayLike, floor: float, target: float) -> bool | None:
    """Whether a seed lost what it had learnt. None: it never got far enough (`REACH` of the way) to lose anything.

    With p = (return - floor) / (target - floor), the way from the initial policy to the target: after p has been at
    least `REACH`, p is below half of its best at the last `STAY` evaluations.
    """
    if not target > floor:
        return None
    p = (np.asarray(returns, np.float64) - floor) / (target - floor)
    at = np.flatnonzero(p >= REACH)
    if not len(at):
        return None
    after = p[at[0] :]
    return bool(len(after) > STAY and np.all(after[-STAY:] < 0.5 * after.max()))


def recovery(updates: Sequence[int], returns: Sequence[float], before: float, floor: float) -> float:
    """Updates until the return is back within `TOLERANCE` of what had been learnt (`before` minus `floor`).

    0: it never fell below that. inf: it did and was not seen to come back.
    """
    bar = before - TOLERANCE * max(before - floor, 0.0)
    below = np.flatnonzero(np.asarray(returns) < bar)
    if not len(below):
        return 0.0
    return next((float(u) for u, r in zip(updates[below[0] :], returns[below[0] :]) if r >= bar), math.inf)


def median(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(x, axis=axis)


def std(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.std(x, axis=axis, ddof=1)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95%, without interpolating, because there may be infinities. What is unknown (nan) widens it."""
    low = np.quantile(np.where(np.isnan(samples), -math.inf, samples), 0.025, method="inverted_cdf")
    high = np.quantile(np.where(np.isnan(samples), math.inf, samples), 0.975, method="inverted_cdf")
    return (float(low), float(high))


def estimate(values: ArrayLike, statistic: Callable = iqm) -> Estimate:
    """The statistic over seeds with its interval."""
    x = np.asarray(values, np.float64)
    if not len(x) or (statistic is std and len(x) < 2):
        return Estimate(math.nan)
    value = float(statistic(x, axis=-1))
    return Estimate(value, *interval(bootstrap(x, statistic, RESAMPLES))) if len(x) >= ENOUGH else Estimate(value)


def ratio(values: ArrayLike, base: ArrayLike, statistic: Callable = median) -> Estimate:
    """The statistic over `base`'s, two independent samples. nan where neither is finite; 0 or inf where one is not."""
    x, y = np.asarray(values, np.float64), np.asarray(base, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(np.divide(statistic(x, axis=-1), statistic(y, axis=-1)))
        if min(len(x), len(y)) < ENOUGH or math.isnan(value):
            return Estimate(value)
        low, high = interval(bootstrap(x, statistic, RESAMPLES, 1) / bootstrap(y, statistic, RESAMPLES, 2))
    return Estimate(value, max(low, 0.0), high)
