"""The registered worlds: `named.tiny3` is the world of that name in `library`, made when asked for."""

from __future__ import annotations

from regimen.envs.worlds.files import build
from regimen.envs.worlds.library import WORLDS
from regimen.envs.worlds.world import World


def __getattr__(name: str) -> World:
    if name not in WORLDS:
        raise AttributeError(name)
    return build(WORLDS[name], f"world/{name}")
