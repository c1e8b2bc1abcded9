"""CartPole whose step takes time, as simulators and robots do: for the benchmarks of workers."""

from __future__ import annotations

import time

from gymnasium.envs.classic_control import CartPoleEnv


class SlowCartPole(CartPoleEnv):
    """`how`: `sleep` waits as for a device, `busy` computes."""

    max_episode_steps = 500

    def __init__(self, milliseconds: float = 1.0, how: str = "sleep"):
        super().__init__()
        self.seconds, self.busy = milliseconds / 1000, how == "busy"

    def step(self, action):
        end = time.perf_counter() + self.seconds
        if not self.busy:
            time.sleep(self.seconds)
        while self.busy and time.perf_counter() < end:
            pass
        return super().step(action)
