"""MountainCar (Moore 1990): rock a weak car out of a valley. Equals Gymnasium's MountainCar-v0."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def no_op(env, key, state, obs):
    """Roll."""
    return jnp.int32(1)


def rock(env, key, state, obs):
    """Always accelerate the way the car is moving."""
    return jnp.where(obs[1] < 0, 0, 2).astype(jnp.int32)


@native_env
class MountainCar(NativeEnv):
    """The state is the observation: position and velocity."""

    max_episode_steps: int = 200
    """Steps before an episode is cut short."""
    force: float = 0.001
    """Acceleration of the engine per step."""
    gravity: float = 0.0025
    """Pull of the slope per step."""
    min_position: float = -1.2
    """The left wall."""
    max_position: float = 0.6
    """The right end of the track."""
    max_speed: float = 0.07
    """The velocity is clipped."""
    goal_position: float = 0.5
    """Reached at or right of it."""
    goal_velocity: float = 0.0
    """And at least this fast."""

    return_threshold = -110.0
    baselines = {"no_op": no_op, "heuristic": rock}  # noqa: RUF012

    @property
    def observation_space(self):
        low = np.array([self.min_position, -self.max_speed], np.float32)
        return spaces.Box(low, np.array([self.max_position, self.max_speed], np.float32), dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(3)  # accelerate left, roll, accelerate right

    def reset(self, key: Array):
        return start(key)

    def step(self, key: Array, state: Array, action: Array):
        state, reached = drive(self, state, (action - 1) * self.force)
        return state, TimeStep(obs=state, reward=jnp.float32(-1.0), terminated=reached)


def start(key: Array) -> tuple[Array, Array]:
    """At rest near the bottom of the valley."""
    state = jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), 0.0])
    return state, state


def drive(env, state: Array, acceleration: Array) -> tuple[Array, Array]:
    """The valley both versions share: the next state, and whether the goal is reached."""
    velocity = state[1] + acceleration - jnp.cos(3 * state[0]) * env.gravity
    velocity = jnp.clip(velocity, -env.max_speed, env.max_speed)
    position = jnp.clip(state[0] + velocity, env.min_position, env.max_position)
    velocity = jnp.where((position == env.min_position) & (velocity < 0), 0.0, velocity)  # the left wall stops the car
    reached = (position >= env.goal_position) & (velocity >= env.goal_velocity)
    return jnp.stack([position, velocity]), reached
