"""What an aircraft sees: `compat` as an earlier system had it, faults included, and `clean`.

Both are one row per aircraft. The features of `clean` are about -1 to 1, distances at the scale of the separation
minimum and of the whole airspace.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from regimen.envs.airspace import dynamics, pairs
from regimen.envs.airspace.aircraft import KT
from regimen.envs.airspace.files import SEPARATION
from regimen.envs.airspace.pairs import Pairs
from regimen.types import Array

NM = 1.852  # km
HOUR = 3600.0
OWN = (
    "cos_waypoint",
    "sin_waypoint",
    "waypoint_near",
    "waypoint_far",
    "speed",
    "speed_range",
    "drift",
    "time_left",
    "slack",
    "rank",
    "danger",
    "finished",
)
NEIGHBOUR = (
    "present",
    "cos_bearing",
    "sin_bearing",
    "range_near",
    "range_far",
    "v_ahead",
    "v_right",
    "closing",
    "tcpa",
    "dcpa",
    "miss",
    "danger",
    "priority",
    "finished",
    "nearer",
    "cos_intent",
    "sin_intent",
)
BOUND = 3.0
COMPAT_LIMITS = (10.0, 1.0, 1.0, 1.0, 1.0)  # of the first five; then K * vx, K * vy, distance, K * x, K * y


def clean_size(k: int) -> int:
    return len(OWN) + k * len(NEIGHBOUR)


def compat_high(k: int) -> list[float]:
    """Largest absolute values of the compat observation."""
    return [*COMPAT_LIMITS, *[150.0] * (2 * k), 1.0, *[12.0] * (2 * k)]


def soft(x: Array, scale: float) -> Array:
    """To -1..1, linear near zero: cheaper than tanh."""
    return x / (jnp.abs(x) + scale)


def clean(state: Any, seen: Pairs, present: Array, finished: Array, time_left: Array, step_s: float, k: int) -> Array:
    """[N, clean_size(k)] in the frame of the own heading.

    Neighbours are sorted by threat: the predicted miss plus a share of the range. `priority` and `rank` (by index) let
    a shared deterministic policy tell twins apart; `miss` has the sign of the side on which the other will pass.
    """
    scenario = state.scenario
    angle = (state.heading - scenario.convergence * state.east) * dynamics.DEGREE
    c, s = jnp.cos(angle), jnp.sin(angle)
    gap = scenario.waypoint - jnp.stack([state.north, state.east], axis=-1)
    distance = jnp.maximum(state.waypoint_distance, 1e-3)
    ahead, right = (gap[:, 0] * c + gap[:, 1] * s) / distance, (gap[:, 1] * c - gap[:, 0] * s) / distance
    slowest, fastest = dynamics.speed_limits(scenario.kind, scenario.speed_bounds)
    speed = jnp.sqrt(jnp.sum(state.ground**2, axis=-1)) + 1e-3
    sideways = (state.ground[:, 1] * c - state.ground[:, 0] * s) / speed
    seconds = jnp.maximum(time_left * step_s, 1.0)
    here = present & ~finished
    n = present.shape[0]
    rank = jnp.cumsum(here) - 1
    own = [
        ahead,
        right,
        soft(distance, SEPARATION),
        distance / 50.0,
        (state.tas * KT - 150.0) / 50.0,
        2 * (state.cas - slowest) / (fastest - slowest) - 1,
        5.0 * sideways,
        jnp.broadcast_to(time_left * step_s / 1500.0, distance.shape),
        1 - 2 * distance / speed * HOUR / seconds,
        2.0 * rank / max(n - 1, 1) - 1,
        jnp.sum(seen.danger, axis=-1),
        finished.astype(jnp.float32),
    ]

    chosen = pairs.order(seen.dcpa + 0.25 * seen.range, seen.valid, k)
    reach = jnp.maximum(seen.range, 1e-3)
    cos, sin = c[:, None], s[:, None]
    index = jnp.arange(n)
    ones = jnp.ones_like(reach)
    others = [
        ones,
        (seen.north * cos + seen.east * sin) / reach,
        (seen.east * cos - seen.north * sin) / reach,
        (seen.range - SEPARATION) / SEPARATION,
        soft(seen.range, 20.0),
        (seen.v_north * cos + seen.v_east * sin) / 300.0,
        (seen.v_east * cos - seen.v_north * sin) / 300.0,
        -(seen.north * seen.v_north + seen.east * seen.v_east) / reach / 300.0,
        seen.tcpa / pairs.HORIZON,
        (seen.dcpa - SEPARATION) / SEPARATION,
        soft((seen.north * seen.v_east - seen.east * seen.v_north) / (seen.speed + 1.0), SEPARATION),
        seen.danger,
        jnp.where(index[None, :] < index[:, None], 1.0, -1.0) * ones,
        finished[None, :] * ones,
        (distance[:, None] - distance[None, :]) / 10.0,
        ahead[None, :] * ones,
        right[None, :] * ones,
    ]
    rows = jnp.stack([pairs.pick(chosen, value) for value in others], axis=-1)  # [N, K, F]
    rows = jnp.where(jnp.any(chosen, axis=-1)[:, :, None], jnp.clip(rows, -2.0, 2.0), 0.0)
    return jnp.concatenate([jnp.clip(jnp.stack(own, axis=-1), -2.0, 2.0), rows.reshape(n, -1)], axis=-1)


def compat(state: Any, present: Array, progress: Array, safety: Array, k: int) -> Array:
    """[N, 6 + 4K] in the alphabetical order of the keys: airspeed, cos_to_wp, progress_rate, safety_rate, sin_to_wp,
    vx_r, vy_r, wp_dist_norm, x_r, y_r. Offsets are north-up, velocities in NM/s over 32 and 66 with axes swapped."""
    scenario = state.scenario
    to_waypoint = dynamics.DEGREE * (bearing(state) - state.heading)
    dn, de = state.north[None, :] - state.north[:, None], state.east[None, :] - state.east[:, None]
    n = present.shape[0]
    valid = present[None, :] & ~jnp.eye(n, dtype=bool)
    chosen = pairs.order(dn * dn + de * de, valid, k)
    h, v = state.heading * dynamics.DEGREE, state.tas / HOUR  # NM/s
    vn, ve = v * jnp.cos(h), v * jnp.sin(h)
    angle = scenario.convergence * dynamics.DEGREE * state.east[:, None]  # offsets along the true axes at the own place
    north, east = dn * jnp.cos(angle) - de * jnp.sin(angle), de * jnp.cos(angle) + dn * jnp.sin(angle)
    columns = [
        jnp.clip((state.tas * KT - 150.0) / 6.0, -10.0, 10.0)[:, None],
        jnp.cos(to_waypoint)[:, None],
        jnp.tanh(progress / 2.0)[:, None],
        jnp.tanh(safety / 5.0)[:, None],
        jnp.sin(to_waypoint)[:, None],
        jnp.clip(pairs.pick(chosen, vn[None, :] - vn[:, None]) / 32.0, -150.0, 150.0),
        jnp.clip(pairs.pick(chosen, ve[None, :] - ve[:, None]) / 66.0, -150.0, 150.0),
        jnp.tanh(state.waypoint_distance / 20.0)[:, None],
        jnp.clip(pairs.pick(chosen, east) * NM / 20.0, -12.0, 12.0),
        jnp.clip(pairs.pick(chosen, north) * NM / 20.0, -12.0, 12.0),
    ]
    return jnp.concatenate(columns, axis=-1)


def bearing(state: Any) -> Array:
    """To the waypoint, deg from true north halfway there."""
    gap = state.scenario.waypoint - jnp.stack([state.north, state.east], axis=-1)
    middle = (state.east + state.scenario.waypoint[:, 1]) / 2
    return jnp.arctan2(gap[:, 1], gap[:, 0]) / dynamics.DEGREE + state.scenario.convergence * middle
