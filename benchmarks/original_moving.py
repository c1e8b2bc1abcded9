"""The original games of Moving and Sliding (gym-hybrid by T. Hirtz) with the spaces of our native ones.

    git clone https://github.com/thomashirtz/gym-hybrid
    regimen train sliding --out runs/sliding
    regimen evaluate runs/sliding --in benchmarks/original_moving.py:make --in.path gym-hybrid --in.game sliding \
        --margin return=0.05,success=0.02 --episodes 1000

gym-hybrid is written for an old Gym, whose place Gymnasium takes; its tuples of a choice and two numbers become the
native actions. An episode that is late ends in its 201st step, a native one in its 200th.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from regimen.envs.hybrid.moving import Moving

GAMES = {"moving": "MovingEnv", "sliding": "SlidingEnv"}


class OriginalMoving(gymnasium.Env):
    """Moving-v0 or Sliding-v0 behind the native spaces."""

    metric_reductions = {"success": "last"}  # noqa: RUF012

    def __init__(self, path: str, game: str):
        sys.path.insert(0, path)
        gym: Any = ModuleType("gym")
        gym.Env, gym.spaces, gym.logger = gymnasium.Env, gymnasium.spaces, SimpleNamespace(set_level=lambda _: None)
        gym.utils = SimpleNamespace(seeding=seeding)
        sys.modules |= {
            "gym": gym,
            "gym.utils": gym.utils,
            "gym.envs.registration": SimpleNamespace(register=lambda **_: None),
        }
        games: Any = importlib.import_module("gym_hybrid.environments")
        games.spaces = SimpleNamespace(Tuple=tuple, Discrete=int, Box=lambda *_: None)  # its own one is upside down
        self.game = getattr(games, GAMES[game])()
        self.observation_space = Moving().observation_space
        self.action_space = Moving().action_space

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        if seed is not None:
            self.game.seed(seed)
        return np.asarray(self.game.reset(), np.float32), {}

    def step(self, action: Any):
        numbers = [float(action["accelerate"][0]), float(action["turn"][0])]
        state, reward, terminated, _ = self.game.step((int(action["choice"]), numbers))
        success = bool(terminated) and self.game.agent.speed == 0 and self.game.distance < self.game.target_radius
        return np.asarray(state, np.float32), float(reward), bool(terminated), False, {"success": float(success)}


def make(path: str, game: str = "moving") -> OriginalMoving:
    """The environment that `--in benchmarks/original_moving.py:make` names; `path` is a checkout of gym-hybrid."""
    return OriginalMoving(path, game)
