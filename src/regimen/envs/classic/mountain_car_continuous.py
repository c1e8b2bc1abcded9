"""MountainCar with a continuous force and a cost on its square. Equals Gymnasium's MountainCarContinuous-v0."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.classic.mountain_car import drive, start
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def no_op(env, key, state, obs):
    """Roll: no force costs nothing and reaches nothing, the return of 0 that learners get stuck at."""
    return jnp.zeros(1)


def rock(env, key, state, obs):
    """Full force the way the car is moving."""
    return jnp.where(obs[1:] < 0, -1.0, 1.0)


@native_env
class MountainCarContinuous(NativeEnv):
    """The state is the observation: position and velocity."""

    max_episode_steps: int = 999
    """Steps before an episode is cut short."""
    power: float = 0.0015
    """Acceleration of the engine per step at full force."""
    gravity: float = 0.0025
    """Pull of the slope per step."""
    min_position: float = -1.2
    """The left wall."""
    max_position: float = 0.6
    """The right end of the track."""
    max_speed: float = 0.07
    """The velocity is clipped."""
    goal_position: float = 0.45
    """Reached at or right of it."""
    goal_velocity: float = 0.0
    """And at least this fast."""

    return_threshold = 90.0
    baselines = {"no_op": no_op, "heuristic": rock}  # noqa: RUF012

    @property
    def observation_space(self):
        low = np.array([self.min_position, -self.max_speed], np.float32)
        return spaces.Box(low, np.array([self.max_position, self.max_speed], np.float32), dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, key: Array):
        return start(key)

    def step(self, key: Array, state: Array, action: Array):
        state, reached = drive(self, state, jnp.clip(action[0], -1.0, 1.0) * self.power)
        reward = jnp.where(reached, 100.0, 0.0) - 0.1 * action[0] ** 2
        return state, TimeStep(obs=state, reward=reward, terminated=reached)
