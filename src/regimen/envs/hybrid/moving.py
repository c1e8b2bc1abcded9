"""Moving and Sliding (gym-hybrid): accelerate, turn and brake so as to stop inside a circle.

The task goes back to Xiong et al. 2018 and Fan et al. 2019; rules and constants are those of the package gym-hybrid
(Moving-v0, Sliding-v0).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, PALE, Canvas
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, Record, TimeStep, pytree_dataclass

ACCELERATE, TURN, BRAKE = 0, 1, 2


@pytree_dataclass
class MovingState(Record):
    position: Array  # [2]
    heading: Array  # the way it faces, rad
    speed: Array
    course: Array  # the way it moves, rad; Moving keeps it at the heading
    target: Array  # [2]
    t: Array  # int32


def drive(env, key, state, obs):
    """Turn towards the target, reach the speed from which braking ends there, and brake."""
    x, y = state.target - state.position
    away = jnp.hypot(x, y)
    error = jnp.mod(jnp.arctan2(y, x) - state.heading + math.pi, 2 * math.pi) - math.pi
    # Braking from speed v covers dt (v^2 / 2b - v / 2).
    best = env.brake / 2 + jnp.sqrt(env.brake**2 / 4 + 2 * env.brake * away / env.dt)
    aside = (state.speed == 0) & (jnp.abs(error) > 0.01)
    slow = (best - state.speed > 2 * env.brake) & (away > env.target_radius / 2)
    choice = jnp.where(slow, jnp.where(aside, TURN, ACCELERATE), BRAKE)
    return {
        "choice": choice.astype(jnp.int32),
        "accelerate": jnp.clip((best - state.speed) / env.max_acceleration, 0.0, 1.0)[None],
        "turn": jnp.clip(error / env.max_turn, -1.0, 1.0)[None],
    }


@native_env
class Moving(NativeEnv):
    """An agent on a square of side 2 that moves the way it faces, without inertia; it never stops by itself.

    The reward is the distance gained on the target less a penalty per step, plus 1 for stopping inside it (`success`);
    leaving the field or running out of steps pays -1 instead and ends the episode as well. Observed are position,
    speed, cosine and sine of the heading, the target's position, the distance to it, whether it is inside, and the
    share of the steps used. A good policy returns 1.8 or more: about 1 for the way and 1 for the stop.
    Decided here: the step that pays -1 for being late is the last of `max_episode_steps`; in gym-hybrid it is the one
    after.
    """

    max_episode_steps: int = 200
    """Steps after which an episode has failed."""
    target_radius: float = 0.1
    """Radius of the circle to stop in."""
    max_turn: float = math.pi / 2
    """Angle of a full turn, rad."""
    max_acceleration: float = 0.5
    """Speed that full acceleration adds in a step."""
    brake: float = 0.1
    """Speed that braking takes off in a step."""
    dt: float = 0.005
    """Distance per step at speed 1."""
    penalty: float = 0.001
    """Cost of a step."""

    metric_reductions = {"success": "last"}  # noqa: RUF012
    return_threshold = 1.8  # DI-engine stops training there
    legend = (
        "Blue: the agent, which faces along the dark line and moves along the amber one. Green: the target. "
        "The bar: time left."
    )
    action_conditions = {"accelerate": ("choice", (ACCELERATE,)), "turn": ("choice", (TURN,))}  # noqa: RUF012
    baselines = {"heuristic": drive}  # noqa: RUF012

    @property
    def observation_space(self):
        high = np.array([np.inf, np.inf, np.inf, 1, 1, 1, 1, np.inf, 1, 1], np.float32)
        low = np.array([-np.inf, -np.inf, 0, -1, -1, -1, -1, 0, 0, 0], np.float32)
        return spaces.Box(low, high, dtype=np.float32)

    @property
    def action_space(self):
        return spaces.Dict(
            choice=spaces.Discrete(3),
            accelerate=spaces.Box(0.0, 1.0, (1,), np.float32),
            turn=spaces.Box(-1.0, 1.0, (1,), np.float32),
        )

    def reset(self, key: Array):
        target, position, heading = jax.random.split(key, 3)
        limit = 1.0 - self.target_radius
        heading = jax.random.uniform(heading, maxval=2 * math.pi)
        state = MovingState(
            position=jax.random.uniform(position, (2,), minval=-1.0),
            heading=heading,
            speed=jnp.zeros(()),
            course=heading,
            target=jax.random.uniform(target, (2,), minval=-limit, maxval=limit),
            t=jnp.int32(0),
        )
        return state, self.observe(state)

    def step(self, key: Array, state: MovingState, action: dict[str, Array]):
        choice = action["choice"]
        turn = jnp.where(choice == TURN, self.max_turn * action["turn"][0], 0.0)
        push = jnp.where(choice == ACCELERATE, self.max_acceleration * action["accelerate"][0], 0.0)
        heading = jnp.mod(state.heading + turn, 2 * math.pi)
        speed, course = self.propel(state, heading, push)
        braked = jnp.where(state.speed < self.brake, 0.0, state.speed - self.brake)
        speed = jnp.where(choice == BRAKE, braked, speed)

        before = distance(state)
        position = state.position + self.dt * speed * jnp.stack([jnp.cos(course), jnp.sin(course)])
        state = MovingState(position, heading, speed, course, state.target, state.t + 1)
        after = distance(state)
        stopped = (after < self.target_radius) & (speed == 0)
        failed = ~stopped & (jnp.any(jnp.abs(position) > 1.0) | (state.t >= self.max_episode_steps))
        reward = jnp.where(failed, -1.0, before - after - self.penalty + stopped)
        metrics = {"success": stopped.astype(jnp.float32)}
        return state, TimeStep(self.observe(state), reward, terminated=stopped | failed, metrics=metrics)

    def propel(self, state: MovingState, heading: Array, push: Array) -> tuple[Array, Array]:
        """(speed, course) after a push the way it faces."""
        return state.speed + push, heading

    def observe(self, state: MovingState) -> Array:
        away = distance(state)
        features = [
            *state.position,
            state.speed,
            jnp.cos(state.heading),
            jnp.sin(state.heading),
            *state.target,
            away,
            (away <= self.target_radius).astype(jnp.float32),
            state.t / self.max_episode_steps,
        ]
        return jnp.stack(features).astype(jnp.float32)

    def render(self, state: MovingState) -> np.ndarray:
        x, y = state.position
        ahead = np.array([np.cos(state.heading), np.sin(state.heading)])
        moving = 0.05 * float(state.speed) * np.array([np.cos(state.course), np.sin(state.course)])
        canvas = Canvas(320, (-1.12, 1.12, -1.12, 1.12), PALE).rectangle((-1, -1), (1, 1), (250, 250, 247))
        canvas.disc(state.target, self.target_radius, GREEN, 0.35).ring(state.target, self.target_radius, GREEN, 0.015)
        canvas.line((x, y), (x + moving[0], y + moving[1]), AMBER, 0.025)
        canvas.disc((x, y), 0.05, BLUE).line((x, y), (x + 0.09 * ahead[0], y + 0.09 * ahead[1]), INK, 0.025)
        return canvas.bar(1 - float(state.t) / self.max_episode_steps, INK).image()


@native_env
class Sliding(Moving):
    """Moving with inertia: a push adds to the velocity, and turning changes only where the agent faces.

    Its observation is Moving's, so the direction of motion is not observed. Acceleration adds the two velocities as
    vectors, as gym-hybrid does today; it had a formula that did not.
    """

    return_threshold = None

    def propel(self, state: MovingState, heading: Array, push: Array) -> tuple[Array, Array]:
        x = state.speed * jnp.cos(state.course) + push * jnp.cos(heading)
        y = state.speed * jnp.sin(state.course) + push * jnp.sin(heading)
        pushed = push > 0
        return jnp.where(pushed, jnp.hypot(x, y), state.speed), jnp.where(pushed, jnp.arctan2(y, x), state.course)


def distance(state: MovingState) -> Array:
    return jnp.linalg.norm(state.position - state.target)
