"""Episodes of a trained policy to look at: a table of every step, and an animation where the environment can draw."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from regimen.engines import device
from regimen.envs import registry
from regimen.envs.adapters.gymnasium import read_mask, to_gymnasium
from regimen.envs.adapters.pettingzoo import ParallelNative, Team, zero_of
from regimen.envs.protocol import agents_of
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import RunFiles
from regimen.files.storage import replacing
from regimen.policies.policy import Policy, load_policy
from regimen.reports.table import Table


def replay(
    run: str | Path,
    checkpoint: str = "best",
    episodes: int = 1,
    seed: int = 0,
    fps: int = 30,
    env_args: Any = None,
    scenario: str | None = None,
    gif: bool = True,
) -> Iterator[str]:
    """Write RUN/replays/seed-<n>.csv, and .gif where frames can be drawn; yields a line for each episode.

    `fps` is at most the environment's own `render_fps`: a step of Platform is seconds long. `scenario` is another one
    than the policy was trained on, for environments that have several."""
    path = Path(run)
    device.configure("cpu", native=True)
    if (path / "config.json").exists():  # a policy by itself, as a search or an export leaves it
        policy = load_policy(path)
        config = policy.meta
    else:
        config = RunFiles.open(path).config
        policy = load_policy(path, checkpoint)
    args = dict(config["env_args"]) | dict(env_args or {})
    env: Any = drawing_env(config["env"], in_scenario(config["env"], args, scenario), gif)
    folder, start = path / "replays", f"{Path(scenario).stem}-" if scenario else ""
    try:
        folder.mkdir(exist_ok=True)
        for number in range(seed, seed + episodes):
            path = folder / f"{start}seed-{number}.csv"
            if isinstance(env, Team):
                rows, frames, states = play_together(env, policy, number)
                if not write_states(path, getattr(env.env, "native", None), states):
                    Table.of_records(rows).write_csv(path)
            else:
                rows, frames = play(env, policy, number)
                Table.of_records(rows).write_csv(path)
            if frames:
                path = path.with_suffix(".gif")
                write_gif(path, frames, min(fps, env.metadata.get("render_fps") or fps))
            total, steps = sum(row["reward"] for row in rows), rows[-1]["step"] + 1
            yield f"{path}   return {total:.2f}, {steps} steps" + ("" if frames or not gif else " (nothing to draw)")
    except OSError as e:
        raise StorageError(f"cannot write {folder}: {e.strerror or e}") from e
    finally:
        env.close()


def in_scenario(name: str, args: dict[str, Any], scenario: str | None) -> dict[str, Any]:
    """The environment's arguments, with another scenario if one is asked for."""
    if scenario is None:
        return args
    if not hasattr(registry.locate(name)[1], "scenario"):
        raise ConfigError(f"scenario: {name} has none to choose from")
    return args | {"scenario": scenario}


def drawing_env(name: str, args: dict[str, Any], frames: bool = True) -> Any:
    """The run's environment with frames. A native one draws itself or, where it equals an environment of Gymnasium and
    none of its own parameters is set, borrows that one's renderer."""
    for driver in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # Gymnasium's renderers use SDL: no sound, no window
        os.environ.setdefault(driver, "dummy")
    entry = registry.ENVS.get(name)
    twin = f"gym:{entry.gym_id}" if entry is not None and entry.gym_id and set(args) <= {"max_episode_steps"} else None
    own = name if name.startswith(("gym:", "pettingzoo:")) else None
    for candidate in filter(None, (twin, own) if frames else ()):
        try:
            env: Any = registry.make_env(candidate, **args, render_mode="rgb_array")
            env.reset()
            env.render()
            return env
        except Exception:  # no renderer, or what it needs is not installed: a table will do
            continue
    made: Any = registry.make_env(name, **args)
    mode = "rgb_array" if frames and hasattr(made, "render") else None
    if isinstance(made, (gymnasium.Env, Team)):
        return made
    return Team(ParallelNative(made, mode)) if agents_of(made) else to_gymnasium(made, render_mode=mode)


def play(env: gymnasium.Env, policy: Policy, seed: int) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """One greedy episode: a row per step, and the frames."""
    obs, info = env.reset(seed=seed)
    policy.reset()
    draws = env.render_mode == "rgb_array"
    frames = [np.asarray(env.render())] if draws else []
    rows, over, limit = [], False, registry.time_limit(env)
    while not over:
        action = policy.act(obs, mask=read_mask(info))
        row = {"step": len(rows)} | columns("obs", obs) | unseen(env) | columns("action", action)
        obs, reward, terminated, truncated, info = env.step(action)
        truncated = truncated or (len(rows) + 1 == limit and not terminated)
        rows.append(row | {"reward": float(reward), "terminated": int(terminated), "truncated": int(truncated)})
        if draws:
            frames.append(np.asarray(env.render()))
        over = terminated or truncated
    return rows, frames


def unseen(env: Any) -> dict[str, float]:
    """Columns of the state that the observation does not show, of a native environment that names some."""
    tell = getattr(getattr(env, "native", None), "replay_columns", None)
    found = {} if tell is None else tell(jax.device_get(env.state))
    return {k: v for name, value in found.items() for k, v in columns(name, value).items()}


def play_together(team: Team, policy: Policy, seed: int) -> tuple[list[dict[str, Any]], list[np.ndarray], list[Any]]:
    """One greedy episode of several agents: a row for each that acts, the frames, and the states of a native one."""
    observations, info = team.reset(seed=seed)
    policy.reset()
    draws, idle = team.render_mode == "rgb_array", zero_of(team.action_space)
    frames = [np.asarray(team.render())] if draws else []
    states, rows, step = [getattr(team.env, "state_of_native", None)], [], 0
    while team.alive.any() and (step < team.max_episode_steps or not team.max_episode_steps):
        acting = [(k, agent) for k, agent in enumerate(team.agents) if team.alive[k]]
        before = {agent: observations[k] for k, agent in acting}
        allowed = {agent: info["action_mask"][k] for k, agent in acting} if "action_mask" in info else {}
        actions = policy.act(before, mask=allowed)
        given = [actions.get(agent, idle) for agent in team.agents]
        observations, rewards, terminated, truncated, info = team.step(given)
        late = step + 1 == team.max_episode_steps
        for k, agent in acting:
            row = {"step": step, "agent": agent} | columns("obs", before[agent]) | columns("action", actions[agent])
            ends = {"terminated": int(terminated[k]), "truncated": int(truncated[k] or (late and not terminated[k]))}
            rows.append(row | {"reward": float(rewards[k].sum())} | ends)
        states.append(getattr(team.env, "state_of_native", None))
        if draws:
            frames.append(np.asarray(team.render()))
        step += 1
    return rows, frames, states


def write_states(path: Path, env: Any, states: list[Any]) -> bool:
    """The table of an environment that has one of its own, in the place of what agents saw and did."""
    if not hasattr(env, "write_states"):
        return False
    env.write_states(path, jax.device_get(states))
    return True


def columns(name: str, value: Any) -> dict[str, float]:
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    out = {}
    for path, leaf in leaves:
        label = name + "".join(f"/{getattr(k, 'key', getattr(k, 'idx', k))}" for k in path)
        flat = np.ravel(leaf)
        out |= {label: flat[0].item()} if flat.size == 1 else {f"{label}[{i}]": x.item() for i, x in enumerate(flat)}
    return out


def write_gif(path: Path, frames: list[np.ndarray], fps: int) -> None:
    from PIL import Image  # comes with matplotlib

    images = [Image.fromarray(f).quantize(64) for f in frames]
    with replacing(path) as tmp:
        images[0].save(tmp, save_all=True, append_images=images[1:], duration=1000 / fps, loop=0, optimize=True)
