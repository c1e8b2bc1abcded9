"""What an aircraft sees: `compat` as an earlier system had it, faults included, and `clean`.

Both are one row per aircraft. The features of `clean` are about -1 to 1, distances at the scale of the separation
minimum and of the whole airspace: OWN, then each of NEIGHBOUR for the K others that are the greatest threat: the
predicted miss plus a share of the range. `set` has the same of all others, in no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.airspace import dynamics, pairs, vertical
from regimen.domains.airspace.aircraft import KT
from regimen.domains.airspace.files import SEPARATION
from regimen.domains.airspace.pairs import PairTable
from regimen.domains.airspace.state import AirspaceState
from regimen.types import Array, PyTree, Scalar

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

NM = 1.852  # km
OWN = ("cos_waypoint", "sin_waypoint", "waypoint_near", "waypoint_far", "speed", "speed_range", "drift", "time_left")
OWN += ("slack", "rank", "danger", "finished")
NEIGHBOUR = ("present", "cos_bearing", "sin_bearing", "range_near", "range_far", "v_ahead", "v_right", "closing")
NEIGHBOUR += ("tcpa", "dcpa", "miss", "danger", "priority", "finished", "nearer", "cos_intent", "sin_intent")
LEVEL_OWN = ("off_level", "rate")  # where aircraft climb and descend
LEVEL_NEIGHBOUR = ("above", "rate_above", "apart")
BOUND = 2.0
ABOVE = 20.0  # NM that a pair seems further apart where it will be so in altitude, when threats are sorted
COMPAT_LIMITS = (10.0, 1.0, 1.0, 1.0, 1.0)  # of the first five; then K * vx, K * vy, distance, K * x, K * y


class View(NamedTuple):
    """All that observations are made of: N aircraft in the map, wherever they come from."""

    north: Array  # [N] NM
    east: Array  # [N] NM
    heading: Array  # [N] deg from true north
    tas: Array  # [N] kt
    cas: Array  # [N] kt
    ground: Array  # [N, 2] kt over the ground (north, east)
    waypoint: Array  # [N, 2] NM (north, east)
    finished: Array  # [N] bool
    present: Array  # [N] bool
    kind: Array  # [N] int32, index into aircraft.TYPES
    speed_bounds: Array  # [2]
    convergence: Array  # deg per NM
    altitude: Array  # [N] ft
    rate: Array  # [N] ft/min
    level: Array  # [N] ft, that it should be at


def view_of(state: AirspaceState) -> View:
    """What an environment's state shows."""
    scenario = state.scenario
    level = state.level or vertical.begin(scenario.altitude)
    return View(
        *(state.north, state.east, state.heading, state.tas, state.cas, state.ground),
        *(scenario.waypoint, state.reached, scenario.present, scenario.kind),
        *(scenario.speed_bounds, scenario.convergence, level.altitude, level.rate, level.start),
    )


def widths(env: Airspace) -> tuple[int, int]:
    """Values about an aircraft itself, and about each other one."""
    return len(OWN) + len(LEVEL_OWN) * env.vertical, len(NEIGHBOUR) + len(LEVEL_NEIGHBOUR) * env.vertical


def compat_high(k: int) -> list[float]:
    """Largest absolute values of the compat observation."""
    return [*COMPAT_LIMITS, *[150.0] * (2 * k), 1.0, *[12.0] * (2 * k)]


def space(env: Airspace) -> spaces.Space:
    """The observation space of an environment."""
    if env.observation == "set":
        n, (about_own, about_other) = len(env.agents), widths(env)
        shapes = {"own": (about_own,), "others": (n, about_other)}
        parts: dict[str, spaces.Space] = {"others_mask": spaces.MultiBinary(n)}
        for name, shape in shapes.items():
            parts[name] = spaces.Box(-BOUND, BOUND, shape, np.float32)
        return spaces.Dict(parts)
    if env.observation == "compat":
        high = np.array(compat_high(env.neighbors), np.float32)
        return spaces.Box(-high, high, dtype=np.float32)
    about_own, about_other = widths(env)
    return spaces.Box(-BOUND, BOUND, (about_own + env.neighbors * about_other,), np.float32)


def soft(x: Array, scale: float) -> Array:
    """Squash values to -1..1, linear near zero: cheaper than tanh."""
    return x / (jnp.abs(x) + scale)


class Change(NamedTuple):
    """What only the compat observation shows besides the view."""

    away: Array  # [N] NM to the waypoint
    progress: Array  # [N] NM closer to it than a decision ago
    safety: Array  # [N] NM by which the smallest separation has grown


def show(env: Airspace, view: View, all_pairs: PairTable | None, time_left: Array, change: Change) -> PyTree:
    """The observations [N, D] in the form that an environment is set to; zero for absent aircraft. Of a set: the own
    values [N, 12], the others [N, N, 17], and which of them are there [N, N]."""
    if env.observation == "compat":
        return jnp.where(view.present[:, None], compat(view, change, env.neighbors), 0.0)
    assert all_pairs is not None
    ego, frame, turned = own_values(view, all_pairs, time_left)
    feet = env.separation_ft if env.vertical else None
    if env.vertical:
        more = jnp.stack([(view.altitude - view.level) / vertical.SCALE, view.rate / vertical.RATE], axis=1)
        ego = jnp.concatenate([ego, jnp.clip(more, -BOUND, BOUND)], axis=1)
    if env.observation == "set":
        near = all_pairs.range <= env.observation_range
        there = all_pairs.valid & near & view.present[:, None]
        return {
            "own": jnp.where(view.present[:, None], ego, 0.0),
            "others": jnp.where(there[..., None], jnp.stack(others(frame, frame.rows(), turned, feet), -1), 0.0),
            "others_mask": there.astype(jnp.int8),
        }
    # What the chosen others are is picked first and their features computed for K of them only.
    threat = all_pairs.dcpa + 0.25 * all_pairs.range
    threat = threat + ABOVE * (1 - all_pairs.close) if env.vertical else threat
    choice = pairs.order(threat, all_pairs.valid, env.neighbors)
    present = jnp.any(choice, axis=-1)  # [N, K]
    picks = Movement(*(pairs.pick(choice, x) for x in frame))
    columns = [ego, *(jnp.where(present, x, 0.0) for x in others(frame, picks, turned, feet))]
    return jnp.where(view.present[:, None], jnp.concatenate(columns, axis=1), 0.0)


Turn = tuple[Array, Array]  # cosine and sine of each heading in the map


class Movement(NamedTuple):
    """What each aircraft, or each that it sees, is doing: [N], or [N, K]."""

    north: Array
    east: Array
    vn: Array
    ve: Array
    distance: Array  # NM to its waypoint
    ahead: Array  # cosine and sine of its waypoint's bearing
    right: Array
    finished: Array
    index: Array
    altitude: Array
    rate: Array

    def rows(self) -> Movement:
        """All aircraft as those that each one sees: [1, N]."""
        return Movement(*(x[None, :] for x in self))


def own_values(view: View, all_pairs: PairTable, time_left: Array) -> tuple[Array, Movement, Turn]:
    """OWN [N, 12], in the frame of the own heading, and what others see. `rank` (by index) lets a shared deterministic
    policy tell twins apart."""
    finished = view.finished.astype(jnp.float32)
    angle = (view.heading - view.convergence * view.east) * dynamics.DEGREE
    c, s = jnp.cos(angle), jnp.sin(angle)
    dn, de = view.waypoint[:, 0] - view.north, view.waypoint[:, 1] - view.east
    vn, ve = view.ground[:, 0], view.ground[:, 1]
    distance = jnp.sqrt(dn * dn + de * de) + 1e-3
    ahead, right = (dn * c + de * s) / distance, (de * c - dn * s) / distance
    slowest, fastest = dynamics.speed_limits(view.kind, view.speed_bounds)
    speed = jnp.sqrt(vn * vn + ve * ve) + 1e-3
    left = time_left * dynamics.DECISION
    n = view.north.shape[0]
    index = jnp.arange(n, dtype=jnp.float32)
    features = [
        ahead,
        right,
        soft(distance, SEPARATION),
        distance / 50.0,
        (view.tas * KT - 150.0) / 50.0,
        2 * (view.cas - slowest) / (fastest - slowest) - 1,
        5.0 * (ve * c - vn * s) / speed,
        jnp.broadcast_to(left / 1500.0, distance.shape),
        1 - 2 * dynamics.HOUR * distance / (speed * jnp.maximum(left, 1.0)),
        2.0 * index / max(n - 1, 1) - 1,
        jnp.sum(all_pairs.danger, axis=-1),
        finished,
    ]
    ego = jnp.clip(jnp.stack(features, axis=1), -BOUND, BOUND)
    doing = (vn, ve, distance, ahead, right, finished, index, view.altitude, view.rate)
    return ego, Movement(view.north, view.east, *doing), (c, s)


def others(ego: Movement, intruder: Movement, turned: Turn, feet: Scalar | None = None) -> list[Array]:
    """NEIGHBOUR of those seen [N, K], in the frame of the own heading. `miss` has the sign of the side on which the
    other will pass; `priority` is by index, like `rank`. LEVEL_NEIGHBOUR, too, where `feet` apart is enough."""
    c, s = turned[0][:, None], turned[1][:, None]
    dn, de = intruder.north - ego.north[:, None], intruder.east - ego.east[:, None]
    vn, ve = intruder.vn - ego.vn[:, None], intruder.ve - ego.ve[:, None]
    near = pairs.approach(dn, de, vn, ve)
    reach = jnp.maximum(near.range, 1e-3)
    values = [
        jnp.ones_like(reach),
        (dn * c + de * s) / reach,
        (de * c - dn * s) / reach,
        (reach - SEPARATION) / SEPARATION,
        soft(reach, 20.0),
        (vn * c + ve * s) / 300.0,
        (ve * c - vn * s) / 300.0,
        -(dn * vn + de * ve) / reach / 300.0,
        near.tcpa / pairs.HORIZON,
        (near.dcpa - SEPARATION) / SEPARATION,
        soft((dn * ve - de * vn) / (near.speed + 1.0), SEPARATION),
        near.danger,
        jnp.where(intruder.index < ego.index[:, None], 1.0, -1.0),
        intruder.finished,
        (ego.distance[:, None] - intruder.distance) / 10.0,
        intruder.ahead,
        intruder.right,
    ]
    if feet is not None:
        above, rate = intruder.altitude - ego.altitude[:, None], intruder.rate - ego.rate[:, None]
        later = vertical.predicted(above, rate, near.tcpa)
        values += [above / vertical.SCALE, rate / vertical.RATE, jnp.abs(later) / feet - 1]
    return [jnp.broadcast_to(jnp.clip(x, -BOUND, BOUND), reach.shape) for x in values]


def compat(view: View, change: Change, k: int) -> Array:
    """[N, 6 + 4K] in the alphabetical order of the keys: airspeed, cos_to_wp, progress_rate, safety_rate, sin_to_wp,
    vx_r, vy_r, wp_dist_norm (of what is left), x_r, y_r. Offsets are north-up, velocities in NM/s over 32 and 66 with
    swapped axes."""
    present = view.present
    to_waypoint = dynamics.DEGREE * (bearing(view.north, view.east, view.waypoint, view.convergence) - view.heading)
    valid = present[None, :] & ~jnp.eye(present.shape[0], dtype=bool)
    choice = pairs.order(pairs.squared(view.north, view.east), valid, k)
    there = jnp.any(choice, axis=-1)

    def offset(values: Array) -> Array:
        return jnp.where(there, pairs.pick(choice, values) - values[:, None], 0.0)

    dn, de = offset(view.north), offset(view.east)
    h, v = view.heading * dynamics.DEGREE, view.tas / dynamics.HOUR  # NM/s
    vn, ve = v * jnp.cos(h), v * jnp.sin(h)
    angle = view.convergence * dynamics.DEGREE * view.east[:, None]  # offsets along the true axes at the own place
    north, east = dn * jnp.cos(angle) - de * jnp.sin(angle), de * jnp.cos(angle) + dn * jnp.sin(angle)
    columns = [
        jnp.clip((view.tas * KT - 150.0) / 6.0, -10.0, 10.0)[:, None],
        jnp.cos(to_waypoint)[:, None],
        jnp.tanh(change.progress / 2.0)[:, None],
        jnp.tanh(change.safety / 5.0)[:, None],
        jnp.sin(to_waypoint)[:, None],
        jnp.clip(offset(vn) / 32.0, -150.0, 150.0),
        jnp.clip(offset(ve) / 66.0, -150.0, 150.0),
        jnp.tanh(change.away / 20.0)[:, None],
        jnp.clip(east * NM / 20.0, -12.0, 12.0),
        jnp.clip(north * NM / 20.0, -12.0, 12.0),
    ]
    return jnp.concatenate(columns, axis=-1)


def bearing(north: Array, east: Array, waypoint: Array, convergence: Array) -> Array:
    """The bearing to the waypoint, deg from true north halfway there."""
    gap = waypoint - jnp.stack([north, east], axis=-1)
    middle = (east + waypoint[:, 1]) / 2
    return jnp.arctan2(gap[:, 1], gap[:, 0]) / dynamics.DEGREE + convergence * middle


def bearing_of(state: AirspaceState) -> Array:
    """Each aircraft's bearing of its waypoint."""
    return bearing(state.north, state.east, state.scenario.waypoint, state.scenario.convergence)
