"""Whether groups of runs are as good as equal: two one-sided tests of every pair, over runs, or with one run each over
the episodes of its evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from regimen.statistics import Difference, Estimate, difference, t_quantile, unpaired_difference

if TYPE_CHECKING:
    from regimen.reports.comparison import Group


@dataclass(frozen=True)
class Pair:
    """Two groups of one environment, and how much higher the mean of the second is."""

    first: str
    second: str
    difference: Difference
    over: str  # what the sample is: runs, or episodes

    def to_dict(self) -> dict[str, object]:
        return {"groups": [self.first, self.second], "over": self.over, **self.difference.to_dict()}


def pairs_of(groups: list[Group], metric: str, margin: float) -> list[Pair]:
    """Every pair of groups, the better one first."""
    return [compare_pair(a, b, metric, margin) for a, b in combinations(groups, 2)]


def compare_pair(a: Group, b: Group, metric: str, margin: float) -> Pair:
    """Over the runs of both where both have several; with one run each over the episodes that were evaluated."""
    if len(a.runs) > 1 or len(b.runs) > 1:
        return Pair(a.label, b.label, unpaired_difference(a.scores, b.scores, margin), "runs")
    numbers = [group.runs[0].episodes_evaluated for group in (a, b)]
    errors = [standard_error(group.metrics[metric], n) for group, n in zip((a, b), numbers)]
    value = float(b.scores[0] - a.scores[0])
    if any(math.isnan(e) for e in errors):
        return Pair(a.label, b.label, Difference(value, margin=margin), "episodes")
    total = sum(e**2 for e in errors)
    df = total**2 / sum(e**4 / (n - 1) for e, n in zip(errors, numbers)) if total else sum(numbers) - 2.0
    return Pair(a.label, b.label, difference(value, math.sqrt(total), df, margin), "episodes")


def standard_error(mean: Estimate, episodes: int) -> float:
    """The standard error of a mean whose 95% interval is known; nan where it is not."""
    if not mean.has_interval or episodes < 2:
        return math.nan
    return (mean.high - mean.low) / 2 / t_quantile(0.975, episodes - 1)
