"""CartPole (Barto, Sutton and Anderson 1983): keep a pole upright on a cart. Equals Gymnasium's CartPole-v1."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, TimeStep


def lean(env, key, state, obs):
    """Push towards the side the pole is falling to, with a little pull back to the centre of the track."""
    x, x_dot, theta, theta_dot = state
    return (theta + 0.3 * theta_dot + 0.01 * x + 0.03 * x_dot > 0).astype(jnp.int32)


@native_env
class CartPole(NativeEnv):
    """The state is the observation: cart position, cart velocity, pole angle, pole velocity."""

    max_episode_steps: int = 500
    """Steps before an episode is cut short."""
    gravity: float = 9.8
    """m/s^2."""
    mass_cart: float = 1.0
    """kg."""
    mass_pole: float = 0.1
    """kg."""
    half_length: float = 0.5
    """Half the length of the pole, m."""
    force: float = 10.0
    """Force of a push, N."""
    dt: float = 0.02
    """Seconds per step."""
    max_angle: float = 12 * 2 * math.pi / 360
    """The episode fails when the pole leans further, rad."""
    max_position: float = 2.4
    """The episode fails when the cart is further from the centre, m."""
    velocities: bool = True
    """Whether velocities are observed; without them a policy has to remember."""

    return_threshold = 475.0
    baselines = {"heuristic": lean}  # noqa: RUF012

    @property
    def observation_space(self):
        # Twice the failing angle and position, so that a failing observation is still inside.
        high = np.array([self.max_position * 2, np.inf, self.max_angle * 2, np.inf], np.float32)
        high = high if self.velocities else high[::2]
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(2)  # push left, push right

    def reset(self, key: Array):
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, self.observe(state)

    def observe(self, state: Array) -> Array:
        return state if self.velocities else state[::2]

    def step(self, key: Array, state: Array, action: Array):
        _, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, self.force, -self.force)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        mass = self.mass_cart + self.mass_pole
        pole_moment = self.mass_pole * self.half_length

        # Equations of motion without friction: https://coneural.org/florian/papers/05_cart_pole.pdf
        push = (force + pole_moment * theta_dot**2 * sin) / mass
        theta_acc = (self.gravity * sin - cos * push) / (self.half_length * (4 / 3 - self.mass_pole * cos**2 / mass))
        x_acc = push - pole_moment * theta_acc * cos / mass

        state = state + self.dt * jnp.stack([x_dot, x_acc, theta_dot, theta_acc])  # explicit Euler
        failed = (jnp.abs(state[0]) > self.max_position) | (jnp.abs(state[2]) > self.max_angle)
        return state, TimeStep(obs=self.observe(state), reward=jnp.float32(1.0), terminated=failed)


@native_env
class CartPolePositions(CartPole):
    """CartPole without velocities: only positions are observed, so that a policy has to remember."""

    velocities: bool = False
    """Whether velocities are observed."""
