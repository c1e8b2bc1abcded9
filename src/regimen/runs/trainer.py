"""Training as an object, for Python programs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import make_algorithm
from regimen.algorithms.own_loop import Value
from regimen.config import layers
from regimen.config.calls import answered
from regimen.config.names import Answering
from regimen.config.schema import ALGORITHMS
from regimen.engines import device
from regimen.envs import registry
from regimen.envs.imports import OBJECT
from regimen.errors import ConfigError
from regimen.files.console import Console
from regimen.files.run_dir import read_summary
from regimen.files.storage import Json
from regimen.policies.evaluate import evaluate_policy
from regimen.policies.policy import Policy, load_policy
from regimen.runs.api import train, train_steps
from regimen.runs.own_run import OwnRun, recording
from regimen.runs.result import Result
from regimen.runs.session import Callback
from regimen.sources.trajectory_buffer import TrajectoryBuffer
from regimen.types import PyTree, Spec, State
from regimen.words import Figures

AlgoLike = str | Algorithm | type[Algorithm] | Mapping[str, Any] | None


@answered
class Trainer(Answering):
    """A training run as an object: `Trainer(env="cartpole", algo=PPO(lr=1e-3), total_steps=50_000).train()`.

    Args:
        env: a name, or a Gymnasium or native environment (instance, class or factory).
        algo: a name, an algorithm with its settings (`PPO(lr=1e-3)`) or its settings alone (`{"lr": 1e-3}`). Left out,
            it is the algorithm of `preset`, and otherwise PPO.
        quiet: whether nothing is printed; False shows progress.
        **overrides: any setting of `regimen train`, by its dotted name or by its last part where that is enough.
    """

    def __init__(
        self,
        env: registry.EnvLike = "cartpole",
        algo: AlgoLike = None,
        *,
        quiet: bool = True,
        **overrides: Any,
    ):
        if isinstance(env, Algorithm):
            raise ConfigError(
                f"the environment comes first: regimen.Trainer('cartpole', algo=regimen.{type(env).__name__}())"
            )
        if isinstance(algo, Mapping):
            algo, overrides = None, {"algo": algo} | overrides
        if inspect.isclass(algo) and issubclass(algo, Algorithm):
            algo = algo()
        if not isinstance(algo, str | None):
            algo, settings = settings_of(algo)
            overrides = layers.flatten(settings, algo) | layers.flatten(overrides, algo)
        self.handle: registry.EnvHandle | None = None
        if not isinstance(env, str):
            handle = registry.resolve(env, overrides.pop("env_args", {}))
            self.handle = dataclasses.replace(handle, id=name_of(env, handle))
            overrides["env_args"] = handle.env_args
            env = self.handle.id
        self.console = Console(quiet=quiet)
        self.config = layers.build_config(env, algo=algo, overrides=overrides)
        self.result: Result | None = None
        self._policy: Policy | None = None
        self._learner: tuple[Any, State] | None = None  # algorithm and state of a loop of one's own
        self._draws = 0
        self._run: OwnRun | None = None  # the run directory of that loop

    def train(self, callback: Callback | None = None) -> Result:
        """Train to the end and return the result.

        Args:
            callback: called with a dictionary after every update; returning True stops the run.
        """
        if callback is not None and not callable(callback):
            raise ConfigError(
                f"train: {callback!r} is no function; a budget is set before: Trainer(total_steps=100_000)"
            )
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        self.result = train(self.config, command, callback, self.console, self.handle)
        self._policy = None
        return self.result

    def updates(self) -> Iterator[Json]:
        """Train, and yield after each update what a callback would be told: `for update in trainer.updates(): ...`.

        Leaving the loop early leaves a run that is `interrupted` and saved, which
        `regimen.resume(trainer.result.run_dir)` continues as if nothing had happened.
        """
        if jax.distributed.is_initialized() and jax.process_count() > 1:
            raise ConfigError("updates: several processes train together; use train(callback) there")
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        steps = train_steps(self.config, command, None, self.console, self.handle, stepwise=True)
        path, self._policy = None, None
        try:
            while True:
                update = next(steps)
                path = update["run_dir"]
                yield update
        except StopIteration as end:
            self.result, path = end.value, None
        finally:
            steps.close()
            if path is not None:
                self.result = Result(path, read_summary(path))

    def begin(self) -> tuple[Any, State]:
        """The algorithm bound to the environment's spaces, and its first state: for `sample`, `value` and `update`."""
        if self._learner is None:
            handle = self.handle or registry.resolve(self.config.env, self.config.env_args)
            spaces = handle.observation_space, handle.action_space
            spec = Spec(*spaces, handle.reward_components, action_conditions=handle.action_conditions)
            algo = make_algorithm(self.config.algorithm, self.config.algo, self.config.network).bind(spec)
            self._learner = algo, algo.init(jax.random.key(self.config.seed))
        return self._learner

    def sample(self, obs: PyTree, mask: PyTree = None) -> tuple[PyTree, np.ndarray, Value]:
        """Draw an action for one observation: (action to store, its log-probability, value).

        What to send to the environment is `to_env(action)`.
        """
        algo, state = self.begin()
        self._draws += 1
        return algo.sample(state, obs, jax.random.fold_in(state.key, 2**30 + self._draws), mask)

    def value(self, obs: PyTree) -> Value:
        """The value that the critic gives an observation."""
        algo, state = self.begin()
        return algo.value(state, obs)

    def to_env(self, action: PyTree) -> PyTree:
        """The action as the environment takes it: clipped and scaled to the bounds of its space."""
        return self.begin()[0].to_env(action)

    def update(self, buffer: TrajectoryBuffer) -> dict[str, float]:
        """Learn from a `TrajectoryBuffer` of finished episodes and return the mean losses.

        Advantages are computed over all of them; then there are `algo.epochs` epochs of minibatches of
        `algo.minibatch_size`. Afterwards `policy` is the policy as it stands.
        """
        algo, state = self.begin()
        c, losses = algo.config, []
        state = algo.begin_update(state, buffer)
        for _ in range(c.epochs):
            for minibatch in buffer.create_minibatches(c.minibatch_size):
                state, of_minibatch = algo.update_minibatch(state, minibatch)
                losses.append(of_minibatch)
                if of_minibatch.get("stop"):
                    break
            if losses[-1].get("stop"):
                break
        state = algo.end_update(state, buffer, losses)
        if self._run is not None:
            self._run.log(state, buffer, losses)
            state = self._run.state  # of an update that was not finite, the one before
        self._learner = algo, state
        origin = {"algorithm": self.config.algorithm, "env": self.config.env, "env_args": self.config.env_args}
        self._policy = Policy(algo, algo.actor_params(state), origin | {"seed": self.config.seed})
        return {name: sum(x[name] for x in losses) / len(losses) for name in losses[0]}

    @contextlib.contextmanager
    def record(self, out: str | Path | None = None) -> Iterator[OwnRun]:
        """Write a run directory while a loop of your own trains: `with trainer.record("runs/mine") as run: ...`.

        Every `update` within the context adds a row, evaluates the policy when it is due, saves checkpoints and asks
        the stopping rules (`run.stop_reason`), as `regimen train` does with the same settings. At its end the run is
        evaluated and drawn; `run.result` and `trainer.result` say what came of it. A directory of a run that was
        interrupted is continued from its last checkpoint.

        Args:
            out: the run directory; by default a new one below `runs/`.
        """
        algo, state = self.begin()
        handle = self.handle or registry.resolve(self.config.env, self.config.env_args)

        def take(restored: State) -> None:
            self._learner = algo, restored

        with recording(self.config, handle, algo, state, out, self.console, take) as run:
            self._run, self._draws = run, self._draws + run.env_steps
            try:
                yield run
            finally:
                self._run = None
        self.result, self._policy = run.result, None

    @property
    def policy(self) -> Policy:
        """The best policy of the run, the one loaded, or that of the last `update`."""
        if self._policy is None:
            if self.result is None:
                raise ConfigError("there is no policy yet: call train(), update(buffer) or load(path) first")
            self._policy = self.result.policy
        return self._policy

    def evaluate(self, num_episodes: int = 10, seed: int = 0) -> dict[str, float]:
        """Play greedy episodes of the policy and return the mean, deviation, minimum and maximum of their returns."""
        if self.handle is None:
            device.configure(self.config.device, registry.is_native(self.config.env))
        handle = self.handle or registry.resolve(self.config.env, self.config.env_args)
        played = evaluate_policy(handle, self.policy, num_episodes, seed)
        of_returns = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
        figures = {f"return_{name}": float(of(played.returns)) for name, of in of_returns.items()}
        return Figures(figures | {"length_mean": float(played.lengths.mean())})

    def save(self, path: str | Path) -> Path:
        """Write the policy to a folder (safetensors and JSON) and return its path."""
        policy, path = self.policy, Path(path)
        policy.save(path)
        return path

    def load(self, path: str | Path) -> Trainer:
        """Take the policy of a run directory or of a saved policy folder as this trainer's."""
        self._policy = load_policy(path)
        return self


def settings_of(algo: Algorithm) -> tuple[str, dict[str, object]]:
    """The name of an algorithm object's class, and its hyper-parameters as settings."""
    name = next((n for n, entry in ALGORITHMS.items() if entry.load() is type(algo)), None)
    if name is None:
        raise ConfigError(f"algo: {type(algo).__name__} is not registered; see regimen.register_algorithm")
    return name, {"algo": dataclasses.asdict(algo.config), "network": dataclasses.asdict(algo.network)}


def name_of(env: Any, handle: registry.EnvHandle) -> str:
    """The id that makes this environment again with its arguments, else `python:Name`.

    Only a class or function that can be imported, a native instance of such a class, and what `gymnasium.make` made
    without further wrappers can be made again from an id.
    """
    if isinstance(env, gymnasium.Env):
        registered = env.spec is not None and env.spec.id in gymnasium.registry and not env.spec.additional_wrappers
        return handle.id if registered else f"{OBJECT}{type(env.unwrapped).__name__}"
    direct = inspect.isclass(env) or inspect.isfunction(env)
    what = env if direct else type(env)
    importable = what.__module__ != "__main__" and "<" not in what.__qualname__
    if importable and (direct or dataclasses.is_dataclass(env)):
        return handle.id
    return f"{OBJECT}{what.__name__}"
