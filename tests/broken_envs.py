"""Environments that break their contract, each in one way, for tests of what a user is then told."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import TimeStep


class Host(gymnasium.Env):
    """Five steps, reward 1. The faults start at the 40th step, after an update or two."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = ""):
        self.fault, self.t, self.total = fault, 0, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.total += 1
        obs, reward, fault = np.full(2, self.t / 5, np.float32), 1.0, self.fault if self.total > 40 else ""
        if fault == "raises":
            raise RuntimeError("the simulator crashed")
        if fault == "nan_obs":
            obs[0] = np.nan
        if fault == "shape":
            obs = np.zeros(3, np.float32)
        if fault == "nan_reward":
            reward = float("nan")
        return obs, reward, self.t >= 5, False, {}


def host(fault: str = ""):
    return Host(fault)


class Native(NativeEnv):
    @property
    def observation_space(self):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(2)


@native_env
class WrongShape(Native):
    max_episode_steps: int = 10

    def step(self, key, state, action):
        return state + 1, TimeStep(obs=jnp.zeros(3), reward=jnp.float32(1.0), terminated=jnp.bool_(False))


@native_env
class PythonIf(Native):
    max_episode_steps: int = 10

    def step(self, key, state, action):
        reward = 1.0 if action > 0 else 0.0
        return state + 1, TimeStep(obs=jnp.zeros(2), reward=jnp.float32(reward), terminated=jnp.bool_(False))


@native_env
class Luck(Native):
    """The reward of an episode is drawn at its start, and not a number when the draw is above `threshold`."""

    max_episode_steps: int = 4
    threshold: float = 2.0
    gain: float = 1.0

    def reset(self, key):
        x = jax.random.uniform(key)
        return x, jnp.full(2, x)

    def step(self, key, state, action):
        reward = jnp.where(state > self.threshold, jnp.nan, self.gain * state * action)
        return state, TimeStep(obs=jnp.full(2, state), reward=reward, terminated=jnp.bool_(False))
