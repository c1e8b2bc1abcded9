"""Many maps as one world: every episode is on another map of a kind and size, so that one network learns them all."""

import math
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.empowerment.worlds import goals, picture
from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.domains.empowerment.worlds.grid_laws import GridLaws
from regimen.domains.empowerment.worlds.grid_map import GridMap, read_map
from regimen.domains.empowerment.worlds.grid_state import GridState, layout_of
from regimen.domains.empowerment.worlds.grid_tables import GridTables, stacked
from regimen.domains.empowerment.worlds.maps import KINDS as MAP_KINDS
from regimen.domains.empowerment.worlds.maps import DrawnMap, draw_maps
from regimen.domains.empowerment.worlds.world import WorldState
from regimen.envs.protocol import native_env
from regimen.errors import ConfigError, nearest
from regimen.types import Array

ACTIONS = {"locked": "still, left, right, forward, pickup, toggle"}  # of a kind; `small` for the others


class FamilyTables:
    """What is looked up of all maps of a family."""

    def __init__(self, grids: tuple[GridMap, ...]):
        layouts = [layout_of(m) for m in grids]
        assert len({(x.sizes, x.winners, x.stumblers) for x in layouts}) == 1, "the maps of a family differ in kind"
        self.tables = stacked(grids)
        self.starts = np.stack([x.start for x in layouts])  # [M, n]
        self.distances = np.stack([m.distances for m in grids]).astype(np.int16)  # [M, G, P, 4]


@lru_cache(maxsize=16)
def family_tables(drawn: tuple[DrawnMap, ...], action_set: str) -> FamilyTables:
    return FamilyTables(tuple(read_map(m.text, action_set, m.directions, "") for m in drawn))


@native_env
class GridFamily(GridLaws):
    """Grid worlds on maps that are drawn at random. A state is that of a `GridWorld`, and the number of its map."""

    kind: str = "niches"
    """niches (a human behind a rock, which the robot can push on), locked (humans behind a locked door, whose key the
    robot can fetch), or blocks."""
    columns: int = 7
    """Width of the maps, with the walls around them."""
    rows: int = 7
    """Height of the maps, with the walls around them."""
    places: int = 12
    """Cells that are no walls, in each map."""
    people: int = 1
    """Humans in each map."""
    maps: int = 500
    """How many maps there are."""
    part: Literal["training", "tests"] = "training"
    """Maps to train on, or maps that are in no training."""
    map_seed: int = 0
    """Which maps are drawn."""
    max_episode_steps: int = 10
    """Steps after which an episode ends."""
    handlers: Literal["everyone", "robots"] = "robots"
    """Who picks up keys and opens doors."""
    observation: Literal["state", "features"] = "state"
    """What an environment shows: its state with everybody's goals, as empowerment needs it, or features without goals,
    for a learner that maximises the reward."""
    unsteady: float = 0.5
    """Probability of going astray on unsteady ground."""
    beta_h: Any = math.inf
    """How strictly the heuristic prior takes shortest ways; inf means always."""

    def __post_init__(self):
        object.__setattr__(self, "beta_h", goals.inverse_temperature(self.beta_h))
        if self.kind not in MAP_KINDS:
            raise ConfigError(f"env.kind: '{self.kind}' is no kind of maps{nearest(self.kind, MAP_KINDS)}")
        if self.part not in ("training", "tests"):
            raise ConfigError(f"env.part: '{self.part}' is neither training nor tests")
        for name, least in (("columns", 3), ("rows", 3), ("people", 1), ("maps", 1), ("max_episode_steps", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"env.{name}: {getattr(self, name)} is out of range; it must be at least {least}")

    @property
    def action_set(self) -> str:
        return ACTIONS.get(self.kind, "small")

    @property
    def drawn(self) -> tuple[DrawnMap, ...]:
        return draw_maps(
            self.kind, self.columns, self.rows, self.places, self.people, self.maps, self.part, self.map_seed
        )

    @property
    def grids(self) -> tuple[GridMap, ...]:
        return tuple(read_map(m.text, self.action_set, m.directions, "") for m in self.drawn)

    @property
    def grid(self) -> GridMap:
        first = self.drawn[0]
        return read_map(first.text, self.action_set, first.directions, "")

    @property
    def tabled(self) -> FamilyTables:
        return family_tables(self.drawn, self.action_set)

    def alone(self, number: int) -> GridWorld:
        """One of the maps as a world of its own, whose states are those of the family without the number."""
        m = self.drawn[number]
        return GridWorld(
            map=m.text,
            action_set=self.action_set,
            directions=m.directions,
            handlers=self.handlers,
            unsteady=self.unsteady,
            max_episode_steps=self.max_episode_steps,
            beta_h=self.beta_h,
        )

    @property
    def goal_names(self) -> list[str]:
        return [f"place {i}" for i in range(self.places)]

    @property
    def state_space(self) -> spaces.Space:
        return spaces.MultiDiscrete([*self.layout.sizes, self.maps], dtype=np.int32)

    @property
    def sizes(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def enumerable(self) -> bool:
        return False  # each map is (`alone`)

    def tables(self, state: Array) -> GridTables:
        return jax.tree.map(lambda x: jnp.asarray(x)[state[-1]], self.tabled.tables)

    def packed(self, parts: GridState[Array], before: Array) -> Array:
        states = self.layout.pack(parts)
        return jnp.concatenate([states, jnp.broadcast_to(before[-1], (len(states), 1))], 1)

    def initial(self) -> Array:
        return self.initial_on(jnp.int32(0))

    def initial_on(self, number: Array) -> Array:
        """The state [n] in which episodes on a map start."""
        return jnp.append(jnp.asarray(self.tabled.starts)[number], number).astype(jnp.int32)

    def reset(self, key: Array) -> tuple[WorldState, dict[str, Array]]:
        keys = jax.random.split(key)
        start = self.initial_on(jax.random.randint(keys[0], (), 0, self.maps))
        state = WorldState(start, jnp.int32(0), self.draw_goals(keys[1]))
        return state, self.observe(state)

    def prior(self, state: Array) -> Array:
        """As that of a `GridWorld`."""
        n, h, places = self.layout.agents, self.robots, self.places
        distances = jnp.asarray(self.tabled.distances)[state[-1]].astype(jnp.int32)  # [G, P, 4]
        front = jnp.asarray(self.tabled.tables.front)[state[-1]]
        at, facing = state[h:n], state[n + h : 2 * n]
        ahead = front[at, facing]
        ahead = jnp.where(ahead < places, ahead, at)
        after = {
            "still": (at, facing),
            "left": (at, (facing - 1) & 3),
            "right": (at, (facing + 1) & 3),
            "forward": (ahead, facing),
        }
        none = jnp.full((len(distances), n - h), -1)
        left = [distances[:, after[name][0], after[name][1]] if name in after else none for name in self.actions]
        return goals.shortest_way(jnp.stack(left, -1), self.beta_h).swapaxes(0, 1)  # [H, G, A]

    @property
    def goals_are_places(self) -> bool:
        return True

    @property
    def feature_space(self) -> spaces.Dict:
        return picture.space(self.layout)

    def features(self, state: Array) -> Array:
        """A picture of the map and of who and what is where."""
        return picture.flat(picture.of(self.layout, self.tables(state), self.layout.unpack(state)))

    def render(self, state: WorldState) -> np.ndarray:
        world = np.asarray(state.world)
        return self.alone(int(world[-1])).render(state.replace(world=world[:-1]))
