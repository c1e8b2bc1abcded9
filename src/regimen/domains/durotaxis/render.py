"""Pictures of a colony."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from regimen.domains.durotaxis import graph as graphs
from regimen.envs.drawing import AMBER, GREEN, INK, PALE, PAPER, RED, Canvas

if TYPE_CHECKING:
    from regimen.domains.durotaxis.env import ColonyState, Durotaxis

PIXELS = 480  # width
SOFT, STIFF = np.array((244, 242, 236), np.float32), np.array((136, 152, 176), np.float32)
LINK = (90, 98, 110)
YOUNG, OLD = np.array((96, 160, 230)), np.array((28, 44, 84))
OLD_AGE = 8.0  # steps after which a node has its last colour


def draw(env: Durotaxis, state: ColonyState) -> np.ndarray:
    """Stiffness is the shade of the ground and the goal its green edge. Nodes just born are amber, the others blue and
    darker with age; the bar is the population, red above `max_nodes`, with `fail_nodes` as its full length."""
    state = jax.device_get(state)
    width, height = float(env.width), float(env.height)
    rim = 0.02 * width
    canvas = Canvas(PIXELS, (-rim, width + rim, -2.5 * rim, height + rim))
    unit = 1 / canvas.scale  # one pixel
    level = np.asarray(state.substrate.level(np.clip(canvas.x, 0.0, width)))
    columns, rows = (canvas.x[0] >= 0) & (canvas.x[0] <= width), (canvas.y[:, 0] >= 0) & (canvas.y[:, 0] <= height)
    canvas.pixels[np.ix_(rows, columns)] = SOFT + np.clip(level[0, columns], 0.0, 1.0)[:, None] * (STIFF - SOFT)
    canvas.rectangle((width - 2 * unit, 0.0), (width + 4 * unit, height), GREEN)

    graph = state.graph
    at = np.stack([graph.x, graph.y], axis=-1)
    for i, j in np.argwhere(np.asarray(graphs.unpack(graph.edges))):
        low, high = np.minimum(at[i], at[j]), np.maximum(at[i], at[j])
        canvas.part(low - 3 * unit, high + 3 * unit).line(at[i], at[j], LINK, 1.4 * unit)
    slots = np.flatnonzero(graph.alive)
    for i in slots[np.argsort(-graph.age[slots], kind="stable")]:  # the youngest on top
        spot = canvas.part(at[i] - 10 * unit, at[i] + 10 * unit)
        spot.disc(at[i], 6 * unit, PAPER).disc(at[i], 4.8 * unit, shade(int(graph.age[i])))

    count, thick = int(graph.alive.sum()), 0.6 * rim
    bottom, share = -1.8 * rim, min(count / float(env.fail_nodes), 1.0)
    canvas.rectangle((0.0, bottom), (width, bottom + thick), PALE)
    canvas.rectangle((0.0, bottom), (share * width, bottom + thick), RED if count > env.max_nodes else INK)
    return canvas.image()


def shade(age: int) -> tuple[int, int, int]:
    if age == 0:
        return AMBER
    share = min((age - 1) / OLD_AGE, 1.0)
    r, g, b = ((1 - share) * YOUNG + share * OLD).astype(int).tolist()
    return r, g, b
