"""The original game of Platform (C. Bester's port, package `hybrid-platform`) with the spaces of our native one.

    pip install hybrid-platform numba
    regimen train platform --out runs/platform
    regimen evaluate runs/platform --in benchmarks/original_platform.py:make --margin 0.02 --episodes 1000

An adapter is all that a policy needs to be played in another simulator: the same observation space, the same action
space, and the units of the numbers in between. Observed are the same nine numbers (the original also shows how many
substeps an action took); an action is a choice and the parameters of all three choices, in this order.
"""

from __future__ import annotations

import gymnasium
import numpy as np

from regimen.envs.hybrid.platform import Platform

COURSE = 1035.0  # right edge of the last platform, where the goal is


class OriginalPlatform(gymnasium.Env):
    """Platform-v0 behind the native spaces."""

    metric_reductions = {"success": "last"}  # noqa: RUF012

    def __init__(self):
        from gym_platform.envs.platform_env import PlatformEnv

        self.game = PlatformEnv()
        self.observation_space = Platform().observation_space
        self.action_space = Platform().action_space

    def reset(self, *, seed=None, options=None):
        (state, _), info = self.game.reset(seed=seed)
        return self.seen(state), info

    def step(self, action):
        parameters = tuple(np.asarray(action[name], np.float32) for name in ("run", "hop", "leap"))
        (state, _), reward, terminated, truncated, _ = self.game.step((int(action["choice"]), parameters))
        success = float(self.game.player.position[0] >= COURSE)
        return self.seen(state), float(reward), bool(terminated), truncated, {"success": success}

    def seen(self, state):
        """The nine numbers, which the original lets leave [0, 1] at the very end."""
        return np.clip(np.asarray(state, np.float32), 0.0, 1.0)

    def close(self):
        self.game.close()


def make() -> OriginalPlatform:
    """The environment that `--in benchmarks/original_platform.py:make` names."""
    return OriginalPlatform()
