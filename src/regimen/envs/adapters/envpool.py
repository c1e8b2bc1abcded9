"""EnvPool's environments (`envpool:ID`): copies in C++ threads, stepped together.

What EnvPool does otherwise than Gymnasium is undone here. It resets a copy by itself at the step after an episode's
last one, which would be a step that the policy did not take: a copy that ended is reset before it is stepped again. It
calls an episode that fails at the very step of its time limit cut short: its own limit is one step later than the
episode's, which the source keeps. It seeds copies when they are made: those that are given seeds are made anew.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from regimen.config.validation import coerce
from regimen.envs.arguments import LIMIT, Arguments, unknown_argument
from regimen.envs.copies import Info, Outcome, Start, failure, unwatched
from regimen.errors import ConfigError, EnvError, nearest

PREFIX = "envpool:"
OWN = (  # arguments that are no settings of the task
    *("num_envs", "batch_size", "seed", "env_seed", "max_num_players"),
    *("gym_reset_return_info", "base_path", "reward_threshold"),
)
UNLIMITED = 2**31 - 1  # EnvPool's word for no time limit


class PoolTask:
    """A task of EnvPool and its arguments: what makes pools of copies."""

    def __init__(self, identifier: str, args: Arguments, name: str):
        try:
            with quiet():
                envpool: Any = importlib.import_module("envpool")
        except ImportError as error:
            raise EnvError(f"{name}: EnvPool is not installed: pip install 'regimen[envpool]'") from error
        logging.getLogger("absl").setLevel(logging.ERROR)
        if identifier not in envpool.list_all_envs():
            hint = nearest(identifier, envpool.list_all_envs()).replace("'", f"'{PREFIX}", 1)
            raise ConfigError(f"{name}: no such task of EnvPool{hint}")
        self.envpool, self.identifier, self.name = envpool, identifier, name
        config = self.quiet(envpool.make_spec, {}).config._asdict()
        allowed = {key for key in config if key not in OWN}
        self.args = {key: read(value, config, key) for key, value in args.items() if key != LIMIT and key in allowed}
        for key in args:
            if key not in allowed:
                raise unknown_argument(key, name, allowed)
        self.limit: int = args.get(LIMIT, config[LIMIT])  # type: ignore[assignment]
        self.limit = 0 if self.limit >= UNLIMITED else self.limit
        spec = self.quiet(envpool.make_spec, self.args)
        if spec.config.max_num_players != 1:
            raise EnvError(f"{name}: has several players, which EnvPool's tasks cannot have here")
        with quiet():
            self.observation_space, self.action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if not isinstance(self.action_space, (gymnasium.spaces.Box, gymnasium.spaces.Discrete)):
            raise EnvError(f"{name}: has actions of several parts, which EnvPool's tasks cannot have here")
        self.return_threshold: float | None = getattr(spec.config, "reward_threshold", None)

    def pool(self, seeds: Sequence[int]) -> Any:
        """Copies that begin from these seeds."""
        limit = {LIMIT: self.limit + 1} if self.limit else {}
        size = {"num_envs": len(seeds), "batch_size": len(seeds), "env_seed": list(seeds)}
        pool = self.quiet(self.envpool.make_gymnasium, self.args | limit | size)
        with quiet():
            _ = pool.observation_space  # made when it is first asked for, and then kept
        return pool

    def quiet(self, make: Any, args: Mapping[str, object]) -> Any:
        """What EnvPool makes of the task, without its warnings; its refusals in one line."""
        try:
            with quiet():
                return make(self.identifier, **args)
        except Exception as error:
            raise EnvError(f"{self.name}: cannot be made: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of its spaces about their precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read(value: object, config: Mapping[str, object], key: str) -> object:
    """An argument as the type of the task's own."""
    kind = type(config[key])
    return coerce(value, kind, f"env.{key}") if kind in (int, float, bool, str) else value


class PoolCopies:
    """Copies in pools: those that were given seeds together are one, and stepped at the same time."""

    def __init__(self, task: PoolTask, n: int):
        self.task, self.n, self.watch = task, n, unwatched
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self.places: dict[int, tuple[Any, int]] = {}  # of each copy: its pool, and its number there

    def step(self, active: Sequence[int], actions: Sequence[Any]) -> Iterator[Outcome]:
        outcomes: dict[int, Outcome] = {}
        parts = list(self.by_pool(active))
        try:
            for pool, numbers, copies in parts:
                self.watch("step", copies[0])
                pool.send(np.asarray([actions[i] for i in copies], self.action_space.dtype), numbers)
            for pool, _, copies in parts:
                obs, reward, terminated, truncated, _ = pool.recv()
                columns = (rows_of(obs, len(copies)), *(x.tolist() for x in (reward, terminated, truncated)))
                outcomes |= {i: (*outcome, {}) for i, *outcome in zip(copies, *columns, strict=True)}
        except Exception as error:
            raise failure("step", error) from error
        yield from (outcomes[i] for i in active)

    def reset(self, starts: Mapping[int, int | None]) -> Iterator[Start]:
        seeded = {i: seed for i, seed in starts.items() if seed is not None}
        if seeded:
            pool = self.task.pool(list(seeded.values()))
            self.places |= {i: (pool, number) for number, i in enumerate(seeded)}
        observations: dict[int, Any] = {}
        try:
            for pool, numbers, copies in self.by_pool(list(starts)):
                self.watch("reset", copies[0])
                obs, _ = pool.reset(numbers)
                observations |= zip(copies, rows_of(obs, len(copies)), strict=True)
        except Exception as error:
            raise failure("reset", error) from error
        yield from ((observations[i], {}) for i in starts)

    def by_pool(self, copies: Sequence[int]) -> Iterator[tuple[Any, np.ndarray, list[int]]]:
        """Each pool that some of these copies are in, their numbers there, and which they are."""
        pools = {id(pool): pool for pool, _ in self.places.values()}
        for name, pool in pools.items():
            some = [i for i in copies if id(self.places[i][0]) == name]
            if some:
                yield pool, np.array([self.places[i][1] for i in some], np.int32), some

    def close(self) -> None:
        self.places.clear()


class PoolEnv(gymnasium.Env):
    """One copy as a Gymnasium environment, with its time limit."""

    def __init__(self, task: PoolTask):
        self.copies, self.limit, self.t = PoolCopies(task, 1), task.limit, 0
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self.max_episode_steps, self.return_threshold = task.limit, task.return_threshold

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.t = 0
        if seed is None and not self.copies.places:
            seed = int(self.np_random.integers(2**31))
        return next(self.copies.reset({0: seed}))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = next(self.copies.step([0], [action]))
        self.t += 1
        late = bool(self.limit) and self.t >= self.limit
        return obs, reward, terminated, truncated or (late and not terminated), info


def rows_of(obs: Any, n: int) -> list[Any]:
    """Observations of a pool, one for each copy."""
    if isinstance(obs, np.ndarray):
        return list(obs)
    parts = {name: rows_of(part, n) for name, part in obs.items()}
    return [{name: part[i] for name, part in parts.items()} for i in range(n)]
