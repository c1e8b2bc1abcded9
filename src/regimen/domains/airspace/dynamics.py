"""How aircraft move: a point mass with bank-limited turns and limited acceleration, in steps of 1 s.

Each second: airspeed, then heading, then position. There is one sine and cosine per decision and small rotations within
it. The seconds are a loop: unrolled, the compiler computes the early ones again for each of the later ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from regimen.domains.airspace.aircraft import KT, TYPES
from regimen.types import Array

DECISION = 10  # s
HOUR = 3600.0
DEGREE = math.pi / 180

CAS_MIN = [t.cas_min for t in TYPES]  # kt
CAS_MAX = [t.cas_max for t in TYPES]
ACCEL = [t.max_accel / KT for t in TYPES]  # kt/s
TURN = [t.turn for t in TYPES]  # deg/s times kt


def of_type(table: list[float], kind: Array) -> Array:
    """`table[kind]` without a gather, which would keep a loop from being vectorised; one value needs no choice."""
    value = jnp.full(kind.shape, table[0])
    for i, other in enumerate(table[1:], 1):
        if other != table[0]:
            value = jnp.where(kind == i, other, value)
    return value


def wrap(angle: Array) -> Array:
    """To -180..180 deg."""
    return angle - 360.0 * jnp.round(angle / 360.0)


def speed_limits(kind: Array, bounds: Array) -> tuple[Array, Array]:
    """Lowest and highest CAS that can be commanded: the type's envelope within the clamp for all."""
    slowest = jnp.maximum(100.0 * bounds[0], of_type(CAS_MIN, kind))
    return slowest, jnp.minimum(400.0 * bounds[1], of_type(CAS_MAX, kind))


def velocity(heading: Array, tas: Array, east: Array, wind: Array, convergence: Array) -> Array:
    """Ground velocity in the map, kt: [N, 2] (north, east)."""
    angle = (heading - convergence * east) * DEGREE
    return jnp.stack([tas * jnp.cos(angle), tas * jnp.sin(angle)], axis=-1) + wind


class Motion(NamedTuple):
    """Aircraft in the middle of a decision."""

    north: Array  # [N] NM
    east: Array  # [N] NM
    tas: Array  # [N] kt
    left: Array  # [N] deg to the commanded heading, signed
    cos: Array  # [N] of the heading in the map
    sin: Array  # [N]
    flown: Array  # [N] NM over the ground


def begin(north: Array, east: Array, heading: Array, tas: Array, turn: Array, convergence: Array) -> Motion:
    """`turn` degrees, the short way and signed, are left to the commanded heading."""
    angle = (heading - convergence * east) * DEGREE
    return Motion(north, east, tas, turn, jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(north))


def second(motion: Motion, target: Array, kind: Array, wind: Array) -> Motion:
    """One second on, towards the commanded TAS."""
    north, east, tas, left, c, s, flown = motion
    accel = of_type(ACCEL, kind)
    tas = tas + jnp.clip(target - tas, -accel, accel)
    most = of_type(TURN, kind) / tas
    step = jnp.clip(left, -most, most)
    x = step * DEGREE  # at most 0.07: these terms are exact to float32
    sin_x, cos_x = x * (1.0 - x * x / 6), 1.0 - x * x * (0.5 - x * x / 24)
    c, s = c * cos_x - s * sin_x, s * cos_x + c * sin_x
    dn, de = (tas * c + wind[:, 0]) / HOUR, (tas * s + wind[:, 1]) / HOUR
    return Motion(north + dn, east + de, tas, left - step, c, s, flown + jnp.sqrt(dn * dn + de * de))
