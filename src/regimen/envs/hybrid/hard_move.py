"""Hard Move (Li et al. 2022, HyAR): reach a target by switching n actuators on or off, 2^n combinations.

The particle world and the constants of the motion are those of HyAR's code as published with DLPA.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, Canvas
from regimen.envs.hybrid.catch_point import coast
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError
from regimen.types import Array, Record, TimeStep, pytree_dataclass


@pytree_dataclass
class HardMoveState(Record):
    position: Array  # [2]
    velocity: Array  # [2]
    target: Array  # [2]


def steer(env, key, state, obs):
    """Full force on every actuator that pushes towards the target, less the way the particle coasts anyway."""
    coasting = env.dt * (1 - env.damping) / env.damping * state.velocity
    along = jnp.array(env.directions(), jnp.float32) @ (state.target - state.position - coasting)
    on = along > 0.5 * env.target_radius
    combination = jnp.sum(on * 2 ** jnp.arange(env.actuators)).astype(jnp.int32)
    force = jnp.ones(1)
    return {"combination": combination, "force": force if env.shared_force else (force,) * env.actuators}


@native_env
class HardMove(NativeEnv):
    """A particle with inertia that n equally spaced actuators push; actuator i is on where bit i of `combination` is 1.

    Each actuator that is on pushes its own way with its own force in [0, 1]; together they push at most as hard as the
    strongest combination at full force. Every step costs the squared distance; being in the target area pays `bonus`,
    ends the episode and is its `success`. Observed are the velocity and the target's relative position.
    HyAR's paper gives every actuator a parameter, as here; its code, on which its scores were measured, gives every
    combination one force in [-1, 1], which `shared_force` comes close to (one force, whatever the combination).
    Neither size of the target area nor bonus is published: `target_radius` is set so that random actions succeed as
    rarely as the weakest published methods, `bonus` to that of Catch Point.
    """

    max_episode_steps: int = 30
    """Steps before an episode is cut short."""
    actuators: int = 4
    """n; published for 4, 6, 8 and 10."""
    shared_force: bool = False
    """One force for the whole combination, in [-1, 1], instead of one for each actuator."""
    target_radius: float = 0.1
    """Radius of the area to reach."""
    force: float = 2.0
    """Push of the strongest combination at full force."""
    damping: float = 0.25
    """Share of the velocity lost in a step."""
    dt: float = 0.1
    """Seconds per step."""
    bonus: float = 20.0
    """Reward of reaching the target area."""

    metric_reductions = {"success": "last"}  # noqa: RUF012
    baselines = {"heuristic": steer}  # noqa: RUF012
    render_fps = 10
    legend = "Blue: the agent, its actuators (dark) and its velocity (amber). Green: the target."

    def __post_init__(self):
        if not 2 <= self.actuators <= 12:
            raise ConfigError(f"env.actuators: {self.actuators} is out of range; it must be from 2 to 12")

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    @property
    def action_space(self):
        each = [spaces.Box(0.0, 1.0, (1,), np.float32) for _ in range(self.actuators)]
        force = spaces.Box(-1.0, 1.0, (1,), np.float32) if self.shared_force else spaces.Tuple(each)
        return spaces.Dict(combination=spaces.Discrete(2**self.actuators), force=force)

    @property
    def action_conditions(self):  # type: ignore[override]
        if self.shared_force:
            moves = np.flatnonzero(np.linalg.norm(self.motions(), axis=1) > 1e-6)
            return {"force": ("combination", tuple(moves.tolist()))}
        on = self.switched()
        return {f"force/{i}": ("combination", tuple(np.flatnonzero(on[:, i]).tolist())) for i in range(self.actuators)}

    def switched(self) -> np.ndarray:
        """Which actuators each combination has on [2^n, n]."""
        return np.arange(2**self.actuators)[:, None] >> np.arange(self.actuators) & 1

    def directions(self) -> np.ndarray:
        """The ways the actuators push [n, 2]."""
        angle = 2 * math.pi * np.arange(self.actuators) / self.actuators
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def motions(self) -> np.ndarray:
        """What each combination amounts to at full force [2^n, 2], the longest of length 1."""
        motions = self.switched() @ self.directions()
        return motions / np.linalg.norm(motions, axis=1).max()

    def reset(self, key: Array):
        places = jax.random.uniform(key, (2, 2), minval=-1.0)
        state = HardMoveState(places[0], jnp.zeros(2), places[1])
        return state, observe(state)

    def step(self, key: Array, state: HardMoveState, action: dict[str, Array]):
        on = action["combination"] >> jnp.arange(self.actuators) & 1
        share = action["force"][0] if self.shared_force else jnp.concatenate(action["force"])
        n = self.actuators
        longest = math.sin(math.pi * (n // 2) / n) / math.sin(math.pi / n)  # half of the circle's actuators, added up
        push = self.force / longest * (on * share) @ jnp.array(self.directions(), jnp.float32)
        position, velocity = coast(self, state.position, state.velocity, push)
        state = HardMoveState(position, velocity, state.target)
        squared = jnp.sum((position - state.target) ** 2)
        reached = squared <= self.target_radius**2
        reward = self.bonus * reached - squared
        return state, TimeStep(observe(state), reward, reached, metrics={"success": reached.astype(jnp.float32)})

    def render(self, state: HardMoveState) -> np.ndarray:
        canvas = Canvas(320, (-1.6, 1.6, -1.6, 1.6))
        (x, y), (dx, dy) = state.position, state.velocity
        canvas.disc(state.target, self.target_radius, GREEN, 0.35).ring(state.target, self.target_radius, GREEN, 0.02)
        for a, b in self.directions():
            canvas.line((x + 0.07 * a, y + 0.07 * b), (x + 0.13 * a, y + 0.13 * b), INK, 0.025)
        canvas.line((x, y), (x + 0.4 * dx, y + 0.4 * dy), AMBER, 0.03).disc((x, y), 0.06, BLUE)
        return canvas.image()


def observe(state: HardMoveState) -> Array:
    return jnp.concatenate([state.velocity, state.target - state.position]).astype(jnp.float32)
