"""Trials of workflows on `network_defense`: one policy that sees the order, one compiled program for all orders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.domains.network_defense.env import NetworkDefense, NetworkState
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.experiments.search.engine_trial import EngineTrial, Program
from regimen.experiments.search.space import Space
from regimen.experiments.search.trial import Arrays
from regimen.experiments.studies.gradients import changed
from regimen.files.run_dir import read_config
from regimen.files.storage import dotted
from regimen.policies.evaluate import Evaluation
from regimen.runs.learner import initial_from
from regimen.types import Array, Record, State, TimeStep, pytree_dataclass

ENV = "network_defense"
CONDITIONED = f"{ENV}/workflow"  # the same environment: its fields have other defaults
MINIBATCH = 3200  # where no run says otherwise


@pytree_dataclass
class Ordered(Record):
    """The environment with its orders as data, so that all of them share a program: one of the first `count` is drawn
    for every episode; with a count of 0 it stays as the environment has drawn it."""

    env: NetworkDefense
    orders: Array | np.ndarray  # [N] int32
    count: Array | np.int32

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("env", "orders", "count"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: Array) -> tuple[NetworkState, Array]:
        state, _ = self.env.reset(key)
        bits = jax.random.bits(jax.random.fold_in(key, 1), (), jnp.uint32)
        drawn = self.orders[(bits % jnp.maximum(self.count, 1).astype(jnp.uint32)).astype(jnp.int32)]
        state = state.replace(workflow=jnp.where(self.count == 0, state.workflow, drawn).astype(jnp.int32))
        return state, self.env.observe(state)

    def step(self, key: Array, state: NetworkState, action: Array) -> tuple[NetworkState, TimeStep]:
        return self.env.step(key, state, action)


class DefenceTrial(EngineTrial):
    """The value is the environment's own return, without the reward for alignment; the gate looks at compliance."""

    def __init__(
        self, space: Space, config: TrainConfig, seed: int = 0, source: Path | None = None, adapting: float = 1.0
    ):
        """`adapting`: the share of the learning rate with which orders are adapted, after a warm-up with all of it."""
        super().__init__(seed)
        self.adapting = adapting
        self.space, self.config, self.source = space, config, source
        self.repaired = config.env_args.get("compliance") == "repaired"

    def config_of(self, candidate: int) -> TrainConfig:
        return self.config

    def start(self, candidate: int, arrays: Arrays | None, number: int) -> None:
        super().start(candidate, arrays, number)
        self.learn_at(self.adapting if candidate >= 0 else 1.0)

    def share(self, candidates: Sequence[int], arrays: Arrays | None, number: int) -> None:
        super().share(candidates, arrays, number)
        self.learn_at(1.0)

    def learn_at(self, share: float) -> None:
        """A share of the learning rate. A hyper-parameter is data: nothing is compiled again."""
        engine = self.program(self.candidate).engine
        engine.algo = changed(engine.algo, lr=float(self.config.algo.lr * share))

    def env_of(self, candidate: int, env: NetworkDefense) -> Ordered:
        return self.env_of_all(() if candidate < 0 else (candidate,), env)

    def env_of_all(self, candidates: Sequence[int], env: NetworkDefense) -> Ordered:
        orders = np.zeros(len(self.space), np.int32)
        orders[: len(candidates)] = [self.space.values[c].index for c in candidates]
        return Ordered(env, orders, np.int32(len(candidates)))

    @property
    def adopts(self) -> bool:
        return self.source is not None

    def env_args_of(self, candidate: int) -> dict[str, object]:
        return self.config.env_args | {"workflow": self.space.values[candidate].name}

    def values(self, played: Evaluation) -> np.ndarray:
        return played.metrics["env_return"]

    def rates(self, played: Evaluation) -> tuple[np.ndarray, float]:
        """Episodes with too few fixes do not count in the repaired definition."""
        compliance = np.clip(played.metrics["compliance"].astype(np.float64), 0.0, 1.0)
        if not self.repaired:
            return compliance, float(played.metrics["fixes"].sum())
        return compliance[played.metrics["counted"] > 0], float(played.metrics["fixes_repaired"].sum())

    def row(self, played: Evaluation) -> dict[str, float]:
        alignment = played.components.get("alignment", np.zeros(len(played.returns)))
        return {"alignment": float(alignment.mean()), "fixes": float(played.metrics["fixes"].mean())}

    def adopt(self, program: Program) -> State:
        state = program.engine.state
        if self.source is None:
            return state
        return initial_from(self.source, self.config, program.handle, lambda text: None)(state)

    def identity(self) -> dict[str, object]:
        source = None if self.source is None else str(self.source.resolve())
        return super().identity() | {"init_from": source, "adapting": self.adapting}


def make_config(
    red: str,
    compliance: str,
    unit: int,
    source: Path | None,
    env_args: Mapping[str, object],
    overrides: Mapping[str, object],
    device: str = "auto",
    seed: int = 0,
) -> TrainConfig:
    """How policies are trained: as the run `source` was, or with the settings tuned for the environment."""
    for name in ("workflow", "red", "compliance"):
        if name in env_args:
            flag = "the search chooses it" if name == "workflow" else f"use --{name}"
            raise ConfigError(f"env.{name}: {flag}")
    task: dict[str, object] = {"red": red, "compliance": compliance, "workflow": "all", "alignment": "published"}
    base: dict[str, object] = {"algo": {"minibatch_size": MINIBATCH}}
    if source is not None:
        config = read_config(source)
        if config.get("env") not in (ENV, CONDITIONED):
            raise ConfigError(f"--init-from: {source} is a run on '{config.get('env')}', not on {ENV}")
        env = registry.resolve(config["env"], config.get("env_args")).native
        assert isinstance(env, NetworkDefense)
        if env.workflow == "none":
            raise ConfigError(f"--init-from: the policy of {source} does not see a workflow; train {CONDITIONED}")
        if env.alignment != "none":
            task["alignment"] = env.alignment
        task = {k: v for k, v in config.get("env_args", {}).items() if k not in task} | task
        base = {name: config[name] for name in ("algo", "network") if name in config}
    settings = {
        "env_args": task | dict(env_args),
        "rollout.episodes": unit,
        "rollout.num_envs": unit,
        "device": device,
        "seed": seed,
        **{f"algo.{name}_schedule": "constant" for name in ("lr", "clip", "ent")},
    }
    built = layers.build_config(ENV, algo="ppo", overrides=dict(dotted(base)) | settings | dict(overrides))
    return built.replace(curriculum={})
