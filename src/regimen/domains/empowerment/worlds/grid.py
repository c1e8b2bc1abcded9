"""A grid world from a map that is drawn: a `GridLaws` whose tables are those of one map."""

import math
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.empowerment.worlds import goals, picture
from regimen.domains.empowerment.worlds.grid_laws import GridLaws
from regimen.domains.empowerment.worlds.grid_map import GridMap, read_map, read_rows
from regimen.domains.empowerment.worlds.grid_tables import GridTables, tables_of
from regimen.domains.empowerment.worlds.world import WorldState
from regimen.envs.protocol import native_env
from regimen.errors import ConfigError
from regimen.types import Array

TRIVIAL = "We We We We We We / We Ae Ro .. .. We / We We Ay We We We / We We We We We We"


@native_env
class GridWorld(GridLaws):
    """A grid world from the rows of a map, two characters a cell; see `docs/worlds.md` for its codes and rules."""

    map: str = TRIVIAL
    """Rows of codes; a new row after a line break or `/`."""
    action_set: str = "small"
    """small (still, left, right, forward), full (also pickup, drop, toggle), minimal (forward, left), or a list of
    names."""
    directions: str = ""
    """E, S, W or N at the start: one for all, or one for each agent, robots first; south by default."""
    handlers: Literal["everyone", "robots"] = "everyone"
    """Who picks up keys and opens doors."""
    unsteady: float = 0.5
    """Probability of going astray on unsteady ground."""
    joins: str = ""
    """Steps after which each agent joins, robots first, such as `0, 0, 5`; all are there at once by default."""
    max_episode_steps: int = 10
    """Steps after which the world ends."""
    possible_goals: Any = ""
    """Goals of every human: `x,y; x1,y1,x2,y2 = weight`; every cell that is neither wall nor button by default."""
    beta_h: Any = math.inf
    """How strictly the heuristic prior takes shortest ways; inf means always."""
    observation: Literal["state", "features"] = "state"
    """What an environment shows: its state with everybody's goals, as empowerment needs it, or features without goals,
    for a learner that maximises the reward."""
    view: Literal["entries", "picture"] = "entries"
    """What networks read of a state: its entries, each one-hot, or the map as a picture (`--network.name grid`)."""

    def __post_init__(self):
        set_field = object.__setattr__
        set_field(self, "possible_goals", goals.as_text(self.possible_goals))
        set_field(self, "beta_h", goals.inverse_temperature(self.beta_h))
        set_field(self, "map", " / ".join(" ".join(row) for row in read_rows(str(self.map))))
        if self.max_episode_steps < 1:
            raise ConfigError(f"env.max_episode_steps: {self.max_episode_steps} is out of range; it must be at least 1")
        if self.handlers not in ("everyone", "robots"):
            raise ConfigError(f"env.handlers: '{self.handlers}' is neither everyone nor robots")
        if self.view not in ("entries", "picture"):
            raise ConfigError(f"env.view: '{self.view}' is neither entries nor picture")
        if isinstance(self.unsteady, (int, float)) and not 0 <= self.unsteady <= 1:
            raise ConfigError(f"env.unsteady: {self.unsteady} is out of range; it must be between 0 and 1")
        for kind in ("kill", "pause", "control"):
            off = f"disable_{kind}"
            if self.layout.has(off) and not self.layout.has(kind):
                raise ConfigError(f"env.map: a switch disables {kind} buttons, but there is none; add one or remove it")

    @property
    def grid(self) -> GridMap:
        return read_map(self.map, self.action_set, self.directions, self.possible_goals, self.joins)

    def tables(self, state: Array) -> GridTables:
        return tables_of(self.grid)

    def initial(self) -> Array:
        return jnp.asarray(self.layout.start)

    def prior(self, state: Array) -> Array:
        """Towards the goal on a shortest way, as if nothing moved and all doors were open: see `GridMap.distances`.
        Humans who are after a place neither handle things nor press buttons."""
        n, h = self.layout.agents, self.robots
        return jnp.asarray(heading(self.grid, self.beta_h), float)[state[h:n] * 4 + state[n + h : 2 * n]]

    @property
    def goals_are_places(self) -> bool:
        return self.view == "picture" and self.grid.goals == tuple((i,) for i in range(len(self.grid.cells)))

    @property
    def feature_space(self) -> spaces.Dict | None:
        return picture.space(self.layout) if self.view == "picture" else None

    def features(self, state: Array) -> Array:
        """Every entry as a one-hot row, and x and y of agents and things, from 0 to 1; or a picture."""
        if self.view == "picture":
            return picture.flat(picture.of(self.layout, self.tables(state), self.layout.unpack(state)))
        rows = [jax.nn.one_hot(state[i], size) for i, size in enumerate(self.sizes)]
        n, things = self.layout.agents, len(self.layout.things)
        where = jnp.concatenate([state[:n], state[2 * n : 2 * n + things]])
        coordinates = np.array(self.grid.cells, np.float32) / np.maximum(np.array(self.grid.shape) - 1, 1)
        return jnp.concatenate([*rows, jnp.asarray(coordinates)[where].ravel()])

    def render(self, state: WorldState) -> np.ndarray:
        from regimen.domains.empowerment.worlds.grid_drawing import draw

        return draw(self, state.world, state.goal, float(state.time))


@lru_cache(maxsize=64)
def heading(grid: GridMap, beta_h: float) -> np.ndarray:
    """The shortest-way prior [P * 4, G, A], by the way that is left after the intended action."""
    places = len(grid.cells)
    here = np.moveaxis(grid.distances, 0, -1)  # [P, 4, G]
    ahead = np.where(grid.front[:places] < places, grid.front[:places], np.arange(places)[:, None])  # [P, 4]
    after = {
        "still": here,
        "left": np.roll(here, 1, axis=1),
        "right": np.roll(here, -1, axis=1),
        "forward": here[ahead, np.arange(4)],
    }
    distance = np.stack([after.get(name, np.full_like(here, -1)) for name in grid.names], -1)  # [P, 4, G, A]
    return goals.shortest_way(distance, beta_h).reshape(places * 4, len(grid.goals), -1)
