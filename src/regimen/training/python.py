"""Training as an object, for Python programs."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import gymnasium

from regimen import settings
from regimen.config import ALGORITHMS
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.tracking.console import Console
from regimen.training import device
from regimen.training.api import OBJECT, evaluate_policy, train
from regimen.training.policy import Policy, load_policy
from regimen.training.result import Result
from regimen.training.trainer import Callback


class Trainer:
    """`Trainer(env="cartpole", algo=PPO(lr=1e-3), total_steps=50_000).train()`.

    `env` is an id, or a Gymnasium or native environment (instance, class or factory); `algo` a name or an algorithm
    object; `overrides` any setting of `regimen train`, by dotted or unambiguous name. `quiet=False` shows progress.
    """

    def __init__(self, env: Any = "cartpole", algo: Any = "ppo", *, quiet: bool = True, **overrides: Any):
        if not isinstance(algo, str):
            algo, given = settings_of(algo)
            overrides = settings.flatten(given, algo) | settings.flatten(overrides, algo)
        self.handle: registry.EnvHandle | None = None
        if not isinstance(env, str):
            handle = registry.resolve(env, overrides.pop("env_args", {}))
            self.handle = dataclasses.replace(handle, id=name_of(env, handle))
            overrides["env_args"] = handle.env_args
            env = self.handle.id
        self.console = Console(quiet=quiet)
        self.config = settings.build_config(env, algo=algo, overrides=overrides)
        self.result: Result | None = None
        self._policy: Policy | None = None

    def train(self, callback: Callback | None = None) -> Result:
        """Train to the end; `callback` is called once per update and may return True to stop."""
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        self.result = train(self.config, command, callback, self.console, self.handle)
        self._policy = None
        return self.result

    @property
    def policy(self) -> Policy:
        """The best policy of the run, or the one loaded."""
        if self._policy is None:
            if self.result is None:
                raise ConfigError("there is no policy yet: call train() or load(path) first")
            self._policy = self.result.policy
        return self._policy

    def evaluate(self, num_episodes: int = 10, seed: int = 0) -> dict[str, float]:
        """Greedy episodes of the policy."""
        if self.handle is None:
            device.configure(self.config.device, registry.is_native(self.config.env))
        handle = self.handle or registry.resolve(self.config.env, self.config.env_args)
        played = evaluate_policy(handle, self.policy, num_episodes, seed)
        return {
            "avg_reward": float(played.returns.mean()),
            "std_reward": float(played.returns.std()),
            "min_reward": float(played.returns.min()),
            "max_reward": float(played.returns.max()),
            "avg_length": float(played.lengths.mean()),
        }

    def save(self, path: str | Path) -> Path:
        """Write the policy folder (safetensors and JSON)."""
        policy, path = self.policy, Path(path)
        policy.save(path)
        return path

    def load(self, path: str | Path) -> Trainer:
        """Use the policy of a run directory or of a saved policy folder."""
        self._policy = load_policy(path)
        return self


def settings_of(algo: Any) -> tuple[str, dict[str, Any]]:
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
        known = env.spec is not None and env.spec.id in gymnasium.registry and not env.spec.additional_wrappers
        return handle.id if known else f"{OBJECT}{type(env.unwrapped).__name__}"
    direct = inspect.isclass(env) or inspect.isfunction(env)
    what = env if direct else type(env)
    importable = what.__module__ != "__main__" and "<" not in what.__qualname__
    if importable and (direct or dataclasses.is_dataclass(env)):
        return handle.id
    return f"{OBJECT}{what.__name__}"
