"""`regimen evaluate RUN --leaderboard`: a policy played by the rules of the public leaderboard of its field.

The rules and the published figures are the domain's (`Domain.leaderboard`); this finds them for an environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from regimen.config.calls import answered
from regimen.config.domains import domain_of, domains, load
from regimen.config.trust import trustable
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.files.storage import Json
from regimen.policies.evaluate import subject


class Board(Protocol):
    """A policy's figures beside the published ones."""

    def to_dict(self) -> Json: ...

    def lines(self) -> list[str]: ...


@answered
@trustable
def leaderboard(
    target: registry.EnvLike | Path,
    episodes: int = 100,
    seed: int = 0,
    env_args: Mapping[str, object] | None = None,
    checkpoint: str = "best",
    env: registry.EnvLike | None = None,
    trust: bool = False,
) -> Board:
    """Play the policy of a run by the rules of its field's public leaderboard and return its place beside others.

    Args:
        target: a run directory or a policy folder; the other arguments are those of `evaluate`.
        episodes: how many of each part of the leaderboard.
    """
    handle, learned, which = subject(target, None, env_args or {}, checkpoint, None, env)
    domain = domain_of(handle.id)
    if domain is None or domain.leaderboard is None:
        names = ", ".join(name for d in domains().values() if d.leaderboard for name in d.environments)
        raise ConfigError(f"--leaderboard: {handle.id} has none; environments that have one: {names}")
    if learned is None:
        raise ConfigError(f"--leaderboard plays a trained policy: name a run instead of {handle.id}")
    return load(domain.leaderboard)(handle, learned, episodes, seed, which)
