"""Geometry of every pair of aircraft: range, closest point of approach, and how dangerous it is."""

from typing import NamedTuple

import jax.numpy as jnp

from regimen.domains.airspace import vertical
from regimen.domains.airspace.dynamics import HOUR
from regimen.types import Array, Scalar

FAR = 200.0  # NM, the separation of an aircraft that is alone
PARKED = 1e4  # NM, where aircraft that do not count are put, each elsewhere
HORIZON = 300.0  # s, how far ahead a closest approach is looked for
MARGIN = 7.0  # NM, a predicted miss beyond it is not dangerous


def park(north: Array, counts: Array) -> Array:
    """Northings [..., N] with those that do not count far from everything, so that no pair needs a mask."""
    n = north.shape[-1]
    return jnp.where(counts, north, PARKED * (1.0 + jnp.arange(n, dtype=north.dtype)))


def distance(north: Array, east: Array, waypoint: Array) -> Array:
    """NM from each aircraft to its waypoint."""
    dn, de = north - waypoint[:, 0], east - waypoint[:, 1]
    return jnp.sqrt(dn * dn + de * de)


def squared(north: Array, east: Array) -> Array:
    """Squared distance of each pair: [N] -> [N, N], infinite on the diagonal."""
    dn, de = north[:, None] - north[None, :], east[:, None] - east[None, :]
    return jnp.where(jnp.eye(north.shape[-1], dtype=bool), jnp.inf, dn * dn + de * de)


def separation(north: Array, east: Array) -> Array:
    """Distance of each pair: [N] -> [N, N], infinite on the diagonal."""
    return jnp.sqrt(squared(north, east))


def nearest(separation: Array) -> Array:
    """Each aircraft's smallest separation: [N]."""
    return jnp.minimum(jnp.min(separation, axis=-1), FAR)


class Approach(NamedTuple):
    """How two aircraft come closest if both fly straight on."""

    range: Array  # NM
    speed: Array  # kt, relative
    tcpa: Array  # s, within 0..HORIZON
    dcpa: Array  # NM, at tcpa
    danger: Array  # 0..1, falls with the predicted miss and with the time until it


def approach(dn: Array, de: Array, vn: Array, ve: Array) -> Approach:
    """The closest approach of relative positions (NM) and velocities (kt)."""
    v2 = vn * vn + ve * ve
    t = jnp.clip(-(dn * vn + de * ve) / jnp.maximum(v2, 1e-3), 0.0, HORIZON / HOUR)  # h
    mn, me = dn + vn * t, de + ve * t
    dcpa, tcpa = jnp.sqrt(mn * mn + me * me), t * HOUR
    danger = jnp.maximum(1.0 - dcpa / MARGIN, 0.0) * (1.0 - tcpa / HORIZON)
    return Approach(jnp.sqrt(dn * dn + de * de), jnp.sqrt(v2), tcpa, dcpa, danger)


class PairTable(NamedTuple):
    """What aircraft i sees of every aircraft j, [N, N] each."""

    valid: Array  # bool, j counts and is another
    range: Array  # NM
    dcpa: Array  # NM
    danger: Array  # 0..1, zero where not valid
    close: Array | float = 1.0  # 0..1, falls with the vertical distance at the closest approach


def relate(
    north: Array,
    east: Array,
    ground: Array,
    counts: Array,
    heights: tuple[Array, Array] | None = None,
    feet: Scalar = 1.0,
) -> PairTable:
    """Relations of all pairs of aircraft; `counts` [N] are the aircraft that others must stay away from. With
    `heights`, altitudes in ft and rates in ft/min, pairs that will be `feet` apart in altitude are less dangerous."""
    dn, de = north[None, :] - north[:, None], east[None, :] - east[:, None]
    vn = ground[None, :, 0] - ground[:, None, 0]
    ve = ground[None, :, 1] - ground[:, None, 1]
    near = approach(dn, de, vn, ve)
    valid = counts[None, :] & ~jnp.eye(north.shape[0], dtype=bool)
    if heights is None:
        return PairTable(valid, near.range, near.dcpa, jnp.where(valid, near.danger, 0.0))
    above, rate = (x[None, :] - x[:, None] for x in heights)
    close = vertical.closeness(vertical.predicted(above, rate, near.tcpa), feet)
    return PairTable(valid, near.range, near.dcpa, jnp.where(valid, near.danger * close, 0.0), close)


def order(key: Array, valid: Array, k: int) -> Array:
    """The order of aircraft by a key, one-hot [N, K, N]: which j is i's k-th by `key`, smallest first; all zero past
    the last valid one.

    Counting how many come before is faster than a sort for so few, and ties go to the lower index.
    """
    n = key.shape[-1]
    key = jnp.where(valid, key, jnp.inf)
    index = jnp.arange(n)
    before = (key[:, None, :] < key[:, :, None]) | ((key[:, None, :] == key[:, :, None]) & (index < index[:, None]))
    place = jnp.sum(before, axis=-1)  # [N, N]
    return (place[:, None, :] == jnp.arange(k)[:, None]) & valid[:, None, :]


def pick(choice: Array, values: Array) -> Array:
    """Values [N] of the chosen: [N, K], zero where there is none. A chain of selects, because gathers are slow."""
    out = jnp.zeros(choice.shape[:2], values.dtype)
    for j in range(values.shape[0]):
        out = jnp.where(choice[:, :, j], values[j], out)
    return out
