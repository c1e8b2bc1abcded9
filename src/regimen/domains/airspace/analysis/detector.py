"""Conflicts by closest point of approach, and the alerts that a policy's commands amount to. Pure functions.

Aircraft are the first axis and time the last, [N, ..., T], so that every pair is a plain array. A command belongs to
the row at which it was decided: what a policy does is judged by what it could see. Numpy from numpy, jax from jax.
Definitions: docs/airspace_safety.md.
"""

from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of numpy or of jax

GATES = ("gated", "ungated")


@dataclass(frozen=True)
class Detector:
    """What counts as a conflict, an alert and a match."""

    horizon_s: float = 120.0  # how far ahead a closest approach is looked for
    separation_nm: float = 5.0  # a conflict is a predicted distance below it, a loss of separation a flown one
    collision_nm: float = 3.0  # flown distances below it are flagged as collisions
    gate_nm: float = 6.0  # a gated alert has an intruder that will come at least this close
    turn_deg: float = 3.0  # the smallest heading command that may be an alert
    speed_kt: float = 5.0  # the smallest speed command that may be one
    navigation_deg: float = 1.0  # a turn that brings the track this much closer to the waypoint is navigation
    confirm: int = 2  # raw alerts ...
    window: int = 3  # ... within so many decisions make an alert
    truth_margin: int = 3  # decisions by which conflicts are widened before they are matched
    alert_margin: int = 1  # and alerts
    min_iou: float = 0.1  # overlap of a match, as intersection over union
    resolution_s: float = 60.0  # after a conflict, the time in which separation must be kept
    period_s: float = 10.0  # between decisions


class Tracks(NamedTuple):
    """What was flown and commanded, [N, ..., T] each."""

    north: Array  # NM
    east: Array
    v_north: Array  # kt over the ground
    v_east: Array
    turn: Array  # deg, commanded at the row
    speed: Array  # kt
    flying: Array  # bool: present, not yet at its waypoint, the episode going on
    goal_north: Array  # NM, [N, ..., 1]
    goal_east: Array


class Alarms(NamedTuple):
    """Conflicts and alerts of one or many episodes at every decision. P pairs are in the order of `pairs(N)`."""

    conflict: Array  # [P, ..., T] a predicted loss of separation, of two that still fly
    threat_nm: Array  # [N, ..., T] distance at the closest approach of the most threatening intruder; inf without one
    threat_s: Array  # [N, ..., T] time until then
    intruder: Array  # [N, ..., T] int32, which one; -1 without one
    manoeuvre: Array  # [N, ..., T] a command over the thresholds that is not navigation
    alert: Array  # [2, N, ..., T] confirmed; with the gate and without it
    pair_alert: Array  # [2, P, ..., T] confirmed, between the aircraft that alerts and its intruder


def namespace(x: Array) -> ModuleType:
    """The library that an array belongs to: numpy or jax.numpy."""
    return x.__array_namespace__()


def pairs(n: int) -> list[tuple[int, int]]:
    """The pairs of n aircraft: (0, 1), (0, 2), ..."""
    return list(combinations(range(n), 2))


def closest(north: Array, east: Array, v_north: Array, v_east: Array, end: float) -> tuple[Array, Array]:
    """Time from 0 to `end` and distance of the closest approach on a straight line, from a position relative to the
    own one and its change per unit of time. What moves away is closest now, as is what does not move."""
    xp = namespace(north)
    speed2 = v_north * v_north + v_east * v_east
    still = speed2 < 1e-12
    time = -(north * v_north + east * v_east) / xp.where(still, 1.0, speed2)
    time = xp.clip(xp.where(still, 0.0, time), 0.0, end)
    north, east = north + v_north * time, east + v_east * time
    return time, xp.sqrt(north * north + east * east)


def cpa(north: Array, east: Array, v_north: Array, v_east: Array, horizon_s: float) -> tuple[Array, Array]:
    """Time [s] and distance [NM] of the closest approach of another aircraft within the horizon, from its relative
    position [NM] and ground velocity [kt]."""
    return closest(north, east, v_north / 3600.0, v_east / 3600.0, horizon_s)


def navigation_turn(tracks: Tracks, margin_deg: float) -> Array:
    """Whether a turn brings the ground track closer to the waypoint by more than the margin: [N, ..., T]."""
    xp = namespace(tracks.north)
    north, east = tracks.goal_north - tracks.north, tracks.goal_east - tracks.east
    cross = north * tracks.v_east - east * tracks.v_north  # of the bearing and the track: one arctangent for both
    drift = xp.degrees(xp.arctan2(cross, north * tracks.v_north + east * tracks.v_east))
    after = drift + tracks.turn
    return xp.abs(after - 360.0 * xp.round(after / 360.0)) + margin_deg < xp.abs(drift)


def earlier(x: Array, steps: int) -> Array:
    """Values of `steps` decisions before, zero at first; time is the last axis."""
    xp = namespace(x)
    return xp.concatenate([xp.zeros_like(x[..., :steps]), x[..., : x.shape[-1] - steps]], -1)


def ends(n: int) -> np.ndarray:
    """The first and the second aircraft of every pair [2, P]."""
    return np.array(pairs(n), np.int32).reshape(-1, 2).T


def pairs_by_aircraft(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of each aircraft, and who the other is: [N, N - 1] each."""
    table = [[(k, i + j - one) for k, (i, j) in enumerate(pairs(n)) if one in (i, j)] for one in range(n)]
    both = np.array(table, np.int32).reshape(n, n - 1, 2)
    return both[..., 0], both[..., 1]


def like(values: np.ndarray, flags: Array) -> np.ndarray:
    """Values of the first axes with axes added to the end, to be compared with flags."""
    return values.reshape(*values.shape, *(1,) * (flags.ndim - 1))


def alarms(tracks: Tracks, detector: Detector) -> Alarms:
    """Conflicts and alerts at every decision."""
    xp = namespace(tracks.north)
    t, n = tracks, tracks.flying.shape[0]
    first, second = ends(n)
    both = t.flying[first] & t.flying[second]
    north, east, vn, ve = (x[second] - x[first] for x in (t.north, t.east, t.v_north, t.v_east))
    time, distance = cpa(north, east, vn, ve, detector.horizon_s)
    threat_nm, threat_s, intruder = threats(time, distance, both, n)

    turns = (xp.abs(t.turn) >= detector.turn_deg - 1e-4) & ~navigation_turn(t, detector.navigation_deg)
    manoeuvre = t.flying & (turns | (xp.abs(t.speed) >= detector.speed_kt - 1e-4))
    raw = [manoeuvre & (threat_nm <= detector.gate_nm), manoeuvre]
    mutual = (intruder[first] == like(second, t.flying), intruder[second] == like(first, t.flying))

    def confirmed(flags: Array) -> Array:
        """Flags with at least `confirm` raw ones among the last `window` decisions."""
        count = flags.astype(xp.int8)
        for lag in range(1, min(detector.window, flags.shape[-1])):
            count = count + earlier(flags, lag).astype(xp.int8)
        return count >= detector.confirm

    def between(flags: Array) -> Array:
        return both & ((flags[first] & mutual[0]) | (flags[second] & mutual[1]))

    return Alarms(
        conflict=both & (distance < detector.separation_nm),
        threat_nm=threat_nm,
        threat_s=threat_s,
        intruder=intruder,
        manoeuvre=manoeuvre,
        alert=xp.stack([confirmed(r) & t.flying for r in raw]),
        pair_alert=xp.stack([confirmed(between(r)) & both for r in raw]),
    )


def threats(time: Array, distance: Array, both: Array, n: int) -> tuple[Array, Array, Array]:
    """The distance and time of each aircraft's most threatening intruder and who it is, [N, ...] each: the one that
    comes closest, of equal ones the first to come."""
    xp = namespace(time)
    index, other = pairs_by_aircraft(n)
    rank = xp.where(both, distance + 1e-5 * time, xp.inf)[index]  # [N, N - 1, ...]
    best = (rank == rank.min(1, keepdims=True, initial=xp.inf)) & xp.isfinite(rank)
    threat_nm, threat_s = (xp.where(best, x[index], xp.inf).min(1, initial=xp.inf) for x in (distance, time))
    who = xp.where(best, like(other, both), n).min(1, initial=n)
    return threat_nm, threat_s, xp.where(who < n, who, -1).astype(xp.int32)


def closest_within(tracks: Tracks) -> Array:
    """The smallest distance of every pair [P, ..., T] between one decision and the next, on straight lines; inf where
    one of the two does not fly. The last row has the distance there."""
    xp = namespace(tracks.north)
    t = tracks
    first, second = ends(t.flying.shape[0])
    north, east = t.north[second] - t.north[first], t.east[second] - t.east[first]
    dn, de = (xp.concatenate([x[..., 1:] - x[..., :-1], xp.zeros_like(x[..., :1])], -1) for x in (north, east))
    return xp.where(t.flying[first] & t.flying[second], closest(north, east, dn, de, 1.0)[1], xp.inf)


def units(flags: Array, pair_flags: Array) -> Array:
    """Flags by unit [1 + N + P, ...]: the scene (any aircraft), each aircraft, each pair."""
    xp = namespace(flags)
    return xp.concatenate([flags.any(0, keepdims=True), flags, pair_flags])


def of_aircraft(pair_flags: Array, n: int) -> Array:
    """Flags of pairs [P, ...] as flags of the aircraft in them [N, ...]."""
    return pair_flags[pairs_by_aircraft(n)[0]].any(1)
