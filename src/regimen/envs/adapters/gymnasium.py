"""Native environments as Gymnasium environments, and what Regimen reads from a Gymnasium environment's info."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding

from regimen.envs.adapters.compiled import CompiledEnv, from_space, to_space
from regimen.envs.protocol import Env, agents_of
from regimen.errors import EnvError
from regimen.types import PyTree

Info = dict[str, Any]  # what an environment says beside the observation, by name


def to_gymnasium(env: Env, seed: int | None = None, render_mode: str | None = None) -> GymnasiumEnv:
    """A native environment for tools that speak Gymnasium; `render_mode` may be "rgb_array" where it can draw."""
    return GymnasiumEnv(env, seed, render_mode=render_mode)


class GymnasiumEnv(CompiledEnv, gymnasium.Env):
    """One copy of a native environment, compiled for the CPU.

    `info` has the environment's metrics by name, `reward_components` where there is more than one, and `action_mask`
    where the environment has one: an array, or of the structure of a Dict or Tuple action space, None where all is
    allowed. `time_limit=False` leaves `max_episode_steps` to a wrapper.
    """

    def __init__(self, env: Env, seed: int | None = None, time_limit: bool = True, render_mode: str | None = None):
        if agents_of(env):
            raise EnvError(f"{type(env).__name__} has several agents; use to_pettingzoo")
        super().__init__(env, render_mode, time_limit)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        if seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(seed)

    @property
    def state(self) -> PyTree:
        """The state of the native environment."""
        return self.native_state

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None):
        gymnasium.Env.reset(self, seed=seed)
        # The seed of a key is drawn from np_random, so that it follows Gymnasium's rules for seeding.
        obs, _, mask = self.begin(self.np_random)
        return to_space(self.observation_space, obs), self.make_info({}, mask)

    def step(self, action: PyTree):
        ts, _, mask = self.advance(from_space(self.action_space, action))
        reward = np.ravel(ts.reward)
        cut = (bool(ts.truncated) or self.is_late) and not ts.terminated
        info = self.make_info(ts.metrics, mask, reward)
        return to_space(self.observation_space, ts.obs), float(reward.sum()), bool(ts.terminated), cut, info


def register_with_gymnasium() -> list[str]:
    """Register every native environment of one agent as `regimen/<name>`, a slash becoming a dot; returns the ids.

    After it `gymnasium.make("regimen/cartpole", gravity=3.7)`, `gymnasium.make("regimen/probe.action")` and
    `gymnasium.make("regimen/moving", render_mode="rgb_array")` work.
    """
    from regimen.envs.registry import ENVS, resolve

    handles = {"regimen/" + name.replace("/", "."): resolve(name) for name in ENVS}
    handles = {gym_id: h for gym_id, h in handles.items() if h.native is not None and not h.agents}
    for gym_id, handle in handles.items():
        if gym_id not in gymnasium.registry:
            gymnasium.register(
                id=gym_id,
                entry_point="regimen.envs.adapters.gymnasium:make_registered",
                reward_threshold=handle.return_threshold,
                max_episode_steps=handle.max_episode_steps,
                kwargs={"name": handle.id},
            )
    return list(handles)


def make_registered(name: str, render_mode: str | None = None, **fields: object) -> GymnasiumEnv:
    """The entry point of `regimen/<name>`; `gymnasium.make` adds the time limit."""
    from regimen.envs.registry import resolve

    env = resolve(name, fields).native
    assert env is not None
    return GymnasiumEnv(env, time_limit=False, render_mode=render_mode)


def read_components(reward: SupportsFloat, info: Info, names: tuple[str, ...]) -> np.ndarray:
    """The reward by component [K]: itself when there is one, else what info["reward_components"] says, where a part
    that is missing is 0."""
    if len(names) == 1:
        return np.array([reward], np.float64)
    parts = info.get("reward_components", None if reward else {})
    if not isinstance(parts, dict) or not set(parts) <= set(names):
        raise EnvError(f"info['reward_components'] is {parts!r}; it must be a dict with the keys {', '.join(names)}")
    row = np.array([parts.get(n, 0.0) for n in names], np.float64)
    if not abs(row.sum() - float(reward)) <= 1e-4 * max(1.0, abs(float(reward))):
        raise EnvError(f"info['reward_components'] {parts} sums to {row.sum():g}; the reward is {float(reward):g}")
    return row


def read_mask(info: Info) -> PyTree:
    """info["action_mask"] as one flat row of booleans, True = allowed; None when there is none.

    The mask of a hybrid action, which is or contains a dict or a tuple with a None, keeps its structure.
    """
    mask = info.get("action_mask")
    if mask is None:
        return None
    if is_nested(mask):
        return jax.tree.map(lambda part: np.asarray(part, bool), mask)
    parts = mask if isinstance(mask, (tuple, list)) and np.ndim(mask[0]) else [mask]
    return np.concatenate([np.ravel(np.asarray(p, bool)) for p in parts])


def is_nested(mask: PyTree) -> bool:
    return isinstance(mask, dict) or (isinstance(mask, tuple) and any(p is None or is_nested(p) for p in mask))


def read_success(info: Info) -> bool | None:
    """info["is_success"], or a metric `success`; None when the environment does not say."""
    success = info.get("is_success", info.get("success"))
    return None if success is None else bool(success)
