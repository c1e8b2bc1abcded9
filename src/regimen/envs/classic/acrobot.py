"""Acrobot (Sutton 1996): swing a two-link arm above the bar by the joint between its links. Equals Acrobot-v1."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def no_op(env, key, state, obs):
    """An actor that applies no torque."""
    return jnp.int32(1)


def pump(env, key, state, obs):
    """Torque against the first link's swing, which feeds energy into it."""
    return jnp.where(obs[4] > 0, 0, 2).astype(jnp.int32)


@native_env
class Acrobot(NativeEnv):
    """The state is both joint angles (zero hangs down; the second relative to the first) and both velocities."""

    max_episode_steps: int = 500
    """Steps before an episode is cut short."""
    gravity: float = 9.8
    """m/s^2."""
    mass_1: float = 1.0
    """Mass of the upper link, kg."""
    mass_2: float = 1.0
    """Mass of the lower link, kg."""
    length_1: float = 1.0
    """Length of the upper link, m."""
    center_1: float = 0.5
    """Distance of its centre of mass from the bar, m."""
    center_2: float = 0.5
    """Distance of the lower link's centre of mass from the joint, m."""
    inertia: float = 1.0
    """Moment of inertia of either link."""
    torque: float = 1.0
    """Torque on the joint, N m."""
    dt: float = 0.2
    """Seconds per step."""
    max_velocity_1: float = 4 * math.pi
    """The first joint's velocity is clipped, rad/s."""
    max_velocity_2: float = 9 * math.pi
    """The second joint's velocity is clipped, rad/s."""

    return_threshold = -100.0
    baselines = {"no_op": no_op, "heuristic": pump}  # noqa: RUF012

    @property
    def observation_space(self):
        high = np.array([1, 1, 1, 1, self.max_velocity_1, self.max_velocity_2], np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(3)  # torque -1, 0, +1

    def reset(self, key: Array):
        state = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return state, observe(state)

    def step(self, key: Array, state: Array, action: Array):
        torque = (action - 1) * self.torque
        k1 = self.derivative(state, torque)  # classical Runge-Kutta over one step
        k2 = self.derivative(state + self.dt / 2 * k1, torque)
        k3 = self.derivative(state + self.dt / 2 * k2, torque)
        k4 = self.derivative(state + self.dt * k3, torque)
        state = state + self.dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        angle = state[:2] - 2 * math.pi * jnp.round(state[:2] / (2 * math.pi))
        limit = jnp.stack([self.max_velocity_1, self.max_velocity_2])
        state = jnp.concatenate([angle, jnp.clip(state[2:], -limit, limit)])
        reached = -jnp.cos(angle[0]) - jnp.cos(angle[0] + angle[1]) > 1.0
        return state, TimeStep(obs=observe(state), reward=jnp.where(reached, 0.0, -1.0), terminated=reached)

    def derivative(self, state: Array, torque: Array) -> Array:
        """d state / dt by the equations of Sutton and Barto's book (Gymnasium's default, not the NeurIPS variant)."""
        theta1, theta2, dtheta1, dtheta2 = state
        m1, m2, l1, lc1, lc2 = self.mass_1, self.mass_2, self.length_1, self.center_1, self.center_2
        cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + 2 * self.inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + self.inertia
        phi2 = m2 * lc2 * self.gravity * jnp.sin(theta1 + theta2)
        phi1 = (
            -m2 * l1 * lc2 * (dtheta2**2 + 2 * dtheta2 * dtheta1) * sin2
            + (m1 * lc1 + m2 * l1) * self.gravity * jnp.sin(theta1)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * dtheta1**2 * sin2 - phi2) / (
            m2 * lc2**2 + self.inertia - d2**2 / d1
        )
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return jnp.stack([dtheta1, dtheta2, ddtheta1, ddtheta2])


def observe(state: Array) -> Array:
    cos, sin = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cos[0], sin[0], cos[1], sin[1], state[2], state[3]])
