"""Pendulum: swing a pole up and hold it with a torque too weak to lift it at once. Equals Gymnasium's Pendulum-v1."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def no_op(env, key, state, obs):
    """An actor that applies no torque."""
    return jnp.zeros(1)


def swing_up(env, key, state, obs):
    """Pump energy up to that of standing upright (Astrom and Furuta 2000), then balance with a linear law."""
    cos, sin, velocity = obs
    energy = velocity**2 / 2 + 3 * env.gravity / (2 * env.length) * (cos - 1)  # 0 when upright and still
    pump = -env.max_torque * jnp.sign(velocity * energy)
    torque = jnp.where(cos > 0.8, -20.0 * sin - 4.0 * velocity, pump)
    return jnp.clip(torque, -env.max_torque, env.max_torque)[None]


@native_env
class Pendulum(NativeEnv):
    """The state is the angle (zero is upright) and its velocity; episodes end only by the time limit."""

    max_episode_steps: int = 200
    """Steps before an episode is cut short."""
    gravity: float = 10.0
    """m/s^2."""
    mass: float = 1.0
    """kg."""
    length: float = 1.0
    """m."""
    dt: float = 0.05
    """Seconds per step."""
    max_torque: float = 2.0
    """Torques are clipped, N m."""
    max_speed: float = 8.0
    """The velocity is clipped, rad/s."""

    baselines = {"no_op": no_op, "heuristic": swing_up}  # noqa: RUF012

    @property
    def observation_space(self):
        high = np.array([1.0, 1.0, self.max_speed], np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self):
        high = np.array([self.max_torque], np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    def reset(self, key: Array):
        state = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.array([math.pi, 1.0])
        return state, observe(state)

    def step(self, key: Array, state: Array, action: Array):
        angle, velocity = state
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        cost = angle**2 + 0.1 * velocity**2 + 0.001 * torque**2

        acceleration = 3 * self.gravity / (2 * self.length) * jnp.sin(angle) + 3 / (self.mass * self.length**2) * torque
        velocity = jnp.clip(velocity + acceleration * self.dt, -self.max_speed, self.max_speed)
        angle = angle + velocity * self.dt
        # Gymnasium lets the angle grow and wraps it in the cost; wrapped here, float32 never loses its digits.
        angle = angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))
        state = jnp.stack([angle, velocity])
        return state, TimeStep(obs=observe(state), reward=-cost, terminated=jnp.bool_(False))


def observe(state: Array) -> Array:
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])
