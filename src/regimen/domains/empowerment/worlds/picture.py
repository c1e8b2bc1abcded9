"""A state of a grid as a picture: planes over the cells of the map, and what has no place on it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.empowerment.worlds.grid_map import KINDS
from regimen.domains.empowerment.worlds.grid_state import GridState, StateLayout
from regimen.domains.empowerment.worlds.grid_tables import GridTables
from regimen.types import Array


class Picture(NamedTuple):
    """What networks read of a grid, in the order of `space`."""

    at: Array  # [N] the cell of each agent: y * width + x
    cells: Array  # [P] the cell of each place
    grid: Array  # [height, width, C]
    numbers: Array  # [K] who carries what, who has ended, switches


def planes(layout: StateLayout) -> int:
    """Planes of a picture: ground, three kinds of things, keys, doors in three states, agents by where they face."""
    m = layout.grid
    return 3 + len(KINDS) + 3 + len(m.keys) + 3 * len(m.doors) + 4 * layout.agents


def space(layout: StateLayout) -> spaces.Dict:
    """The space of pictures, whose names are in the order of the alphabet, as spaces keep them."""
    width, height = layout.grid.shape
    n, most = layout.agents, float(width * height)
    numbers = len(layout.grid.keys) * n + 2 * n + 4 + sum(layout.control_sizes)
    return spaces.Dict(
        {
            "at": spaces.Box(0, most, (n,), np.float32),
            "cells": spaces.Box(0, most, (len(layout.grid.cells),), np.float32),
            "grid": spaces.Box(0, 1, (height, width, planes(layout)), np.float32),
            "numbers": spaces.Box(0, 1, (numbers,), np.float32),
        }
    )


def of(layout: StateLayout, table: GridTables, now: GridState[Array]) -> Picture:
    """The picture of one state."""
    width, height = layout.grid.shape
    n, places, size = layout.agents, len(layout.grid.cells), width * height
    cells = jnp.asarray(table.cells)

    def at(place: Array) -> Array:
        """Planes [..., height * width] that are 1 at a place; nowhere for what is none."""
        return jax.nn.one_hot(jnp.where(place < places, cells[jnp.minimum(place, places - 1)], size), size)

    things, agents = at(now.things), at(now.at)  # [M, size], [N, size]
    rock = jnp.asarray(table.rocks)[:, None]
    agents = agents * (now.waits == 0)[:, None]
    facing = agents[:, None] * jax.nn.one_hot(now.facing, 4)[:, :, None]  # [N, 4, size]
    doors = at(jnp.asarray(table.doors))[:, None] * jax.nn.one_hot(now.doors, 3)[:, :, None]
    deadly = jnp.asarray(table.deadly)[:, None]
    kinds = (~rock, rock & ~deadly, deadly)
    rows = [*((things * kind).sum(0)[None] for kind in kinds), at(now.keys)]
    rows += [doors.reshape(-1, size), facing.reshape(-1, size)]
    moving = jnp.concatenate(rows).T.reshape(height, width, -1)
    carried = jax.nn.one_hot(now.keys - places, n)  # all zeros where it lies somewhere
    most = jnp.asarray([*layout.grid.joins] or [0] * n, jnp.float32)
    waits = now.waits / jnp.maximum(most, 1)
    control = [x for part in (now.programs, now.arming, now.forced) for x in part]
    codes = [jax.nn.one_hot(x, size) for x, size in zip(control, layout.control_sizes)]
    flags = (now.gone, now.switches, waits)
    numbers = jnp.concatenate([carried.ravel(), *(x.astype(jnp.float32) for x in flags), *codes])
    grid = jnp.concatenate([jnp.asarray(table.ground), moving], -1)
    return Picture(cells[now.at].astype(jnp.float32), cells.astype(jnp.float32), grid, numbers)


def flat(picture: Picture) -> Array:
    """The picture as one vector, as `spaces.flatten` has it."""
    return jnp.concatenate([x.ravel() for x in picture])
