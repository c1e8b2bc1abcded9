"""Conflicts by closest point of approach, and the alerts that a policy's commands amount to. Pure functions.

Aircraft are the first axis and time the last, [N, ..., T], so that every pair is a plain array. A command belongs to
the row at which it was decided: what a policy does is judged by what it could see. Numpy from numpy, jax from jax.
Definitions: docs/airspace_safety.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

Array = Any  # of numpy or of jax

GATES = ("gated", "ungated")


@dataclass(frozen=True)
class Detector:
    """What counts as a conflict, an alert and a match."""

    horizon_s: float = 120.0  # how far ahead a closest approach is looked for
    separation_nm: float = 5.0  # a conflict is a predicted distance below it, a loss of separation a flown one
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


class Signals(NamedTuple):
    """Flags of one or many episodes at every decision. P pairs are in the order of `pairs(N)`."""

    conflict: Array  # [P, ..., T] a predicted loss of separation, of two that still fly
    threat_nm: Array  # [N, ..., T] distance at the closest approach of the most threatening intruder; inf without one
    threat_s: Array  # [N, ..., T] time until then
    intruder: Array  # [N, ..., T] int32, which one; -1 without one
    manoeuvre: Array  # [N, ..., T] a command over the thresholds that is not navigation
    alert: Array  # [2, N, ..., T] confirmed; with the gate and without it
    pair_alert: Array  # [2, P, ..., T] confirmed, between the aircraft that alerts and its intruder


def namespace(x: Array) -> Any:
    """The library that an array belongs to: numpy or jax.numpy."""
    return x.__array_namespace__()


def pairs(n: int) -> list[tuple[int, int]]:
    """The pairs of n aircraft: (0, 1), (0, 2), ..."""
    return list(combinations(range(n), 2))


def cpa(north: Array, east: Array, v_north: Array, v_east: Array, horizon_s: float) -> tuple[Array, Array]:
    """Time [s] and distance [NM] of the closest approach of another aircraft within the horizon, from its relative
    position [NM] and ground velocity [kt]. One that moves away is closest now, as is one of equal velocity."""
    xp = namespace(north)
    v_north, v_east = v_north / 3600.0, v_east / 3600.0  # NM/s
    speed2 = v_north * v_north + v_east * v_east
    still = speed2 < 1e-12
    time = -(north * v_north + east * v_east) / xp.where(still, 1.0, speed2)
    time = xp.clip(xp.where(still, 0.0, time), 0.0, horizon_s)
    north, east = north + v_north * time, east + v_east * time
    return time, xp.sqrt(north * north + east * east)


def wrap(degrees: Array) -> Array:
    """An angle within -180 to 180."""
    xp = namespace(degrees)
    return degrees - 360.0 * xp.round(degrees / 360.0)


def navigation_turn(tracks: Tracks, margin_deg: float) -> Array:
    """Whether a turn brings the ground track closer to the waypoint by more than the margin: [N, ..., T]."""
    xp = namespace(tracks.north)
    north, east = tracks.goal_north - tracks.north, tracks.goal_east - tracks.east
    cross = north * tracks.v_east - east * tracks.v_north  # of the bearing and the track: one arctangent for both
    drift = xp.degrees(xp.arctan2(cross, north * tracks.v_north + east * tracks.v_east))
    return xp.abs(wrap(drift + tracks.turn)) + margin_deg < xp.abs(drift)


def earlier(x: Array, steps: int) -> Array:
    """Values of `steps` decisions before, zero at first; time is the last axis."""
    xp = namespace(x)
    return xp.concatenate([xp.zeros_like(x[..., :steps]), x[..., : x.shape[-1] - steps]], -1)


def confirmed(raw: Array, confirm: int, window: int) -> Array:
    """Flags with at least `confirm` raw ones among the last `window` decisions."""
    xp = namespace(raw)
    count = raw.astype(xp.int8)
    for lag in range(1, min(window, raw.shape[-1])):
        count = count + earlier(raw, lag).astype(xp.int8)
    return count >= confirm


def signals(tracks: Tracks, detector: Detector) -> Signals:
    """Conflicts and alerts at every decision."""
    xp = namespace(tracks.north)
    t, n = tracks, tracks.flying.shape[0]
    one = t.flying[0]
    none = xp.full(one.shape, xp.inf, xp.float32)
    threat_nm, threat_s, rank = ([none] * n for _ in range(3))
    intruder = [xp.full(one.shape, -1, xp.int32)] * n
    conflict, together = {}, {}
    for i, j in pairs(n):
        both = t.flying[i] & t.flying[j]
        time, distance = cpa(
            t.north[j] - t.north[i],
            t.east[j] - t.east[i],
            t.v_north[j] - t.v_north[i],
            t.v_east[j] - t.v_east[i],
            detector.horizon_s,
        )
        together[i, j], conflict[i, j] = both, both & (distance < detector.separation_nm)
        order = xp.where(both, distance + 1e-5 * time, xp.inf)  # the closest, of equal ones the first to come
        for own, other in ((i, j), (j, i)):
            closer = order < rank[own]
            rank[own] = xp.where(closer, order, rank[own])
            threat_nm[own] = xp.where(closer, distance, threat_nm[own])
            threat_s[own] = xp.where(closer, time, threat_s[own])
            intruder[own] = xp.where(closer, other, intruder[own])

    turns = (xp.abs(t.turn) >= detector.turn_deg - 1e-4) & ~navigation_turn(t, detector.navigation_deg)
    manoeuvre = t.flying & (turns | (xp.abs(t.speed) >= detector.speed_kt - 1e-4))
    nearest = xp.stack(threat_nm)
    raw = [manoeuvre & (nearest <= detector.gate_nm), manoeuvre]

    def between(flags: Array, i: int, j: int) -> Array:
        return together[i, j] & ((flags[i] & (intruder[i] == j)) | (flags[j] & (intruder[j] == i)))

    def settled(flags: Array) -> Array:
        return confirmed(flags, detector.confirm, detector.window)

    def stacked(rows: list[Array]) -> Array:
        return xp.stack(rows) if rows else xp.zeros((0, *one.shape), bool)

    pair_alert = [stacked([settled(between(r, *p)) & together[p] for p in pairs(n)]) for r in raw]
    return Signals(
        conflict=stacked(list(conflict.values())),
        threat_nm=nearest,
        threat_s=xp.stack(threat_s),
        intruder=xp.stack(intruder),
        manoeuvre=manoeuvre,
        alert=xp.stack([settled(r) & t.flying for r in raw]),
        pair_alert=xp.stack(pair_alert),
    )


def closest_within(tracks: Tracks) -> Array:
    """The smallest distance of every pair [P, ..., T] between one decision and the next, on straight lines; inf where
    one of the two does not fly. The last row has the distance there."""
    xp = namespace(tracks.north)
    t, out = tracks, []
    for i, j in pairs(t.flying.shape[0]):
        north, east = t.north[j] - t.north[i], t.east[j] - t.east[i]
        dn, de = (xp.concatenate([x[..., 1:] - x[..., :-1], xp.zeros_like(x[..., :1])], -1) for x in (north, east))
        length2 = dn * dn + de * de
        still = length2 < 1e-12
        at = -(north * dn + east * de) / xp.where(still, 1.0, length2)
        at = xp.clip(xp.where(still, 0.0, at), 0.0, 1.0)
        north, east = north + dn * at, east + de * at
        out.append(xp.where(t.flying[i] & t.flying[j], xp.sqrt(north * north + east * east), xp.inf))
    return xp.stack(out) if out else xp.zeros((0, *t.flying.shape[1:]))


def units(flags: Array, pair_flags: Array) -> Array:
    """Flags by unit [1 + N + P, ...]: the scene (any aircraft), each aircraft, each pair."""
    xp = namespace(flags)
    return xp.concatenate([flags.any(0, keepdims=True), flags, pair_flags])


def of_aircraft(pair_flags: Array, n: int) -> Array:
    """Flags of pairs [P, ...] as flags of the aircraft in them [N, ...]."""
    xp = namespace(pair_flags)
    rows = [[flags for pair, flags in zip(pairs(n), pair_flags) if i in pair] for i in range(n)]
    blank = xp.zeros(pair_flags.shape[1:], bool)
    return xp.stack([xp.stack([blank, *row]).any(0) for row in rows])
