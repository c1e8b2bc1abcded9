"""BushWorld: people on a grid with bushes that they may get stuck in, and robots that trample bushes down.

Rules are in docs/empowerment.md. A robot always gets where it goes, and takes one off the density of the bush it
enters, or of its own cell when it passes. A human enters a bush of density d with probability 1 - d / B. Nobody enters
a cell that is taken at the start of the step, and of several who want one cell only the first agent tries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.worlds import goals
from regimen.domains.empowerment.worlds.world import World, WorldState
from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, PALE, PAPER, Canvas
from regimen.envs.protocol import native_env
from regimen.errors import ConfigError
from regimen.types import Array

ACTIONS = ("north", "west", "south", "east", "pass")
DX, DY = np.array([0, -1, 0, 1, 0], np.int32), np.array([-1, 0, 1, 0, 0], np.int32)
PASS = 4
AGENTS = ("Ro", "Hu")


@native_env
class BushWorld(World):
    """A map of robots (Ro), humans (Hu), bushes (their density) and free cells (.); Hu:2 stands in a bush."""

    map: str = "Hu . 1 . Ro"
    """Rows of tokens Ro, Hu, a density or `.`; a new row after a line break or `/`. Hu:2 has density 2 under it."""
    B: int = 1
    """Density of a bush that no human gets into."""
    fill_density: int = 0
    """Density of the cells under robots and humans at the start, where the map says none (Hu:2, Ro:0)."""
    max_episode_steps: int = 12
    """Steps after which the world ends."""
    possible_goals: Any = ""
    """Goals of every human: `x,y; x1,y1,x2,y2 = weight`; every cell where nothing is said."""
    observation: Literal["state", "features"] = "state"
    """What an environment shows: its state with everybody's goals, as empowerment needs it, or features without goals,
    for a learner that maximises the reward."""
    beta_h: Any = math.inf
    """How strictly the heuristic prior takes shortest paths; inf means always."""

    actions = ACTIONS
    still = PASS

    def __post_init__(self):
        set_field = object.__setattr__
        set_field(self, "possible_goals", goals.as_text(self.possible_goals))
        set_field(self, "beta_h", goals.inverse_temperature(self.beta_h))
        set_field(self, "map", " / ".join(" ".join(row.split()) for row in rows_of(str(self.map))))
        for name, least in (("B", 1), ("fill_density", 0), ("max_episode_steps", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"env.{name}: {value} is out of range; it must be at least {least}")
        if self.fill_density > self.B:
            raise ConfigError(f"env.fill_density: {self.fill_density} is more than env.B {self.B}, the densest bush")
        layout = self.layout
        if (most := max(layout.densities)) > self.B:
            raise ConfigError(f"env.map: a bush of density {most} is more than env.B {self.B}, the densest bush")
        goals.parse(self.possible_goals, layout.width, layout.height)

    @property
    def layout(self) -> BushMap:
        return read_map(self.map, self.fill_density)

    @property
    def robots(self) -> int:
        return len(self.layout.robots)

    @property
    def humans(self) -> int:
        return len(self.layout.humans)

    @property
    def width(self) -> int:
        return self.layout.width

    @property
    def height(self) -> int:
        return self.layout.height

    @property
    def cells(self) -> int:
        return self.width * self.height

    @property
    def sizes(self) -> tuple[int, ...]:
        """A cell for each agent, then a density for each cell."""
        return (self.cells,) * self.num_agents + (self.B + 1,) * self.cells

    @property
    def goals(self) -> goals.Goals:
        return goals.parse(self.possible_goals, self.width, self.height)

    @property
    def goal_names(self) -> list[str]:
        return self.goals.names()

    @property
    def goal_weights(self) -> np.ndarray:
        return np.tile(np.array(self.goals.weights), (self.humans, 1))

    def initial(self) -> Array:
        at = self.layout
        return jnp.array((*at.robots, *at.humans, *at.densities), jnp.int32)

    def outcomes(self, state: Array, actions: Array) -> tuple[Array, Array]:
        """All combinations of the humans' coins: bit h of an outcome says whether human h gets in [2^H]."""
        agents, robots, humans = self.num_agents, self.robots, self.humans
        at, density = state[:agents], state[agents:]
        x, y = at % self.width + jnp.asarray(DX)[actions], at // self.width + jnp.asarray(DY)[actions]
        on_map = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
        target = jnp.where(on_map, y * self.width + x, at).astype(jnp.int32)
        free = ~(target[:, None] == at[None, :]).any(1)  # of everyone at the start, so a step in place is never free
        rivals = (target[:, None] == target[None, :]) & free[None, :] & np.tri(agents, k=-1, dtype=bool)
        tries = free & ~rivals.any(1)

        tramples = jnp.where(tries | (actions == PASS), target, self.cells)[:robots]
        trampled = jnp.maximum(density.at[tramples].add(-1, mode="drop"), 0)

        open_ways = jnp.asarray(1 - np.arange(self.B + 1) / self.B, float)  # a table: XLA's d / B need not be exact
        chance = jnp.where(tries[robots:], open_ways[density[target[robots:]]], 1.0)  # [H]
        coins = np.arange(2**humans)[:, None] >> np.arange(humans) & 1  # [K, H]
        p = jnp.where(coins, chance, 1 - chance).prod(1)
        gets_in = jnp.concatenate([jnp.ones((2**humans, robots), bool), jnp.asarray(coins, bool)], 1) & tries
        positions = jnp.where(gets_in, target, at)  # [K, N]
        states = jnp.concatenate([positions, jnp.broadcast_to(trampled, (2**humans, self.cells))], 1)
        return p, states.astype(jnp.int32)

    def attained(self, state: Array) -> Array:
        return jnp.asarray(self.goals.inside(self.width, self.height))[self.human_cells(state)]

    def prior(self, state: Array) -> Array:
        """Towards the goal on a shortest path, as if there were neither bushes nor others."""
        table = heading(self.width, self.height, self.goals, self.beta_h)
        return jnp.asarray(table, float)[self.human_cells(state)]

    def human_cells(self, state: Array) -> Array:
        return state[self.robots : self.num_agents]

    def features(self, state: Array) -> Array:
        """Where each agent is, one-hot, and how dense each cell is."""
        agents = self.num_agents
        where = (state[:agents, None] == jnp.arange(self.cells)).astype(jnp.float32).ravel()
        return jnp.concatenate([where, state[agents:].astype(jnp.float32) / self.B])

    def render(self, state: WorldState) -> np.ndarray:
        """Robots are blue, humans amber with a line to their goal, bushes green, the denser the darker."""
        world, agents, tall = np.asarray(state.world), self.num_agents, self.height
        canvas = Canvas(min(96 * self.width, 672), (-0.06, self.width + 0.06, -0.2, tall + 0.06), PALE)
        centers = [(c % self.width + 0.5, tall - c // self.width - 0.5) for c in range(self.cells)]
        for (x, y), density in zip(centers, world[agents:]):
            canvas.rectangle((x - 0.47, y - 0.47), (x + 0.47, y + 0.47), PAPER)
            canvas.rectangle((x - 0.47, y - 0.47), (x + 0.47, y + 0.47), GREEN, 0.8 * density / self.B)
        for cell in world[: self.robots]:
            x, y = centers[cell]
            canvas.rectangle((x - 0.28, y - 0.28), (x + 0.28, y + 0.28), BLUE)
        for cell, goal in zip(world[self.robots : agents], np.asarray(state.goal)):
            left, top, right, bottom = self.goals.boxes[goal]
            towards = ((left + right + 1) / 2, tall - (top + bottom + 1) / 2)
            canvas.line(centers[cell], towards, AMBER, 0.05).ring(towards, 0.12, AMBER, 0.05)
            canvas.disc(centers[cell], 0.28, INK).disc(centers[cell], 0.25, AMBER)
        return canvas.bar(1 - float(state.time) / self.max_episode_steps, INK).image()


@dataclass(frozen=True)
class BushMap:
    """A map of a bush world as numbers: cells of the agents, densities of all cells."""

    width: int
    height: int
    robots: tuple[int, ...]
    humans: tuple[int, ...]
    densities: tuple[int, ...]


def rows_of(text: str) -> list[str]:
    return [row for row in text.replace("/", "\n").splitlines() if row.strip()]


@lru_cache(maxsize=256)
def read_map(text: str, fill_density: int) -> BushMap:
    """Read a map; agents are numbered from left to right, row by row."""
    rows = [row.split() for row in rows_of(text)]
    if not rows:
        raise ConfigError("env.map: it is empty; write rows of Ro, Hu, densities and '.'")
    for y, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ConfigError(f"env.map: row {y} has {len(row)} cells, row 0 has {len(rows[0])}; make them equal")
    tokens = [token for row in rows for token in row]
    densities = []
    for cell, token in enumerate(tokens):
        who, colon, below = token.partition(":")
        if not (who in AGENTS and below.isdecimal() == bool(colon)) and token != "." and not token.isdecimal():
            x, y = cell % len(rows[0]), cell // len(rows[0])
            raise ConfigError(f"env.map: '{token}' at {x},{y} is not Ro, Hu (or Hu:2, in a bush), a density or '.'")
        filled = int(below) if below else fill_density
        densities.append(filled if who in AGENTS else 0 if token == "." else int(token))
    cells = {who: tuple(i for i, token in enumerate(tokens) if token.partition(":")[0] == who) for who in AGENTS}
    for who, what in (("Ro", "robot"), ("Hu", "human")):
        if not cells[who]:
            raise ConfigError(f"env.map: there is no {what}; put {who} on a cell")
    return BushMap(len(rows[0]), len(rows), cells["Ro"], cells["Hu"], tuple(densities))


@lru_cache(maxsize=64)
def heading(width: int, height: int, targets: goals.Goals, beta_h: float) -> np.ndarray:
    """The shortest-path prior [cells, G, A]: by the distance left after the intended move."""
    x, y = np.arange(width * height) % width, np.arange(width * height) // width
    x, y = x[:, None] + DX, y[:, None] + DY  # [cells, A]
    on_map = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    target = np.where(on_map, y * width + x, np.arange(width * height)[:, None])
    distance = targets.distance(width, height)[target].transpose(0, 2, 1)  # [cells, G, A]
    return goals.shortest_way(distance, beta_h)
