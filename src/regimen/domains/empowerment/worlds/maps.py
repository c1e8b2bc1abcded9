"""Maps of a kind and size, drawn at random: as many as one likes, all with the same numbers of places and things.

A map is grown cell by cell, so that all its places are connected, and then furnished. Which maps are for training and
which for tests is decided by the map itself: no map is in both.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from regimen.domains.empowerment.worlds.grid_map import STEPS, Cell
from regimen.errors import ConfigError

Rng = np.random.Generator
Furniture = dict[Cell, str]  # codes of a map by cell
TRIES = 2000  # for each map wanted: so many sizes are too small for
TESTS = 5  # one of so many maps is for tests
COMPASS = "ESWN"


@dataclass(frozen=True)
class DrawnMap:
    """A map and where its agents look at the start."""

    text: str
    directions: str


def grow(columns: int, rows: int, places: int, rng: Rng) -> set[Cell]:
    """So many connected cells within walls. A cell with fewer neighbours is likelier to be next: corridors and niches,
    rather than halls."""
    inside = {(x, y) for x in range(1, columns - 1) for y in range(1, rows - 1)}
    order = sorted(inside)
    cells = {order[rng.integers(len(order))]}
    while len(cells) < places:
        edge = [c for c in order if c not in cells and any(n in cells for n in around(c))]
        weight = np.array([4.0 ** -sum(n in cells for n in around(c)) for c in edge])
        cells.add(edge[rng.choice(len(edge), p=weight / weight.sum())])
    return cells


def around(cell: Cell) -> list[Cell]:
    return [(cell[0] + dx, cell[1] + dy) for dx, dy in STEPS]


def connected(cells: set[Cell], start: Cell) -> set[Cell]:
    """The cells that can be walked to from one of them."""
    queue, seen = [start], {start}
    for cell in queue:
        queue += [n for n in around(cell) if n in cells and n not in seen]
        seen |= set(queue)
    return seen


def any_of(cells: set[Cell], rng: Rng) -> Cell:
    order = sorted(cells)
    return order[rng.integers(len(order))]


def shuffled(cells: list[Cell], rng: Rng) -> list[Cell]:
    return [cells[i] for i in rng.permutation(len(cells))]


def niches(cells: set[Cell], humans: int, rng: Rng) -> Furniture | None:
    """The first human at a dead end behind a rock, which the robot can push on; the others anywhere."""
    ends = [c for c in sorted(cells) if sum(n in cells for n in around(c)) == 1]
    for end in shuffled(ends, rng):
        rock = next(n for n in around(end) if n in cells)
        rest = cells - {end, rock}
        for dx, dy in STEPS:
            near, far = (rock[0] - dx, rock[1] - dy), (rock[0] + dx, rock[1] + dy)
            if near in rest and far in rest and len(free := connected(rest, near)) > humans:
                return scatter({end: "Ay", rock: "Ro"}, free - {far}, rest, humans - 1, rng)
    return None


def locked(cells: set[Cell], humans: int, rng: Rng) -> Furniture | None:
    """The humans in a room behind a locked door; the robot and the key on the other side."""
    for door in shuffled(sorted(cells), rng):
        rest = cells - {door}
        sides = [connected(rest, n) for n in around(door) if n in cells]
        if sum(n in cells for n in around(door)) != 2 or sides[0] & sides[1]:
            continue
        room, outside = sorted(sides, key=len)
        if len(room) <= humans or len(outside) < 4:
            continue
        key = any_of(outside - set(around(door)), rng)
        if not connected(rest - {key}, any_of(outside - {key}, rng)) >= outside - {key}:
            continue
        return scatter({door: "Lr", key: "Kr"}, outside - {key}, room, humans, rng)
    return None


def blocks(cells: set[Cell], humans: int, rng: Rng) -> Furniture | None:
    """Two blocks, a robot and humans, anywhere."""
    furniture = dict(zip(shuffled(sorted(cells), rng), ["Ae", "Bl", "Bl", *["Ay"] * humans]))
    return furniture if len(furniture) == 3 + humans else None


def scatter(furniture: Furniture, robots: set[Cell], others: set[Cell], humans: int, rng: Rng) -> Furniture | None:
    """The furniture with a robot on one of these cells and so many humans on one of those, where there is room."""
    robots = robots - set(furniture)
    if not robots:
        return None
    furniture |= {any_of(robots, rng): "Ae"}
    for _ in range(humans):
        free = others - set(furniture)
        if not free:
            return None
        furniture |= {any_of(free, rng): "Ay"}
    return furniture


KINDS: dict[str, Callable[[set[Cell], int, Rng], Furniture | None]] = {
    "niches": niches,
    "locked": locked,
    "blocks": blocks,
}


def is_test(text: str) -> bool:
    """Whether a map is one of those that nobody trains on."""
    return zlib.crc32(text.encode()) % TESTS == 0


@lru_cache(maxsize=32)
def draw_maps(
    kind: str, columns: int, rows: int, places: int, humans: int, count: int, part: str, seed: int
) -> tuple[DrawnMap, ...]:
    """So many different maps of a kind and size, for `training` or for `tests`."""
    room = (columns - 2) * (rows - 2)
    if not 4 + humans <= places <= room:
        raise ConfigError(f"env.places: {places} is out of range; it must be between {4 + humans} and {room}")
    rng, found, fruitless = np.random.default_rng(seed), {}, 0
    for _ in range(TRIES * count):
        fruitless += 1
        if fruitless > 10 * TRIES:  # there are no more, or hardly any
            break
        cells = grow(columns, rows, places, rng)
        furniture = KINDS[kind](cells, humans, rng)
        letters = ", ".join(COMPASS[i] for i in rng.integers(4, size=1 + humans))
        if furniture is None:
            continue
        text = " / ".join(
            " ".join(furniture.get((x, y), ".." if (x, y) in cells else "We") for x in range(columns))
            for y in range(rows)
        )
        if is_test(text) == (part == "tests") and text not in found:
            found[text], fruitless = DrawnMap(text, letters), 0
        if len(found) == count:
            return tuple(found.values())
    raise ConfigError(
        f"env.maps: only {len(found)} different maps of {places} places in {columns} x {rows} cells were found, not "
        f"{count:,}; ask for fewer, or change env.places"
    )
