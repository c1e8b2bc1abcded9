"""How aircraft move: a point mass with bank-limited turns and limited acceleration, in steps of 1 s.

Each second: airspeed, then heading, then position. Everything is elementwise over aircraft, and a decision's seconds are
unrolled: one sine and cosine per decision, small rotations within it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from regimen.envs.airspace.aircraft import KT, TYPES
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
    return jnp.maximum(100.0 * bounds[0], of_type(CAS_MIN, kind)), jnp.minimum(
        400.0 * bounds[1], of_type(CAS_MAX, kind)
    )


def velocity(heading: Array, tas: Array, east: Array, wind: Array, convergence: Array) -> Array:
    """Ground velocity in the map, kt: [N, 2] (north, east)."""
    angle = (heading - convergence * east) * DEGREE
    return jnp.stack([tas * jnp.cos(angle), tas * jnp.sin(angle)], axis=-1) + wind


class Track(NamedTuple):
    """Where a decision's seconds led."""

    north: Array  # [S, N] after each second
    east: Array  # [S, N]
    heading: Array  # [N] at the end
    tas: Array  # [N]
    flown: Array  # [S, N] NM, over the ground since the start of the decision


def fly(
    north: Array,
    east: Array,
    heading: Array,
    tas: Array,
    turn: Array,
    target: Array,
    kind: Array,
    wind: Array,
    convergence: Array,
    seconds: int = DECISION,
) -> Track:
    """`turn` degrees (the short way, signed) are left to the commanded heading, `target` is the commanded TAS."""
    accel, rate = of_type(ACCEL, kind), of_type(TURN, kind)
    angle = (heading - convergence * east) * DEGREE
    c, s = jnp.cos(angle), jnp.sin(angle)
    left, flown = turn, jnp.zeros_like(north)
    norths, easts, lengths = [], [], []
    for _ in range(seconds):
        tas = tas + jnp.clip(target - tas, -accel, accel)
        most = rate / tas
        step = jnp.clip(left, -most, most)
        left = left - step
        x = step * DEGREE  # at most 0.07: two terms are exact to float32
        sin_x, cos_x = x * (1.0 - x * x / 6), 1.0 - x * x * (0.5 - x * x / 24)
        c, s = c * cos_x - s * sin_x, s * cos_x + c * sin_x
        dn, de = (tas * c + wind[:, 0]) / HOUR, (tas * s + wind[:, 1]) / HOUR
        north, east, flown = north + dn, east + de, flown + jnp.sqrt(dn * dn + de * de)
        norths, easts, lengths = [*norths, north], [*easts, east], [*lengths, flown]
    return Track(jnp.stack(norths), jnp.stack(easts), jnp.mod(heading + turn - left, 360.0), tas, jnp.stack(lengths))
