"""Catch Point (Fan et al. 2019; Li et al. 2022, HyAR): move up to a point and catch it, with few attempts.

Rules and constants are those of HyAR's code as published with DLPA (scenario simple_catch in a particle world).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, RED, Canvas
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, Record, TimeStep, pytree_dataclass

MOVE, CATCH = 0, 1


@pytree_dataclass
class CatchPointState(Record):
    position: Array  # [2]
    velocity: Array  # [2]
    target: Array  # [2]
    misses: Array  # int32
    t: Array  # int32


def pounce(env, key, state, obs):
    """Push towards the point, and catch once coasting ends in reach."""
    position, _ = coast(env, state.position, state.velocity, jnp.zeros(2))
    x, y = state.target - state.position - state.velocity / 2
    inside = jnp.linalg.norm(state.target - position) <= env.reach
    return {"choice": jnp.where(inside, CATCH, MOVE).astype(jnp.int32), "move": jnp.arctan2(y, x)[None]}


def coast(env, position: Array, velocity: Array, force: Array) -> tuple[Array, Array]:
    """A step of the particle world (Lowe et al. 2017): damped velocity, unit mass."""
    velocity = (1 - env.damping) * velocity + env.dt * force
    return position + env.dt * velocity, velocity


@native_env
class CatchPoint(NativeEnv):
    """A particle with inertia pushes itself in a direction (`move`, an angle in radians) or tries to catch.

    Catching within reach pays `bonus`, ends the episode and is its `success`; every step costs the squared distance. A
    miss uses up one of the `catches`, and with the last of them the episode ends. The field has no walls; agent and
    point start anywhere in [-1, 1]^2. Observed are the velocity, the point's relative position, and the shares of
    catches and of steps left. Decided here: the last two are observed (as in DLPA; HyAR hides them), the tenth miss
    ends the episode (in the code it is the eleventh), and an episode has 30 steps (HyAR; DLPA has 25).
    """

    max_episode_steps: int = 30
    """Steps before an episode is cut short."""
    catches: int = 10
    """Attempts to catch."""
    reach: float = 0.2
    """Distance within which the point is caught."""
    force: float = 2.0
    """Force of a push."""
    damping: float = 0.25
    """Share of the velocity lost in a step."""
    dt: float = 0.1
    """Seconds per step."""
    bonus: float = 20.0
    """Reward of a catch."""

    metric_reductions = {"success": "last"}  # noqa: RUF012
    action_conditions = {"move": ("choice", (MOVE,))}  # noqa: RUF012
    baselines = {"heuristic": pounce}  # noqa: RUF012
    render_fps = 10
    legend = (
        "Blue: the agent, its reach and (amber) its velocity. Green: the target. Dots above: attempts that are left "
        "(red: spent). The bar: time left."
    )

    @property
    def observation_space(self):
        high = np.array([np.inf] * 4 + [1.0, 1.0], np.float32)
        return spaces.Box(np.where(high == 1.0, 0.0, -high).astype(np.float32), high, dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Dict(choice=spaces.Discrete(2), move=spaces.Box(-math.pi, math.pi, (1,), np.float32))

    def reset(self, key: Array):
        places = jax.random.uniform(key, (2, 2), minval=-1.0)
        zero = jnp.int32(0)
        state = CatchPointState(places[0], jnp.zeros(2), places[1], zero, zero)
        return state, self.observe(state)

    def step(self, key: Array, state: CatchPointState, action: dict[str, Array]):
        trying, angle = action["choice"] == CATCH, action["move"][0]
        push = jnp.where(trying, 0.0, self.force)
        position, velocity = coast(
            self, state.position, state.velocity, push * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        )
        squared = jnp.sum((position - state.target) ** 2)
        caught = trying & (squared <= self.reach**2)
        misses = state.misses + (trying & ~caught)
        state = CatchPointState(position, velocity, state.target, misses, state.t + 1)
        over = caught | (misses >= self.catches)
        reward = self.bonus * caught - squared
        return state, TimeStep(self.observe(state), reward, over, metrics={"success": caught.astype(jnp.float32)})

    def observe(self, state: CatchPointState) -> Array:
        left = jnp.stack([1 - state.misses / self.catches, 1 - state.t / self.max_episode_steps])
        return jnp.concatenate([state.velocity, state.target - state.position, left]).astype(jnp.float32)

    def render(self, state: CatchPointState) -> np.ndarray:
        canvas = Canvas(320, (-1.6, 1.6, -1.6, 1.6))
        (x, y), (dx, dy) = state.position, state.velocity
        canvas.disc((x, y), self.reach, BLUE, 0.2).ring((x, y), self.reach, BLUE, 0.015)
        canvas.line((x, y), (x + 0.4 * dx, y + 0.4 * dy), AMBER, 0.03)
        canvas.disc((x, y), 0.06, BLUE).disc(state.target, 0.045, GREEN)
        for i in range(self.catches):
            spent = i >= self.catches - int(state.misses)
            canvas.disc((-1.47 + 0.13 * i, 1.47), 0.045, RED if spent else INK, 0.35 if spent else 1.0)
        return canvas.bar(1 - float(state.t) / self.max_episode_steps, INK).image()
