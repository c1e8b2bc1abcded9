"""Your own environments: one of Gymnasium's kind, one native, both trained here and from the command line.

    python examples/custom_env.py
    regimen check-env examples/custom_env.py:Corridor
    regimen train examples/custom_env.py:Corridor --env.length 12
    regimen train examples/custom_env.py:Thermostat --env.heater 3.0

A module on the path works as well as a file: `regimen train mypackage.envs:make_env`.
"""

from __future__ import annotations

import argparse

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import regimen
from regimen.envs.check import check_env
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import TimeStep


class Corridor(gymnasium.Env):
    """Walk to the end of a corridor; a step costs. Any Gymnasium environment works as it is.

    The entries of `info` are optional: they give Regimen the parts of the reward, a success rate and an action mask.
    """

    reward_components = ("goal", "time")

    def __init__(self, length: int = 8):  # arguments become --env.length
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)  # back, forth

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random: the only source of randomness that can be repeated
        self.position, self.time = int(self.np_random.integers(self.length // 2)), 0
        return self._observe(), {"action_mask": self._mask()}

    def step(self, action):
        self.position += 1 if action == 1 else -1
        self.time += 1
        reached = self.position == self.length
        parts = {"goal": float(reached), "time": -0.02}  # they must sum to the reward
        info = {"reward_components": parts, "is_success": reached, "action_mask": self._mask()}
        # `terminated`: the task is over; `truncated`: it was only cut short, so the value of what follows still counts
        return self._observe(), sum(parts.values()), reached, not reached and self.time >= 50, info

    def _observe(self):
        return np.array([self.position / self.length], np.float32)

    def _mask(self):
        return np.array([self.position > 0, True])  # there is a wall behind the start


@native_env
class Thermostat(NativeEnv):
    """Hold a room at 20 degrees while it is cold outside. Native: pure functions, compiled together with the learner.

    It neither resets itself nor counts time; the source does both. `float` fields are data: changing one does not
    compile anything again.
    """

    max_episode_steps: int = 60
    """Minutes of an episode."""
    outside: float = 5.0
    """Temperature outside, degrees."""
    heater: float = 2.0
    """Degrees per minute at full power."""

    reward_components = ("comfort", "energy")
    metric_reductions = {"error": "mean"}  # noqa: RUF012 - a metric of each step, and how an episode sums it up

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    @property
    def action_space(self):
        return spaces.Box(0.0, 1.0, (1,), np.float32)  # power; actions arrive scaled and clipped to these bounds

    def reset(self, key):
        temperature = jax.random.uniform(key, (), minval=10.0, maxval=30.0)
        return temperature, (temperature[None] - 20.0) / 10.0

    def step(self, key, state, action):
        power = action[0]
        temperature = state + 0.1 * (self.outside - state) + self.heater * power
        error = jnp.abs(temperature - 20.0)
        step = TimeStep(
            obs=(temperature[None] - 20.0) / 10.0,
            reward=jnp.stack([-0.1 * error, -0.05 * power]),  # one entry per component
            terminated=jnp.bool_(False),
            metrics={"error": error},
        )
        return temperature, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=60, help="training episodes of each environment")
    args = parser.parse_args()

    for name in ("Corridor", "Thermostat"):
        # By file and name instead of the class itself, so that `regimen evaluate RUN` finds it in another process.
        env = f"{__file__}:{name}"
        for problem in check_env(env):  # what `regimen check-env` prints
            print(problem)
        result = regimen.train(env, total_episodes=args.episodes, track=False, **{"eval.every": "never"})
        print("\n".join(regimen.evaluate(result.run_dir, episodes=10).lines()), "\n")


if __name__ == "__main__":
    main()
