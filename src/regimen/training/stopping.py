"""Rules that end a run. Each is fed what it needs, remembers why it fired, and can be saved and restored."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import Any

from regimen.config import StopConfig


@dataclass(frozen=True)
class Stop:
    """Why a run ended: a short code, the sentence shown, and whether the goal was reached."""

    code: str
    reason: str
    converged: bool = False


class Convergence:
    """The mean of the last `window` training episodes is at least `target`, and there has been no new best mean for
    `patience` further episodes. Falling below the target starts the wait anew."""

    def __init__(self, target: float, window: int, patience: int):
        self.target, self.window, self.patience = target, window, patience
        self.returns: deque[float] = deque(maxlen=window)
        self.total, self.waited = 0.0, 0
        self.best: float | None = None
        self.fired: Stop | None = None

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
                f"converged: mean return {mean:.1f} over the last {self.window} episodes is at least {self.target:g}, "
                f"no new best for {self.patience} episodes"
            )
            self.fired = Stop("converged", text, converged=True)

    def state(self) -> dict[str, Any]:
        return {"returns": list(self.returns), "total": self.total, "best": self.best, "waited": self.waited}

    def restore(self, saved: dict[str, Any]) -> None:
        self.returns.extend(saved["returns"])
        self.total, self.best, self.waited = saved["total"], saved["best"], saved["waited"]


class MetricStreak:
    """A logged metric is at least `above`, or at most `below`, for `streak` evaluations in a row."""

    def __init__(self, metric: str, above: float | None, below: float | None, streak: int):
        self.metric, self.above, self.below, self.streak = metric, above, below, streak
        self.run = 0
        self.fired: Stop | None = None

    def met(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.above if self.above is not None else value <= self.below  # type: ignore[operator]

    def evaluation(self, point: dict[str, Any]) -> None:
        value = point.get(self.metric)
        self.run = self.run + 1 if self.met(value) else 0
        if self.run >= self.streak and not self.fired:
            side = f"at least {self.above:g}" if self.above is not None else f"at most {self.below:g}"
            times = "" if self.streak == 1 else f" for {self.streak} evaluations in a row"
            self.fired = Stop("metric", f"reached: {self.metric} {value:.4g} is {side}{times}", converged=True)

    def state(self) -> dict[str, Any]:
        return {"run": self.run}

    def restore(self, saved: dict[str, Any]) -> None:
        self.run = saved["run"]


class NoImprovement:
    """So many evaluations without a new best evaluation return."""

    def __init__(self, evaluations: int):
        self.evaluations, self.waited = evaluations, 0
        self.best: float | None = None
        self.fired: Stop | None = None

    def evaluation(self, point: dict[str, Any]) -> None:
        value = point["eval/return_mean"]
        if self.best is None or value > self.best:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.waited >= self.evaluations and not self.fired:
            text = f"no improvement: {self.waited} evaluations without a new best; best {self.best:.1f}"
            self.fired = Stop("no_improvement", text)

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def restore(self, saved: dict[str, Any]) -> None:
        self.best, self.waited = saved["best"], saved["waited"]


@dataclass(frozen=True)
class Budget:
    """Steps and episodes since the run began, seconds since this process took it up; whichever is spent first."""

    steps: int | None = None
    episodes: int | None = None
    seconds: float | None = None

    def check(self, steps: int, episodes: int, seconds: float = 0.0) -> Stop | None:
        if self.steps is not None and steps >= self.steps:
            return Stop("max_steps", f"budget spent: {steps:,} of {self.steps:,} steps")
        if self.episodes is not None and episodes >= self.episodes:
            return Stop("max_episodes", f"budget spent: {episodes:,} of {self.episodes:,} episodes")
        if self.seconds is not None and seconds >= self.seconds:
            return Stop("max_seconds", f"time is up: {seconds:.0f} of {self.seconds:g} seconds")
        return None


@dataclass
class Rules:
    """The rules of one run."""

    budget: Budget
    convergence: Convergence | None = None
    metric: MetricStreak | None = None
    no_improvement: NoImprovement | None = None

    @classmethod
    def of(cls, stop: StopConfig, total_steps: int | None, total_episodes: int | None) -> Rules:
        rules = cls(Budget(total_steps, total_episodes, stop.max_seconds))
        if stop.target_return is not None:
            rules.convergence = Convergence(stop.target_return, stop.convergence_window, stop.patience)
        if stop.metric is not None:
            rules.metric = MetricStreak(stop.metric, stop.above, stop.below, stop.streak)
        if stop.no_improvement is not None:
            rules.no_improvement = NoImprovement(stop.no_improvement)
        return rules

    def named(self) -> dict[str, Convergence | MetricStreak | NoImprovement]:
        rules = {name: getattr(self, name) for name in ("convergence", "metric", "no_improvement")}
        return {name: rule for name, rule in rules.items() if rule is not None}

    def episodes(self, returns: list[float]) -> None:
        if self.convergence is not None:
            for value in returns:
                self.convergence.episode(value)

    def evaluation(self, point: dict[str, Any]) -> None:
        """A logged row that has an evaluation."""
        for rule in (self.metric, self.no_improvement):
            if rule is not None:
                rule.evaluation(point)

    def fired(self) -> Stop | None:
        """The first rule that says stop."""
        return next((rule.fired for rule in self.named().values() if rule.fired is not None), None)

    def state(self) -> dict[str, Any]:
        def plain(stop: Stop | None) -> dict[str, Any] | None:
            return None if stop is None else dataclasses.asdict(stop)

        return {name: rule.state() | {"fired": plain(rule.fired)} for name, rule in self.named().items()}

    def restore(self, saved: dict[str, Any], stopped: bool) -> None:
        """Continue the waits; but where the run had `stopped`, a rule that fired begins anew."""
        for name, rule in self.named().items():
            state = saved.get(name)
            if state is None or (stopped and state["fired"]):
                continue
            rule.restore(state)
            rule.fired = Stop(**state["fired"]) if state["fired"] else None
