"""A race of candidates that share their training: a few policies learn all of them at once, and less and less of what
is spent goes to candidates that cannot be the best.

    warm up           each policy is trained on all candidates
    look              every candidate in the race plays the same episodes with one policy (common random numbers)
    learn             `growth` says what more training would bring, from what policies that differ only in luck show
    drop              a candidate leaves for good when its upper bound is below the best's lower bound, or when its rate
                      cannot reach the gate any more
    halve             of the rest, the half with the highest upper bounds is trained and looked at; the others wait
    train, look ...   until the budget has room only for the end
    confirm           the best few play episodes of their own: they decide who passes the gate, and what is recommended

A look costs the same however many take part: the fewer there are, the more episodes each plays.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from regimen.errors import ConfigError, nearest
from regimen.experiments.search.gate import Gate, Rate
from regimen.experiments.search.growth import Look
from regimen.experiments.search.ranking import Ranking, rank
from regimen.experiments.search.space import Space
from regimen.experiments.search.store import Store
from regimen.experiments.search.trial import Arrays, Sample, Saved, SharedTrial, StretchResult

METHODS = ("race", "round_robin", "random")
CONFIRMING = 1_000_000  # episodes of a confirmation are numbered from here: no look has played them
POLICY = 100_000_000  # and those of each further policy from so much later on: policies share no episodes, so that the
# mean over them has the noise that it is told to have


@dataclass(frozen=True)
class RaceOptions:
    """How a race is run. Only `budget` may differ when it is continued."""

    budget: int
    warm_up: int  # training episodes of each policy before the first look
    check_every: int  # and between looks
    check_episodes: int  # of each candidate and policy at the first look
    eval_episodes: int  # of each finalist and policy at the end
    policies: int = 2  # that are trained alike: how far they are apart is the luck of training
    finalists: int = 3
    gate: Gate | None = None
    method: str = "race"
    kappa: float = 2.0  # deviations of the bounds
    seed: int = 0
    halving: float = 2.0

    def end(self) -> int:
        """Episodes that the confirmation at the end takes."""
        return self.finalists * self.policies * self.eval_episodes

    def look(self, candidates: int) -> int:
        """Episodes that one look takes."""
        return candidates * self.policies * self.check_episodes

    def check(self, unit: int, candidates: int) -> RaceOptions:
        """Refuse what cannot work, before anything is trained."""
        if self.method not in METHODS:
            raise ConfigError(f"--method: unknown '{self.method}'{nearest(self.method, METHODS)}")
        least = {"warm_up": unit, "check_every": unit, "check_episodes": 2, "eval_episodes": 2, "policies": 1}
        least |= {"finalists": 1}
        if self.method == "race":
            least["policies"] = 2
        for name, n in least.items():
            if getattr(self, name) < n:
                why = (
                    {unit: f"one update ({unit} episodes)"}.get(n, str(n)) if name in ("warm_up", "check_every") else n
                )
                if name == "policies" and self.method == "race":
                    why = "2: how far they are apart measures the luck of training"
                raise ConfigError(
                    f"--{name.replace('_', '-')}: {getattr(self, name)} is too small; it must be at least {why}"
                )
        if self.halving <= 1:
            raise ConfigError(f"halving: {self.halving:g} is out of range; it must be above 1")
        fewest = 0 if self.gate is None else self.gate.episodes_needed()
        if self.gate is not None and self.eval_episodes < fewest:
            raise ConfigError(
                f"--eval-episodes: {self.eval_episodes} can never meet a gate of {self.gate.threshold:g}: "
                f"its bound needs at least {fewest} episodes"
            )
        parts = {"to warm up": self.policies * self.warm_up, "for a look at all": self.look(candidates)}
        parts["to confirm the best"] = self.end()
        needed = sum(parts.values())
        if self.budget < needed:
            words = ", ".join(f"{n:,} {what}" for what, n in parts.items())
            raise ConfigError(f"--budget: {self.budget:,} episodes are too few, the least is {needed:,} ({words})")
        return self

    def identity(self) -> dict[str, object]:
        values = dataclasses.asdict(self)
        first = {name: values.pop(name) for name in ("gate", "method", "seed")}
        return first | {k: v for k, v in values.items() if k != "budget"}


@dataclass
class RaceLook:
    """What was measured of some candidates: at a look, or when the best were confirmed."""

    training: int
    index: list[int]
    value: list[list[float]]  # [C][K]
    error: list[list[float]]  # [C][K] what candidates do not have in common
    rates: list[list[Rate]] | None  # [C][K]
    episodes: int  # of each candidate and policy
    spent: int = 0  # of the budget, after it

    @property
    def look(self) -> Look:
        return Look(self.training, np.array(self.index), np.array(self.value), np.array(self.error))

    @classmethod
    def of(cls, training: int, index: Sequence[int], played: Sequence[Sequence[Sample]], gated: bool) -> RaceLook:
        """The look that samples `played` [C][K] make; rates are kept where a gate looks at them."""
        first = played[0][0]
        errors = np.array([own_errors([of_candidate[k] for of_candidate in played]) for k in range(len(played[0]))]).T
        rates: list[list[Rate]] | None = None
        if gated and first.rates is not None:
            rates = [[s.rate for s in of_candidate if s.rate is not None] for of_candidate in played]
        value = [[float(s.values.mean()) for s in of_candidate] for of_candidate in played]
        return cls(training, list(index), value, errors.tolist(), rates, len(first.values))

    @classmethod
    def from_dict(cls, data: Saved) -> RaceLook:
        def rate(saved: Saved) -> Rate:
            return Rate(**{**saved, "events": np.inf if saved["events"] is None else saved["events"]})  # as JSON has it

        rates = data["rates"]
        return cls(**{**data, "rates": None if rates is None else [[rate(r) for r in row] for row in rates]})


def own_errors(samples: Sequence[Sample]) -> list[float]:
    """Standard errors of the candidates' mean values, without what they have in common: they played the same episodes,
    and what makes an episode hard for all of them does not make one of them better.  # [C]"""
    lengths = {len(s.values) for s in samples}
    if len(samples) < 3 or len(lengths) > 1:
        return [s.error for s in samples]
    x = np.stack([s.values for s in samples])  # [C, n]
    residual = x - x.mean(0)
    deviation = residual.std(1, ddof=1) * math.sqrt(len(x) / (len(x) - 1))
    return np.maximum(deviation / math.sqrt(x.shape[1]), 1e-9).tolist()


@dataclass
class Race:
    """One race in one directory."""

    space: Space
    trial: SharedTrial
    options: RaceOptions
    store: Store
    say: Callable[[str], None] = lambda text: None
    progress: Callable[[str], None] = lambda text: None
    stop_requested: Callable[[], bool] = lambda: False
    looks: list[RaceLook] = field(default_factory=list)
    confirmed: RaceLook | None = None
    active: list[int] = field(default_factory=list)  # in training, and at the next look
    dropped: dict[int, str] = field(default_factory=dict)  # candidate -> why
    trained: list[int] = field(default_factory=list)  # episodes of each policy
    halted: list[bool] = field(default_factory=list)  # its training has diverged
    share: list[float] = field(default_factory=list)  # training episodes of each candidate, all policies together
    played: list[int] = field(default_factory=list)  # evaluation episodes, likewise
    spent: int = 0
    seconds: float = 0.0
    ranked: tuple[tuple[object, ...], Ranking] | None = None  # the last ranking, and what it is of
    frames: list[dict[str, object]] = field(default_factory=list)  # what was believed after the last looks

    def __post_init__(self) -> None:
        n, k = len(self.space), self.options.policies
        self.options.check(self.trial.unit, n)
        self.active, self.trained, self.halted = list(range(n)), [0] * k, [False] * k
        self.share, self.played = [0.0] * n, [0] * n
        self.arrays: list[Arrays | None] = [None] * k
        self.begun = time.monotonic()
        saved = self.store.load(self.identity())
        if saved is None:
            self.save()
        else:
            self.restore(saved)

    def identity(self) -> dict[str, object]:
        return {**self.space.signature(), "options": self.options.identity(), "trial": self.trial.identity()}

    # --- the plan

    @property
    def left(self) -> int:
        return self.options.budget - self.spent

    @property
    def target(self) -> int:
        """Training of each policy before the next look."""
        return self.options.warm_up + self.options.check_every * len(self.looks)

    def rounds_left(self) -> int:
        """Looks for which the budget has room, before the end."""
        o = self.options
        look, rest = o.look(len(self.space)), self.left - o.end()
        begun = o.policies * self.target - sum(self.trained)  # of the next look
        first = begun + look
        return 0 if rest < first else 1 + (rest - first) // (o.policies * o.check_every + look)

    @property
    def horizon(self) -> int:
        """Training of each policy at the end."""
        return max(self.target + self.options.check_every * (self.rounds_left() - 1), self.options.warm_up)

    def ranking(self) -> Ranking:
        """What is believed of every candidate at the end of the search."""
        look = [*self.looks] if self.confirmed is None else [*self.looks, self.confirmed]
        moment = len(self.looks), None if self.confirmed is None else self.confirmed.spent, self.horizon
        if self.ranked is None or self.ranked[0] != moment:
            self.ranked = moment, rank(self.space, self.options.gate, look, self.horizon)
        return self.ranked[1]

    # --- the loop

    def run(self) -> bool:
        """Race until the budget is spent; False when it was interrupted."""
        while not self.stop_requested():
            if self.confirmed is not None and not self.rounds_left():
                self.save()
                return True
            if self.rounds_left():
                if self.train():
                    self.look()
            else:
                self.confirm()
        self.save()
        return False

    def train(self) -> bool:
        """Each policy up to the next look, in stretches; whether it got there."""
        for k in range(self.options.policies):
            while self.trained[k] < self.target and not self.halted[k]:
                if self.stop_requested():
                    return False
                self.take(k)
                size = min(self.options.check_every, self.target - self.trained[k])
                stretch = self.trial.train(max(size, self.trial.unit))
                self.trained[k] += stretch.episodes
                self.spent += stretch.episodes
                for c in self.active:
                    self.share[c] += stretch.episodes / len(self.active)
                if stretch.diverged or not stretch.episodes:
                    self.halted[k] = True
                    self.say(f"policy {k + 1} diverged after {self.trained[k]:,} episodes; it is trained no further")
                self.arrays[k] = self.trial.arrays()
                self.store.save_policy(f"policy-{k}", self.arrays[k] or {})
                self.note(k, stretch)
                self.save()
                self.progress(
                    f"policy {k + 1} on {len(self.active)} candidates: {self.trained[k]:,} episodes · "
                    f"{self.spent:,} of {self.options.budget:,}"
                )
        return not self.stop_requested()

    def take(self, k: int) -> None:
        """Let the trial go on with policy k, on the candidates in the race."""
        arrays = self.arrays[k]
        self.trial.share(self.active, arrays, k + 1 if arrays is None else -1)

    def look(self) -> None:
        """Measure the candidates in the race, and decide who stays in it."""
        number, chunks = len(self.looks), max(len(self.space) // len(self.active), 1)
        look = self.measure(self.active, self.options.check_episodes, 1000 * number, chunks)
        if look is None:
            return
        self.looks.append(look)
        self.decide()
        self.save()
        self.report()

    def measure(self, index: Sequence[int], episodes: int, number: int, chunks: int) -> RaceLook | None:
        """Play every one of these candidates with every policy; None when it was interrupted."""
        played: list[list[Sample]] = [[] for _ in index]
        for k in range(self.options.policies):
            self.take(k)
            for place, c in enumerate(index):
                if self.stop_requested():
                    return None
                parts = [self.trial.play(c, episodes, number + i + POLICY * k) for i in range(chunks)]
                played[place].append(Sample.joined(parts))
                if self.options.gate is not None and played[place][-1].rates is None:
                    raise ConfigError(
                        "gate: the trial measures no rate to judge by; give its episodes one, or set no gate"
                    )
        each = episodes * chunks
        for c in index:
            self.played[c] += each * self.options.policies
        self.spent += each * self.options.policies * len(index)
        look = RaceLook.of(max(self.trained), index, played, self.options.gate is not None)
        look.spent = self.spent
        return look

    def decide(self) -> None:
        """Drop who cannot be the best, and choose who takes part in the next round."""
        o, n = self.options, len(self.space)
        if o.method == "round_robin":
            return
        places = max(o.finalists, math.ceil(n / o.halving ** len(self.looks)))
        if o.method == "random":
            order = np.random.default_rng([o.seed, 5, len(self.looks)]).permutation(n)
            self.active = sorted(int(c) for c in order[:places])
            return
        ranking = self.ranking()
        at = f"after {self.looks[-1].training:,} episodes"
        for c, why in ranking.hopeless(o.kappa, self.store.names.value, self.store.names.rate).items():
            if c not in self.dropped:
                self.dropped[c] = f"dropped {at}: {why}"
        scores = ranking.scores(o.kappa)
        order = sorted((c for c in range(n) if c not in self.dropped), key=lambda c: (-scores[c], c))
        self.active = sorted(order[:places])

    def confirm(self) -> None:
        """The finalists play episodes that nothing else has seen."""
        o = self.options
        number = CONFIRMING + self.spent  # others, when the race is continued with a larger budget
        self.confirmed = None
        look = self.measure(self.finalists(), o.eval_episodes, number, 1)
        if look is None:
            return
        self.confirmed = look
        self.save()
        self.report()

    def finalists(self) -> list[int]:
        """The candidates with the highest means that are likely to pass; of equal ones the first. A plain method takes
        what it has measured."""
        o = self.options
        if o.method == "race":
            ranking = self.ranking()
            scores = ranking.scores(0.0)
            order = sorted((c for c in range(len(self.space)) if c not in self.dropped), key=lambda c: (-scores[c], c))
        else:
            order = self.by_measurement()
        chosen: list[int] = []
        for c in order:
            if len(chosen) < o.finalists and all(self.space.members[c] != self.space.members[d] for d in chosen):
                chosen.append(c)
        return chosen

    def by_measurement(self) -> list[int]:
        """Candidates by the value at their last look, those first whose mean rate was at the gate."""
        latest: dict[int, tuple[float, float]] = {}
        for look in self.looks:
            for i, c in enumerate(look.index):
                rate = 0.0 if look.rates is None else float(np.mean([r.mean for r in look.rates[i]]))
                latest[c] = rate, float(np.mean(look.value[i]))
        gate = self.options.gate

        def key(c: int) -> tuple[bool, float, int]:
            rate, value = latest[c]
            passes = gate is None or rate >= gate.threshold
            return not passes, -(value if passes else rate), c

        return sorted(latest, key=key)

    # --- what came of it

    def passed(self) -> dict[int, list[int]]:
        """The confirmed candidates that meet the gate, and the policies with which they do."""
        look, gate = self.confirmed, self.options.gate
        if look is None:
            return {}
        out = {}
        for i, c in enumerate(look.index):
            of_candidate = None if look.rates is None else look.rates[i]
            policies = [
                k
                for k in range(self.options.policies)
                if gate is None or of_candidate is None or gate.met(of_candidate[k])
            ]
            if policies:
                out[c] = policies
        return out

    @property
    def best(self) -> tuple[int, int] | None:
        """(candidate, policy) to use; None when none passed."""
        passed, look = self.passed(), self.confirmed
        if not passed or look is None:
            return None
        value = dict(zip(look.index, look.value))
        if self.options.method == "race":
            mean = self.ranking().values.mean
            candidate = max(passed, key=lambda c: float(mean[c]))
        else:
            candidate = max(passed, key=lambda c: float(np.mean(value[c])))
        return candidate, max(passed[candidate], key=lambda k: value[candidate][k])

    def report(self) -> None:
        from regimen.experiments.search import race_report

        race_report.write(self)
        for line in race_report.progress_line(self):
            self.say(line)

    def note(self, k: int, stretch: StretchResult) -> None:
        """The updates of a stretch, for the training log."""
        episodes = self.spent - stretch.episodes
        for row in stretch.rows:
            episodes += int(row["episodes"])
            names = "all" if len(self.active) == len(self.space) else f"{len(self.active)} of {len(self.space)}"
            place = {"trial": k + 1, "candidate": names, "order": names, "total_episodes": episodes}
            self.store.add_row(place | dict(row))

    # --- files

    def save(self) -> None:
        now = time.monotonic()
        self.seconds, self.begun = self.seconds + now - self.begun, now
        plain = ("active", "trained", "halted", "share", "played", "spent")
        self.store.save(
            {
                "running": None,
                **{name: getattr(self, name) for name in plain},
                "seconds": round(self.seconds, 3),
                "dropped": {str(c): why for c, why in self.dropped.items()},
                "looks": [dataclasses.asdict(look) for look in self.looks],
                "confirmed": None if self.confirmed is None else dataclasses.asdict(self.confirmed),
            }
        )

    def restore(self, saved: Saved) -> None:
        for name in ("active", "trained", "halted", "share", "played", "spent", "seconds"):
            setattr(self, name, saved[name])
        self.dropped = {int(c): why for c, why in saved["dropped"].items()}
        self.looks = [RaceLook.from_dict(data) for data in saved["looks"]]
        self.confirmed = None if saved["confirmed"] is None else RaceLook.from_dict(saved["confirmed"])
        self.arrays = [
            self.store.policy(f"policy-{k}") if f"policy-{k}" in self.store.files else None
            for k in range(self.options.policies)
        ]
        if self.spent:
            self.say(f"continuing after {len(self.looks)} looks, {self.spent:,} of {self.options.budget:,} episodes")
