"""Rules that end a run. Each is fed what it needs, remembers why it fired, and can be saved and restored."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from regimen.config.schema import StopConfig
from regimen.envs.metric import Metric, violation_of, words_of
from regimen.errors import ConfigError
from regimen.files.storage import Json

Point = Mapping[str, float]  # a logged row
Saved = Json  # what JSON can hold
LOGGED = ("zero_conflict", "perfect", "bands")  # rules with columns, in the order of these
SUCCESS = "eval/success_rate"  # share of the evaluation episodes


@dataclass(frozen=True)
class Stop:
    """Why a run ended: a short code, the sentence shown, and whether the goal was reached."""

    code: str
    reason: str
    converged: bool = False


WORDS = {  # of the codes, where seeds that ended for the same reason are counted
    "max_steps": "budget of steps spent",
    "max_episodes": "budget of episodes spent",
    "max_seconds": "budget of seconds spent",
    "metric": "goal of the evaluations reached",
    "converged": "goal of the training returns reached",
    "no_improvement": "no improvement any more",
    "perfect": "every evaluation episode succeeded without conflict",
    "zero_conflict": "no evaluation episode had a conflict",
    "bands": "hardly a conflict for long enough",
    "callback": "asked by the callback",
}


class StoppingRule:
    """A rule that may end a run: it reads episodes or evaluations, remembers why it fired, and is saved by its
    `counters`."""

    counters: ClassVar[tuple[str, ...]] = ()  # attributes that a checkpoint keeps
    fired: Stop | None = None

    def episode(self, value: float) -> None:
        """Read the return of a training episode."""

    def evaluation(self, point: Point) -> None:
        """Read a row that has an evaluation."""

    def columns(self) -> dict[str, int]:
        """What is logged of the rule."""
        return {}

    def least(self) -> dict[str, int]:
        """The fewest `evaluations`, `steps` and `episodes` before it can fire, where it needs more than one."""
        return {}

    def state(self) -> Saved:
        return {name: getattr(self, name) for name in self.counters}

    def restore(self, saved: Saved) -> None:
        for name in self.counters:
            setattr(self, name, saved[name])


class Convergence(StoppingRule):
    """The mean of the last `window` training episodes is at least `target`, and there has been no new best mean for
    `patience` further episodes. Falling below the target starts the wait anew."""

    counters = ("total", "best", "waited")

    def __init__(self, target: float, window: int, patience: int):
        self.target, self.window, self.patience = target, window, patience
        self.returns: deque[float] = deque(maxlen=window)
        self.total, self.waited = 0.0, 0
        self.best: float | None = None

    def episode(self, value: float) -> None:
        if len(self.returns) == self.window:
            self.total -= self.returns[0]
        self.returns.append(value)
        self.total += value
        if self.fired or len(self.returns) < self.window:
            return
        mean = self.total / self.window
        if mean < self.target:
            self.best, self.waited = None, 0
            return
        if self.best is None or mean > self.best:
            self.best, self.waited = mean, 0
        else:
            self.waited += 1
        if self.waited >= self.patience:
            text = (
                f"the mean return over the last {self.window} episodes reached {mean:.1f} (at least {self.target:g}), "
                f"with no new best for {self.patience} episodes"
            )
            self.fired = Stop("converged", text, converged=True)

    def least(self) -> dict[str, int]:
        return {"episodes": self.window + self.patience}

    def state(self) -> Saved:
        return super().state() | {"returns": list(self.returns)}

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        self.returns.extend(saved["returns"])


@dataclass(frozen=True)
class Condition:
    """A logged metric is at least `above`, or at most `below`; `label` is what people read of it."""

    metric: str
    above: float | None = None
    below: float | None = None
    label: str = ""

    def met(self, point: Point) -> bool:
        value = point.get(self.metric)
        if value is None:
            return False
        if self.above is not None:
            return value >= self.above
        return self.below is not None and value <= self.below

    def words(self, point: Point, times: str = "") -> str:
        """The value that met it, as a sentence, and how many `times`."""
        verb, side = (
            ("reached", f"at least {self.above:g}")
            if self.above is not None
            else ("fell to", f"at most {self.below:g}")
        )
        return f"{self.label or self.metric} {verb} {point[self.metric]:.4g} ({side}{times})"


class Streak(StoppingRule):
    """Every condition holds for `streak` evaluations in a row. Without `streak` it counts and never fires. With a
    `column` the count is logged. `text` is the reason in words, by default what the conditions say."""

    counters = ("run",)

    def __init__(
        self,
        conditions: Sequence[Condition],
        streak: int | None,
        code: str = "metric",
        column: str | None = None,
        text: str | None = None,
    ):
        self.conditions, self.streak, self.code, self.column, self.text = conditions, streak, code, column, text
        self.run = 0

    def evaluation(self, point: Point) -> None:
        self.run = self.run + 1 if all(c.met(point) for c in self.conditions) else 0
        if self.streak is not None and self.run >= self.streak and not self.fired:
            times = "" if self.streak == 1 else f" for {self.streak} evaluations in a row"
            what = f"{self.text}{times}" if self.text else " and ".join(c.words(point, times) for c in self.conditions)
            self.fired = Stop(self.code, what, converged=True)

    def columns(self) -> dict[str, int]:
        return {} if self.column is None else {self.column: self.run}

    def least(self) -> dict[str, int]:
        return {} if self.streak is None else {"evaluations": self.streak}


class Bands(StoppingRule):
    """Training is cut into bands of `size` env steps. A band is good if at least `share` of the evaluation episodes in
    it had no conflict, by the metric `conflict`; `needed` good bands in a row end the run, once at least `least` bands
    have been judged.

    Band i (from 1) holds the evaluations after step (i - 1) * size, up to and at step i * size. It is judged by the
    first evaluation at or past its end. A band without an evaluation says nothing and is passed over, so the rule can
    fire however rarely a run is evaluated.
    """

    counters = ("band", "free", "total", "good", "judged")

    def __init__(self, conflict: str, size: int, share: float, needed: int, least: int):
        self.conflict, self.size, self.share, self.needed, self.least_bands = conflict, size, share, needed, least
        self.band = 0  # of the last evaluation
        self.free = self.total = 0  # its evaluation episodes so far: without a conflict, and all
        self.good = self.judged = 0

    def evaluation(self, point: Point) -> None:
        steps, episodes = int(point["env_steps"]), int(point["eval/episodes"])
        band = -(-steps // self.size)
        if band != self.band:
            self.judge()
            self.band = band
        self.free += round((1.0 - point.get(self.conflict, 1.0)) * episodes)
        self.total += episodes
        if steps == band * self.size:
            self.judge()

    def judge(self) -> None:
        """The band has come to its end."""
        if not self.total:
            return
        self.good = self.good + 1 if self.free >= self.share * self.total else 0
        self.judged += 1
        self.free = self.total = 0
        if self.good >= self.needed and self.judged >= self.least_bands and not self.fired:
            text = (
                f"{self.good} bands of {self.size:,} steps in a row had at least {100 * self.share:g}% of the "
                "evaluation episodes without conflict"
            )
            self.fired = Stop("bands", text, converged=True)

    def columns(self) -> dict[str, int]:
        return {"band": self.band, "good_bands": self.good}

    def least(self) -> dict[str, int]:
        bands = max(self.needed, self.least_bands)
        return {"evaluations": bands, "steps": bands * self.size}


class NoImprovement(StoppingRule):
    """Stop after so many evaluations without a new best evaluation return."""

    counters = ("best", "waited")

    def __init__(self, evaluations: int):
        self.evaluations, self.waited = evaluations, 0
        self.best: float | None = None

    def evaluation(self, point: Point) -> None:
        value = point["eval/return_mean"]
        if self.best is None or value > self.best:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.waited >= self.evaluations and not self.fired:
            text = f"{self.waited} evaluations brought no new best return (the best is {self.best:.1f})"
            self.fired = Stop("no_improvement", text)

    def least(self) -> dict[str, int]:
        return {"evaluations": self.evaluations + 1}


@dataclass(frozen=True)
class Budget:
    """Steps and episodes since the run began, seconds since this process took it up; whichever is spent first."""

    steps: int | None = None
    episodes: int | None = None
    seconds: float | None = None

    def check(self, steps: int, episodes: int, seconds: float = 0.0) -> Stop | None:
        if self.steps is not None and steps >= self.steps:
            return Stop("max_steps", spent(self.steps, steps, "steps"))
        if self.episodes is not None and episodes >= self.episodes:
            return Stop("max_episodes", spent(self.episodes, episodes, "episodes"))
        if self.seconds is not None and seconds >= self.seconds:
            return Stop("max_seconds", f"the budget of {self.seconds:g} seconds is spent ({seconds:.0f} were used)")
        return None


def spent(budget: int, used: int, what: str) -> str:
    """Say that a budget is spent and, where more was used, how much."""
    return f"the budget of {budget:,} {what} is spent" + (f" ({used:,} were used)" if used > budget else "")


@dataclass
class Rules:
    """The budget of one run and its rules by name, in the order in which they are asked."""

    budget: Budget
    by_name: dict[str, StoppingRule]

    @classmethod
    def of(
        cls,
        stop: StopConfig,
        total_steps: int | None,
        total_episodes: int | None,
        metrics: Mapping[str, Metric] = MappingProxyType({}),
    ) -> Rules:
        """The rules of a configuration on an environment with these metrics. Where one of them is a violation, streaks
        without it are counted and logged whether or not they may end the run."""
        rules: dict[str, StoppingRule] = {}
        if stop.target_return is not None:
            rules["convergence"] = Convergence(stop.target_return, stop.convergence_window, stop.patience)
        if stop.metric is not None:
            condition = Condition(stop.metric, stop.above, stop.below, words_of(stop.metric, metrics))
            rules["metric"] = Streak([condition], stop.streak)
        violation = violation_of(metrics)
        if violation is not None:
            conflict = f"eval/{violation}"
            none, all_reach = Condition(conflict, below=0.0), Condition(SUCCESS, above=1.0)
            if "success" in metrics:
                n, text = stop.perfect_streak, "every evaluation episode succeeded without conflict"
                rules["perfect"] = Streak([none, all_reach], n, "perfect", "perfect_streak", text)
            n, text = stop.zero_conflict_streak, "no evaluation episode had a conflict"
            rules["zero_conflict"] = Streak([none], n, "zero_conflict", "zero_conflict_streak", text)
            if stop.band_steps is not None:
                rules["bands"] = Bands(conflict, stop.band_steps, stop.band_share, stop.bands, stop.min_bands)
        if stop.no_improvement is not None:
            rules["no_improvement"] = NoImprovement(stop.no_improvement)
        return cls(Budget(total_steps, total_episodes, stop.max_seconds), rules)

    def episodes(self, returns: list[float]) -> None:
        for rule in self.by_name.values():
            for value in returns:
                rule.episode(value)

    def evaluation(self, point: Point) -> dict[str, int]:
        """Read a row that has an evaluation, and return what the rules add to it."""
        for rule in self.by_name.values():
            rule.evaluation(point)
        return self.columns()

    def columns(self) -> dict[str, int]:
        """Streaks and bands as they stand."""
        counted = [self.by_name[name] for name in LOGGED if name in self.by_name]
        return {name: value for rule in counted for name, value in rule.columns().items()}

    def fired(self) -> Stop | None:
        """The first rule that says stop."""
        return next((rule.fired for rule in self.by_name.values() if rule.fired is not None), None)

    def state(self) -> dict[str, Saved]:
        rules = self.by_name.items()
        return {name: r.state() | {"fired": r.fired and dataclasses.asdict(r.fired)} for name, r in rules}

    def restore(self, saved: Mapping[str, Saved], stopped: bool) -> None:
        """Continue the waits of a rule; but where the run had `stopped`, a rule that fired begins anew."""
        for name, rule in self.by_name.items():
            state = saved.get(name)
            if state is None or (stopped and state["fired"]):
                continue
            rule.restore(state)
            rule.fired = Stop(**state["fired"]) if state["fired"] else None


def check_rules(stop: StopConfig, env: str, metrics: Mapping[str, Metric]) -> None:
    """Refuse rules about conflicts on an environment that reports none: they could never fire."""
    for name in ("zero_conflict_streak", "perfect_streak", "band_steps"):
        missing = None if violation_of(metrics) else "a metric of conflicts (one declared as a violation)"
        if name == "perfect_streak" and "success" not in metrics:
            missing = missing or "the metric 'success'"
        if getattr(stop, name) is not None and missing:
            names = f"its metrics: {', '.join(metrics)}" if metrics else "it has no metrics"
            raise ConfigError(
                f"stop.{name}: {env} does not report {missing} ({names}); leave the rule out "
                f"(`--stop.{name.replace('_', '-')} none`) or use stop.metric"
            )
