"""Grid worlds as pictures: robots are blue squares, humans amber discs, each with a nose the way it faces."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from regimen.domains.empowerment.worlds.grid_map import BUTTONS, LAVA, OPEN, STEPS, UNSTEADY, WALL, GridMap, codes_of
from regimen.domains.empowerment.worlds.grid_state import layout_of
from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, PALE, PAPER, RED, Canvas, Color
from regimen.types import Array

if TYPE_CHECKING:
    from regimen.domains.empowerment.worlds.grid import GridWorld

STONE: Color = (128, 124, 118)
WOOD: Color = (176, 128, 84)
DARK: Color = (92, 98, 110)
EMBER: Color = (226, 110, 60)
SAND: Color = (226, 214, 180)
HUES: dict[str, Color] = {"r": RED, "g": GREEN, "p": (140, 80, 180), "y": (225, 195, 50), "e": (130, 135, 145)}
SWITCH: dict[str, Color] = {"kill": RED, "pause": AMBER, "control": GREEN}
SWITCH |= {f"disable_{kind}": color for kind, color in SWITCH.items()}
PIXELS = 64  # a cell


def draw(world: GridWorld, state: Array, goal: Array, time: float) -> np.ndarray:
    """The state, a line from each human to its goal, and the time that is left along the lower edge."""
    m, parts = world.grid, layout_of(world.grid).unpack(np.asarray(state))
    canvas = copy.deepcopy(painted(m))
    at = [middle(m, int(place)) for place in parts.at]
    for (place, colour, _), shut in zip(m.doors, np.asarray(parts.doors)):
        door(canvas, middle(m, place), HUES[colour], int(shut))
    layout = layout_of(m)
    for thing, rock, deadly in zip(np.asarray(parts.things), layout.rocks, layout.deadly):
        push(canvas, middle(m, int(thing)), bool(rock))
        if deadly:
            canvas.ring(middle(m, int(thing)), 0.2, RED, 0.07)
    for (_, colour), place in zip(m.keys, np.asarray(parts.keys)):
        if place < len(m.cells):
            key(canvas, middle(m, int(place)), HUES[colour], 1.0)
    for h, target in enumerate(np.asarray(goal)):
        points = np.array([middle(m, place) for place in m.goals[target]])
        x, y = points.mean(0)
        canvas.line(at[world.robots + h], (x, y), AMBER, 0.04).ring((x, y), 0.11, AMBER, 0.045)
    paused = bool(np.asarray(parts.switches)[0])
    for i, (place, facing) in enumerate(zip(at, np.asarray(parts.facing))):
        if int(np.asarray(parts.waits)[i]):
            canvas.ring(place, 0.28, BLUE if i < world.robots else AMBER, 0.04)  # joins later
            continue
        agent(canvas, place, int(facing), i < world.robots, bool(np.asarray(parts.gone)[i]), paused)
    for (_, colour), place in zip(m.keys, np.asarray(parts.keys)):
        if place >= len(m.cells):
            x, y = at[int(place) - len(m.cells)]
            key(canvas, (x + 0.16, y + 0.2), HUES[colour], 0.6)
    return canvas.bar(1 - time / world.max_episode_steps, INK).image()


def middle(m: GridMap, place: int) -> tuple[float, float]:
    x, y = m.cells[place]
    return x + 0.5, m.shape[1] - y - 0.5


@lru_cache(maxsize=8)
def painted(m: GridMap) -> Canvas:
    """What never changes of a map, painted once."""
    width, height = m.shape
    canvas = Canvas(min(PIXELS * width, 704), (0.0, float(width), -0.14, float(height)), PALE)
    for (x, y), code in codes_of(m.rows):
        cx, cy = x + 0.5, height - y - 0.5
        solid = code == WALL or code in BUTTONS
        color = DARK if solid else EMBER if code == LAVA else SAND if code == UNSTEADY else PAPER
        edge = 0.5 if solid else 0.485
        canvas.rectangle((cx - edge, cy - edge), (cx + edge, cy + edge), color)
        if code == LAVA:
            for dy in (-0.18, 0.0, 0.18):
                canvas.line((cx - 0.28, cy + dy), (cx + 0.28, cy + dy), (250, 190, 90), 0.05)
        elif code == UNSTEADY:
            for dx, dy in ((-0.22, -0.2), (0.2, -0.24), (0.0, 0.02), (-0.24, 0.22), (0.22, 0.2)):
                canvas.disc((cx + dx, cy + dy), 0.05, (190, 170, 120))
        elif code in BUTTONS:
            button(canvas, (cx, cy), BUTTONS[code])
    return canvas


def button(canvas: Canvas, center: tuple[float, float], kind: str) -> None:
    """A humans' button is a disc, a robots' switch that disables it is the same disc struck through."""
    x, y = center
    canvas.disc(center, 0.3, PAPER).disc(center, 0.24, SWITCH[kind])
    if kind == "pause":
        for dx in (-0.07, 0.07):
            canvas.line((x + dx, y - 0.09), (x + dx, y + 0.09), PAPER, 0.06)
    elif kind == "kill":
        for sign in (-1, 1):
            canvas.line((x - 0.09, y - 0.09 * sign), (x + 0.09, y + 0.09 * sign), PAPER, 0.06)
    else:
        canvas.line((x - 0.24, y - 0.24), (x + 0.24, y + 0.24), BLUE, 0.09)


def door(canvas: Canvas, center: tuple[float, float], color: Color, state: int) -> None:
    x, y = center
    if state == OPEN:
        for dx in (-0.43, 0.43):
            canvas.rectangle((x + dx - 0.05, y - 0.48), (x + dx + 0.05, y + 0.48), color)
        return
    canvas.rectangle((x - 0.48, y - 0.48), (x + 0.48, y + 0.48), color)
    canvas.rectangle((x - 0.38, y - 0.38), (x + 0.38, y + 0.38), PAPER, 0.35)
    if state > 1:  # locked: a keyhole
        canvas.disc((x, y + 0.07), 0.1, INK).rectangle((x - 0.04, y - 0.17), (x + 0.04, y + 0.05), INK)
    else:
        canvas.disc((x + 0.25, y), 0.06, INK)


def push(canvas: Canvas, center: tuple[float, float], rock: bool) -> None:
    x, y = center
    if rock:
        canvas.disc(center, 0.38, INK).disc(center, 0.355, STONE).disc((x - 0.1, y + 0.12), 0.12, (160, 156, 150))
    else:
        canvas.rectangle((x - 0.37, y - 0.37), (x + 0.37, y + 0.37), INK)
        canvas.rectangle((x - 0.345, y - 0.345), (x + 0.345, y + 0.345), WOOD)
        canvas.line((x - 0.25, y - 0.25), (x + 0.25, y + 0.25), (140, 98, 60), 0.05)


def key(canvas: Canvas, center: tuple[float, float], color: Color, size: float) -> None:
    x, y = center
    canvas.line((x - 0.05 * size, y), (x + 0.27 * size, y), color, 0.09 * size)
    for dx in (0.16, 0.26):
        canvas.line((x + dx * size, y), (x + dx * size, y - 0.13 * size), color, 0.07 * size)
    canvas.ring((x - 0.15 * size, y), 0.12 * size, color, 0.08 * size)


def agent(canvas: Canvas, center: tuple[float, float], facing: int, robot: bool, gone: bool, paused: bool) -> None:
    x, y = center
    dx, dy = STEPS[facing]
    color = (150, 150, 150) if gone else BLUE if robot else AMBER
    if robot:
        canvas.rectangle((x - 0.3, y - 0.3), (x + 0.3, y + 0.3), INK)
        canvas.rectangle((x - 0.27, y - 0.27), (x + 0.27, y + 0.27), color)
    else:
        canvas.disc(center, 0.31, INK).disc(center, 0.28, color)
    if gone:
        for sign in (-1, 1):
            canvas.line((x - 0.15, y - 0.15 * sign), (x + 0.15, y + 0.15 * sign), INK, 0.06)
        return
    tip = (x + 0.27 * dx, y - 0.27 * dy)  # y grows to the south on the map, upwards in the picture
    for side in (-1, 1):
        canvas.line((x + 0.14 * side * -dy, y - 0.14 * side * dx), tip, PAPER if robot else INK, 0.07)
    if robot and paused:
        for off in (-0.07, 0.07):
            canvas.line((x + off, y - 0.1), (x + off, y + 0.1), AMBER, 0.06)
