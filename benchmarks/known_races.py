"""Does a race find the best candidate where the truth is known? Synthetic: nothing is trained, nothing is played.

    python benchmarks/known_races.py --seeds 20

Merits, luck and noise are drawn. There are 24 orders of four items, whose merits have a standard deviation of 1 and are
alike by Kendall's distance. Policies have a luck with each order (`--lucks`: its standard deviation), and keep some of
it while they train. Episodes have noise, most of which is common to all orders. The race, a round robin and random
allotments spend the same number of episodes, training included, and recommend an order.

- regret: how far the merit of the recommended order is below the best, and how much less that is than the regret of the
  round robin on the same seed.
- floor: the regret of someone who knows exactly what each policy makes of each order and recommends the best mean.
  Playing more episodes, or other ones, gives no less: only more policies do, or what alike orders say of each other.
- delivered: what the recommended order is worth with the policy that comes with it, above the mean of all orders.
- of the race alone: how often it dropped the best order, how many it dropped, how many merits were within two
  deviations of its posterior at the last look (0.954 if it is right), the probability of being the best that it told,
  how often its order was the best, and the luck it measured.

The truth has the form of the race's model, whose numbers the race does not know.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np

from regimen.experiments.search.race import Race, RaceOptions
from regimen.experiments.search.race_report import recommended
from regimen.experiments.search.space import Space, permutations
from regimen.experiments.search.store import Store
from regimen.experiments.search.trial import Sample, StretchResult
from regimen.statistics import mean_interval, paired_difference

METHODS = ("race", "round_robin", "random")
RACE = ("best dropped", "dropped", "within 2 deviations", "probability told", "was the best", "luck measured")
THETA = 2.0  # of the kernel
CHANGES, SPEED = 0.3, 0.5  # variance of what may change of a merit, in units of what stays; per e-fold of training
OWN = 0.7  # share of a luck's variance that is of one order; alike orders share the rest
COMMON = 3.0  # noise that all orders share, in units of an order's own


class Known:
    """A policy is a number and how long it has trained; its arrays say no more."""

    unit, compiling = 100, False

    def __init__(self, space: Space, options: RaceOptions, luck: float, noise: float):
        rng = np.random.default_rng([options.seed, 7])
        self.options, self.noise = options, noise
        self.times = np.arange(options.warm_up, options.budget, options.check_every)
        n, t = len(space), len(self.times)
        kernel = space.kernel(np.array([THETA])) + 1e-9 * np.eye(n)
        gaps = np.abs(np.log(self.times)[:, None] - np.log(self.times))
        fading = np.linalg.cholesky(np.exp(-SPEED * gaps) + 1e-9 * np.eye(t)).T
        half, of_luck = np.linalg.cholesky(kernel), np.linalg.cholesky(OWN * np.eye(n) + (1 - OWN) * kernel)
        moves = half @ rng.standard_normal((n, t)) @ fading
        stays = half @ rng.standard_normal((n, 1))
        self.merit = (stays + CHANGES**0.5 * moves) / (1 + CHANGES) ** 0.5  # [N, T]
        drawn = [of_luck @ rng.standard_normal((n, t)) @ fading for _ in range(options.policies)]
        self.luck = luck * np.array(drawn)  # [K, N, T]
        self.policy, self.training = 0, 0

    def at(self, training: int) -> int:
        """The place of that training among the times."""
        return int(np.searchsorted(self.times, training))

    def share(self, candidates: Any, arrays: Any, number: int) -> None:
        new = arrays is None
        self.policy, self.training = (number - 1, 0) if new else (int(arrays["policy"]), int(arrays["training"]))

    def train(self, episodes: int) -> StretchResult:
        self.training += episodes
        return StretchResult(episodes, 0.0)

    def play(self, candidate: int, episodes: int, number: int) -> Sample:
        def draw(*of: int) -> np.ndarray:
            return self.noise * np.random.default_rng([self.options.seed, number, *of]).standard_normal(episodes)

        at = self.at(self.training)
        value = self.merit[candidate, at] + self.luck[self.policy, candidate, at]
        return Sample(value + COMMON * draw() + draw(candidate))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"policy": np.array(self.policy), "training": np.array(self.training)}

    def identity(self) -> dict[str, object]:
        return {"known": self.options.seed}


class Quiet(Race):
    """Writes nothing, and keeps what it believed at every look."""

    def save(self) -> None: ...

    def report(self) -> None:
        if self.options.method == "race" and self.confirmed is None:
            self.beliefs = [*getattr(self, "beliefs", []), (self.horizon, self.ranking().values)]


def search(space: Space, options: RaceOptions, luck: float, noise: float) -> dict[str, float]:
    """One search and how it did; the truth is that of the end of its training."""
    trial = Known(space, options, luck, noise)
    with tempfile.TemporaryDirectory() as folder:
        race = Quiet(space, trial, options, Store(Path(folder) / "s"))
        race.run()
    assert race.best is not None
    (best, policy), end = race.best, trial.at(max(race.trained))
    merit, lucky = trial.merit[:, end], trial.luck[:, :, end]
    out = {
        "regret": merit.max() - merit[best],
        "floor": merit.max() - merit[(merit + lucky.mean(0)).argmax()],
        "delivered": merit[best] + lucky[policy, best] - merit.mean(),
    }
    if options.method == "race":
        horizon, told = race.beliefs[-1]
        then, sure = trial.merit[:, trial.at(horizon)], recommended(race)
        inside = np.abs(then - then.mean() - told.mean) <= 2 * told.std
        out |= {"best dropped": float(merit.argmax() in race.dropped), "dropped": len(race.dropped)}
        out |= {"within 2 deviations": inside.mean(), "probability told": 0.0 if sure is None else sure.probability}
        out |= {"was the best": float(merit.argmax() == best), "luck measured": race.ranking().luck}
    return {name: float(value) for name, value in out.items()}


def between(values: Any) -> str:
    low, high = mean_interval(values)
    return f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lucks", nargs="+", type=float, default=[0.0, 0.5, 1.0, 1.4, 2.0], help="deviations of luck")
    parser.add_argument("--noise", type=float, default=3.0, help="deviation of an order's own noise in one episode")
    parser.add_argument("--policies", type=int, default=2)
    parser.add_argument("--budget", type=int, default=6000)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--check-every", type=int, default=200)
    parser.add_argument("--check-episodes", type=int, default=5)
    parser.add_argument("--eval-episodes", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    names = ("budget", "warm_up", "check_every", "check_episodes", "eval_episodes", "policies")
    base, space = RaceOptions(**{name: getattr(args, name) for name in names}), permutations("abcd")
    results, races = [], []
    for luck in args.lucks:
        found = {
            method: [
                search(space, dataclasses.replace(base, method=method, seed=seed), luck, args.noise)
                for seed in range(args.seeds)
            ]
            for method in args.methods
        }
        column = {m: {name: np.array([one[name] for one in found[m]]) for name in found[m][0]} for m in found}
        for method in found:
            less = ""
            if method != "round_robin" and "round_robin" in found:
                gap = paired_difference(column["round_robin"]["regret"], column[method]["regret"])
                less = f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"
            cells = [between(column[method]["regret"]), less, f"{column[method]['floor'].mean():.2f}"]
            results.append([f"{luck:g}", method, *cells, between(column[method]["delivered"])])
        for own in [column[method] for method in found if method == "race"]:
            races.append([f"{luck:g}", *(f"{own[name].mean():.2f}" for name in RACE)])
        print(f"luck {luck:g}: {args.seeds} seeds of each method", flush=True)
    head = ["luck", "method", "regret (95%)", "less that of round robin", "floor", "delivered (95%)"]
    print(harness.table(head, results))
    if races:
        print()
        print(harness.table(["luck of the truth", *RACE], races))


if __name__ == "__main__":
    main()
