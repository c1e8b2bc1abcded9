"""The algorithm of a run: made by its name and bound to an environment and to the regimen."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from regimen import spaces
from regimen.algorithms import policy_map
from regimen.algorithms.base import Algorithm
from regimen.config.regimen import Regimen
from regimen.config.schema import ALGORITHMS, NetworkConfig, TrainConfig
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError
from regimen.types import PyTree, Spec

Frozen = Mapping[str, tuple[Algorithm, PyTree]]  # policies that only act, by name: bound algorithm, actor parameters


def make_algorithm(name: str, config: Any, network: NetworkConfig) -> Algorithm:
    """The algorithm registered as `name`, with its hyper-parameters."""
    cls = ALGORITHMS[name].load()
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise ConfigError(f"algorithm '{name}': {cls!r} is not a subclass of regimen.algorithms.base.Algorithm")
    return cls(config, network)


def spec_of(handle: EnvHandle, regimen: Regimen | None = None) -> Spec:
    """What an algorithm may know of an environment; without a regimen, nothing is collected from it."""
    spec = Spec(
        handle.observation_space,
        handle.action_space,
        handle.reward_components,
        agents=handle.agents,
        max_episode_steps=handle.max_episode_steps,
        env=handle.native,
        frames=handle.frames,
        action_conditions=handle.action_conditions,
    )
    if regimen is None:
        return spec
    counts = {"num_envs": regimen.num_envs, "workers": regimen.workers, "rollout_rows": regimen.rollout_rows}
    return dataclasses.replace(spec, **counts)


def bind_algorithm(config: TrainConfig, handle: EnvHandle, regimen: Regimen, frozen: Frozen | None = None) -> Algorithm:
    """The algorithm of a run, for its environment; with several policies, one that holds them all. `frozen` are those
    of `config.frozen`, loaded."""
    spec = spec_of(handle, regimen)
    algo = make_algorithm(config.algorithm, config.algo, config.network)
    policies = policy_map.parse(config.policy_map, handle.agents)
    frozen = frozen or {}
    if len(policies) == 1 and not frozen:
        return algo.bind(spec)
    for name, (actor, _) in frozen.items():
        for what in ("observation_space", "action_space"):
            space, expected = getattr(actor.bound.spec, what), getattr(handle, what)
            if not spaces.same(space, expected):
                raise ConfigError(f"frozen: the {what} of '{name}' is {space}; {handle.id} has {expected}")
    return policy_map.PolicyMap.of(algo, spec, policies, frozen)
