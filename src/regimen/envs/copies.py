"""Copies of an environment that are stepped in Python: what a source asks of them, and those of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from regimen.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

    from regimen.envs.adapters.pettingzoo import Team

Watch = Callable[[str, int], None]
Info = dict[str, Any]
Outcome = tuple[Any, Any, Any, Any, Info]  # observation, reward, terminated, truncated, info
Start = tuple[Any, Info]  # observation, info


class Copies(Protocol):
    """Copies of one environment, by number. None of them resets itself: an outcome holds the true last observation.

    `watch(what, copy)` is told what is about to be done, for whoever looks on from outside.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    watch: Watch

    def step(self, active: Sequence[int], actions: Sequence[Any]) -> Iterator[Outcome]:
        """Step the active copies and return their outcomes, in that order. `actions` has one for every copy."""
        ...

    def reset(self, starts: Mapping[int, int | None]) -> Iterator[Start]:
        """Reset copies, each from its seed where there is one: their starts, in that order."""
        ...

    def close(self) -> None: ...


def unwatched(what: str, copy: int) -> None:
    """Ignore what a copy is about to do: the default, where nobody watches."""


def failure(what: str, error: Exception) -> EnvError:
    """What the user is told of an environment that raises."""
    return EnvError(f"the environment's {what} failed: {type(error).__name__}: {error}")


class LocalCopies:
    """Copies in this process, one after the other."""

    def __init__(self, make_env: Callable[[], gymnasium.Env | Team], n: int, watch: Watch = unwatched):
        self.envs: list[Any] = [make_env() for _ in range(n)]
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.watch = watch

    def step(self, active: Sequence[int], actions: Sequence[Any]) -> Iterator[Outcome]:
        envs, watch = self.envs, self.watch
        for i in active:  # the hot loop of host training
            watch("step", i)
            try:
                obs, reward, terminated, truncated, info = envs[i].step(actions[i])
            except Exception as e:
                raise failure("step", e) from e
            yield obs, reward, terminated, truncated, info

    def reset(self, starts: Mapping[int, int | None]) -> Iterator[Start]:
        for i, seed in starts.items():
            self.watch("reset", i)
            try:
                obs, info = self.envs[i].reset(seed=seed)
            except Exception as e:
                raise failure("reset", e) from e
            yield obs, info

    def close(self) -> None:
        for env in self.envs:
            env.close()
