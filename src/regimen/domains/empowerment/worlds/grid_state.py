"""What a state of a grid world holds: agents, things, keys, doors and switches, as far as the map lets them change."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.worlds.grid_map import BLOCK, DEADLY, LAVA, LOCKED, ROCK, UNSTEADY, GridMap
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
    switches: Array  # [4] robots paused, kill, pause and control buttons off
    waits: X  # [N] steps until each agent joins
    programs: X  # [C] of each control button: 0, or 1 + robot * actions + action
    arming: X  # [R] the button that a robot is programming, from 1; 0: none
    forced: X  # [R] what a human makes a robot do next, from 1; 0: nothing


@dataclass(frozen=True)
class StateLayout:
    """Which entries a state of this map has: only what can change in it."""

    grid: GridMap

    @cached_property
    def agents(self) -> int:
        return len(self.grid.robots) + len(self.grid.humans)

    @cached_property
    def things(self) -> tuple[int, ...]:
        return self.grid.places(BLOCK, ROCK, DEADLY)

    @cached_property
    def rocks(self) -> np.ndarray:
        return np.isin(self.things, self.grid.places(ROCK, DEADLY))

    @cached_property
    def deadly(self) -> np.ndarray:
        return np.isin(self.things, self.grid.places(DEADLY))

    @cached_property
    def mortal(self) -> tuple[int, ...]:
        """Agents that something can end."""
        if self.grid.places(LAVA, DEADLY):
            return tuple(range(self.agents))
        return tuple(range(len(self.grid.robots))) if self.has("kill") else ()

    def has(self, kind: str) -> bool:
        return "toggle" in self.grid.names and any(k == kind for _, k in self.grid.buttons)

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """Which of the four switches there are."""
        kinds = ("pause", "disable_kill", "disable_pause", "disable_control")
        return tuple(i for i, kind in enumerate(kinds) if self.has(kind))

    @cached_property
    def controls(self) -> int:
        """Control buttons."""
        return sum(kind == "control" for _, kind in self.grid.buttons) if self.has("control") else 0

    @cached_property
    def late(self) -> tuple[int, ...]:
        """Agents that join late."""
        return tuple(i for i, steps in enumerate(self.grid.joins) if steps)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        n, places = self.agents, len(self.grid.cells)
        doors = [2 if state != LOCKED else 3 for _, _, state in self.grid.doors]
        sizes = [places] * n + [4] * n + [places] * len(self.things) + [places + n] * len(self.grid.keys) + doors
        flags = [2] * (len(self.mortal) + len(self.switches))
        return (*sizes, *flags, *[self.grid.joins[i] + 1 for i in self.late], *self.control_sizes)

    @cached_property
    def control_sizes(self) -> tuple[int, ...]:
        """Values of programs, of who is programming, and of what is forced."""
        if not self.controls:
            return ()
        robots, actions = len(self.grid.robots), len(self.grid.names)
        programs = [robots * actions + 1] * self.controls
        return (*programs, *[self.controls + 1] * robots, *[actions + 1] * robots)

    @cached_property
    def start(self) -> np.ndarray:
        m = self.grid
        keys, doors = [place for place, _ in m.keys], [state for _, _, state in m.doors]
        flags = [0] * (len(self.mortal) + len(self.switches))
        rest = [*flags, *[m.joins[i] for i in self.late], *[0] * len(self.control_sizes)]
        return np.array([*m.robots, *m.humans, *m.directions, *self.things, *keys, *doors, *rest], np.int32)

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
        robots = len(self.grid.robots) if self.controls else 0
        counts = [n, n, len(self.things), len(self.grid.keys), len(self.grid.doors), len(self.mortal)]
        counts += [len(self.switches), len(self.late), self.controls, robots, robots]
        ends = np.cumsum(counts)
        at, facing, things, keys, doors, mortal, switches, late, *control = (
            state[..., a:b] for a, b in zip([0, *ends], ends)
        )
        zero = jnp.zeros_like(state[..., 0])
        gone = [mortal[..., self.mortal.index(i)] if i in self.mortal else zero for i in range(n)]
        flags = [switches[..., self.switches.index(i)] if i in self.switches else zero for i in range(4)]
        waits = [late[..., self.late.index(i)] if i in self.late else zero for i in range(n)]
        joined = (jnp.stack(x, -1) for x in (flags, waits))
        return GridState(at, facing, things, keys, doors, jnp.stack(gone, -1) > 0, *joined, *control)

    def pack(self, parts: GridState[Array]) -> Array:
        entries = [*parts[:5], parts.gone[..., list(self.mortal)], parts.switches[..., list(self.switches)]]
        entries += [parts.waits[..., list(self.late)], parts.programs, parts.arming, parts.forced]
        return jnp.concatenate([jnp.asarray(part, jnp.int32) for part in entries if part.shape[-1]], -1)


layout_of = lru_cache(maxsize=256)(StateLayout)
