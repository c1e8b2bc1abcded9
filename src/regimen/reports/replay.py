"""Episodes of a trained policy to look at: a table of every step, and an animation where the environment can draw."""

import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from regimen.config.domains import domain_of, effective
from regimen.engines import device
from regimen.envs import registry
from regimen.envs.adapters.compiled import zero_of
from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.adapters.pettingzoo import ParallelNative, Team
from regimen.envs.imports import OBJECT
from regimen.envs.protocol import agents_of
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import RunFiles
from regimen.files.storage import replacing, require_own
from regimen.policies.policy import Policy, load_policy
from regimen.reports.table import Table
from regimen.schedule import Episodes
from regimen.sources.host import HostAction, HostSource, row_of
from regimen.sources.play import play_host
from regimen.trees import path_name
from regimen.types import PyTree


def replay(
    run: str | Path,
    checkpoint: str = "best",
    episodes: int = 1,
    seed: int = 0,
    fps: int = 30,
    env_args: Mapping[str, object] | None = None,
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
    name, args = config["env"], dict(env_args or {})
    args = {**effective(name, config["env_args"], args), **args}
    if scenario is not None:
        if not hasattr(registry.locate(name)[1], "scenario"):
            raise ConfigError(f"scenario: {name} has none to choose from")
        args["scenario"] = scenario
    env = drawing_env(name, args, gif)
    require_own(path)
    folder, start = path / "replays", f"{Path(scenario).stem}-" if scenario else ""
    try:
        folder.mkdir(exist_ok=True)
        for number in range(seed, seed + episodes):
            path = folder / f"{start}seed-{number}.csv"
            shot = film(env, policy, number)
            rows, frames = shot.rows, shot.frames
            write_table(path, env, shot)
            if frames:
                path = path.with_suffix(".gif")
                write_gif(path, frames, min(fps, env.metadata.get("render_fps") or fps))
            total, steps = sum(row["reward"] for row in rows), rows[-1]["step"] + 1
            yield f"{path}   return {total:.2f}, {steps} steps" + ("" if frames or not gif else " (nothing to draw)")
    except OSError as e:
        raise StorageError(f"cannot write {folder}: {e.strerror or e}") from e
    finally:
        env.close()


def drawing_env(name: str, args: dict[str, object], frames: bool = True) -> gymnasium.Env | Team:
    """The run's environment with frames. A native one draws itself or, where it equals an environment of Gymnasium and
    none of its own parameters is set, borrows that one's renderer."""
    for driver in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # Gymnasium's renderers use SDL: no sound, no window
        os.environ.setdefault(driver, "dummy")
    entry = registry.ENVS.get(name)
    twin = f"gym:{entry.gym_id}" if entry is not None and entry.gym_id and set(args) <= {"max_episode_steps"} else None
    host = name if name.startswith(("gym:", "pettingzoo:")) else None
    for candidate in filter(None, (twin, host) if frames else ()):
        try:
            env = registry.make_env(candidate, **args, render_mode="rgb_array")
            assert isinstance(env, (gymnasium.Env, Team))
            env.reset()
            env.render()
            return env
        except Exception:  # no renderer, or what it needs is not installed: a table will do
            continue
    native = registry.make_env(name, **args)
    if isinstance(native, (gymnasium.Env, Team)):
        return native
    mode = "rgb_array" if frames and hasattr(native, "render") else None
    return Team(ParallelNative(native, mode)) if agents_of(native) else to_gymnasium(native, render_mode=mode)


class ReplayLimits(NamedTuple):
    """What the replay may cost that a run leaves by itself."""

    steps: int = 600
    frames: int = 121
    seconds: float = 15.0  # of computing; of waiting, too, four times as many
    size: int = 4_000_000  # bytes of each file


class Film(NamedTuple):
    """One greedy episode to look at."""

    rows: list[dict[str, Any]]  # of every agent at every step at which it acts
    frames: list[np.ndarray]  # empty where nothing can be drawn
    states: list[PyTree]  # of a native environment of several agents, the first included
    every: int = 1  # steps from frame to frame


def try_leave_replay(run: str | Path) -> tuple[list[Path], str | None]:
    """`leave_replay` for the end of a training run: whatever an environment raises is a line to show."""
    try:
        return leave_replay(run), None
    except Exception as error:  # of an environment or its renderer: a run does not end with it
        return [], f"none: {' '.join(str(error).split())[:200] or type(error).__name__}"


def leave_replay(run: str | Path, limits: ReplayLimits = ReplayLimits()) -> list[Path]:  # noqa: B008, it cannot change
    """Write a short replay of a run's best policy, `replays/best.csv` and where frames can be drawn `best.gif`, and
    return what was written: nothing where the environment cannot be drawn. What does not fit the limits is cut off."""
    path = Path(run)
    config = RunFiles.open(path).config
    name = config["env"]
    if name.startswith(OBJECT):  # an environment without a name cannot be made again
        return []
    domain = domain_of(name)
    tabled = domain is not None and domain.tables is not None  # the page draws its tables
    env = drawing_env(name, dict(config["env_args"]), frames=importlib.util.find_spec("PIL") is not None)
    try:
        if env.render_mode != "rgb_array" and not tabled:
            return []
        require_own(path)
        folder = path / "replays"
        folder.mkdir(exist_ok=True)
        shot = film(env, load_policy(path), 0, limits)
        paths = [write_table(folder / "best.csv", env, shot, limits.size)]
        if shot.frames:
            paths.append(folder / "best.gif")
            fps = min(30, env.metadata.get("render_fps") or 30)
            write_gif(paths[-1], shot.frames, max(1, round(fps / shot.every)), limits.size)
        return paths
    except OSError as e:
        raise StorageError(f"cannot write {path / 'replays'}: {e.strerror or e}") from e
    finally:
        env.close()


def write_table(path: Path, env: gymnasium.Env | Team, shot: Film, most: float = float("inf")) -> Path:
    """Write the table of an episode: the environment's own of its states, or what agents saw and did. Rows that make
    it larger than `most` bytes are left out."""
    write_states = getattr(getattr(getattr(env, "env", None), "native", None), "write_states", None)
    if isinstance(env, Team) and write_states:
        write_states(path, jax.device_get(shot.states))
        return path
    table = Table.of_records(shot.rows)
    size = len(table.first(1).csv())
    table.first(max(1, int(min(len(shot.rows), most // size)))).write_csv(path)
    return path


def film(env: gymnasium.Env | Team, policy: Policy, seed: int, most: ReplayLimits | None = None) -> Film:
    """Play one greedy episode, or as much of it as there may be; an environment of one agent is a team of one without a
    name."""
    team = isinstance(env, Team)
    limits = (env.reward_components, env.max_episode_steps) if team else (("total",), registry.time_limit(env))
    source = HostSource(lambda: env, Episodes(1), 1, *limits)
    policy.reset()
    every = 1
    until = (0.0, 0.0) if most is None else (time.process_time() + most.seconds, time.monotonic() + 4 * most.seconds)
    if most is not None:
        every = -(-min(most.steps, source.limit or most.steps) // max(1, most.frames - 1))  # and the first
    rows, frames, states, before, hidden = [], [], [], (), {}
    for step, moment in enumerate(play_host(source, partial(decide, policy), seed, 1), -1):
        for k in np.flatnonzero(moment.row["valid"][0]):
            row = {"step": step} | ({"agent": env.agents[k]} if team else {})
            row |= columns("obs", row_of(before, int(k))) | hidden | columns("action", moment.actions[k])
            row["reward"] = float(moment.row["reward"][0, k].sum(dtype=np.float64))
            rows.append(row | {name: int(moment.row[name][0, k]) for name in ("terminated", "truncated")})
        before, hidden = jax.tree.map(np.copy, source.obs), unseen(env)
        states.append(getattr(getattr(env, "env", None), "native_state", None))
        if env.render_mode == "rgb_array" and ((step + 1) % every == 0 or moment.ended):
            frames.append(np.asarray(env.render()))
        late = time.process_time() > until[0] or time.monotonic() > until[1]
        if most is not None and (late or step + 1 >= most.steps):
            break
    return Film(rows, frames, states, every)


def decide(policy: Policy, source: HostSource) -> list[HostAction]:
    """The greedy actions in the only environment of a source, one for each agent; who has left gets a filler."""
    env = source.envs[0]
    if not isinstance(env, Team):
        return [policy.act(row_of(source.obs, 0), mask=None if source.mask is None else source.mask[0])]
    acting = {agent: k for k, agent in enumerate(env.agents) if env.alive[k]}
    allowed = {} if source.mask is None else {agent: source.mask[k] for agent, k in acting.items()}
    actions = policy.act({agent: row_of(source.obs, k) for agent, k in acting.items()}, mask=allowed)
    return [actions.get(agent, zero_of(env.action_space)) for agent in env.agents]


def unseen(env: gymnasium.Env | Team) -> dict[str, float]:
    """Columns of the state that the observation does not show, of a native environment that names some."""
    name_columns = getattr(getattr(env, "native", None), "replay_columns", None)
    values = {} if name_columns is None else name_columns(jax.device_get(getattr(env, "native_state", None)))
    return {k: v for name, value in values.items() for k, v in columns(name, value).items()}


def columns(name: str, value: PyTree) -> dict[str, float]:
    """The numbers of a tree by `name/path`, and by `[i]` where there are several at one path."""
    out = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        label, flat = "/".join([name, path_name(path)] if path else [name]), np.ravel(leaf)
        out |= {label: flat[0].item()} if flat.size == 1 else {f"{label}[{i}]": x.item() for i, x in enumerate(flat)}
    return out


def write_gif(path: Path, frames: list[np.ndarray], fps: float, most: float = float("inf")) -> None:
    """Write an animation; of one that is larger than `most` bytes every second frame is left out until it is not."""
    from PIL import Image  # comes with matplotlib

    images = [Image.fromarray(f).quantize(64) for f in frames]
    with replacing(path) as tmp:
        while True:
            images[0].save(tmp, save_all=True, append_images=images[1:], duration=1000 / fps, loop=0, optimize=True)
            if tmp.stat().st_size <= most or len(images) == 1:
                return
            images, fps = images[::2], fps / 2
