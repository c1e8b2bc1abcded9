"""What one episode starts from, as arrays."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from regimen.domains.airspace import aircraft
from regimen.domains.airspace.files import Layer, ScenarioFile
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


def wind_at(layers: tuple[Layer, ...], alt_ft: float) -> tuple[float, float]:
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
