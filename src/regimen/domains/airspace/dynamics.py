"""How aircraft move: a point mass with bank-limited turns and limited acceleration, in steps of 1 s; what they are
commanded; and calibrated and true airspeed in the International Standard Atmosphere.

Each second: airspeed, then heading, then position. There is one sine and cosine per decision and small rotations within
it. The seconds are a loop: unrolled, the compiler computes the early ones again for each of the later ones.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from regimen.domains.airspace.aircraft import GRAVITY, KT, TYPES
from regimen.domains.airspace.files import MAX_DELAY
from regimen.types import Array

DECISION = 10  # s
HOUR = 3600.0
DEGREE = math.pi / 180

CAS_MIN = [t.cas_min for t in TYPES]  # kt
CAS_MAX = [t.cas_max for t in TYPES]
ACCEL = [t.max_accel / KT for t in TYPES]  # kt/s
TURN_RATE = [t.turn for t in TYPES]  # deg/s times kt
TURN, CHANGE = 18.0, 10.0  # deg and kt of a full action
DEADBAND = 3.0  # deg and kt below which a command is none
P0, RHO0, T0, GAS = 101_325.0, 1.225, 288.15, 287.05
LAPSE, TROPOPAUSE = 0.0065, 11_000.0  # K/m, m
FEET = 0.3048


def of_type(table: list[float], kind: Array) -> Array:
    """`table[kind]` without a gather, which would keep a loop from being vectorised; one value needs no choice."""
    value = jnp.full(kind.shape, table[0])
    for i, other in enumerate(table[1:], 1):
        if other != table[0]:
            value = jnp.where(kind == i, other, value)
    return value


def wrap(angle: Array) -> Array:
    """An angle brought to -180..180 deg."""
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
    most = of_type(TURN_RATE, kind) / tas
    step = jnp.clip(left, -most, most)
    x = step * DEGREE  # at most 0.07: these terms are exact to float32
    sin_x, cos_x = x * (1.0 - x * x / 6), 1.0 - x * x * (0.5 - x * x / 24)
    c, s = c * cos_x - s * sin_x, s * cos_x + c * sin_x
    dn, de = (tas * c + wind[:, 0]) / HOUR, (tas * s + wind[:, 1]) / HOUR
    return Motion(north + dn, east + de, tas, left - step, c, s, flown + jnp.sqrt(dn * dn + de * de))


def air(altitude: Array) -> Array:
    """Pressure (Pa) and density (kg/m^3) at an altitude in ft: [..., 2]."""
    h = jnp.asarray(altitude) * FEET
    t = T0 - LAPSE * jnp.minimum(h, TROPOPAUSE)
    above = jnp.exp(-GRAVITY / (GAS * t) * jnp.maximum(h - TROPOPAUSE, 0.0))
    rho = RHO0 * (t / T0) ** 4.25685 * above
    return jnp.stack([rho * GAS * t, rho], axis=-1)


def airspeed(speed: Array, p: Array | float, rho: Array | float, p_to: Array | float, rho_to: Array | float) -> Array:
    """The airspeed in kt that has at one pressure and density the dynamic pressure of `speed` at another."""
    y = 1.0 + rho / (7 * p) * jnp.square(speed * KT)
    q = p * (y**3 * jnp.sqrt(y) - 1.0)
    return jnp.sqrt(7 * p_to / rho_to * jnp.expm1(2 / 7 * jnp.log1p(q / p_to))) / KT


def to_tas(cas: Array, air: Array) -> Array:
    """True airspeed in kt from a calibrated one in kt."""
    return airspeed(cas, P0, RHO0, air[..., 0], air[..., 1])


def to_cas(tas: Array, air: Array) -> Array:
    """Calibrated airspeed in kt from a true one in kt."""
    return airspeed(tas, air[..., 0], air[..., 1], P0, RHO0)


def command(action: Array) -> Array:
    """Heading (deg) and speed (kt) change of a normalised action, small ones dropped: [N, 2]."""
    change = action * jnp.array([TURN, CHANGE])
    return jnp.where(jnp.abs(change) < DEADBAND, 0.0, change)


def aim(heading: Array, cas: Array, change: Array, kind: Array, bounds: Array) -> Array:
    """The heading and the CAS that a change [N, 2] commands: [N, 2]."""
    slowest, fastest = speed_limits(kind, bounds)
    return jnp.stack([jnp.mod(heading + change[:, 0], 360.0), jnp.clip(cas + change[:, 1], slowest, fastest)], axis=-1)


def delay(action: Array, queue: Array, steps: Array) -> tuple[Array, Array]:
    """The action whose turn it is after a delay, and the queue after it; before the first ones come zeros."""
    line = jnp.concatenate([action[None], queue])  # [1 + MAX_DELAY, N, 2]
    turn = jnp.arange(line.shape[0])[:, None, None] == jnp.minimum(steps, MAX_DELAY)
    return jnp.sum(jnp.where(turn, line, 0.0), axis=0), line[:-1]
