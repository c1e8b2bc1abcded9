"""MountainCar (Moore 1990): rock a weak car out of a valley, with three actions or a continuous force that costs.

They equal Gymnasium's MountainCar-v0 and MountainCarContinuous-v0.
"""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def roll(env, key, state, obs):
    """An actor that does not accelerate."""
    return jnp.int32(1)


def rock(env, key, state, obs):
    """Accelerate the way the car is moving."""
    return jnp.where(obs[1] < 0, 0, 2).astype(jnp.int32)


def roll_continuous(env, key, state, obs):
    """No force costs nothing and reaches nothing: the return of 0 that learners get stuck at."""
    return jnp.zeros(1)


def rock_continuous(env, key, state, obs):
    """Full force the way the car is moving."""
    return jnp.where(obs[1:] < 0, -1.0, 1.0)


@native_env
class Valley(NativeEnv):
    """What both cars share. The state is the observation: position and velocity."""

    max_episode_steps: int = 200
    """Steps before an episode is cut short."""
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
    """Least velocity at which the goal counts as reached."""

    @property
    def observation_space(self):
        low = np.array([self.min_position, -self.max_speed], np.float32)
        return spaces.Box(low, np.array([self.max_position, self.max_speed], np.float32), dtype=np.float32)

    def reset(self, key: Array):
        state = jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), 0.0])  # at rest near the bottom
        return state, state

    def drive(self, state: Array, acceleration: Array) -> tuple[Array, Array]:
        """The next state, and whether the goal is reached."""
        velocity = state[1] + acceleration - jnp.cos(3 * state[0]) * self.gravity
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state[0] + velocity, self.min_position, self.max_position)
        velocity = jnp.where((position == self.min_position) & (velocity < 0), 0.0, velocity)  # the wall stops the car
        reached = (position >= self.goal_position) & (velocity >= self.goal_velocity)
        return jnp.stack([position, velocity]), reached


@native_env
class MountainCar(Valley):
    """Three actions, and a cost of 1 per step."""

    force: float = 0.001
    """Acceleration of the engine per step."""

    return_threshold = -110.0
    baselines = {"no_op": roll, "heuristic": rock}  # noqa: RUF012

    @property
    def action_space(self):
        return spaces.Discrete(3)  # accelerate left, roll, accelerate right

    def step(self, key: Array, state: Array, action: Array):
        state, reached = self.drive(state, (action - 1) * self.force)
        return state, TimeStep(obs=state, reward=jnp.float32(-1.0), terminated=reached)


@native_env
class MountainCarContinuous(Valley):
    """A continuous force, and a cost on its square."""

    max_episode_steps: int = 999
    """Steps before an episode is cut short."""
    goal_position: float = 0.45
    """Reached at or right of it."""
    power: float = 0.0015
    """Acceleration of the engine per step at full force."""

    return_threshold = 90.0
    baselines = {"no_op": roll_continuous, "heuristic": rock_continuous}  # noqa: RUF012

    @property
    def action_space(self):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, key: Array, state: Array, action: Array):
        state, reached = self.drive(state, jnp.clip(action[0], -1.0, 1.0) * self.power)
        reward = jnp.where(reached, 100.0, 0.0) - 0.1 * action[0] ** 2
        return state, TimeStep(obs=state, reward=reward, terminated=reached)
