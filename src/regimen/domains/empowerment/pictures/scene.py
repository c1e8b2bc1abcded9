"""Where agents are on the map of a world: what pictures need to know of it, and the map of power of the live page."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regimen.domains.empowerment.pictures.episodes import SolvedEpisode
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.bush import BushWorld
from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.domains.empowerment.worlds.grid_map import BUTTONS, STEPS, codes_of
from regimen.domains.empowerment.worlds.world import World
from regimen.files import views

MOST_FRAMES = 200  # of the live page
WORDS = {"Ro": "rock", "Rk": "deadly rock", "Bl": "block", "La": "lava", "Un": "unsteady"}
WORDS |= BUTTONS | {"dK": "kill off", "dP": "pause off", "dC": "control off"}
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

    def power(self, solution: Solution, time: int) -> tuple[np.ndarray, np.ndarray]:
        """Places of agents [S, N] and power in bits of humans [S, H] in all states that can be the one at a time."""
        live = solution.live(time)
        bits = np.log2(solution.x_h[solution.layer(time)][live])
        return self.at(solution.table.states[: len(live)][live]), bits


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


def write_power(folder: Path, solution: Solution, scene: AgentMap, episode: SolvedEpisode, name: str = "") -> Path:
    """Write `views/power.json`, a film of an episode for the live page: the mean over humans of W_h, in bits, by the
    first robot's cell, over what is possible at each time."""
    inside = set(map(tuple, scene.cells.tolist()))
    rows = [
        "".join(scene.labels.get((x, y), ".")[:1] if (x, y) in inside else "#" for x in range(scene.width))
        for y in range(scene.height)
    ]
    where = scene.at(solution.table.states[episode.states])  # [T' + 1, N]
    frames = []
    for time, places in enumerate(where[:-1][:MOST_FRAMES]):
        agents = []
        for i, (x, y) in enumerate(scene.cells[places]):
            agents.append({"name": "robot" if i < solution.world.robots else "human", "row": y, "column": x})
        frames.append(views.grid_frame(power_by_cell(solution, scene, time), agents, title=f"time {time}"))
    title = f"{name or 'World'}: power by the robot's cell"
    return views.write(folder, "power", views.grid(title, rows, frames, unit="bits"))


def power_by_cell(solution: Solution, scene: AgentMap, time: int) -> np.ndarray:
    """[height, width], nan where the robot cannot be."""
    at, bits = scene.power(solution, time)
    out = np.full((scene.height, scene.width), np.nan)
    x, y = scene.cells.T
    out[y, x] = mean_by(at[:, 0], bits.mean(-1), len(scene.cells)).round(4)
    return out
