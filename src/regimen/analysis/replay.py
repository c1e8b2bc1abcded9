"""Episodes of a trained policy to look at: a table of every step, and an animation where the environment can draw."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from regimen.envs import registry
from regimen.envs.adapters.gymnasium import read_mask, to_gymnasium
from regimen.errors import StorageError
from regimen.tracking.files import RunFiles
from regimen.training import device
from regimen.training.policy import Policy, load_policy


def replay(
    run: str | Path, checkpoint: str = "best", episodes: int = 1, seed: int = 0, fps: int = 30, env_args: Any = None
) -> Iterator[str]:
    """Write RUN/replays/seed-<n>.csv, and .gif where frames can be drawn; yields a line for each episode.

    `fps` is at most the environment's own `render_fps`: a step of Platform is seconds long."""
    files = RunFiles.open(Path(run))
    config = files.config
    device.configure("cpu", native=True)
    policy = load_policy(files.path, checkpoint)
    env = drawing_env(config["env"], dict(config["env_args"]) | dict(env_args or {}))
    folder = files.path / "replays"
    try:
        folder.mkdir(exist_ok=True)
        for number in range(seed, seed + episodes):
            rows, frames = play(env, policy, number)
            path = folder / f"seed-{number}.csv"
            write_table(path, rows)
            if frames:
                path = path.with_suffix(".gif")
                write_gif(path, frames, min(fps, env.metadata.get("render_fps") or fps))
            total = sum(row["reward"] for row in rows)
            yield f"{path}   return {total:.2f}, {len(rows)} steps" + ("" if frames else " (nothing to draw)")
    except OSError as e:
        raise StorageError(f"cannot write {folder}: {e.strerror or e}") from e
    finally:
        env.close()


def drawing_env(name: str, args: dict[str, Any]) -> gymnasium.Env:
    """The run's environment with frames. A native one draws itself or, where it equals an environment of Gymnasium and
    none of its own parameters is set, borrows that one's renderer."""
    for driver in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # Gymnasium's renderers use SDL: no sound, no window
        os.environ.setdefault(driver, "dummy")
    entry = registry.ENVS.get(name)
    twin = f"gym:{entry.gym_id}" if entry is not None and entry.gym_id and set(args) <= {"max_episode_steps"} else None
    for candidate in filter(None, (twin, name if name.startswith("gym:") else None)):
        try:
            env: Any = registry.make_env(candidate, **args, render_mode="rgb_array")
            env.reset()
            env.render()
            return env
        except Exception:  # no renderer, or what it needs is not installed: a table will do
            continue
    made: Any = registry.make_env(name, **args)
    if isinstance(made, gymnasium.Env):
        return made
    return to_gymnasium(made, render_mode="rgb_array" if hasattr(made, "render") else None)


def play(env: gymnasium.Env, policy: Policy, seed: int) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """One greedy episode: a row per step, and the frames."""
    obs, info = env.reset(seed=seed)
    policy.reset()
    draws = env.render_mode == "rgb_array"
    frames = [np.asarray(env.render())] if draws else []
    rows, over = [], False
    while not over:
        action = policy.act(obs, mask=read_mask(info))
        row = {"step": len(rows)} | columns("obs", obs) | columns("action", action)
        obs, reward, terminated, truncated, info = env.step(action)
        rows.append(row | {"reward": float(reward), "terminated": int(terminated), "truncated": int(truncated)})
        if draws:
            frames.append(np.asarray(env.render()))
        over = terminated or truncated
    return rows, frames


def columns(name: str, value: Any) -> dict[str, float]:
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    out = {}
    for path, leaf in leaves:
        label = name + "".join(f"/{getattr(k, 'key', getattr(k, 'idx', k))}" for k in path)
        flat = np.ravel(leaf)
        out |= {label: flat[0].item()} if flat.size == 1 else {f"{label}[{i}]": x.item() for i, x in enumerate(flat)}
    return out


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_gif(path: Path, frames: list[np.ndarray], fps: int) -> None:
    from PIL import Image  # comes with matplotlib

    images = [Image.fromarray(f).quantize(64) for f in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 / fps, loop=0, optimize=True)
