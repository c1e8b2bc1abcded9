"""PettingZoo's parallel environments, both ways: any of them can be trained on, and a native environment of several
agents is one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from regimen.envs.adapters.compiled import CompiledEnv, from_space, to_space, zero_of
from regimen.envs.adapters.gymnasium import Info, read_components, read_mask, read_success
from regimen.envs.imports import load
from regimen.envs.protocol import Env, agents_of
from regimen.errors import EnvError
from regimen.spaces import logits
from regimen.types import PyTree

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
else:
    try:
        from pettingzoo import ParallelEnv
    except ImportError:  # without the extra nothing here can be called
        ParallelEnv = object


def require_pettingzoo() -> None:
    if ParallelEnv is object:
        raise EnvError("PettingZoo is not installed: pip install 'regimen[multi-agent]'")


class Team:
    """A parallel environment whose agents have fixed places, as `HostSource` steps it.

    `reset` and `step` give and take a list with an entry for every possible agent: what belongs to one that no longer
    acts is a filler. Where agents observe boxes of different sizes, the smaller ones are filled up with zeros; where
    they choose among different numbers of actions, a mask forbids those that are not theirs; a smaller continuous
    action is the beginning of the largest.
    """

    def __init__(self, env: ParallelEnv, max_episode_steps: int | None = None):
        self.env, self.metadata = env, getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self.agents: tuple[str, ...] = tuple(env.possible_agents)
        if not self.agents:
            raise EnvError(f"{type(env).__name__}: possible_agents is empty; there is nobody to train")
        self.observation_spaces = [env.observation_space(agent) for agent in self.agents]
        self.action_spaces = [env.action_space(agent) for agent in self.agents]
        self.masked_in_obs = all(is_masked(space) for space in self.observation_spaces)
        if self.masked_in_obs:
            self.observation_spaces = [space["observation"] for space in self.observation_spaces]  # type: ignore[index]
        self.observation_space = common_space(self.observation_spaces, "observation")
        self.action_space = common_space(self.action_spaces, "action")
        inner = getattr(env, "unwrapped", env)
        self.unwrapped = inner
        self.reward_components = tuple(getattr(inner, "reward_components", ("total",)))
        self.metric_reductions = dict(getattr(inner, "metric_reductions", {}))
        self.return_threshold = getattr(inner, "return_threshold", None)
        self.action_conditions = dict(getattr(inner, "action_conditions", {}))
        self.max_episode_steps = max_episode_steps or limit_of(inner)
        self.copies = int(getattr(inner, "copies", 0))  # most in one process
        self.imitates = str(getattr(inner, "imitates", ""))
        self.alive = np.zeros(len(self.agents), bool)
        self.last: list = []  # what each observed last

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[list, Info]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self.alive = np.array([agent in observations for agent in self.agents])
        self.last = self.rows_of(observations)
        return self.last, self.info(observations, infos)

    def step(self, actions: list) -> tuple[list, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Observations, rewards [A, K], terminated [A], truncated [A] and an info for all; entries of those that did
        not act count for nothing. Who is cut short without a last observation keeps the one before: its value is
        nearer to what would have followed than that of a filler."""
        members = {
            agent: member_of(space, action)
            for agent, space, action, alive in zip(self.agents, self.action_spaces, actions, self.alive)
            if alive
        }
        observations, rewards, terminated, truncated, infos = self.env.step(members)
        ended, cut = (
            np.array([bool(x.get(agent, False)) for agent in self.agents]) & self.alive for x in (terminated, truncated)
        )
        absent = np.array([agent not in observations for agent in self.agents]) & self.alive
        reward = np.zeros((len(self.agents), len(self.reward_components)))
        for k, agent in enumerate(self.agents):
            if self.alive[k] and agent in rewards:
                reward[k] = read_components(rewards[agent], infos.get(agent, {}), self.reward_components)
        ended |= absent & ~cut
        self.alive = self.alive & ~ended & ~cut
        new = self.rows_of(observations)
        self.last = [old if leaves else one for old, one, leaves in zip(self.last, new, absent & cut)]
        return self.last, reward, ended, cut & ~ended, self.info(observations, infos)

    def rows_of(self, observations: dict[str, PyTree]) -> list:
        out = []
        for agent, space in zip(self.agents, self.observation_spaces):
            if agent not in observations:
                out.append(zero_of(self.observation_space))
                continue
            x = observations[agent]["observation"] if self.masked_in_obs else observations[agent]
            out.append(x if space == self.observation_space else fill_up(x, self.observation_space))
        return out

    def info(self, observations: dict[str, PyTree], infos: dict[str, Info]) -> Info:
        """The metrics that any agent tells (they are of the whole), whether it is a success, and masks [A, L]."""
        statements: Info = {}
        for agent in reversed(self.agents):
            statements |= infos.get(agent, {})
        out = {name: statements[name] for name in self.metric_reductions if name in statements}
        if (success := read_success(statements)) is not None:
            out["is_success"] = success
        rows = [self.mask(k, agent, observations, infos) for k, agent in enumerate(self.agents)]
        if any(row is not None for row in rows):
            blank = np.ones(logits(self.action_space), bool)
            out["action_mask"] = np.stack([blank if row is None else row for row in rows])
        return out

    def mask(self, k: int, agent: str, observations: dict[str, PyTree], infos: dict[str, Info]) -> np.ndarray | None:
        row = observations[agent].get("action_mask") if self.masked_in_obs and agent in observations else None
        row = row if row is not None else infos.get(agent, {}).get("action_mask")
        space = self.action_spaces[k]
        whole = self.action_space
        if not isinstance(whole, spaces.Discrete) or not isinstance(space, spaces.Discrete):
            return None if row is None else np.asarray(read_mask({"action_mask": row}), bool)
        if row is None and space.n == whole.n:
            return None
        out = np.zeros(whole.n, bool)
        out[: space.n] = True if row is None else np.asarray(row, bool)
        return out

    def render(self) -> np.ndarray | str | list | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def limit_of(env: object) -> int:
    """Steps after which an environment says it cuts an episode short; 0 when it does not."""
    for name in ("max_episode_steps", "max_cycles", "max_num_steps"):
        if isinstance(limit := getattr(env, name, None), int) and limit > 0:
            return limit
    return 0


def is_masked(space: spaces.Space) -> bool:
    """The convention of PettingZoo's classic games: what is observed, and what is allowed, in one dictionary."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == {"observation", "action_mask"}


def common_space(each: list[spaces.Space], what: str) -> spaces.Space:
    """The one space that all agents share."""
    if all(space == each[0] for space in each):
        return each[0]
    choices = [space for space in each if isinstance(space, spaces.Discrete) and space.start == 0]
    if len(choices) == len(each):
        return max(choices, key=lambda space: space.n)
    rows = [space for space in each if isinstance(space, spaces.Box) and len(space.shape) == 1]
    if len(rows) == len(each):
        largest = max(rows, key=lambda space: space.shape[0])
        low, high = np.full(largest.shape, np.inf), np.full(largest.shape, -np.inf)
        for space in rows:
            n = space.shape[0]
            low[:n], high[:n] = np.minimum(low[:n], space.low), np.maximum(high[:n], space.high)
        if what == "observation":  # the zeros that fill it up are in it
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        return spaces.Box(low.astype(largest.dtype), high.astype(largest.dtype), dtype=largest.dtype.type)
    raise EnvError(
        f"agents with the {what} spaces {', '.join(map(str, dict.fromkeys(map(str, each))))} cannot share one; "
        "one-dimensional boxes and discrete spaces of any size can"
    )


def fill_up(x: PyTree, space: spaces.Space) -> np.ndarray:
    """A row with zeros after it, as long as the space."""
    x = np.asarray(x, space.dtype)
    return np.concatenate([x, zero_of(space)[len(x) :]])


def member_of(space: spaces.Space, action: PyTree) -> PyTree:
    """An action of the common space as one of an agent's own."""
    if isinstance(space, spaces.Box) and np.shape(action) != space.shape:
        return np.clip(action[: space.shape[0]], space.low, space.high)
    return action


def parallel_factory(identifier: str) -> Callable[..., ParallelEnv]:
    """The maker of `pettingzoo:MODULE[:FUNCTION]`; the function is `parallel_env` unless it is given."""
    require_pettingzoo()
    target = identifier if ":" in identifier else f"{identifier}:parallel_env"
    return load(target)


def to_pettingzoo(env: Env, render_mode: str | None = None) -> ParallelNative:
    """A native environment of several agents for tools that speak PettingZoo."""
    require_pettingzoo()
    return ParallelNative(env, render_mode)


class ParallelNative(CompiledEnv, ParallelEnv):
    """One copy of a native environment of several agents, compiled for the CPU. Every agent's info has the metrics, its
    own `reward_components` where there are several, and its `action_mask` where the environment has one. Replays step
    it as well, with or without PettingZoo installed."""

    def __init__(self, env: Env, render_mode: str | None = None):
        if not agents_of(env):
            raise EnvError(f"{type(env).__name__} has one agent; use to_gymnasium")
        super().__init__(env, render_mode)
        self.possible_agents = list(agents_of(env))
        self.agents: list[str] = []
        self.observation_spaces = dict.fromkeys(self.possible_agents, env.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, env.action_space)
        self._random, _ = seeding.np_random(None)

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None):
        if seed is not None:
            self._random, _ = seeding.np_random(seed)
        obs, alive, masks = self.begin(self._random)
        self.agents = [agent for agent, there in zip(self.possible_agents, alive) if there]
        return self.by_agent(obs), {agent: self.make_info({}, row(masks, k)) for k, agent in self.present()}

    def step(self, actions: dict[str, PyTree]):
        if self.native_state is not None and not self.agents:
            return {}, {}, {}, {}, {}
        space, acting = self.native.action_space, self.present()
        idle = zero_of(space)
        members = [from_space(space, actions.get(agent, idle)) for agent in self.possible_agents]
        ts, alive, masks = self.advance(jax.tree.map(lambda *x: np.stack(x), *members))
        reward = np.asarray(ts.reward).reshape(len(alive), -1)
        terminated, truncated = (np.broadcast_to(x, alive.shape) for x in (ts.terminated, ts.truncated))
        terminated = terminated | (~alive & ~truncated)  # who leaves has ended, also in the last step
        truncated = (truncated | self.is_late) & ~terminated
        observations = self.by_agent(ts.obs)
        infos = {agent: self.make_info(ts.metrics, row(masks, k), reward[k]) for k, agent in acting}
        rewards = {agent: float(reward[k].sum()) for k, agent in acting}
        ended = {agent: bool(terminated[k]) for k, agent in acting}
        cut = {agent: bool(truncated[k]) for k, agent in acting}
        self.agents = [agent for agent in self.agents if not (ended[agent] or cut[agent])]
        return observations, rewards, ended, cut, infos

    def present(self) -> list[tuple[int, str]]:
        """The places and names of the agents that act."""
        return [(k, agent) for k, agent in enumerate(self.possible_agents) if agent in self.agents]

    def by_agent(self, obs: PyTree) -> dict[str, PyTree]:
        """Observations [A, ...] of the agents that act, by name."""
        space = self.native.observation_space
        return {agent: to_space(space, row(obs, k)) for k, agent in self.present()}


def row(tree: PyTree, k: int) -> PyTree:
    """The part of agent k of arrays [A, ...]."""
    return jax.tree.map(lambda x: x[k], tree)
