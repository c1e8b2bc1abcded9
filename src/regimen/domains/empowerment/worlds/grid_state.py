"""What a state of a grid world holds: agents, things, keys, doors and switches, as far as the map lets them change."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.worlds.grid_map import BLOCK, LAVA, LOCKED, ROCK, UNSTEADY, GridMap
from regimen.types import Array

X = TypeVar("X", np.ndarray, Array)


class GridState(NamedTuple, Generic[X]):
    """A state of a grid world by what its entries are about; they may have leading axes."""

    at: X  # [N] place of each agent
    facing: X  # [N]
    things: X  # [M] places of blocks and rocks
    keys: X  # [Q] place, or P + agent who carries it
    doors: X  # [D] open, closed or locked
    gone: Array  # [N] agents that do nothing any more
    switches: Array  # [3] robots paused, kill buttons off, pause switches off


@dataclass(frozen=True)
class StateLayout:
    """Which entries a state of this map has: only what can change in it."""

    grid: GridMap

    @cached_property
    def agents(self) -> int:
        return len(self.grid.robots) + len(self.grid.humans)

    @cached_property
    def things(self) -> tuple[int, ...]:
        return self.grid.places(BLOCK, ROCK)

    @cached_property
    def rocks(self) -> np.ndarray:
        return np.isin(self.things, self.grid.places(ROCK))

    @cached_property
    def mortal(self) -> tuple[int, ...]:
        """Agents that something can end."""
        if self.grid.places(LAVA):
            return tuple(range(self.agents))
        return tuple(range(len(self.grid.robots))) if self.has("kill") else ()

    def has(self, kind: str) -> bool:
        return "toggle" in self.grid.names and any(k == kind for _, k in self.grid.buttons)

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """Which of the three switches there are."""
        kinds = ("pause", "disable_kill", "disable_pause")
        return tuple(i for i, kind in enumerate(kinds) if self.has(kind))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        n, places = self.agents, len(self.grid.cells)
        doors = [2 if state != LOCKED else 3 for _, _, state in self.grid.doors]
        sizes = [places] * n + [4] * n + [places] * len(self.things) + [places + n] * len(self.grid.keys) + doors
        return (*sizes, *[2] * len(self.mortal), *[2] * len(self.switches))

    @cached_property
    def start(self) -> np.ndarray:
        m = self.grid
        keys, doors = [place for place, _ in m.keys], [state for _, _, state in m.doors]
        flags = [0] * (len(self.mortal) + len(self.switches))
        return np.array([*m.robots, *m.humans, *m.directions, *self.things, *keys, *doors, *flags], np.int32)

    @cached_property
    def stumblers(self) -> int:
        """Agents that can stand on unsteady ground at once."""
        return min(self.agents, len(self.grid.places(UNSTEADY)))

    @cached_property
    def winners(self) -> int:
        """Most ways to choose one of each conflict block, over all ways to form blocks."""
        best = [1, 1]
        for n in range(2, self.agents + 1):
            best.append(max(k * best[n - k] for k in range(1, n + 1)))
        return best[self.agents]

    def unpack(self, state: X) -> GridState[X]:
        n = self.agents
        counts = [n, n, len(self.things), len(self.grid.keys), len(self.grid.doors), len(self.mortal)]
        ends = np.cumsum(counts)
        at, facing, things, keys, doors, mortal, switches = (
            state[..., a:b] for a, b in zip([0, *ends], [*ends, len(self.sizes)])
        )
        zero = jnp.zeros_like(state[..., 0])
        gone = [mortal[..., self.mortal.index(i)] if i in self.mortal else zero for i in range(n)]
        flags = [switches[..., self.switches.index(i)] if i in self.switches else zero for i in range(3)]
        return GridState(at, facing, things, keys, doors, jnp.stack(gone, -1) > 0, jnp.stack(flags, -1))

    def pack(self, parts: GridState[Array]) -> Array:
        entries = [*parts[:5], parts.gone[..., list(self.mortal)], parts.switches[..., list(self.switches)]]
        return jnp.concatenate([jnp.asarray(part, jnp.int32) for part in entries if part.shape[-1]], -1)


layout_of = lru_cache(maxsize=256)(StateLayout)
