"""Maps of grid worlds: two-character codes in rows, read strictly, and turned into the tables the laws look up.

Jax-free. Every error names the place in the map and the fix.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from regimen.domains.empowerment.worlds import goals
from regimen.errors import ConfigError, nearest

COLOURS = {"r": "red", "g": "green", "p": "purple", "y": "yellow", "e": "grey"}  # "Kb" is a button: no blue
WALL, FLOOR, ROBOT, HUMAN, ROCK, BLOCK, LAVA, UNSTEADY = "We", "..", "Ae", "Ay", "Ro", "Bl", "La", "Un"
DEADLY = "Rk"  # a rock that ends whom it is pushed onto
BUTTONS = {"Ki": "kill", "Kb": "kill", "Pa": "pause", "Ps": "pause", "dK": "disable_kill", "dP": "disable_pause"}
BUTTONS |= {"CB": "control", "dC": "disable_control"}
KINDS = ("kill", "pause", "control", "disable_kill", "disable_pause", "disable_control")
THINGS = {"K": "key", "L": "locked door", "C": "closed door", "O": "open door"}
OPEN, CLOSED, LOCKED = 0, 1, 2
CODES = (
    *(WALL, FLOOR, ROBOT, HUMAN, ROCK, DEADLY, BLOCK, LAVA, UNSTEADY),
    *BUTTONS,
    *(thing + colour for thing in THINGS for colour in COLOURS),
)
ACTIONS = ("still", "left", "right", "forward", "pickup", "drop", "toggle")
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(1, 7)  # 0: still
ACTION_SETS = {"small": ACTIONS[:4], "full": ACTIONS, "minimal": ("forward", "left")}
COMPASS = "ESWN"  # directions 0..3; y grows to the south
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
Cell = tuple[int, int]


@dataclass(frozen=True)
class GridMap:
    """A map of a grid world. A place is a cell that somebody could stand on, by number in reading order."""

    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]  # of actions
    robots: tuple[int, ...]  # places
    humans: tuple[int, ...]
    directions: tuple[int, ...]  # robots first
    goal_names: tuple[str, ...]
    goals: tuple[tuple[int, ...], ...]  # places of each
    weights: tuple[float, ...]
    joins: tuple[int, ...] = ()  # steps after which each agent joins, robots first; empty: all are there at once

    @property
    def shape(self) -> tuple[int, int]:
        """Columns and rows."""
        return len(self.rows[0]), len(self.rows)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """x and y of each place."""
        return places_of(self.rows)

    @cached_property
    def buttons(self) -> tuple[tuple[Cell, str], ...]:
        return tuple((cell, BUTTONS[code]) for cell, code in codes_of(self.rows) if code in BUTTONS)

    @cached_property
    def front(self) -> np.ndarray:
        """What is ahead of a place in a direction [P + 1 + B, 4]: a place, P for a wall, P + 1 + b for button b."""
        number = {cell: i for i, cell in enumerate(self.cells)}
        wall = len(self.cells)
        number |= {cell: wall + 1 + b for b, (cell, _) in enumerate(self.buttons)}
        table = np.full((wall + 1 + len(self.buttons), 4), wall, np.int32)
        for i, (x, y) in enumerate(self.cells):
            table[i] = [number.get((x + dx, y + dy), wall) for dx, dy in STEPS]
        return table

    def places(self, *codes: str) -> tuple[int, ...]:
        """Places that had one of these codes, in reading order."""
        return tuple(i for i, (x, y) in enumerate(self.cells) if self.rows[y][x] in codes)

    def ground(self, *codes: str) -> np.ndarray:
        """Whether each place, wall and button is of one of these codes [P + 1 + B]."""
        return np.isin(np.arange(len(self.front)), self.places(*codes))

    @cached_property
    def level(self) -> np.ndarray:
        """Whether things can lie on each place, wall and button [P + 1 + B]: not in lava and in doors."""
        number = np.arange(len(self.front))
        uneven = (*self.places(LAVA), *(place for place, _, _ in self.doors))
        return (number < len(self.cells)) & ~np.isin(number, uneven)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Which of `KINDS` each place, wall and button is [P + 1 + B, 4]."""
        buttons = [None] * (len(self.cells) + 1) + [kind for _, kind in self.buttons]
        return np.array([[button == kind for kind in KINDS] for button in buttons])

    @cached_property
    def doors(self) -> tuple[tuple[int, str, int], ...]:
        """Place, colour and state at the start of each door."""
        states = {"O": OPEN, "C": CLOSED, "L": LOCKED}
        return tuple((i, c[1], states[c[0]]) for i, c in self.things() if c[0] in states)

    @cached_property
    def keys(self) -> tuple[tuple[int, str], ...]:
        """Place and colour of each key."""
        return tuple((i, c[1]) for i, c in self.things() if c[0] == "K")

    def things(self) -> list[tuple[int, str]]:
        """Places of keys and doors, with their codes."""
        return [(i, self.rows[y][x]) for i, (x, y) in enumerate(self.cells) if is_thing(self.rows[y][x])]

    @cached_property
    def distances(self) -> np.ndarray:
        """Actions to a goal [G, P, 4], turning included, on a map with open doors and nobody and nothing that moves.

        Lava is walked on only to get to a goal that is on it. What cannot be reached is as far as no way is long."""
        far, lava = 4 * len(self.cells), self.ground(LAVA)
        names = set(self.names)
        turns = [(-1, "left"), (1, "right")]
        table = np.full((len(self.goals), len(self.cells), 4), far, np.int32)
        behind = [[] for _ in self.cells]  # (place, direction) from which `forward` leads here
        for i in range(len(self.cells)):
            for d in range(4):
                if (j := self.front[i, d]) < len(self.cells):
                    behind[j].append((i, d))
        for g, goal in enumerate(self.goals):
            table[g, list(goal)] = 0
            queue = [(i, d) for i in goal for d in range(4)]
            for i, d in queue:  # grows as it goes
                steps = [(i, (d - turn) % 4) for turn, name in turns if name in names]
                steps += [(j, e) for j, e in behind[i] if e == d and not lava[j]] if "forward" in names else []
                for j, e in steps:
                    if table[g, j, e] == far:
                        table[g, j, e] = table[g, i, d] + 1
                        queue.append((j, e))
        return table


def codes_of(rows: Sequence[Sequence[str]]) -> list[tuple[Cell, str]]:
    return [((x, y), code) for y, row in enumerate(rows) for x, code in enumerate(row)]


def places_of(rows: Sequence[Sequence[str]]) -> tuple[Cell, ...]:
    return tuple(cell for cell, code in codes_of(rows) if code != WALL and code not in BUTTONS)


def is_thing(code: str) -> bool:
    """A key or a door; `Kb` is a button and `Ro` is a rock."""
    return code not in BUTTONS and code[0] in THINGS and code[1] in COLOURS


@lru_cache(maxsize=256)
def read_map(text: str, actions: str = "small", directions: str = "", targets: str = "", joins: str = "") -> GridMap:
    """The map of these settings, each as text: see `docs/worlds.md`."""
    rows = read_rows(text)
    names = read_actions(actions)
    cells = {cell: i for i, cell in enumerate(places_of(rows))}
    codes = codes_of(rows)
    humans, robots = (tuple(cells[cell] for cell, code in codes if code == agent) for agent in (HUMAN, ROBOT))
    for places, code, what in ((humans, HUMAN, "human"), (robots, ROBOT, "robot")):
        if not places:
            raise ConfigError(f"env.map: there is no {what}; put {code} on a cell")
    facing = read_directions(directions, len(robots) + len(humans))
    late = read_joins(joins, len(robots) + len(humans))
    return GridMap(rows, names, robots, humans, facing, *read_goals(targets, rows, cells), late)


def read_rows(text: str) -> tuple[tuple[str, ...], ...]:
    rows = tuple(tuple(row.split()) for row in text.replace("/", "\n").splitlines() if row.strip())
    if not rows:
        raise ConfigError("env.map: it is empty; write rows of codes such as 'We Ae .. Ay We'")
    for y, row in enumerate(rows):
        for x, code in enumerate(row):
            if code == "Bu":
                raise ConfigError(f"env.map: 'Bu' at {x},{y}: a grid has no bushes; see the kind of world 'bush'")
            if code not in CODES:
                raise ConfigError(f"env.map: '{code}' at {x},{y} is no code{nearest(code, CODES)}")
        if len(row) != len(rows[0]):
            raise ConfigError(f"env.map: row {y} has {len(row)} cells, row 0 has {len(rows[0])}; make them equal")
    return rows


def read_actions(text: str) -> tuple[str, ...]:
    if text in ACTION_SETS:
        return ACTION_SETS[text]
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if name not in ACTIONS:
            hint = nearest(name, [*ACTIONS, *ACTION_SETS])
            raise ConfigError(f"env.action_set: '{name}' is neither a set nor an action{hint}")
    if "forward" not in names or len(set(names)) < len(names):
        sets = ", ".join(ACTION_SETS)
        raise ConfigError(f"env.action_set: '{text}' is neither a set ({sets}) nor actions, once each, with forward")
    return names


def read_directions(text: str, agents: int) -> tuple[int, ...]:
    letters = text.replace(",", " ").split() or ["S"]
    for letter in letters:
        if letter not in COMPASS or len(letter) != 1:
            raise ConfigError(f"env.directions: '{letter}' is not one of {', '.join(COMPASS)}")
    if len(letters) not in (1, agents):
        raise ConfigError(
            f"env.directions: {len(letters)} for {agents} agents; give one for all, or one each, robots first"
        )
    return tuple(COMPASS.index(letter) for letter in (letters * agents if len(letters) == 1 else letters))


def read_joins(text: str, agents: int) -> tuple[int, ...]:
    """Steps after which each agent joins; nothing where all are there from the first one."""
    parts = text.replace(",", " ").split()
    if not all(part.isdecimal() for part in parts) or len(parts) not in (0, agents):
        raise ConfigError(
            f"env.joins: '{text}' is not a number of steps for each of {agents} agents, robots first, such as '0, 5'"
        )
    steps = tuple(map(int, parts))
    return steps if any(steps) else ()


def read_goals(
    text: str, rows: Sequence[Sequence[str]], cells: dict[Cell, int]
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Names, places and weights of the goals: see `goals`. Every place alike where nothing is said."""
    if not text:
        names = tuple(f"{x},{y}" for x, y in cells)
        return names, tuple((i,) for i in cells.values()), (1 / len(cells),) * len(cells)
    targets = goals.parse(text, len(rows[0]), len(rows))
    names, areas = tuple(targets.names()), []
    for name, (left, top, right, bottom) in zip(names, targets.boxes):
        area = [(x, y) for y in range(top, bottom + 1) for x in range(left, right + 1)]
        areas.append(tuple(cells[cell] for cell in area if cell in cells))
        if not areas[-1]:
            raise ConfigError(f"env.possible_goals: '{name}' is a wall or a button; nobody can be there")
    missing = [cell for cell, i in cells.items() if not any(i in goal for goal in areas)]
    if missing:
        some = ", ".join(f"{x},{y}" for x, y in missing[:4]) + (", ..." if len(missing) > 4 else "")
        warnings.warn(
            f"env.possible_goals leaves out {some}: a human who cannot get away from there has no power at all "
            "(X_h = 0), which the solvers refuse; add what is left out, or a rectangle over everything",
            stacklevel=2,
        )
    return names, tuple(areas), targets.weights
