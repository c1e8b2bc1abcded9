"""A batching study's measurements as rows of estimates: what tables, sentences and plots are made of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from regimen.experiments.studies import curves
from regimen.experiments.studies.bench import Recipe
from regimen.experiments.studies.curves import Curve, Row, estimate, median, ratio, std
from regimen.experiments.studies.gradients import GradientNoise, Rollouts
from regimen.statistics import Estimate, iqm, wilson

POLICIES = ("initial", "halfway", "late")  # early, in the middle and at the end of a training
ORDER = (*POLICIES, "policy", "critic", "all", *Rollouts.KINDS)


@dataclass
class RegimenRuns:
    """One regimen at one learning rate, all seeds."""

    regimen: Recipe
    lr: float
    curves: list[Curve]

    def reached(self, unit: str, target: float) -> np.ndarray:
        """Env `steps`, `updates` or `episodes` [seeds] at the target."""
        return np.array([c.reached(unit, target) for c in self.curves])


@dataclass(frozen=True)
class Outliers:
    """What one outlier did at one rollout size, by seed."""

    before: np.ndarray  # [seeds] return of the greedy policy before it
    floor: np.ndarray  # [seeds] return of the initial policy
    control: list[Curve]
    outlier: list[Curve]


def gradient_rows(
    noises: Mapping[tuple[str, str, str, int], GradientNoise], steps: Mapping[tuple[str, int], float], smallest: int
) -> list[Row]:
    """`noises` by policy, kind of advantages, group of parameters, size; `steps` of a rollout by policy and size."""
    ordered = sorted(noises, key=lambda key: (ORDER.index(key[0]), ORDER.index(key[2]), ORDER.index(key[1]), key[3]))
    rows = []
    for policy, kind, group, n in ordered:
        noise = noises[policy, kind, group, n]
        base = noises.get((policy, kind, group, smallest))
        relative = Estimate(math.nan) if base is None else noise.relative_noise(base)
        rows.append(
            {
                "policy": policy,
                "advantages": kind,
                "group": group,
                "size": n,
                "rollout_steps": steps[policy, n],
                "repeats": len(noise.norms),
                "noise": noise.noise(),
                "relative_noise": Estimate(1.0, 1.0, 1.0) if n == smallest else relative,
                "expected": smallest / n,
                "signal_to_noise": noise.signal_to_noise(),
                "cosine": noise.cosine(),
            }
        )
    return rows


def race_row(race: RegimenRuns, base: RegimenRuns | None, target: float, budget: int) -> Row:
    """Time to the target, also in ratio to that of `base`, and what was left at the end."""
    reached = {unit: race.reached(unit, target) for unit in ("steps", "updates", "episodes")}
    row: Row = {
        "episodes": race.regimen.rollout.episodes,
        "epochs": race.regimen.epochs,
        "lr": race.lr,
        "seeds": len(race.curves),
        "reached": int(np.isfinite(reached["steps"]).sum()),
        "updates": float(np.mean([c.updates[-1] for c in race.curves])),
        "diverged": sum(c.diverged for c in race.curves),
    }
    for unit, values in reached.items():
        row[f"{unit}_to_target"] = estimate(values, median)
        if base is not None and base is not race:
            other = base.reached(unit, target)
            both = np.isfinite([np.median(values), np.median(other)]).all()
            # of a median past the budget only the steps are known to be more: updates differ in size
            row[f"{unit}_ratio"] = ratio(values, other) if both or unit == "steps" else Estimate(math.nan)
    return row | quality(race.curves, target, budget)


def quality(seeds: list[Curve], target: float, budget: int) -> Row:
    """Final return, its spread over seeds, the mean over training, and how many seeds lost what they had learnt."""
    final = [curves.final(c) for c in seeds]
    floor = float(np.mean([c.returns[0] for c in seeds]))
    lost = [x for c in seeds if (x := curves.collapsed(c.returns, floor, target)) is not None]
    rate = Estimate(sum(lost) / len(lost), *wilson(sum(lost), len(lost))) if lost else Estimate(math.nan)
    return {
        "final": estimate(final, iqm),
        "spread": estimate(final, std),
        "average": estimate([curves.average(c, budget) for c in seeds], iqm),
        "collapsed": sum(lost),
        "at_risk": len(lost),
        "collapse_rate": rate,
    }


def outlier_row(arms: Outliers) -> Row:
    """The row of an outlier's effect right after it: how much lower than without the outlier, on the same episodes,
    from the same policy."""
    before, outlier, control = arms.before, arms.outlier, arms.control
    back, usual = (
        [curves.recovery(c.updates, c.returns, b, f) for c, b, f in zip(arm, before, arms.floor)]
        for arm in (outlier, control)
    )
    return {
        "seeds": len(outlier),
        "before": estimate(before, iqm),
        "drop": estimate([c.returns[0] - h.returns[0] for c, h in zip(control, outlier)], np.mean),
        "deepest": estimate([b - min(h.returns) for b, h in zip(before, outlier)], np.mean),
        "deepest_control": estimate([b - min(c.returns) for b, c in zip(before, control)], np.mean),
        "recovery": estimate(back, median),
        "recovery_control": estimate(usual, median),
        "fell": sum(x > 0 for x in back),
        "fell_control": sum(x > 0 for x in usual),
        "never": sum(math.isinf(x) for x in back),
        "diverged": sum(c.diverged for c in outlier),
    }
