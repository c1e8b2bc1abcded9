"""Trainings of a study: one compiled program per regimen, all seeds in it, started again as often as asked.

Nothing is written to disk. The greedy policy is evaluated about every `budget / checks` env steps, so that regimens
whose updates differ a thousandfold in size are looked at equally often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from regimen.axes import device_index
from regimen.config import layers, presets
from regimen.config.regimen import describe, resolve
from regimen.config.schema import RolloutConfig, TrainConfig
from regimen.engines.base import Progress
from regimen.engines.native import NativeEngine
from regimen.envs import registry
from regimen.envs.protocol import Env
from regimen.experiments.studies.curves import Curve
from regimen.experiments.studies.gradients import changed
from regimen.policies.evaluate import Evaluation, make_evaluator
from regimen.runs.build import make_engine
from regimen.runs.loop import Evaluator, Loop, LoopGoal
from regimen.sources.scan import Sample, ScanSource
from regimen.types import ActingAlgorithm, Array, PyTree, Record, State, pytree_dataclass
from regimen.words import plural

LIMIT = "max_episode_steps"


@dataclass(frozen=True)
class Recipe:
    """When to collect and how to turn it into an update; everything else is the same for all."""

    name: str
    rollout: RolloutConfig
    epochs: int | None  # None: an algorithm without epochs
    minibatch_size: int | None
    lr: float | None = None  # instead of the study's
    env_args: tuple[tuple[str, object], ...] = ()
    algo: tuple[tuple[str, object], ...] = ()  # further hyper-parameters

    @classmethod
    def episodes(cls, n: int, epochs: int, minibatch_size: int) -> Recipe:
        return cls(plural(n, "episode"), RolloutConfig(episodes=n), epochs, minibatch_size)

    @classmethod
    def preset(cls, name: str, limit: int | None, device: str) -> Recipe:
        """What a preset says of the regimen. `limit`: its episodes are never made longer than the environment's."""
        preset = presets.load_preset(name)
        config = layers.from_preset(preset, layers.guess_device(device))
        lr = config.algo.lr if "lr" in preset.settings.get("algo", {}) else None
        args = dict(config.env_args)
        if limit and args.get(LIMIT, 0) >= limit:
            args.pop(LIMIT)
        return cls(name, config.rollout, config.algo.epochs, config.algo.minibatch_size, lr, tuple(args.items()))

    @property
    def program(self) -> tuple[object, ...]:
        """What regimens that can share a compiled program have in common."""
        return (self.rollout, self.epochs, self.minibatch_size, self.env_args, self.algo)

    def apply(self, config: TrainConfig) -> TrainConfig:
        passes = {} if self.epochs is None else {"epochs": self.epochs, "minibatch_size": self.minibatch_size}
        algo = dataclasses.replace(config.algo, **passes, **dict(self.algo))
        return config.replace(rollout=self.rollout, algo=algo, env_args=config.env_args | dict(self.env_args))

    def describe(self, config: TrainConfig, limit: int | None, native: bool = True) -> str:
        config = self.apply(config)
        limit = config.env_args.get(LIMIT, limit)
        return describe(config, resolve(config, native=native, max_episode_steps=limit))


@pytree_dataclass
class Injected(Record):
    """An environment, and what the rewards of one episode of each rollout are multiplied by: data, so that any update
    of a compiled training can get an outlier."""

    env: Env
    factor: Array | float = 1.0


@dataclass(frozen=True)
class OutlierSource:
    """A source on `Injected`: the first episode of the first environment has its rewards multiplied in the batch, where
    the update sees them. Episode statistics stay as they were."""

    inner: ScanSource

    @property
    def sample(self) -> Sample | None:
        return self.inner.sample

    def share(self, devices: int) -> OutlierSource:
        return OutlierSource(self.inner.share(devices))

    def init(self, env: Injected, algo: ActingAlgorithm, key: Array) -> PyTree:
        return self.inner.init(env.env, algo, key)

    def rows(self, env: Injected) -> int:
        return self.inner.rows(env.env)

    def next(self, env: Injected, algo: ActingAlgorithm, carry: PyTree, params: PyTree, key: Array):
        carry, batch, rows, steps = self.inner.next(env.env, algo, carry, params, key)
        ends = (batch.terminated | batch.truncated)[:, 0]
        ends = ends.reshape(ends.shape[0], -1).any(1).astype(jnp.int32)
        first = (jnp.cumsum(ends) - ends == 0) & (device_index() == 0)  # [T]
        factor = jnp.where(first, jnp.asarray(env.factor, jnp.float32), 1.0)
        reward = batch.reward[:, 0] * factor.reshape(-1, *(1,) * (batch.reward.ndim - 2))
        return carry, batch.replace(reward=batch.reward.at[:, 0].set(reward)), rows, steps


def mean_of(values: list[float]) -> float:
    """The mean, or nan of no values."""
    return float(np.mean(values)) if values else float("nan")


def mean_return(evaluation: Evaluation) -> float:
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

    regimen: Recipe
    config: TrainConfig
    seeds: list[int]
    budget: int
    checks: int
    eval_episodes: int
    evaluator: Evaluator | None = None  # another bench's, where the policies have the same form
    score: Callable[[Evaluation], float] = mean_return
    middle: Middle | None = None
    engine: NativeEngine = field(init=False)

    def __post_init__(self):
        config = self.regimen.apply(self.config)
        handle = registry.resolve(config.env, config.env_args)
        engine = native_engine(config, self.seeds)
        if self.evaluator is None:  # of the environment as the study has it, whatever the regimen makes of it
            self.evaluator = make_evaluator(registry.resolve(config.env, self.config.env_args), engine.algo)
        engine.source, engine.env = OutlierSource(engine.source), Injected(engine.env)  # type: ignore[assignment]
        self.engine = engine
        self.start: tuple[PyTree, PyTree] = copied((engine.state, engine.carry))
        self.loop = Loop(handle, engine, self.seeds, self.evaluator, self.eval_episodes)

    def restart(self, state: PyTree, carry: PyTree, lr: float) -> list[Curve]:
        """Go on from a state with this learning rate; nothing is counted yet."""
        self.engine.state, self.engine.carry = copied((state, carry))
        self.engine.algo = changed(self.engine.algo, lr=float(lr))
        self.loop.begin()
        self.recent: list[dict[str, list[float]]] = [{"training": [], "entropy": []} for _ in self.seeds]
        return [Curve(seed) for seed in self.seeds]

    def policies(self) -> dict[str, State]:
        """The first seed's initial policy, and the one that a training stopped half-way has come to."""
        states = {"initial": self.start[0], "halfway": self.engine.state}
        return {name: self.engine.at(state, 0) for name, state in states.items()}

    def absorb(self, progress: Mapping[int, Progress]) -> None:
        """Keep what the seeds' trainings show between two evaluations."""
        for k, one in progress.items():
            self.recent[k]["training"] += one.episodes.reward.sum(-1).tolist()
            self.recent[k]["entropy"] += one.metrics.get("entropy", np.zeros(0))[: one.updates].tolist()

    def train(
        self,
        lr: float,
        tick: Callable[[float], None] = lambda share: None,
        until: Callable[[list[Curve]], bool] = lambda curves: False,
    ) -> list[Curve]:
        """All seeds for the whole budget, or until `until(curves)`; one curve each."""
        state, carry = self.start
        curves = self.restart(state, carry, lr)
        tallies = self.loop.tallies
        keep_middle = self.middle is None and lr == float(self.config.algo.lr)

        def absorb(progress: Mapping[int, Progress]) -> None:
            self.absorb(progress)
            tick(min(1.0, float(np.mean([min(t.steps, self.budget) for t in tallies])) / self.budget))

        self.look(curves, 0)
        for index in range(1, self.checks + 1):
            goal = LoopGoal(steps=round(self.budget * index / self.checks))
            self.loop.reach(lambda k, goal=goal: goal, absorb)
            self.look(curves, index)
            if keep_middle and 2 * index >= self.checks:
                returns = np.array([c.returns[-1] for c in curves])
                state, carry = copied((self.engine.state, self.engine.carry))
                self.middle = Middle(state, carry, np.array([t.steps for t in tallies]), returns)
                keep_middle = False
            if until(curves):
                break
        return curves

    def look(self, curves: list[Curve], index: int) -> None:
        """Evaluate the seeds that have been updated since they were last looked at, on the episodes of this index."""
        for k, (curve, tally) in enumerate(zip(curves, self.loop.tallies)):
            curve.diverged = tally.diverged
            if curve.updates and curve.updates[-1] >= tally.updates:
                continue
            curve.steps.append(tally.steps)
            curve.updates.append(tally.updates)
            curve.episodes.append(tally.episodes)
            curve.returns.append(self.score(self.loop.evaluate(k, index)))
            curve.seconds.append(self.loop.seconds)
            for name, values in self.recent[k].items():
                getattr(curve, name).append(mean_of(values))
                values.clear()

    def after_outlier(
        self, lr: float, factor: float, looks: tuple[int, ...], tick: Callable[[float], None] = lambda share: None
    ) -> list[Curve]:
        """Train on from the middle: one update with an outlier of this factor (1: without), then ordinary ones.

        Evaluated after so many updates (`looks`) on the same episodes for every factor, until the budget is spent.
        """
        middle = self.middle
        assert middle is not None, "train first"
        engine = self.engine
        curves = self.restart(middle.state, middle.carry, lr)
        tallies = self.loop.tallies
        rest = np.maximum(self.budget - middle.steps, 1)
        quiet: Injected = engine.env
        engine.env = quiet.replace(factor=float(factor))
        try:
            self.loop.reach(lambda k: LoopGoal(1), self.absorb)
        finally:
            engine.env = quiet
        self.look(curves, 0)
        for i, updates in enumerate(looks[1:], 1):
            self.loop.reach(lambda k, n=updates: LoopGoal(n) if tallies[k].steps < rest[k] else None, self.absorb)
            self.look(curves, i)
            tick((i + 1) / len(looks))
        return curves


def native_engine(config: TrainConfig, seeds: list[int]) -> NativeEngine:
    """A compiled training of all seeds, or of one where rollouts are wanted at a fixed policy."""
    engine = make_engine(config, registry.resolve(config.env, config.env_args), seeds, lambda: False)
    assert isinstance(engine, NativeEngine)
    return engine


def copied(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)
