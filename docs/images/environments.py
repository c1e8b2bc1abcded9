"""A frame of each environment, side by side by family: `python docs/images/environments.py [FAMILY ...]`.

Scripted policies play up to the moment named here. Classic control is drawn by Gymnasium, whose transitions it has; the
others draw themselves. The bushes are a world of humans and robots at its start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from regimen.envs import registry
from regimen.reports.replay import drawing_env

HERE = Path(__file__).parent
FAMILIES: dict[str, dict[str, tuple[str, int]]] = {  # family -> environment -> (policy, step)
    "classic_control": {
        "cartpole": ("random", 6),
        "acrobot": ("heuristic", 60),
        "mountain_car": ("heuristic", 95),
        "mountain_car_continuous": ("heuristic", 90),
        "pendulum": ("heuristic", 25),
    },
    "hybrid": {
        "platform": ("heuristic", 2),
        "moving": ("heuristic", 8),
        "sliding": ("heuristic", 8),
        "catch_point": ("heuristic", 3),
        "hard_move": ("heuristic", 5),
    },
    "airspace": {
        "airspace/head_on": ("mvp", 16),
        "airspace/cross_4all": ("mvp", 24),
        "airspace/merge_4all": ("mvp", 24),
        "airspace/random": ("mvp", 8),
    },
    "bushes": {"world/way1x5": ("random", 0), "world/bush1x7": ("random", 0)},
}


def state_at(name: str, policy: str, steps: int, seed: int = 0) -> tuple[Any, Any]:
    """The native environment, and its state after so many steps."""
    handle = registry.resolve(name)
    env: Any = handle.native
    keys = jax.random.split(jax.random.key(seed), 2 * steps + 1)
    state, obs = env.reset(keys[0])
    for i in range(steps):
        if policy == "random":
            action = env.action_space.sample()
        else:
            action = handle.baselines[policy](env, keys[2 * i + 1], state, obs)
        state, step = env.step(keys[2 * i + 2], state, action)
        obs = step.obs
    return env, jax.device_get(state)


def frame(name: str, policy: str, steps: int) -> np.ndarray:
    """Pixels [H, W, 3]."""
    env, state = state_at(name, policy, steps)
    if hasattr(env, "render"):
        return np.asarray(env.render(state))
    twin = drawing_env(name, {})
    twin.reset(seed=0)
    twin.unwrapped.state = np.asarray(state, np.float64)
    return np.asarray(twin.render())


def strip(family: dict[str, tuple[str, int]], height: int = 170, widest: int = 420, gap: int = 12) -> Image.Image:
    """All of a family in one row, each under its name."""
    font = ImageFont.load_default(13)
    shots = {name: Image.fromarray(frame(name, *moment)) for name, moment in family.items()}
    for name, shot in shots.items():
        scale = min(height / shot.height, widest / shot.width)
        size = (round(shot.width * scale), round(shot.height * scale))
        shots[name] = shot.resize(size, Image.Resampling.LANCZOS)
    height = max(shot.height for shot in shots.values())
    width = sum(max(s.width, int(font.getlength(n))) + gap for n, s in shots.items()) + gap
    picture = Image.new("RGB", (width, height + 34), "white")
    pen, x = ImageDraw.Draw(picture), gap
    for name, shot in shots.items():
        pen.text((x, 7), name, "black", font)
        picture.paste(shot, (x, 26))
        x += max(shot.width, int(font.getlength(name))) + gap
    return picture


def main() -> None:
    for name in sys.argv[1:] or FAMILIES:
        strip(FAMILIES[name]).quantize(128).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
