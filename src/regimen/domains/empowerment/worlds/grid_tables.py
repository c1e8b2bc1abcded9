"""What the laws of a grid look up of its map: arrays by place, wall and button."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from regimen.domains.empowerment.worlds.grid_map import KINDS, LAVA, UNSTEADY, GridMap
from regimen.domains.empowerment.worlds.grid_state import layout_of
from regimen.types import Array

Table = np.ndarray | Array


class GridTables(NamedTuple):
    """Tables of a map with P places and B buttons: P is a wall, and P + 1 + b is button b. Several maps have them
    stacked [M, ...]."""

    front: Table  # [P + 1 + B, 4] what is ahead
    lava: Table  # [P + 1 + B]
    unsteady: Table  # [P + 1 + B]
    level: Table  # [P + 1 + B] whether things can lie there
    kinds: Table  # [P + 1 + B, 6] which of KINDS it is
    doors: Table  # [D] places
    fits: Table  # [D, Q] whether a key opens a door
    rocks: Table  # [M] whether a thing is a rock
    deadly: Table  # [M] whether it ends whom it is pushed onto
    control: Table  # [P + 1 + B] which control button it is, from 1; 0: none
    inside: Table  # [P, G] whether a place is in a goal
    cells: Table  # [P] y * width + x of each place
    ground: Table  # [height, width, 3 + 6] planes: places, lava, unsteady ground, buttons of each kind


@lru_cache(maxsize=256)
def tables_of(m: GridMap) -> GridTables:
    """The tables of one map, in numpy."""
    width, height = m.shape
    cells = np.array([y * width + x for x, y in m.cells], np.int32)
    ground = np.zeros((height * width, 3 + len(KINDS)), np.float32)
    ground[cells, 0] = 1
    for plane, code in ((1, LAVA), (2, UNSTEADY)):
        ground[cells[list(m.places(code))], plane] = 1
    for (x, y), kind in m.buttons:
        ground[y * width + x, 3 + KINDS.index(kind)] = 1
    doors, keys = len(m.doors), len(m.keys)
    return GridTables(
        front=m.front,
        lava=m.ground(LAVA),
        unsteady=m.ground(UNSTEADY),
        level=m.level,
        kinds=m.kinds,
        doors=np.array([place for place, _, _ in m.doors], np.int32),
        fits=np.array([[key == door for _, key in m.keys] for _, door, _ in m.doors], bool).reshape(doors, keys),
        rocks=layout_of(m).rocks,
        deadly=layout_of(m).deadly,
        control=m.kinds[:, 2] * m.kinds[:, 2].cumsum().astype(np.int32),
        inside=np.array([[place in goal for goal in m.goals] for place in range(len(m.cells))]),
        cells=cells,
        ground=ground.reshape(height, width, -1),
    )


def stacked(maps: tuple[GridMap, ...]) -> GridTables:
    """The tables of maps that agree in their sizes, one below the other [M, ...]."""
    return GridTables(*(np.stack(x) for x in zip(*map(tables_of, maps))))
