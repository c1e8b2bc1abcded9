"""What one episode starts from, what the airspace remembers between its decisions, and within one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from regimen.domains.airspace import aircraft, dynamics
from regimen.domains.airspace.files import ScenarioFile, WindLayer
from regimen.domains.airspace.geodesy import convergence, from_latlon
from regimen.types import Array, Record, pytree_dataclass


@pytree_dataclass
class Scenario(Record):
    """Arrays are padded to N aircraft; scenarios of one N can be stacked and vmapped."""

    present: Array  # [N] bool
    north: Array  # [N] NM
    east: Array  # [N] NM
    heading: Array  # [N] deg, 0..360
    cas: Array  # [N] kt
    altitude: Array  # [N] ft
    kind: Array  # [N] int32, index into aircraft.TYPES
    waypoint: Array  # [N, 2] NM (north, east)
    wind: Array  # [N, 2] kt (north, east), the motion of the air
    delay: Array  # int32, decisions between an action and its command
    speed_bounds: Array  # [2] scale of the clamps at 100 and 400 kt
    convergence: Array  # deg per NM, how far true north turns towards the east; 0 on a flat earth


@pytree_dataclass
class AirspaceState(Record):
    """N aircraft in the map about the scenario's centre."""

    scenario: Scenario  # as started
    north: Array  # [N] NM
    east: Array  # [N] NM
    heading: Array  # [N] deg from true north
    tas: Array  # [N] kt
    cas: Array  # [N] kt
    ground: Array  # [N, 2] kt over the ground (north, east)
    target: Array  # [N, 2] commanded heading and CAS; what a finished aircraft goes on with
    air: Array  # [N, 2] pressure and density where it flies
    queue: Array  # [MAX_DELAY, N, 2] actions not yet applied, the latest first
    reached: Array  # [N] bool
    reached_step: Array  # [N] int32, -1 until then
    violating: Array  # [N] bool
    lost: Array  # [N, N] bool, pairs in violation
    time: Array  # int32, decisions done
    command: Array  # [N, 2] heading (deg) and speed (kt) change of the last decision
    action: Array  # [N, 2] as given, clipped
    min_sep: Array  # [N] NM, smallest own separation within the last decision
    waypoint_distance: Array  # [N] NM
    remaining: Array  # [N] NM to the waypoint, or what was left of it when it was reached
    flown: Array  # [N] NM over the ground until the waypoint
    danger: Array  # [N] summed over the others: minus the potential of the clean shaping
    team: Array  # [2] potential and moving average of the compat team term
    drift: Array  # [N] deg between heading and bearing of the waypoint
    first_los: Array  # int32, decision of the first loss of separation, -1 until then
    parts: Array  # [N, K] reward of the last decision


class Decision(NamedTuple):
    """What the seconds of a decision led to."""

    motion: dynamics.Motion
    squared: Array  # [N, N] NM^2, smallest squared distances of pairs that count
    captured: Array  # [N] bool, within reach of its waypoint
    distance: Array  # [N] NM to the waypoint, at the end or when captured
    flown: Array  # [N] NM, until then


def from_file(file: ScenarioFile, n: int | None = None) -> Scenario:
    """The arrays of a file, in numpy; absent aircraft are far away and fly nowhere."""
    count = len(file.agents)
    n = count if n is None else n
    if n < count:
        raise ValueError(f"{file.name} has {count} aircraft, more than {n}")

    def padded(values: npt.ArrayLike, fill: float = 0.0, dtype: type = np.float32) -> np.ndarray:
        rows = np.array(values, dtype)
        return np.concatenate([rows, np.full((n - count, *rows.shape[1:]), fill, dtype)])

    starts = np.array([from_latlon(file.center, a.lat, a.lon) for a in file.agents])
    arrays: dict[str, Any] = {  # of numpy, which a `Scenario` declares as those of jax
        "present": padded([True] * count, False, bool),
        "north": padded(starts[:, 0]),
        "east": padded(starts[:, 1]),
        "heading": padded([a.hdg_deg for a in file.agents]),
        "cas": padded([a.spd_kt for a in file.agents], 250.0),
        "altitude": padded([a.alt_ft for a in file.agents], 10_000.0),
        "kind": padded([aircraft.index_of(a.type) for a in file.agents], 0, np.int32),
        "waypoint": padded([from_latlon(file.center, *a.waypoint) for a in file.agents]),
        "wind": padded([wind_at(file.wind, a.alt_ft) for a in file.agents]),
        "delay": np.array(file.action_delay_steps, np.int32),
        "speed_bounds": np.ones(2, np.float32),
        "convergence": np.array(convergence(file.center), np.float32),
    }
    return Scenario(**arrays)


def wind_at(layers: tuple[WindLayer, ...], alt_ft: float) -> tuple[float, float]:
    """Motion of the air (north, east) in kt: between layers by interpolation, beyond them as the nearest."""
    if not layers:
        return 0.0, 0.0
    heights = [layer.alt_ft for layer in layers]
    north = [-layer.kt * math.cos(math.radians(layer.dir_deg)) for layer in layers]
    east = [-layer.kt * math.sin(math.radians(layer.dir_deg)) for layer in layers]
    return float(np.interp(alt_ft, heights, north)), float(np.interp(alt_ft, heights, east))


def stack(scenarios: list[Scenario]) -> Scenario:
    """Several of one size as one with a leading axis."""
    return jax.tree.map(lambda *rows: jnp.stack([jnp.asarray(row) for row in rows]), *scenarios)
