"""Where agents are on the map of a world: what pictures need to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regimen.domains.empowerment.worlds.bush import BushWorld
from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.domains.empowerment.worlds.grid_map import BUTTONS, STEPS, codes_of
from regimen.domains.empowerment.worlds.world import World

WORDS = {"Ro": "rock", "Bl": "block", "La": "lava", "Un": "unsteady"}
WORDS |= BUTTONS | {"dK": "kill off", "dP": "pause off"}
KINDS = {"K": "key", "L": "locked", "C": "door", "O": "open door"}


@dataclass(frozen=True)
class AgentMap:
    """A map of `width` times `height` cells, y downwards, of which agents can be on `cells`."""

    width: int
    height: int
    cells: np.ndarray  # [P, 2] x and y
    moves: dict[str, tuple[int, int]]  # actions that lead one cell away, whatever way the agent faces
    agents: int
    faces: bool  # whether agents face a direction
    labels: dict[tuple[int, int], str]  # what else is where at the start

    def at(self, states: np.ndarray) -> np.ndarray:
        """Place of each agent [S, N], as a number of `cells`; robots first."""
        return states[..., : self.agents]

    def facing(self, states: np.ndarray) -> np.ndarray:
        """Direction of each agent [S, N]: an index of `STEPS`; 0 where agents do not face any."""
        return states[..., self.agents : 2 * self.agents] if self.faces else np.zeros_like(self.at(states))


def mean_by(place: np.ndarray, value: np.ndarray, places: int) -> np.ndarray:
    """Mean of a value in each place [P], nan where there is none."""
    count = np.bincount(place, minlength=places)
    with np.errstate(invalid="ignore"):
        return np.bincount(place, value, places) / count


def scene_of(world: World) -> AgentMap | None:
    """None for a world without a map that is known here."""
    agents = world.num_agents
    if isinstance(world, GridWorld):
        words = {(x, y): WORDS.get(c, KINDS.get(c[0], "")) for (x, y), c in codes_of(world.grid.rows)}
        labels = {cell: word for cell, word in words.items() if word}
        return AgentMap(*world.grid.shape, np.array(world.grid.cells), {}, agents, True, labels)
    if isinstance(world, BushWorld):
        cells = [(x, y) for y in range(world.height) for x in range(world.width)]
        moves: dict[str, tuple[int, int]] = dict(zip(("east", "south", "west", "north"), STEPS))
        dense = {cell: f"bush {d}" for cell, d in zip(cells, world.layout.densities) if d}
        return AgentMap(world.width, world.height, np.array(cells), moves, agents, False, dense)
    return None
