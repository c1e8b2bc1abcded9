"""The search: propose a candidate, train it until the gate is met or something ends it, evaluate it, learn from it.

Every episode counts against the budget: training, checks of the gate and evaluations. Everything random follows from
the seed and the number of the trial, and the state is on disk after every stretch of training: a search that was
interrupted goes on exactly, when it is run again on its directory.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from regimen.errors import ConfigError, nearest
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.methods import ACQUISITIONS, METHODS, Choice, Evidence, propose, recommend
from regimen.experiments.search.space import Space
from regimen.experiments.search.store import Store, frame, most_frames
from regimen.experiments.search.trial import Arrays, Measurement, Saved, StretchResult, Trial
from regimen.files import views

GATE_MET = "gate met"
UNCONFIRMED = "gate met once, not confirmed"
PLATEAU = "plateau"
CAP = "episode cap"
BUDGET = "budget"
DIVERGED = "diverged"
UNTRAINED = "no training"
WARM_UP = -1  # the candidate that stands for all of them
INHERIT = ("nearest", "start")


@dataclass(frozen=True)
class Options:
    """How a search is run. Only `budget` may differ when it is continued."""

    budget: int
    max_episodes: int  # training of one trial; 0: candidates are only evaluated
    check_every: int
    check_episodes: int
    eval_episodes: int
    patience: int = 4  # stretches without an improvement
    improvement: float = 0.01  # by which the best must be beaten: of a rate, or a share of the value
    gate: Gate | None = None
    near: float = 0.25  # a check is worth its episodes from here below the gate in training, which explores
    method: str = "gp"
    acquisition: str = "ucb"
    kappa: float = 2.0
    seed: int = 0
    warm_up: int = 0
    inherit: str = "nearest"

    def check(self, unit: int) -> Options:
        """Refuse what cannot work, before anything is trained. `unit`: the fewest episodes of training."""
        for name, choices in (("method", METHODS), ("acquisition", ACQUISITIONS), ("inherit", INHERIT)):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{flag(name)}: unknown '{value}'{nearest(value, choices)}")
        for name, least in (("eval_episodes", 2), ("patience", 1), ("max_episodes", 0), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{flag(name)}: {getattr(self, name)} is too small; it must be at least {least}")
        trains = self.max_episodes > 0
        for name, matters, hint in (
            ("warm_up", self.warm_up > 0, "; set 0 for none"),
            ("max_episodes", trains, "; raise it, or set 0 to evaluate only"),
            ("check_every", trains or self.warm_up > 0, ""),
        ):
            n = getattr(self, name)
            if matters and n < unit:
                raise ConfigError(f"{flag(name)}: {n} is less than one update ({unit} episodes){hint}")
        for name in ("check_episodes", "eval_episodes") if trains else ("eval_episodes",):
            n, fewest = getattr(self, name), 0 if self.gate is None else self.gate.episodes_needed()
            if self.gate is not None and n < fewest:
                can_never = f"can never meet a gate of {self.gate.threshold:g}"
                raise ConfigError(f"{flag(name)}: {n} {can_never}: its bound needs at least {fewest} episodes")
        needed = self.eval_episodes + self.warm_up + (unit if trains else 0)
        if self.budget < needed:
            parts = [f"{self.warm_up:,} to warm up"] * bool(self.warm_up) + [f"{unit:,} to train"] * trains
            parts += [f"{self.eval_episodes:,} to evaluate"]
            raise ConfigError(
                f"--budget: {self.budget:,} episodes are too few for one candidate, which takes {needed:,} "
                f"({' and '.join(parts)})"
            )
        return self

    def identity(self) -> dict[str, object]:
        """What is compared when it is continued: first what was asked for, then the numbers that follow from it."""
        values = dataclasses.asdict(self)
        first = {name: values.pop(name) for name in ("gate", "method", "acquisition", "seed")}
        return first | {k: v for k, v in values.items() if k != "budget"}


def flag(name: str) -> str:
    return "--" + ("max-episodes-per-workflow" if name == "max_episodes" else name.replace("_", "-"))


@dataclass
class SearchTrial:
    """A trial of a search."""

    choice: Choice
    number: int  # -1 is the warm-up
    parent: int | None = None  # whose policy it began from; its own index when it was visited before
    visit: int = 0
    trained: int = 0
    checks: int = 0  # episodes of them

    @property
    def candidate(self) -> int:
        return self.choice.candidate


@dataclass
class Running(SearchTrial):
    """A trial that is not finished."""

    best: float | None = None
    stale: int = 0
    cause: str | None = None  # why training has ended


@dataclass(kw_only=True)
class Verdict(SearchTrial):
    """A finished trial."""

    outcome: Measurement
    feasible: bool
    cause: str
    spent: int  # of the budget, after it
    best: int | None = None  # candidate recommended after it

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.candidate, self.outcome, self.feasible, self.trained)


@dataclass
class Search:
    """One search in one directory."""

    space: Space
    trial: Trial
    options: Options
    store: Store
    say: Callable[[str], None] = lambda text: None
    progress: Callable[[str], None] = lambda text: None
    stop_requested: Callable[[], bool] = lambda: False
    verdicts: list[Verdict] = field(default_factory=list)
    running: Running | None = None
    spent: int = 0
    warmed: bool = False
    seconds: float = 0.0
    frames: list[dict[str, object]] = field(default_factory=list)  # what was believed after the last trials

    def __post_init__(self) -> None:
        self.options.check(self.trial.unit)
        self.begun = time.monotonic()
        saved = self.store.load(self.identity())
        if saved is not None:
            self.restore(saved)
        else:
            self.save()  # from here on the directory is that of a search

    def identity(self) -> dict[str, object]:
        return {**self.space.signature(), "options": self.options.identity(), "trial": self.trial.identity()}

    @property
    def left(self) -> int:
        return self.options.budget - self.spent

    @property
    def evidence(self) -> list[Evidence]:
        return [v.evidence for v in self.verdicts]

    @property
    def best(self) -> Verdict | None:
        """The last verdict on the candidate recommended."""
        candidate = recommend(self.options.method, self.space, self.evidence)
        return None if candidate is None else next(v for v in reversed(self.verdicts) if v.candidate == candidate)

    def run(self) -> bool:
        """Search until the budget is spent or the method is through; False when it was interrupted."""
        while not self.stop_requested():
            if self.running is None and not self.next_trial():
                self.save()
                return True
            if self.train() and not self.stop_requested():
                self.finish()
        self.save()
        return False

    def next_trial(self) -> bool:
        """Begin a trial; False when there is none to begin."""
        o = self.options
        if o.warm_up and not self.warmed:
            self.running = Running(Choice(WARM_UP), -1)
            self.trial.start(WARM_UP, None, 0)
            return True
        if self.left < o.eval_episodes + (self.trial.unit if o.max_episodes else 0):
            return False
        choice = propose(o.method, self.space, o.gate, self.evidence, o.seed, o.acquisition, o.kappa)
        if choice is None:
            return False
        number = len(self.verdicts)
        visits = sum(v.candidate == choice.candidate for v in self.verdicts)
        self.running = Running(choice, number, self.parent_of(choice.candidate), visits)
        arrays = self.store.policy("start") if self.warmed else None
        if self.running.parent is not None:
            arrays = self.store.policy(str(self.running.parent))
        self.trial.start(choice.candidate, arrays, number + 1)
        return True

    def parent_of(self, candidate: int) -> int | None:
        """The candidate whose policy this one begins from: itself where it was trained before, else the nearest that
        was, unless all begin from one policy."""
        trained = list(dict.fromkeys(v.candidate for v in self.verdicts if v.trained))
        if candidate in trained:
            return candidate
        return self.space.nearest(candidate, trained) if self.options.inherit == "nearest" else None

    def train(self) -> bool:
        """Stretches of training until something ends it; whether it has ended."""
        r = self.running
        assert r is not None
        while r.cause is None and not self.stop_requested():
            size = self.stretch_size(r)
            if size < self.trial.unit:
                r.cause = self.cause_without_training(r)
                break
            stretch = self.trial.train(size)
            r.trained += stretch.episodes
            self.spent += stretch.episodes
            self.note(r, stretch)
            if r.number >= 0:
                r.cause = self.cause_after(r, stretch)
            elif stretch.diverged:
                r.cause = DIVERGED
            self.save(self.trial.arrays())
            self.progress(self.describe_running(r))
        if r.cause is not None and r.number < 0:
            self.store.save_policy("start", self.trial.arrays())
            self.running, self.warmed = None, True
            text = f"warm-up on all {len(self.space)} candidates: {r.trained:,} episodes"
            self.say(text + (f"; {DIVERGED}: its last update is left out" if r.cause == DIVERGED else ""))
            self.save()
            return False
        return r.cause is not None

    def stretch_size(self, r: Running) -> int:
        o = self.options
        if r.number < 0:
            return min(o.check_every, o.warm_up - r.trained)
        return min(o.check_every, o.max_episodes - r.trained, self.left - o.eval_episodes)

    def cause_without_training(self, r: Running) -> str:
        o = self.options
        if r.number < 0:
            return CAP
        if not o.max_episodes:
            return UNTRAINED
        return CAP if o.max_episodes - r.trained < self.trial.unit else BUDGET

    def cause_after(self, r: Running, stretch: StretchResult) -> str | None:
        """Why training ends after this stretch, if it does."""
        o, gate = self.options, self.options.gate
        if stretch.diverged:
            return DIVERGED
        near = gate is not None and stretch.rate is not None and stretch.rate >= gate.threshold - o.near
        if gate is not None and near and self.left >= o.check_episodes + o.eval_episodes:
            outcome = self.measure(o.check_episodes, self.check_number(r))
            r.checks += o.check_episodes
            self.spent += o.check_episodes
            if outcome.rate is not None and gate.met(outcome.rate):
                return GATE_MET
        measure = stretch.value if gate is None else stretch.rate
        if measure is None:
            return None
        step = o.improvement * (1.0 if gate is not None else abs(r.best or 0.0))
        if r.best is None or measure > r.best + step:
            r.best, r.stale = measure, 0
            return None
        r.stale += 1
        return PLATEAU if r.stale >= o.patience else None

    def measure(self, episodes: int, number: int) -> Measurement:
        outcome = self.trial.measure(episodes, number)
        if self.options.gate is not None and outcome.rate is None:
            raise ConfigError("gate: the trial measures no rate to judge by; give its outcomes one, or set no gate")
        return outcome

    def check_number(self, r: Running) -> int:
        """Which episodes a check plays: never those of an evaluation, nor those of another check of the trial."""
        return 1_000_000 + 1000 * r.number + r.checks // max(self.options.check_episodes, 1)

    def finish(self) -> None:
        """Evaluate on episodes of its own: the same for every candidate, others at its next visit."""
        o, r = self.options, self.running
        assert r is not None and r.cause is not None
        outcome = self.measure(o.eval_episodes, r.visit)
        self.spent += o.eval_episodes
        feasible = o.gate is None or (outcome.rate is not None and o.gate.met(outcome.rate))
        cause = UNCONFIRMED if r.cause == GATE_MET and not feasible else r.cause
        if r.trained:
            self.store.save_policy(str(r.candidate), self.trial.arrays())
        trial = {f.name: getattr(r, f.name) for f in dataclasses.fields(SearchTrial)}
        verdict = Verdict(**trial, outcome=outcome, feasible=feasible, cause=cause, spent=self.spent)
        self.verdicts.append(verdict)
        best, self.running = self.best, None
        verdict.best = None if best is None else best.candidate
        self.save()
        self.store.write_log(self.space, self.verdicts)
        self.show()
        self.say(self.describe(verdict, best))

    def show(self) -> None:
        """The live page's picture, with the trials before a search was continued."""
        evidence = self.evidence
        most = most_frames(self.space)
        for n in range(len(evidence) - (1 if self.frames else min(most, len(evidence))), len(evidence)):
            best = self.verdicts[n].best
            self.frames.append(frame(self.space, self.options.gate, evidence[: n + 1], best))
        self.frames = self.frames[-most:]
        picture = views.posterior("Posterior over candidates", self.frames, label=self.store.names.value)
        views.write(self.store.path, "posterior", picture)

    def describe_running(self, r: Running) -> str:
        name = "warm-up" if r.number < 0 else f"[{r.number + 1}] {self.space.keys[r.candidate]}"
        judged_by = self.store.names.value if self.options.gate is None else self.store.names.rate
        best = "" if r.best is None else f", best {judged_by} {r.best:.3g}"
        return f"{name}: {r.trained:,} episodes{best} · {self.spent:,} of {self.options.budget:,}"

    def describe(self, v: Verdict, best: Verdict | None) -> str:
        keys, rate, names = self.space.keys, v.outcome.rate, self.store.names
        origin = "" if v.parent is None else ", again" if v.parent == v.candidate else f" from {keys[v.parent]}"
        words = [f"[{v.number + 1}] {keys[v.candidate]}{origin}: {v.cause}"]
        if v.trained:
            words[0] += f" after {v.trained:,} episodes"
        words.append(f"{names.value} {v.outcome.value:.4g} ± {v.outcome.se:.2g}")
        if rate is not None:
            verdict = "feasible" if v.feasible else "not feasible"
            words.append(f"{names.rate} {rate.mean:.3f} (bound {rate.bound:.3f}), {verdict}")
        words.append("none feasible yet" if best is None else f"best {keys[best.candidate]} {best.outcome.value:.4g}")
        return " · ".join([*words, f"{self.spent:,} of {self.options.budget:,} episodes"])

    def note(self, r: Running, stretch: StretchResult) -> None:
        """The updates of a stretch, for the training log."""
        warm_up = r.candidate == WARM_UP
        name = "all" if warm_up else self.space.keys[r.candidate]
        value = "all" if warm_up else self.space.text(r.candidate)
        episodes = self.spent - stretch.episodes
        for row in stretch.rows:
            episodes += int(row["episodes"])
            place = {"trial": r.number + 1, "candidate": name, "order": value, "total_episodes": episodes}
            self.store.add_row(place | dict(row))

    def save(self, arrays: Arrays | None = None) -> None:
        """The whole state, in one step; `arrays` is the policy in training."""
        now = time.monotonic()
        self.seconds, self.begun = self.seconds + now - self.begun, now
        self.store.save(
            {
                "spent": self.spent,
                "warmed": self.warmed,
                "seconds": round(self.seconds, 3),
                "verdicts": [dataclasses.asdict(v) for v in self.verdicts],
                "running": None if self.running is None else dataclasses.asdict(self.running),
            },
            arrays,
        )

    def restore(self, saved: Saved) -> None:
        self.spent, self.warmed, self.seconds = saved["spent"], saved["warmed"], saved["seconds"]
        for data in saved["verdicts"]:
            outcome = Measurement.from_dict(data["outcome"])
            self.verdicts.append(Verdict(**{**data, "choice": Choice(**data["choice"]), "outcome": outcome}))
        if saved["running"] is not None and saved.get("current"):
            self.running = Running(**{**saved["running"], "choice": Choice(**saved["running"]["choice"])})
            least = self.spent + self.options.eval_episodes * (self.running.number >= 0)
            if self.options.budget < least:
                raise ConfigError(
                    f"--budget: {self.options.budget:,} is too small to continue: {self.spent:,} episodes are spent, "
                    f"and the trial that has begun ends with its evaluation; give at least {least:,}"
                )
            self.trial.start(self.running.candidate, self.store.policy(saved["current"]), -1)
        if self.verdicts:  # it may have been killed before it wrote the last one
            self.store.write_log(self.space, self.verdicts)
        if self.verdicts or self.running is not None:
            n = len(self.verdicts)
            self.say(f"continuing after {n} trials, {self.spent:,} of {self.options.budget:,} episodes")
