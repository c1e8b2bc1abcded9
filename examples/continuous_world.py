"""A world of your own with a continuous state, known only by a sampler: a robot that can hold a door open.

    python examples/continuous_world.py
    python examples/continuous_world.py --steps 60000

A human walks on a line from 0 to 3. At 1.5 there is a door, which falls shut unless the robot stands beside it. A
robot that wants the human to be able to get anywhere goes to the door. Nothing here says so: there is no reward. After
the default number of steps the robot goes there from wherever it is. Whether it also stays is a closer call: a step
aside costs it 7 percent of Q_r, and ratios of values learned from samples are off by more (docs/surprises.md).

Q_r is learned by a network of this file. With `outcomes` in place of `sample` the same class would be learned from
expectations instead of samples; only a world with states of whole numbers and their `sizes` can be solved exactly.
"""

from __future__ import annotations

import argparse
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

import regimen
from regimen.domains.empowerment.worlds.world import World
from regimen.envs.protocol import native_env

DOOR, LENGTH = 1.5, 3.0
GOALS = np.array([0.25, 1.0, 2.0, 2.75], np.float32)
MOVES = np.array([-1.0, 0.0, 1.0], np.float32)


@native_env
class DoorWorld(World):
    """State: where the robot and the human are, two numbers."""

    max_episode_steps: int = 8
    speed: float = 0.5
    """How far a step goes."""
    noise: float = 0.05
    """Deviation of the human's steps."""
    reach: float = 0.3
    """How near a goal is near enough, and how near the robot must be to hold the door."""

    robots = 1
    humans = 1
    actions = ("left", "stay", "right")
    metric_reductions: ClassVar[dict[str, str]] = {"goals_attained": "sum"}

    @property
    def state_space(self) -> spaces.Space:
        return spaces.Box(0.0, LENGTH, (2,), np.float32)

    @property
    def goal_weights(self) -> np.ndarray:
        return np.full((1, len(GOALS)), 1 / len(GOALS))

    def initial(self):
        return jnp.array([0.5, 1.0], jnp.float32)

    def sample(self, key, state, actions):
        robot, human = state
        robot = jnp.clip(robot + self.speed * jnp.asarray(MOVES)[actions[0]], 0.0, LENGTH)
        step = self.speed * jnp.asarray(MOVES)[actions[1]]
        new = jnp.clip(human + step + self.noise * jax.random.normal(key), 0.0, LENGTH)
        shut = jnp.abs(state[0] - DOOR) > self.reach
        through = (human - DOOR) * (new - DOOR) < 0
        return jnp.stack([robot, jnp.where(shut & through, human, new)])

    def attained(self, state):
        return (jnp.abs(state[1] - GOALS) < self.reach)[None]

    def prior(self, state):
        """Mostly towards the goal, as if the door were open."""
        left = jnp.abs(state[1] + self.speed * jnp.asarray(MOVES) - GOALS[:, None])  # [G, A]
        return jax.nn.softmax(-8.0 * left)[None]

    def features(self, state):
        near = jnp.exp(-jnp.square((state[:, None] - np.linspace(0, LENGTH, 9)) / 0.35))
        return jnp.concatenate([state / LENGTH, near.ravel()])


def make() -> DoorWorld:
    return DoorWorld()


class Skip(nnx.Module):
    """A network for Q_r: one hidden layer, and beside it a straight way from what it reads to what it puts out."""

    def __init__(self, shape, config, final_scale, rngs):
        small = nnx.initializers.normal(0.01 * final_scale)
        self.hidden = nnx.Linear(shape.in_size, config.hidden[0], rngs=rngs)
        self.head = nnx.Linear(config.hidden[0], shape.out_size, kernel_init=small, rngs=rngs)
        self.straight = nnx.Linear(shape.in_size, shape.out_size, kernel_init=small, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x))) + self.straight(x)


def learn(steps: int, **settings):
    """A run of so many steps; its stages are shares of them."""
    share = steps // 10
    stages = {f"warmup_{name}_steps": share for name in ("v_h_e", "q_r")} | {"beta_r_rampup_steps": 2 * share}
    return regimen.train(
        f"{__file__}:make",
        algo="empowerment",
        total_steps=steps,
        track=False,
        networks=f"q_r={__file__}:Skip",
        x_h_use_network=False,  # computed from V_h^e: less noise
        batch_size=256,
        epsilon_r_end=0.5,  # the robot keeps looking around, wherever the door is
        **stages,
        **settings,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A robot and a door.")
    parser.add_argument("--steps", type=int, default=40_000)
    args = parser.parse_args()
    policy = regimen.load_policy(learn(args.steps).run_dir)
    for time, robot in enumerate((0.5, 1.0, 1.5, 2.0, 2.5)):  # the earliest that it can be there
        obs = {"state": np.array([robot, 1.0], np.float32), "time": np.int32(time), "goal": np.zeros(1, np.int32)}
        print(f"robot at {robot}, step {time}: {DoorWorld.actions[policy.act(obs)]}")


if __name__ == "__main__":
    main()
