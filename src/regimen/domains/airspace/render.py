"""A plan view of the airspace: aircraft with half the separation around them, where they head, and their waypoints."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import jax
import numpy as np

from regimen.domains.airspace.state import AirspaceState, Scenario
from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, PALE, PAPER, RED, Canvas, Color

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

Tracks = tuple[np.ndarray, np.ndarray]  # north and east [T, N]
PIXELS = 480
COLORS: tuple[Color, ...] = (BLUE, (150, 90, 180), (30, 150, 160), (200, 110, 40), (110, 120, 60), (190, 80, 130))
LOOK = 60.0  # s of flight that the line in front of an aircraft shows


def draw(env: Airspace, state: AirspaceState, tracks: Tracks | None = None) -> np.ndarray:
    """Circles have a radius of 2.5 NM: two that touch are at the minimum. They are red in a loss of separation, and an
    aircraft that has left is pale. `tracks` are drawn as lines. The grid is 10 NM wide, the bar
    at the bottom the time left."""
    state = jax.device_get(state)
    scenario = state.scenario
    canvas = Canvas(PIXELS, view(scenario, state, tracks))
    unit = 1 / canvas.scale
    grid(canvas, unit)
    active, counts = np.asarray(env.alive(state)), np.asarray(env.counts(state))
    present = np.flatnonzero(scenario.present)
    for i in present:
        color = COLORS[i % len(COLORS)]
        goal = scenario.waypoint[i, 1], scenario.waypoint[i, 0]
        if tracks is not None:
            path = np.stack([tracks[1][:, i], tracks[0][:, i]], axis=-1)
            for a, b in itertools.pairwise(path):
                canvas.line(a, b, color, 1.2 * unit)
        elif active[i]:
            canvas.line((state.east[i], state.north[i]), goal, PALE, 1.2 * unit)
        canvas.ring(goal, 1.0, GREEN if state.reached[i] else color, 1.6 * unit)
        canvas.disc(goal, 2 * unit, GREEN if state.reached[i] else color)
    for i in present:
        at = np.array([state.east[i], state.north[i]])
        if not counts[i]:
            canvas.disc(at, 3 * unit, PALE)
            continue
        lost = bool(state.violating[i]) or state.min_sep[i] < env.separation_nm
        color = RED if lost else COLORS[i % len(COLORS)] if active[i] else INK
        ahead = np.array([state.ground[i, 1], state.ground[i, 0]]) * LOOK / 3600
        canvas.disc(at, env.separation_nm / 2, color, 0.15).ring(at, env.separation_nm / 2, color, 1.4 * unit)
        canvas.line(at, at + ahead, color, 1.8 * unit)
        arrow(canvas, at, ahead / max(float(np.hypot(*ahead)), 1e-6), 7 * unit, color)
        if np.any(state.command[i] != 0.0):
            canvas.ring(at, env.separation_nm / 2 + 3 * unit, AMBER, 1.6 * unit)
    return canvas.bar(1.0 - float(state.time) / env.max_episode_steps).image()


def view(scenario: Scenario, state: AirspaceState, tracks: Tracks | None) -> tuple[float, float, float, float]:
    """A square around everything that matters, the same through an episode unless someone strays."""
    keep = np.asarray(scenario.present)
    starts, now = (np.stack([x.north, x.east], axis=-1)[keep] for x in (scenario, state))
    points = [starts, scenario.waypoint[keep], now]
    points += [] if tracks is None else [np.stack(tracks, axis=-1)[:, keep].reshape(-1, 2)]
    low, high = (extreme(np.concatenate(points), axis=0) for extreme in (np.min, np.max))
    n, e = (low + high) / 2
    half = 5.0 * np.ceil((float((high - low).max()) / 2 + 4.0) / 5.0)
    return e - half, e + half, n - half, n + half


def grid(canvas: Canvas, unit: float) -> None:
    left, right = float(canvas.x[0, 0]), float(canvas.x[0, -1])
    bottom, top = float(canvas.y[-1, 0]), float(canvas.y[0, 0])
    faint: Color = (236, 238, 240)
    for x in np.arange(np.ceil(left / 10) * 10, right, 10):
        canvas.line((x, bottom), (x, top), faint, unit)
    for y in np.arange(np.ceil(bottom / 10) * 10, top, 10):
        canvas.line((left, y), (right, y), faint, unit)


def arrow(canvas: Canvas, at: np.ndarray, ahead: np.ndarray, size: float, color: Color) -> None:
    """A triangle that points ahead."""
    x, y = canvas.x - at[0], canvas.y - at[1]
    along, across = x * ahead[0] + y * ahead[1], np.abs(x * ahead[1] - y * ahead[0])
    shape = np.maximum(-along - 0.7 * size, 0.4 * (along - 1.3 * size) + across * 0.9)
    canvas.paint(shape - 1 / canvas.scale, PAPER).paint(shape, color)
