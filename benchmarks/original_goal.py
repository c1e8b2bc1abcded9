"""The original game of Goal (gym-goal by C. Bester) with the spaces of our native one.

    git clone https://github.com/cycraig/gym-goal
    regimen train goal --out runs/goal
    regimen evaluate runs/goal --in benchmarks/original_goal.py:make --in.path gym-goal --margin 0.03 --episodes 1000

gym-goal is written for an old Gym and draws with pygame. Neither is needed to play it: Gymnasium takes Gym's place, an
empty module pygame's. Its random numbers are of the kind that it was written for, and its observations are scaled as
its own wrapper scales them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from regimen.envs.hybrid.goal import Goal


class OriginalGoal(gymnasium.Env):
    """Goal-v0 behind the native spaces."""

    metric_reductions = {"success": "last"}  # noqa: RUF012

    def __init__(self, path: str):
        sys.path.insert(0, path)
        sys.modules.setdefault("pygame", ModuleType("pygame"))
        for name in ("", ".spaces", ".error", ".utils", ".utils.seeding", ".envs", ".envs.registration"):
            sys.modules.setdefault("gym" + name, importlib.import_module("gymnasium" + name))
        game: Any = importlib.import_module("gym_goal.envs.goal_env")
        game.seeding = SimpleNamespace(np_random=lambda seed=None: (np.random.RandomState(seed), seed))
        self.game = game.GoalEnv()
        self.observation_space = Goal().observation_space
        self.action_space = Goal().action_space

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        if seed is not None:
            self.game.seed(seed)
        state, _ = self.game.reset()
        return self.seen(state), {}

    def step(self, action: Any):
        parameters = [np.asarray(action[name], float)[None] for name in ("kick_to", "shoot_left", "shoot_right")]
        (state, _), reward, terminated, _ = self.game.step((int(action["choice"]), parameters))
        return self.seen(state), float(reward), bool(terminated), False, {"success": float(reward == 50)}

    def seen(self, state: np.ndarray) -> np.ndarray:
        return np.asarray(self.game.scale_state(state), np.float32)


def make(path: str) -> OriginalGoal:
    """The environment that `--in benchmarks/original_goal.py:make` names; `path` is a checkout of gym-goal."""
    return OriginalGoal(path)
