"""Trainings of a study: one compiled program per regimen, all seeds in it, started again as often as asked.

Nothing is written to disk. The greedy policy is evaluated about every `budget / checks` env steps, so that regimens
whose updates differ a thousandfold in size are looked at equally often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.axes import device_index
from regimen.config import layers, presets
from regimen.config.regimen import describe, resolve
from regimen.config.schema import RolloutConfig, TrainConfig
from regimen.engines.base import IDLE, Engine, Limits, NativeEngine, Progress
from regimen.envs import registry
from regimen.experiments.studies.curves import Curve
from regimen.experiments.studies.gradients import changed
from regimen.runs.build import make_engine
from regimen.runs.session import evaluation_seed
from regimen.sources.scan import ScanSource
from regimen.types import Array, PyTree, Record, pytree_dataclass

LIMIT = "max_episode_steps"


@dataclass(frozen=True)
class Regimen:
    """When to collect and how to turn it into an update; everything else is the same for all."""

    name: str
    rollout: RolloutConfig
    epochs: int | None  # None: an algorithm without epochs
    minibatch_size: int | None
    lr: float | None = None  # its own, instead of the study's
    env_args: tuple[tuple[str, Any], ...] = ()
    algo: tuple[tuple[str, Any], ...] = ()  # further hyper-parameters

    @classmethod
    def episodes(cls, n: int, epochs: int, minibatch_size: int) -> Regimen:
        name = f"{n} episode" + ("" if n == 1 else "s")
        return cls(name, RolloutConfig(episodes=n), epochs, minibatch_size)

    @classmethod
    def preset(cls, name: str, limit: int, device: str) -> Regimen:
        """What a preset says of the regimen. `limit`: its episodes are never made longer than the environment's."""
        preset = presets.load_preset(name)
        config = layers.from_preset(preset, layers.guess_device(device))
        lr = config.algo.lr if "lr" in preset.settings.get("algo", {}) else None
        args = dict(config.env_args)
        if args.get(LIMIT, 0) >= limit:
            args.pop(LIMIT)
        return cls(name, config.rollout, config.algo.epochs, config.algo.minibatch_size, lr, tuple(args.items()))

    @property
    def program(self) -> tuple[Any, ...]:
        """What regimens that can share a compiled program have in common."""
        return (self.rollout, self.epochs, self.minibatch_size, self.env_args, self.algo)

    def apply(self, config: TrainConfig) -> TrainConfig:
        own = {} if self.epochs is None else {"epochs": self.epochs, "minibatch_size": self.minibatch_size}
        algo = dataclasses.replace(config.algo, **own, **dict(self.algo))
        return config.replace(rollout=self.rollout, algo=algo, env_args=config.env_args | dict(self.env_args))

    def describe(self, config: TrainConfig, limit: int) -> str:
        mine = self.apply(config)
        limit = mine.env_args.get(LIMIT, limit)
        return describe(mine, resolve(mine, native=True, max_episode_steps=limit))


# --- an outlier ------------------------------------------------------------------------------------------------------


@pytree_dataclass
class Injected(Record):
    """An environment, and what the rewards of one episode of each rollout are multiplied by: data, so that any update
    of a compiled training can get an outlier."""

    env: Any
    factor: Any = 1.0


@dataclass(frozen=True)
class OutlierSource:
    """A source on `Injected`: the first episode of the first environment has its rewards multiplied in the batch, where
    the update sees them. Episode statistics stay as they were."""

    inner: ScanSource

    def share(self, devices: int) -> OutlierSource:
        return OutlierSource(self.inner.share(devices))

    def init(self, env: Injected, algo: Any, key: Array) -> PyTree:
        return self.inner.init(env.env, algo, key)

    def rows(self, env: Injected) -> int:
        return self.inner.rows(env.env)

    def max_episodes(self, env: Injected) -> int:
        return self.inner.max_episodes(env.env)

    def next(self, env: Injected, algo: Any, carry: PyTree, params: PyTree, key: Array):
        carry, batch, rows, steps = self.inner.next(env.env, algo, carry, params, key)
        done = (batch.terminated | batch.truncated)[:, 0]
        done = done.reshape(done.shape[0], -1).any(1).astype(jnp.int32)
        first = (jnp.cumsum(done) - done == 0) & (device_index() == 0)  # [T]
        factor = jnp.where(first, jnp.asarray(env.factor, jnp.float32), 1.0)
        scaled = batch.reward[:, 0] * factor.reshape(-1, *(1,) * (batch.reward.ndim - 2))
        return carry, batch.replace(reward=batch.reward.at[:, 0].set(scaled)), rows, steps


# --- trainings -------------------------------------------------------------------------------------------------------


@dataclass
class Marks:
    """Counters of the seeds, and what has happened since the last evaluation."""

    steps: np.ndarray  # [seeds]
    updates: np.ndarray
    episodes: np.ndarray
    alive: np.ndarray  # False: diverged
    returns: list[list[float]]
    entropy: list[list[float]]
    seconds: float = 0.0  # of training, all seeds together

    @classmethod
    def zero(cls, n: int) -> Marks:
        steps, updates, episodes = (np.zeros(n, np.int64) for _ in range(3))
        return cls(steps, updates, episodes, np.ones(n, bool), [[] for _ in range(n)], [[] for _ in range(n)])

    def add(self, k: int, progress: Progress) -> None:
        self.steps[k] += int(progress.steps.sum())
        self.updates[k] += progress.updates
        self.episodes[k] += len(progress.episodes.update)
        self.alive[k] &= not progress.diverged
        self.returns[k] += progress.episodes.reward.sum(-1).tolist()
        if "entropy" in progress.metrics:
            self.entropy[k] += progress.metrics["entropy"][: progress.updates].tolist()


def mean_of(values: list[float]) -> float:
    """The mean of what came together, which is then forgotten; nan when nothing did."""
    mean = float(np.mean(values)) if values else float("nan")
    values.clear()
    return mean


def mean_return(evaluation: Any) -> float:
    return float(evaluation.returns.mean())


@dataclass
class Middle:
    """All seeds half-way through the budget, at the study's learning rate."""

    state: PyTree
    carry: PyTree
    steps: np.ndarray
    returns: np.ndarray  # of the greedy policy, then


@dataclass
class Bench:
    """One regimen's compiled training, for a list of seeds."""

    regimen: Regimen
    config: TrainConfig
    seeds: list[int]
    budget: int
    checks: int
    evaluate: Callable[..., Any]  # actor params, seed, episodes
    eval_episodes: int
    score: Callable[[Any], float] = mean_return  # of an Evaluation
    middle: Middle | None = None
    engine: NativeEngine = field(init=False)

    def __post_init__(self):
        mine = self.regimen.apply(self.config)
        engine: Engine = make_engine(mine, registry.resolve(mine.env, mine.env_args), self.seeds, lambda: False)
        assert isinstance(engine, NativeEngine)
        engine.source, engine.env = OutlierSource(engine.source), Injected(engine.env)  # type: ignore[assignment]
        self.engine, self.start = engine, copied((engine.state, engine.carry))

    @property
    def learners(self) -> range:
        return range(len(self.seeds))

    def restart(self, lr: float) -> None:
        """Back to the initial policies, with this learning rate."""
        self.engine.state, self.engine.carry = copied(self.start)
        self.engine.algo = changed(self.engine.algo, lr=float(lr))

    def evaluation(self, k: int, index: int) -> float:
        """The greedy policy of learner k on the episodes of evaluation `index`: its score, by default the mean
        return."""
        seed = evaluation_seed(self.seeds[k], index)
        return self.score(self.evaluate(self.engine.actor_params(k), seed, self.eval_episodes))

    def advance(self, marks: Marks, limits: dict[int, Limits]) -> None:
        progress = self.engine.advance([limits.get(k, IDLE) for k in self.learners])
        for k in limits:
            marks.add(k, progress[k])
        marks.seconds += max(progress[k].seconds for k in limits)

    def train(
        self,
        lr: float,
        tick: Callable[[float], None] = lambda share: None,
        until: Callable[[list[Curve]], bool] = lambda curves: False,
    ) -> list[Curve]:
        """All seeds for the whole budget, or until `until(curves)`; one curve each."""
        self.restart(lr)
        curves, marks = [Curve.empty(seed) for seed in self.seeds], Marks.zero(len(self.seeds))
        keep_middle = self.middle is None and lr == float(self.config.algo.lr)
        self.look(curves, marks, 0)
        for index in range(1, self.checks + 1):
            goal = round(self.budget * index / self.checks)
            while limits := {
                k: Limits(steps=goal - int(marks.steps[k]))
                for k in self.learners
                if marks.alive[k] and marks.steps[k] < goal
            }:
                self.advance(marks, limits)
                tick(min(1.0, float(np.mean(np.minimum(marks.steps, self.budget))) / self.budget))
            self.look(curves, marks, index)
            if keep_middle and 2 * index >= self.checks:
                returns = np.array([c.returns[-1] for c in curves])
                state, carry = copied((self.engine.state, self.engine.carry))
                self.middle = Middle(state, carry, marks.steps.copy(), returns)
                keep_middle = False
            if until(curves):
                break
        return curves

    def look(self, curves: list[Curve], marks: Marks, index: int) -> None:
        """Evaluate the seeds that have been updated since they were last looked at."""
        new = [k for k in self.learners if not curves[k].updates or curves[k].updates[-1] < marks.updates[k]]
        for k in new:
            c = curves[k]
            c.steps.append(int(marks.steps[k]))
            c.updates.append(int(marks.updates[k]))
            c.episodes.append(int(marks.episodes[k]))
            c.returns.append(self.evaluation(k, index))
            c.training.append(mean_of(marks.returns[k]))
            c.entropy.append(mean_of(marks.entropy[k]))
            c.seconds.append(marks.seconds)
        for k in self.learners:
            curves[k].diverged = not marks.alive[k]

    def after_outlier(
        self, lr: float, factor: float, looks: tuple[int, ...], tick: Callable[[float], None] = lambda share: None
    ) -> list[Curve]:
        """From the middle of training: one update with an outlier of this factor (1: without), then ordinary ones.

        Evaluated after so many updates (`looks`) on the same episodes for every factor, until the budget is spent.
        """
        middle = self.middle
        assert middle is not None, "train first"
        engine = self.engine
        engine.state, engine.carry = copied((middle.state, middle.carry))
        engine.algo = changed(engine.algo, lr=float(lr))
        curves, marks = [Curve.empty(seed) for seed in self.seeds], Marks.zero(len(self.seeds))
        rest = np.maximum(self.budget - middle.steps, 1)
        quiet: Any = engine.env
        engine.env = quiet.replace(factor=float(factor))
        try:
            self.advance(marks, {k: Limits(1) for k in self.learners})
        finally:
            engine.env = quiet
        self.look(curves, marks, 0)
        for i, goal in enumerate(looks[1:], 1):
            while limits := {
                k: Limits(goal - int(marks.updates[k]))
                for k in self.learners
                if marks.alive[k] and marks.updates[k] < goal and marks.steps[k] < rest[k]
            }:
                self.advance(marks, limits)
            self.look(curves, marks, i)
            tick((i + 1) / len(looks))
        return curves


def copied(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)
