"""What one episode starts from, what the airspace remembers between its decisions, and within one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from regimen.domains.airspace import dynamics
from regimen.domains.airspace.vertical import Level
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
    queue: Array  # [MAX_DELAY, N, W] actions not yet applied, the latest first; W is 3 where they climb, else 2
    reached: Array  # [N] bool
    reached_step: Array  # [N] int32, -1 until then
    violating: Array  # [N] bool
    lost: Array  # [N, N] bool, pairs in violation
    time: Array  # int32, decisions done
    command: Array  # [N, W] heading (deg), speed (kt) and altitude (ft) change of the last decision
    action: Array  # [N, W] as given, clipped
    min_sep: Array  # [N] NM, smallest own separation within the last decision
    waypoint_distance: Array  # [N] NM
    remaining: Array  # [N] NM to the waypoint, or what was left of it when it was reached
    flown: Array  # [N] NM over the ground until the waypoint
    danger: Array  # [N] summed over the others: minus the potential of the clean shaping
    team: Array  # [2] potential and moving average of the compat team term
    drift: Array  # [N] deg between heading and bearing of the waypoint
    first_los: Array  # int32, decision of the first loss of separation, -1 until then
    parts: Array  # [N, K] reward of the last decision
    level: Level | tuple[()] = ()  # where aircraft climb and descend


class Plan(NamedTuple):
    """What a decision commands."""

    action: Array  # [N, W] as given, clipped
    applied: Array  # [N, W] the action whose turn it is
    queue: Array  # [MAX_DELAY, N, W]
    steered: Array  # [N] bool, who takes commands
    change: Array  # [N, W] deg, kt and ft
    target: Array  # [N, 2] heading and CAS
    turn: Array  # [N] deg to the commanded heading, signed
    level: Level | tuple[()] = ()


class Decision(NamedTuple):
    """What the seconds of a decision led to."""

    motion: dynamics.Motion
    squared: Array  # [N, N] NM^2, smallest squared distances of pairs that count
    captured: Array  # [N] bool, within reach of its waypoint
    distance: Array  # [N] NM to the waypoint, at the end or when captured
    flown: Array  # [N] NM, until then
    level: Level | tuple[()] = ()


def stack(scenarios: list[Scenario]) -> Scenario:
    """Several of one size as one with a leading axis."""
    return jax.tree.map(lambda *rows: jnp.stack([jnp.asarray(row) for row in rows]), *scenarios)
