"""A solved world for the live page: power by where the robot is, through an episode (`views/power.json`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from regimen.domains.empowerment.pictures.episodes import SolvedEpisode
from regimen.domains.empowerment.pictures.scene import AgentMap, mean_by
from regimen.domains.empowerment.solution import Solution
from regimen.files import views

MOST_FRAMES = 200


def write_power(folder: Path, solution: Solution, scene: AgentMap, episode: SolvedEpisode, name: str = "") -> Path:
    """Mean over humans of W_h, in bits, by the first robot's cell, over what is possible at each time."""
    inside = {(int(x), int(y)) for x, y in scene.cells}

    def sign(x: int, y: int) -> str:
        return scene.labels.get((x, y), ".")[:1] if (x, y) in inside else "#"

    rows = ["".join(sign(x, y) for x in range(scene.width)) for y in range(scene.height)]
    where = scene.at(solution.table.states[episode.states])  # [T' + 1, N]
    frames = []
    for time, places in enumerate(where[:-1][:MOST_FRAMES]):
        agents = [
            {
                "name": "robot" if i < solution.world.robots else "human",
                "row": scene.cells[p][1],
                "column": scene.cells[p][0],
            }
            for i, p in enumerate(places)
        ]
        frames.append(views.grid_frame(power_by_cell(solution, scene, time), agents, title=f"time {time}"))
    return views.write(
        folder, "power", views.grid(f"{name or 'World'}: power by the robot's cell", rows, frames, unit="bits")
    )


def power_by_cell(solution: Solution, scene: AgentMap, time: int) -> np.ndarray:
    """[height, width], nan where the robot cannot be."""
    live = solution.live(time)
    at = scene.at(solution.table.states[: len(live)][live])[:, 0]
    bits = np.log2(solution.x_h[solution.layer(time)][live]).mean(-1)
    out = np.full((scene.height, scene.width), np.nan)
    x, y = scene.cells.T
    out[y, x] = mean_by(at, bits, len(scene.cells)).round(4)
    return out
