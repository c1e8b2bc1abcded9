"""Point estimates and intervals for few runs and many episodes (Agarwal et al. 2021, arXiv 2108.13264), and the test of
whether two means are as good as equal (two one-sided tests, Schuirmann 1987)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95  # of every interval
SIZE = 0.05  # of each of two one-sided tests: the chance to call means equivalent that are a margin apart

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """A number and its 95% interval; nan: too few values to tell one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, value: np.ndarray | np.floating | float, bounds: Sequence[float] | None) -> Estimate:
        """Make one without an interval where there are no bounds, or not two finite ones."""
        finite = bounds is not None and bool(np.isfinite(np.asarray(bounds, float)).all())
        return cls(float(value), *map(float, bounds)) if finite and bounds is not None else cls(float(value))

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    def excludes(self, x: float) -> bool:
        return bool(self.low > x or self.high < x)

    def contains(self, x: float) -> bool:
        return bool(self.low <= x <= self.high)

    def to_dict(self) -> dict[str, object]:
        return {"value": self.value, "ci95": [self.low, self.high] if self.has_interval else None}


def iqm(x: ArrayLike, axis: int | None = None) -> np.ndarray | float:
    """Interquartile mean: the mean without the lowest and the highest quarter (whole values, rounded down)."""
    x = np.asarray(x, np.float64)
    if axis is None:
        x, axis = x.ravel(), 0
    n = x.shape[axis]
    if n == 0:
        raise ValueError("iqm of no values")
    cut = int(0.25 * n)
    middle = np.take(np.sort(x, axis), np.arange(cut, n - cut), axis).mean(axis)
    return float(middle) if middle.ndim == 0 else middle


def bootstrap(x: ArrayLike, statistic: Callable = iqm, n: int = 2000, seed: int = 0) -> np.ndarray:
    """[n, ...] values of `statistic` over the first axis of `x`, each from rows of `x` drawn with replacement."""
    x = np.asarray(x, np.float64)
    picks = np.random.default_rng(seed).integers(0, len(x), (n, len(x)))
    return np.asarray(statistic(x[picks], axis=1))


def bootstrap_band(curves: np.ndarray, statistic: Callable = np.mean, n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edge of the 95% band of `statistic` over curves.  # [runs, grid] -> [grid], [grid]"""
    low, high = np.quantile(bootstrap(curves, statistic, n), [0.025, 0.975], axis=0)
    return low, high


def bootstrap_interval(x: ArrayLike, statistic: Callable = iqm, n: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of `statistic` over the values; (nan, nan) for fewer than two of them."""
    return stratified_bootstrap([x], statistic, n, seed)


def stratified_bootstrap(
    groups: Sequence[ArrayLike], statistic: Callable = iqm, n: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of `statistic` over all values together, resampled within each group.

    A group holds the runs of one task; groups may differ in size. A group of one run cannot show its spread, so with
    fewer than two runs in every group the interval is (nan, nan).
    """
    strata = [np.asarray(g, np.float64).ravel() for g in groups]
    if not any(g.size > 1 for g in strata):
        return (math.nan, math.nan)
    rng = np.random.default_rng(seed)
    samples = [g[rng.integers(0, g.size, (n, g.size))] for g in strata if g.size]
    return percentiles(statistic(np.concatenate(samples, axis=1), axis=-1))  # of [n, values]


def percentiles(estimates: np.ndarray) -> Interval:
    """The middle 95% of bootstrap estimates."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return (float(low), float(high))


def improvement(x: ArrayLike, y: ArrayLike) -> float:
    """Probability that a run of `x` beats one of `y`, ties counting half: the Mann-Whitney statistic over its most."""
    return float(wins(np.asarray(x, np.float64)[None], np.asarray(y, np.float64)[None])[0])


def improvement_interval(pairs: Sequence[tuple[ArrayLike, ArrayLike]], n: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean `improvement` over tasks, a pair (x, y) each; both sides are resampled
    within their task. (nan, nan) where no side has two runs."""
    sides = [tuple(np.asarray(v, np.float64).ravel() for v in pair) for pair in pairs]
    if not any(v.size > 1 for pair in sides for v in pair):
        return (math.nan, math.nan)
    rng = np.random.default_rng(seed)
    total = np.zeros(n)
    for pair in sides:
        total += wins(*(v[rng.integers(0, v.size, (n, v.size))] for v in pair))
    return percentiles(total / len(sides))


def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Share of the pairs that x wins, for samples x [n, a] and y [n, b]."""
    a, b = x[:, :, None], y[:, None, :]
    return ((a > b) + 0.5 * (a == b)).mean((1, 2))


def mean_interval(x: ArrayLike) -> Interval:
    """Student's t interval of the mean over episodes; (nan, nan) for fewer than two."""
    x = np.asarray(x, np.float64).ravel()
    if x.size < 2:
        return (math.nan, math.nan)
    half = t_quantile(0.5 + LEVEL / 2, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return (float(x.mean()) - half, float(x.mean()) + half)


def interval_from_moments(mean: float, std: float, n: int) -> list[float] | None:
    """`mean_interval` of n values whose mean and (population) deviation are known; None for fewer than two."""
    if n < 2:
        return None
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * std / math.sqrt(n - 1)
    return [mean - half, mean + half]


def sample_interval(x: ArrayLike) -> Interval:
    """Interval of the mean over episodes: Wilson's where every value is 0 or 1, else Student's t."""
    x = np.asarray(x, np.float64).ravel()
    rate = bool(np.isin(x, (0.0, 1.0)).all())
    return wilson(float(x.sum()), x.size) if rate and x.size else mean_interval(x)


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # 0.2 s that only those who ask for an interval pay; `scipy.stats` takes 0.9 s

    return float(stdtrit(df, p))


def wilson(successes: float, n: int, level: float = LEVEL) -> Interval:
    """Wilson's interval of a success rate: stays within [0, 1] and is honest at 0 and n successes.

    Written out because `successes` may be a fraction (a mean of rates), which `scipy.stats.binomtest` refuses.
    """
    if n <= 0:
        return (0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    shrink = 1 + z * z / n
    low = 0.0 if successes <= 0 else max(0.0, (centre - half) / shrink)  # exact at the ends
    high = 1.0 if successes >= n else min(1.0, (centre + half) / shrink)
    return (low, high)


class Difference(NamedTuple):
    """How far two means are apart, with its 95% interval, and whether that is less than a margin."""

    value: float
    low: float = math.nan
    high: float = math.nan
    margin: float | None = None
    p: float = math.nan
    """Of the two one-sided tests, the larger one: below 0.05 the means are less than the margin apart."""
    enough: int | None = None
    """Pairs with which equal means would be called equivalent four times out of five."""

    @property
    def verdict(self) -> Literal["equivalent", "different", "cannot be told"]:
        """Equivalent: less than the margin apart. Different: not that, and the interval has no zero."""
        if self.margin is not None and self.p < SIZE:
            return "equivalent"
        return "different" if self.low > 0 or self.high < 0 else "cannot be told"

    def to_dict(self) -> dict[str, object]:
        has_interval = not (math.isnan(self.low) or math.isnan(self.high))
        return {
            "difference": self.value,
            "ci95": [self.low, self.high] if has_interval else None,
            "margin": self.margin,
            "p": None if math.isnan(self.p) else self.p,
            "verdict": self.verdict,
        }


def two_one_sided(value: float, error: float, df: float, margin: float) -> float:
    """The p-value of `|difference| < margin` (Schuirmann 1987): the larger one of the tests of `difference <= -margin`
    and of `difference >= margin`, by Student's t with a standard error and its degrees of freedom."""
    from scipy.special import stdtr

    if error == 0.0:
        return 0.0 if abs(value) < margin else 1.0
    above = float(stdtr(df, -(value + margin) / error))
    below = float(stdtr(df, (value - margin) / error))
    return max(above, below)


def difference(value: float, error: float, df: float, margin: float | None = None) -> Difference:
    """The difference of two means from its standard error and degrees of freedom."""
    half = t_quantile(0.5 + LEVEL / 2, df) * error
    p = math.nan if margin is None else two_one_sided(value, error, df, margin)
    enough = None
    if margin is not None and margin > 0:
        normal = NormalDist()
        reach = normal.inv_cdf(1 - SIZE) + normal.inv_cdf(0.9)  # each test fails once in ten: both succeed in 0.8
        enough = math.ceil((df + 1) * (reach * error / margin) ** 2)
    return Difference(value, value - half, value + half, margin, p, enough)


def paired_difference(x: ArrayLike, y: ArrayLike, margin: float | None = None) -> Difference:
    """How much higher `y` is than `x` on average, where value i of both belongs to the same episode or seed."""
    x, y = (np.asarray(v, np.float64).ravel() for v in (x, y))
    if x.size != y.size:
        raise ValueError(f"pairs need as many values on both sides; there are {x.size} and {y.size}")
    if x.size and all(bool(np.isin(v, (0.0, 1.0)).all()) for v in (x, y)):
        return rate_difference(x, y, margin)
    gaps = y - x
    if gaps.size < 2:
        return Difference(float(gaps.mean()) if gaps.size else math.nan, margin=margin)
    return difference(float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(gaps.size), gaps.size - 1, margin)


def unpaired_difference(x: ArrayLike, y: ArrayLike, margin: float | None = None) -> Difference:
    """How much higher `y` is than `x` on average, of samples that have nothing to do with each other (Welch's t)."""
    x, y = (np.asarray(v, np.float64).ravel() for v in (x, y))
    if min(x.size, y.size) < 2:
        return Difference(float(y.mean() - x.mean()), margin=margin)
    squares = [float(v.var(ddof=1)) / v.size for v in (x, y)]
    total = sum(squares)
    df = total**2 / sum(s**2 / (v.size - 1) for s, v in zip(squares, (x, y))) if total else x.size + y.size - 2.0
    return difference(float(y.mean() - x.mean()), math.sqrt(total), df, margin)


def rate_difference(x: np.ndarray, y: np.ndarray, margin: float | None = None) -> Difference:
    """How much higher the rate of `y` is than that of `x`, values 0 and 1. Intervals are Newcombe's (1998, method 10,
    made of Wilson's), which do not vanish where nothing was ever seen; p is the level at which they fill the margin."""
    value = float(y.mean() - x.mean())

    def bounds(level: float) -> Interval:
        (a, b), (c, d) = (wilson(float(v.sum()), v.size, level) for v in (x, y))
        p, q = float(x.mean()), float(y.mean())
        return value - math.hypot(q - c, b - p), value + math.hypot(d - q, p - a)

    low, high = bounds(LEVEL)
    if margin is None:
        return Difference(value, low, high)
    least, most = 0.0, 1.0  # bisection for the widest interval (of level 1 - 2p) within the margin
    for _ in range(40):
        middle = (least + most) / 2
        ends = bounds(1.0 - middle)
        within = -margin < ends[0] and ends[1] < margin
        least, most = (least, middle) if within else (middle, most)
    return Difference(value, low, high, margin, 1.0 if abs(value) >= margin else most / 2)
