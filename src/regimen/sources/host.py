"""Collecting from environments that are not compiled (Gymnasium, PettingZoo, EnvPool): the same `Batch` as the scan
source.

One batched policy call per step, with noise drawn beforehand and one packed result; copies of the environment are
stepped in this process or in others (`envs/copies.py`) and write into preallocated rows. What comes back is checked, so
that a NaN or a wrong shape is named before it is learned from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from regimen import spaces
from regimen.envs.adapters.gymnasium import read_components, read_mask, read_success
from regimen.envs.adapters.pettingzoo import Team
from regimen.envs.copies import Copies, LocalCopies
from regimen.envs.metric import Declared, reductions_of
from regimen.envs.registry import EnvHandle
from regimen.errors import EnvError, RegimenError
from regimen.schedule import Episodes, Schedule
from regimen.sources.keys import NOISE_BLOCK, RolloutKeys
from regimen.sources.scan import reduce
from regimen.types import ActingAlgorithm, Array, Batch, EpisodeRows, PyTree

HostAction = Any  # of an action space: a number, an array, or a dict or tuple of them
HostRows = dict[str, PyTree]  # time rows [T, B, ...] by name
Index = int | slice | list[int] | tuple  # of numpy
Ending = tuple[int, bool, bool | None]  # environment, whether its episode ended by itself, whether it says it succeeded


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The run was asked to stop in the middle of a rollout; the partial rollout is dropped."""


class HostSource:
    """`Steps` or `Episodes` from `num_envs` copies of a Gymnasium environment, or of a PettingZoo one as a `Team`. The
    copies are made here, and stepped in this process, where they are not given."""

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env | Team],
        schedule: Schedule,
        num_envs: int,
        reward_components: tuple[str, ...] = ("total",),
        max_episode_steps: int = 0,
        stop_requested: Callable[[], bool] = lambda: False,
        metric_reductions: Declared | None = None,
        copies: Copies | None = None,
    ):
        self.copies: Copies = copies or LocalCopies(make_env, num_envs)
        self.copies.watch = self.watch
        self.envs: list[Any] = getattr(self.copies, "envs", [])  # where they are in this process
        self.schedule, self.num_envs = schedule, num_envs
        self.agents = len(self.envs[0].agents) if self.envs and isinstance(self.envs[0], Team) else 0
        self.columns = num_envs * max(1, self.agents)
        self.components, self.limit = reward_components, max_episode_steps
        self.stop_requested = stop_requested
        self.observation_space = self.copies.observation_space
        self.action_space = self.copies.action_space
        self.obs: PyTree = spaces.zeros(self.observation_space, (self.columns,))
        self.mask: np.ndarray | None = None  # [B, logits]
        self.reward = np.zeros((num_envs, len(reward_components)))
        self.length = [0] * num_envs
        self.reductions = reductions_of(metric_reductions or {})
        self.metrics: list[dict[str, float]] = [{} for _ in range(num_envs)]  # reductions over the running episode
        self.single = len(reward_components) == 1
        self.act: Callable[..., tuple[Array, PyTree]] | None = None
        self.like: PyTree = None  # parameters of the policy, for their shapes
        self.shapes: dict[tuple[tuple[int, ...], bool], PyTree] = {}  # of what is kept of an action
        self.memory: PyTree = ()  # [B, ...] what the policy carries from step to step
        self.blank: PyTree = ()  # and at the start of an episode
        self.remembers = False
        self.env_width = sum(math.prod(spaces.shape_of(s)) for s in spaces.leaves(self.action_space).values())
        self.doing = ("wait", -1, monotonic())  # what, in which environment, since when: for whoever watches
        self.steps_taken = 0  # ever

    @classmethod
    def of(
        cls, handle: EnvHandle, schedule: Schedule, num_envs: int, stop_requested: Callable[[], bool] = lambda: False
    ) -> HostSource:
        """The source that steps copies of a handle's environment."""
        assert handle.make_host is not None
        components, limit = handle.reward_components, handle.max_episode_steps
        copies = None if handle.make_copies is None else handle.make_copies(num_envs)
        metrics = handle.metric_reductions
        return cls(handle.make_host, schedule, num_envs, components, limit, stop_requested, metrics, copies)

    def init(self, seed: int) -> None:
        """Seed and reset every environment: the only time seeds are given, so that episodes keep differing."""
        self.reset({i: seed + i for i in range(self.num_envs)})

    def watch(self, what: str, env: int) -> None:
        """Note what is being done from now on, in which environment."""
        self.doing = (what, env, monotonic())

    def close(self) -> None:
        self.copies.close()

    def next(self, algo: ActingAlgorithm, params: PyTree, key: Array) -> tuple[Batch, EpisodeRows, int]:
        """One rollout: the batch, the episodes that ended in it, and the env steps taken."""
        self.watch("act", -1)
        episodic = isinstance(self.schedule, Episodes)
        share = self.schedule.n // self.num_envs  # of steps, or of episodes
        block = NOISE_BLOCK if episodic else share
        if self.act is None:
            self.prepare(algo, params, block)
        flat = self.flatten(params)
        remaining = np.full(self.num_envs, share)
        if episodic:
            self.reset({i: None for i, n in enumerate(self.length) if n})  # whole episodes only: every share is fresh
        rows = self.buffer(share * self.limit if episodic else share, algo)
        noise, ended, total, t = None, [], 0, 0
        active = list(range(self.num_envs))
        while active:
            if self.stop_requested():
                raise Interrupted
            if t % block == 0:
                noise = jax.tree.map(np.asarray, self.draw(key, t))
            if t == len(rows["valid"]):
                rows = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x)]), rows)
            actions = self.decide(rows, t, flat, row_of(noise, t % block))
            done = self.step(rows, t, actions, active)
            total += len(active)
            self.steps_taken += len(active)
            for i, terminated, success in done:
                ended.append((total, self.reward[i].copy(), self.length[i], terminated, success, self.metrics[i]))
                remaining[i] -= episodic
            if done:
                self.reset({i: None for i, _, _ in done})
            t += 1
            if episodic:
                active = [i for i in active if remaining[i]]
            elif t == share:
                break
        self.watch("wait", -1)
        return self.batch(rows, t if episodic else None, algo), self.finished(ended), total

    def decide(self, rows: HostRows, t: int, flat: Array, noise: PyTree) -> list[HostAction]:
        """Record observations and the policy's choice in row t; the actions as the environments take them."""
        self.watch("act", -1)
        set_row(rows["obs"], t, self.obs)
        if self.mask is not None:
            if not spaces.allows(self.action_space, self.mask):
                raise EnvError("info['action_mask'] allows no action at all; at least one must be allowed")
            rows["mask"][t] = self.mask
        assert self.act is not None
        packed, memory = self.act(flat, self.obs, self.mask, self.memory, noise)
        packed = np.asarray(packed)
        if self.remembers:
            self.memory = jax.tree.map(np.array, memory)
        rows["packed"][t] = packed[:, self.env_width :]
        return to_members(self.action_space, packed[:, : self.env_width])

    def step(self, rows: HostRows, t: int, actions: list[HostAction], active: list[int]) -> list[Ending]:
        """Step the active environments into row t: those whose episode ended, whether by itself, and whether they say
        they succeeded."""
        if self.agents:
            return self.step_teams(rows, t, actions, active)
        done, observations, rewards, limit = [], [], [], self.limit or 1 << 62
        outcomes = self.copies.step(active, actions)
        for i, (obs, reward, terminated, truncated, info) in zip(active, outcomes):  # plain values; arrays below, once
            observations.append(obs)
            rewards.append(reward if self.single else read_components(reward, info, self.components))
            length = self.length[i] = self.length[i] + 1
            if terminated or truncated or length >= limit:
                rows["terminated" if terminated else "truncated"][t, i] = True
                done.append((i, bool(terminated), read_success(info)))
            if self.mask is not None or "action_mask" in info:
                self.note_mask(i, info)
            if self.reductions:
                self.note_metrics(i, info)
        try:
            row = np.asarray(rewards, np.float32).reshape(len(active), -1)
        except (TypeError, ValueError) as e:
            raise EnvError(f"the environment's step returned the reward {rewards[0]!r}; it must be a number") from e
        if row.shape[1] != len(self.components) or not finite(row):
            raise EnvError(f"the environment's step returned the rewards {rewards}; each must be one finite number")
        some = slice(None) if len(active) == self.num_envs else active  # indexing by a list is slow
        rows["reward"][t, some] = row
        rows["valid"][t, some] = True
        self.reward[some] += row
        new = self.stack(self.obs, observations, "step")
        set_row(rows["next_obs"], (t, some), new)
        if "next_mask" in rows:  # an evaluation keeps none
            rows["next_mask"][t] = self.mask
        set_row(self.obs, some, new)
        return done

    def step_teams(self, rows: HostRows, t: int, actions: list[HostAction], active: list[int]) -> list[Ending]:
        """Step environments of several agents, each of which has a column as long as it acts."""
        done, limit = [], self.limit or 1 << 62
        before = [team.alive for team in self.envs]
        outcomes = self.copies.step(active, [actions[self.columns_of(i)] for i in range(self.num_envs)])
        for i, (observations, reward, terminated, truncated, info) in zip(active, outcomes):
            columns, acted = self.columns_of(i), before[i]
            if not finite(reward):
                raise EnvError(f"the environment's step returned the rewards {reward.tolist()}; each must be finite")
            length = self.length[i] = self.length[i] + 1
            if length >= limit:
                truncated = acted & ~terminated
            rows["reward"][t, columns], rows["valid"][t, columns] = reward, acted
            rows["terminated"][t, columns], rows["truncated"][t, columns] = terminated, truncated
            self.reward[i] += reward.sum(0)
            new = self.stack(self.obs, observations, "step")
            set_row(rows["next_obs"], (t, columns), new)
            set_row(self.obs, columns, new)
            if not (acted & ~terminated & ~truncated).any():
                done.append((i, not truncated.any(), read_success(info)))
            if self.mask is not None or "action_mask" in info:
                self.note_mask(i, info)
            if self.reductions:
                self.note_metrics(i, info)
        if "next_mask" in rows:
            rows["next_mask"][t] = self.mask
        return done

    def columns_of(self, i: int) -> slice:
        """The columns of environment i."""
        width = max(1, self.agents)
        return slice(i * width, (i + 1) * width)

    def reset(self, starts: Mapping[int, int | None]) -> None:
        """Begin an episode in each of these environments, from its seed where there is one."""
        for i, (obs, info) in zip(starts, self.copies.reset(starts)):
            self.begin(i, obs, info)

    def begin(self, i: int, obs: PyTree, info: dict) -> None:
        """Note how an episode starts."""
        columns = self.columns_of(i)
        set_row(self.obs, columns, self.stack(self.obs, obs if self.agents else [obs], "reset"))
        self.reward[i], self.length[i], self.metrics[i] = 0.0, 0, {}
        if self.remembers:
            set_row(self.memory, columns, self.blank)
        if "action_mask" in info and self.mask is None:
            size = spaces.logits(self.action_space)
            self.mask = np.ones((self.columns, size), bool)
        if self.mask is not None:
            self.note_mask(i, info)

    def prepare(self, algo: ActingAlgorithm, params: PyTree, block: int) -> None:
        """Compile the policy and the draw of its noise."""
        unravel = ravel_pytree(params)[1]
        self.like = params
        self.flatten = jax.jit(lambda tree: ravel_pytree(tree)[0])  # one argument instead of a dozen: half the cost
        self.act = jax.jit(lambda flat, *args: packed_act(algo, self.action_space, unravel(flat), *args))
        first = jax.jit(lambda key: RolloutKeys.of(key).action_noise(algo, 0, block, self.columns))
        later = jax.jit(lambda key, t: RolloutKeys.of(key).action_noise(algo, t, block, self.columns))
        self.draw = lambda key, t: later(key, t) if t else first(key)
        self.remember(algo)

    def remember(self, algo: ActingAlgorithm) -> None:
        """Start the policy's own carry, for every environment."""
        self.memory = jax.tree.map(np.array, algo.initial_carry((self.columns,)))
        self.blank = jax.tree.map(np.array, algo.initial_carry((1,)))
        self.remembers = bool(jax.tree.leaves(self.blank))

    def note_metrics(self, i: int, info: dict) -> None:
        """One more value of each metric the environment declares."""
        for name, how in self.reductions.items():
            if name not in info:
                raise EnvError(f"metric_reductions names '{name}', which info does not have; it has {sorted(info)}")
            value, old = float(info[name]), self.metrics[i].get(name)
            self.metrics[i][name] = value if old is None else reduce(how, old, value, self.length[i], min, max)

    def note_mask(self, i: int, info: dict) -> None:
        mask = read_mask(info)
        if mask is None or self.mask is None:
            raise EnvError("info['action_mask'] must come from every reset and every step, or from none")
        try:
            if self.agents:
                self.mask[self.columns_of(i)] = info["action_mask"]
            else:
                self.mask[i] = spaces.mask_row(self.action_space, mask)
        except (RegimenError, ValueError) as e:
            raise EnvError(f"info['action_mask']: {e}") from e

    def stack(self, like: PyTree, observations: list, where: str) -> PyTree:
        """Observations of several environments as arrays like `like`; a wrong shape or a NaN is named."""
        if isinstance(like, np.ndarray):
            shape = like.shape[1:]
            for obs in observations:
                if (obs.shape if isinstance(obs, np.ndarray) else np.shape(obs)) != shape:
                    raise EnvError(
                        f"the environment's {where} returned an observation of shape {np.shape(obs)}; its "
                        f"observation_space says {shape}"
                    )
            out = np.asarray(observations, like.dtype)
            if out.dtype == np.float32 and not finite(out):
                raise EnvError(f"the environment's {where} returned a non-finite observation: {out.tolist()}")
            return out
        try:
            if isinstance(like, dict):
                return {k: self.stack(v, [obs[k] for obs in observations], where) for k, v in like.items()}
            return tuple(self.stack(v, [obs[k] for obs in observations], where) for k, v in enumerate(like))
        except (KeyError, IndexError, TypeError) as e:
            raise EnvError(f"the environment's {where} returned an observation without the part {e}") from e

    def buffer(self, capacity: int, algo: ActingAlgorithm) -> HostRows:
        """Make the buffer of rows to write into. Without a known limit on an episode's length they start small and
        double."""
        lead = (capacity or 256, self.columns)
        team = max(1, self.agents)  # a policy map acts for whole teams
        width = sum(x.size for x in jax.tree.leaves(self.stored(algo, (team,)))) // team
        flags = {name: np.zeros(lead, bool) for name in ("terminated", "truncated", "valid")}
        rows = flags | {
            "obs": spaces.zeros(self.observation_space, lead),
            "next_obs": spaces.zeros(self.observation_space, lead),
            "packed": np.zeros((*lead, width), np.float32),
            "reward": np.zeros((*lead, len(self.components)), np.float32),
        }
        masks = {} if self.mask is None else dict.fromkeys(("mask", "next_mask"), (*lead, self.mask.shape[1]))
        return rows | {name: np.zeros(shape, bool) for name, shape in masks.items()}

    def batch(self, rows: HostRows, length: int | None, algo: ActingAlgorithm) -> Batch:
        """The rows as a batch; with `length`, T is a capacity so that the update compiles once."""
        packed = rows["packed"]
        like, structure = jax.tree.flatten(self.stored(algo, packed.shape[:2]))
        columns = np.split(packed, np.cumsum([x.size // packed[..., 0].size for x in like])[:-1], axis=-1)
        leaves = [c.reshape(x.shape).astype(x.dtype) for c, x in zip(columns, like)]
        action, extras = jax.tree.unflatten(structure, leaves)
        extras |= {name: rows[name] for name in ("mask", "next_mask") if name in rows}
        fields = {name: rows[name] for name in ("obs", "reward", "terminated", "truncated", "next_obs", "valid")}
        used = None if length is None else jnp.int32(length)
        return Batch(**fields, action=action, extras=extras, length=used, full=length is None and not self.agents)

    def stored(self, algo: ActingAlgorithm, lead: tuple[int, ...]) -> PyTree:
        """Shapes of what is kept of an action: as sampled, and what the policy says of it. They are remembered, since
        tracing the policy takes milliseconds."""
        key = (lead, self.mask is None)

        def make() -> PyTree:
            noise = algo.noise(jax.random.key(0), lead)
            obs = spaces.zeros(self.observation_space, lead)
            mask = None if self.mask is None else jnp.ones((*lead, self.mask.shape[1]), bool)
            action, _, extras = algo.act(self.like, obs, algo.initial_carry(lead), noise, mask=mask)
            return action, extras

        if key not in self.shapes:
            self.shapes[key] = jax.eval_shape(make)
        return self.shapes[key]

    def finished(self, ended: list[tuple]) -> EpisodeRows:
        n = len(ended)
        step, reward, length, terminated, success, metrics = zip(*ended) if n else ((),) * 6
        columns = {name: np.asarray([m[name] for m in metrics], np.float32) for name in self.reductions}
        if "success" not in columns and n and all(s is not None for s in success):
            columns["success"] = np.asarray(success, np.float32)
        return EpisodeRows(
            count=np.int32(n),  # type: ignore[arg-type]
            update=np.zeros(n, np.int32),  # type: ignore[arg-type]
            step=np.asarray(step, np.int32),  # type: ignore[arg-type]
            reward=np.asarray(reward, np.float32).reshape(n, len(self.components)),  # type: ignore[arg-type]
            length=np.asarray(length, np.int32),  # type: ignore[arg-type]
            terminated=np.asarray(terminated, bool),  # type: ignore[arg-type]
            metrics=columns,  # type: ignore[arg-type]
        )


def finite(x: np.ndarray) -> bool:
    """Whether every number is finite; their sum nearly always tells, at half the cost."""
    return math.isfinite(x.sum()) or bool(np.isfinite(x).all())


def row_of(tree: PyTree, index: Index) -> PyTree:
    return tree[index] if isinstance(tree, np.ndarray) else jax.tree.map(lambda x: x[index], tree)


def set_row(tree: PyTree, index: Index, value: PyTree) -> None:
    if isinstance(tree, np.ndarray):
        tree[index] = value
    else:
        jax.tree.map(lambda x, v: x.__setitem__(index, v), tree, value)


def packed_act(
    algo: ActingAlgorithm,
    space: gymnasium.Space,
    params: PyTree,
    obs: PyTree,
    mask: Array | None,
    memory: PyTree,
    noise: PyTree,
) -> tuple[Array, PyTree]:
    """Action for the environment, action as sampled and what is kept of it as one array [E, D], which is one transfer
    per step; and the policy's carry."""
    action, memory, extras = algo.act(params, obs, memory, noise, mask=mask)
    parts = (*spaces.split(space, algo.to_env(action)).values(), *jax.tree.leaves((action, extras)))
    return jnp.concatenate([x.reshape(x.shape[0], -1).astype(jnp.float32) for x in parts], axis=1), memory


def to_members(space: gymnasium.Space, packed: np.ndarray) -> list[HostAction]:
    """Actions [E, D] as members of the space, one for each environment."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return packed[:, 0].astype(int).tolist()
    if not isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        return list(packed.astype(space.dtype).reshape(len(packed), *(space.shape or ())))
    columns, start = {}, 0
    for name, leaf in spaces.leaves(space).items():
        stop = start + math.prod(spaces.shape_of(leaf))
        columns[name] = to_members(leaf, packed[:, start:stop])
        start = stop
    return [spaces.build(space, {name: c[i] for name, c in columns.items()}) for i in range(len(packed))]
