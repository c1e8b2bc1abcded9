"""Environments that import nothing but Gymnasium, so that processes of their own start quickly."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A random walk with parts, a mask, components and a metric. `fault` begins at the 30th step of a copy."""

    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2, 3), np.float32), "side": spaces.Discrete(2)})
    action_space = spaces.Discrete(3)
    metric_reductions = {"drift": "mean"}  # noqa: RUF012
    reward_components = ("near", "cost")
    max_episode_steps = 12

    def __init__(self, fault: str = "", seconds: float = 0.0):
        self.fault, self.seconds, self.t = fault, seconds, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=(2, 3))
        return self.look(), {"action_mask": np.array([True, False, True])}

    def look(self):
        return {"at": np.clip(self.at, -9, 9).astype(np.float32), "side": int(self.at[0, 0] > 0)}

    def step(self, action):
        time.sleep(self.seconds)
        self.t += 1
        self.at += self.np_random.normal(size=(2, 3)) + action - 1
        fault = self.fault if self.t >= 30 else ""
        if fault == "raises":
            raise RuntimeError("the simulator crashed")
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exits":
            os._exit(3)
        parts = {"near": -float(abs(self.at).mean()), "cost": -0.1 * float(action)}
        mask = self.at[0] > -1
        mask[2] = True
        info = {"reward_components": parts, "action_mask": mask, "drift": float(self.at[0, 0]), "other": open}
        look = self.look()
        if fault == "shape":
            look["at"] = np.zeros((3, 3), np.float32)
        return look, sum(parts.values()), bool(self.at[0, 0] > 4), False, info
