"""The pictures of the gallery: an episode of each environment, and a learning curve of each algorithm.

    python docs/images/gallery.py episodes [NAME ...]
    python docs/images/gallery.py curves RUNS

Episodes are played by the policies that come with the environments, and drawn by the environments (those of classic
control by Gymnasium, whose transitions they have). RUNS is a folder with a run or a group of runs named after each
algorithm: the page `docs/gallery.md` has the commands that make them. Writes gallery/*.gif and gallery/*.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageSequence

from regimen.envs import registry
from regimen.files.run_dir import read_config, read_metrics
from regimen.reports.replay import drawing_env

HERE = Path(__file__).parent / "gallery"
SIZE = (300, 220)
FRAMES, COLOURS = 40, 160
EPISODES: dict[str, tuple[str, int, int]] = {  # environment -> (policy, seed, at most so many steps)
    "cartpole": ("heuristic", 0, 160),
    "acrobot": ("heuristic", 0, 500),
    "mountain_car": ("heuristic", 0, 200),
    "pendulum": ("heuristic", 3, 120),
    "platform": ("heuristic", 0, 250),
    "moving": ("heuristic", 0, 200),
    "catch_point": ("heuristic", 0, 30),
    "hard_move": ("heuristic", 0, 30),
    "airspace/cross_4all": ("mvp", 0, 64),
    "durotaxis": ("heuristic", 0, 200),
    "network_defense": ("greedy", 0, 100),
    "world/key_room": ("solved", 0, 0),
}


def states_of(env: Any, policy: Any, seed: int, most: int) -> list[Any]:
    """The states of an episode of a scripted policy, the first one included."""
    key = jax.random.key(seed)
    key, first = jax.random.split(key)
    state, obs = jax.jit(env.reset)(first)
    states, step, act = [jax.device_get(state)], jax.jit(env.step), jax.jit(policy, static_argnums=0)
    for _ in range(min(most, env.max_episode_steps)):
        key, for_action, for_step = jax.random.split(key, 3)
        state, outcome = step(for_step, state, act(env, for_action, state, obs))
        obs = outcome.obs
        states.append(jax.device_get(state))
        if np.all(outcome.terminated | outcome.truncated):
            break
    return states


def frames_of(name: str, policy: str, seed: int, most: int) -> list[np.ndarray]:
    """Pictures [H, W, 3] of an episode; of a world that was solved, those that `regimen solve --plots` has left."""
    if policy == "solved":
        film = Image.open(HERE.parent / Path(name).name / "episode.gif")
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)]
    handle = registry.resolve(name)
    env: Any = handle.native
    states = states_of(env, handle.baselines[policy], seed, most)
    chosen = [states[i] for i in np.unique(np.linspace(0, len(states) - 1, FRAMES).round().astype(int))]
    if hasattr(env, "render"):
        return [np.asarray(env.render(state)) for state in chosen]
    twin: Any = drawing_env(name, {})
    twin.reset(seed=0)
    frames = []
    for state in chosen:
        twin.unwrapped.state = np.asarray(state, np.float64)
        frames.append(np.asarray(twin.render()))
    return frames


def fit(frame: np.ndarray) -> Image.Image:
    """The frame as large as it can be on a sheet of the common size, in the colour of its own border."""
    shot = Image.fromarray(frame)
    scale = min(SIZE[0] / shot.width, SIZE[1] / shot.height)
    size = (round(shot.width * scale), round(shot.height * scale))
    sheet = Image.new("RGB", SIZE, tuple(int(x) for x in frame[0, 0]))
    sheet.paste(shot.resize(size, Image.Resampling.LANCZOS), ((SIZE[0] - size[0]) // 2, (SIZE[1] - size[1]) // 2))
    return sheet


def write_gif(frames: list[np.ndarray], path: Path) -> None:
    sheets = [fit(frame) for frame in frames]
    several = Image.new("RGB", (SIZE[0], 4 * SIZE[1]))  # a palette that serves them all, and keeps what is rare in them
    for i in range(4):
        several.paste(sheets[i * (len(sheets) - 1) // 3], (0, i * SIZE[1]))
    palette = several.quantize(COLOURS)
    pictures = [sheet.quantize(palette=palette, dither=Image.Dither.NONE) for sheet in sheets]
    durations = [max(80, 4000 // len(pictures))] * (len(pictures) - 1) + [1500]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, optimize=True)


CURVES = {  # algorithm -> (metric, its name on the axis, what the horizontal axis counts)
    "ppo": ("eval/return_mean", "return of the greedy policy", "env steps"),
    "sac": ("eval/return_mean", "return of the greedy policy", "env steps"),
    "impala": ("eval/return_mean", "return of the greedy policy", "env steps"),
    "appo": ("eval/return_mean", "return of the greedy policy", "env steps"),
    "cql": ("eval/return_mean", "return of the greedy policy", "gradient steps"),
    "bc": ("eval/return_mean", "return of the greedy policy", "gradient steps"),
    "empowerment": ("train/human_power", "human power, bits", "env steps"),
}


RANGES = {"cartpole": (0, 520), "pendulum": (-1700, 0)}
RANDOM = {"pendulum": -1279}  # docs/results.md, "Learning from data"


def draw_curve(algorithm: str, folder: Path) -> None:
    """One line for each seed of a run or a group."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    metric, label, counted = CURVES[algorithm]
    runs = sorted(folder.glob("seed-*")) or [folder]
    figure, axes = plt.subplots(figsize=(4.2, 2.7), dpi=100, layout="constrained")
    for run, colour in zip(runs, ("#0b5fad", "#c2571a", "#0f8a5f"), strict=False):
        points = [(row["env_steps"], row[metric]) for row in read_metrics(run) if metric in row]
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, label=run.name.replace("-", " "))
    config = read_config(runs[0])
    axes.set_ylim(RANGES.get(config["env"]))
    if config["env"] in RANDOM:
        axes.axhline(RANDOM[config["env"]], color="#667", linestyle=":", linewidth=1.4)
    axes.set_title(
        f"{config['algorithm'].upper() if len(config['algorithm']) < 8 else config['algorithm']} on {config['env']}",
        fontsize=10,
    )
    axes.set_xlabel(counted, fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1:
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(HERE / f"{algorithm}.png")
    plt.close(figure)


def main() -> None:
    HERE.mkdir(exist_ok=True)
    if sys.argv[1] == "curves":
        for algorithm in CURVES:
            draw_curve(algorithm, Path(sys.argv[2], algorithm))
        return
    for name in sys.argv[2:] or EPISODES:
        path = HERE / f"{name.replace('/', '_')}.gif"
        write_gif(frames_of(name, *EPISODES[name]), path)
        print(f"{path.name}: {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main()
