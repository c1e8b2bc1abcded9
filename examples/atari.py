"""Pong from pixels: the Arcade Learning Environment, whose package brings the games (`pip install 'regimen[atari]'`).

    regimen check-env examples/atari.py:make --env.frame_stack 4
    regimen train examples/atari.py:make --env.frame_stack 4 --preset examples/atari.yaml
    python examples/atari.py --total-steps 2000

A Gymnasium environment is stepped in Python, on the CPU, so that a policy that wins takes hours; several processes help
(`--rollout.processes auto`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ale_py
import gymnasium
import numpy as np

import regimen
from regimen.envs.check import check_env

gymnasium.register_envs(ale_py)  # nothing but a sign that the import is used: it has registered them


class Court(gymnasium.ObservationWrapper):
    """The court alone, without the score above it, with every second pixel: 80 x 80 bytes."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (80, 80), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[34:194:2, ::2]


def make(game: str = "Pong", repeat: float = 0.25) -> gymnasium.Env:
    """A game in grey, four pictures a step. `repeat` is the probability that the console repeats the last action
    (Machado et al. 2018). Games whose things blink would need the brighter of two pictures; Pong does not."""
    options = {"obs_type": "grayscale", "repeat_action_probability": repeat}
    return Court(gymnasium.make(f"ALE/{game}-v5", max_episode_steps=27_000, **options))  # half an hour of play


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int)
    parser.add_argument("--max-episode-steps", type=int, default=27_000)
    options = parser.parse_args()

    # one picture does not show where the ball flies
    env_args = {"frame_stack": 4, "max_episode_steps": options.max_episode_steps}
    assert check_env(make, env_args) == []
    preset = str(Path(__file__).with_name("atari.yaml"))
    budget = {} if options.total_steps is None else {"total_steps": options.total_steps}
    result = regimen.train(make, preset=preset, env_args=env_args, track=False, **budget)
    print(f"return {result.summary['eval_return_mean']:.1f} of 21 after {result.summary['env_steps']:,} steps")
    print(f"run directory {result.run_dir}")
