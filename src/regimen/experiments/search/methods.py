"""How the next candidate is chosen: a model of what has been seen, or one of the plain ways it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regimen.errors import ConfigError, nearest
from regimen.experiments.search.acquisition import Choice, choose, thompson, ucb, untried_first
from regimen.experiments.search.feasibility import Feasibility
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.gp import GP
from regimen.experiments.search.space import Space
from regimen.experiments.search.trial import Outcome

METHODS = ("gp", "random", "round_robin", "exhaustive")
ACQUISITIONS = ("ucb", "thompson")


@dataclass(frozen=True)
class Seen:
    """What one trial showed of a candidate."""

    candidate: int
    outcome: Outcome
    feasible: bool
    trained: int  # episodes of training in it


@dataclass(frozen=True)
class Model:
    """What is believed of every candidate after some trials."""

    values: GP
    feasibility: Feasibility | None
    passed: np.ndarray  # [N] met the gate when last evaluated

    @classmethod
    def of(cls, space: Space, gate: Gate | None, seen: Sequence[Seen]) -> Model:
        seen, passed = current(seen), np.zeros(len(space), bool)
        for trial in seen:
            passed[trial.candidate] = trial.feasible
        index = [trial.candidate for trial in seen]
        outcomes = [trial.outcome for trial in seen]
        values = GP.fit(space, index, [o.value for o in outcomes], [o.se for o in outcomes])
        if gate is None:
            return cls(values, None, passed)
        return cls(values, Feasibility(space, gate, index, [o.rate for o in outcomes if o.rate is not None]), passed)


def current(seen: Sequence[Seen]) -> list[Seen]:
    """The trials that speak of the policies as they are: what was seen of a candidate before it was trained again is
    of another policy; without training in between, evaluations add up."""
    kept: list[Seen] = []
    for trial in seen:
        if trial.trained:
            kept = [earlier for earlier in kept if earlier.candidate != trial.candidate]
        kept.append(trial)
    return kept


def propose(
    method: str,
    space: Space,
    gate: Gate | None,
    seen: Sequence[Seen],
    seed: int,
    acquisition: str = "ucb",
    kappa: float = 2.0,
) -> Choice | None:
    """The next candidate; None when the method is through. Depends on nothing but its arguments."""
    n, turn = len(space), len(seen)
    if method == "exhaustive":
        return Choice(turn) if turn < n else None
    if method == "round_robin":
        return Choice(turn % n)
    if method == "random":  # a new order of all of them in every round
        return Choice(int(np.random.default_rng([seed, 1, turn // n]).permutation(n)[turn % n]))
    if method != "gp":
        raise ConfigError(f"method: unknown '{method}'{nearest(method, METHODS)}")
    rng = np.random.default_rng([seed, 2, turn])
    model = Model.of(space, gate, seen)
    values = model.values.posterior()
    tried = np.zeros(n, bool)
    tried[[trial.candidate for trial in seen]] = True
    if acquisition == "ucb":
        scores = ucb(values, model.feasibility, model.passed, tried, kappa)
    elif acquisition == "thompson":
        scores = untried_first(thompson(values, model.feasibility, rng), tried)
    else:
        raise ConfigError(f"acquisition: unknown '{acquisition}'{nearest(acquisition, ACQUISITIONS)}")
    return choose(scores, values, model.feasibility, rng)


def recommend(method: str, space: Space, gate: Gate | None, seen: Sequence[Seen]) -> int | None:
    """The candidate to use: the best of those that passed, by the model's mean, or by what was measured without one."""
    by_candidate: dict[int, Seen] = {trial.candidate: trial for trial in seen}
    passed = [c for c, trial in by_candidate.items() if trial.feasible]
    if not passed:
        return None
    if method == "gp":
        mean = Model.of(space, None, seen).values.posterior().mean
        return max(passed, key=lambda c: float(mean[c]))
    return max(passed, key=lambda c: measured(seen, c))


def measured(seen: Sequence[Seen], candidate: int) -> float:
    """The mean value of a candidate's policy as it is, over all episodes played with it."""
    outcomes = [trial.outcome for trial in current(seen) if trial.candidate == candidate]
    return sum(o.value * o.episodes for o in outcomes) / sum(o.episodes for o in outcomes)
