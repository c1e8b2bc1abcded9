"""What a decision pays each aircraft, by component: `compat` as an earlier system had it, and `clean`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from regimen.domains.airspace import dynamics, observe
from regimen.domains.airspace.files import SEPARATION
from regimen.domains.airspace.observe import NM
from regimen.domains.airspace.state import AirspaceState
from regimen.domains.airspace.vertical import SCALE
from regimen.types import Array, Scalar

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

COMPONENTS: tuple[str, ...] = (
    "progress",
    "drift",
    "violate_entry",
    "violate_step",
    "act_cost",
    "time",
    "reach",
    "terminal",
    "team",
)


def depth(separation: Array, edge: Scalar = SEPARATION) -> Array:
    """How deep within `edge` NM of another an aircraft is, 0..1."""
    return jnp.maximum(1.0 - separation / edge, 0.0)


PROGRESS, DRIFT, DEADZONE, ENTRY, DEEP, BOOST = 0.04, 0.01, 8.0, -25.0, 1.0, 1.5
ACT, TIME, FINISHED_TIME, REACH, TERMINAL = -0.01, -0.005, 0.1, 10.0, -10.0
TEAM, TEAM_GAMMA, TEAM_EMA, TEAM_CAP = 0.6, 0.99, 0.05, 0.05


def violate_step(separation: Array, edge: Scalar = SEPARATION) -> Array:
    """The penalty of each step in violation; deeper than 1 NM up to 2.5 times as much."""
    boost = 1.0 + BOOST * jnp.maximum(DEEP - separation, 0.0) / DEEP
    return jnp.where(separation < edge, -depth(separation, edge) * boost, 0.0)


def drift(before: Array, after: Array) -> Array:
    """The reward for turning towards the waypoint; the dead zone is taken off the improvement, not off the angle."""
    return DRIFT * jnp.maximum(before - after - DEADZONE, 0.0)


def potential(separation: Array, edge: Scalar = SEPARATION) -> Array:
    """The potential of the smallest separation of all pairs: 0 at 0, a half at 5 NM, 1 from 10 NM."""
    outer = 0.5 + 0.5 * jnp.minimum((separation - edge) / edge, 1.0)
    return jnp.where(separation <= edge, 0.5 * separation / edge, outer)


def responsibility(separation: Array, present: Array, edge: Scalar = SEPARATION) -> Array:
    """Shares of the team term: 1 plus own pairs in violation, scaled to one each on average; [N, N] -> [N]."""
    weight = jnp.where(present, 1.0 + jnp.sum(separation < edge, axis=-1), 0.0)
    return weight * jnp.sum(present) / jnp.maximum(jnp.sum(weight), 1.0)


def smoothed(average: Array, before: Array, after: Array) -> tuple[Array, Array]:
    """(moving average, clipped) of the change of potential."""
    average = (1 - TEAM_EMA) * average + TEAM_EMA * (TEAM_GAMMA * after - before)
    return average, jnp.clip(average, -TEAM_CAP, TEAM_CAP)


def compat(
    env: Airspace, state: AirspaceState, after: AirspaceState, separation: Array, progress: Array, action: Array
) -> tuple[AirspaceState, Array]:
    """The state after a decision with what the reward remembers, and the reward [N, K]; finished aircraft go on earning
    and paying."""
    present = state.scenario.present
    angle = jnp.abs(dynamics.wrap(observe.bearing_of(after) - after.heading))
    edge = env.separation_nm
    phi = team_potential(separation, present, edge)
    average, clipped = smoothed(state.team[1], state.team[0], phi)
    over = after.time >= env.max_episode_steps
    team = responsibility(separation, present, edge) * clipped
    parts = [
        PROGRESS * NM * progress,
        drift(state.drift, angle),
        jnp.where((after.min_sep < edge) & ~state.violating, ENTRY, 0.0),
        violate_step(after.min_sep, edge),
        ACT * jnp.sum(jnp.abs(action), axis=-1),
        TIME * jnp.where(after.reached, FINISHED_TIME, 1.0),
        jnp.where(after.reached & ~state.reached, REACH, 0.0),
        jnp.where(over & ~after.reached, TERMINAL, 0.0),
        TEAM * team,
    ]
    reward = jnp.where(present[:, None], jnp.stack(parts, axis=-1), 0.0)
    return after.replace(team=jnp.stack([phi, average]), drift=angle), reward


def clean(
    env: Airspace,
    alive: Array,
    progress: Array,
    separation: Array,
    violated: Array,
    action: Array,
    reached: Array,
    shaping: Array,
    off_level: Array | None = None,
) -> Array:
    """The reward by aircraft and component [N, K]; only aircraft that still fly to their waypoint earn or pay.
    `off_level` [N] is in ft."""
    lost = separation < env.separation_nm
    nothing = jnp.zeros_like(progress)
    parts = [
        env.progress_reward * progress,
        nothing,
        jnp.where(lost & ~violated, -env.entry_penalty, 0.0),
        -env.depth_penalty * depth(separation, env.separation_nm + env.margin),
        -env.action_cost * jnp.sum(jnp.abs(action), axis=-1),
        nothing - env.time_cost,
        jnp.where(reached, env.reach_reward, 0.0),
        nothing,
        shaping,
    ]
    if off_level is not None:
        parts.append(-env.level_cost * off_level / SCALE)
    return jnp.where(alive[:, None], jnp.stack(parts, axis=-1), 0.0)


def shaped(gamma: float, before: Array, after: Array, ended: Array) -> Array:
    """Potential-based (Ng, Harada and Russell 1999): the potential of an end is zero, so that what is best stays so."""
    return gamma * jnp.where(ended, 0.0, after) - before


def team_potential(separation: Array, present: Array, edge: Scalar = SEPARATION) -> Array:
    """The potential of the closest pair; 1 when there is none."""
    return jnp.where(jnp.sum(present) > 1, potential(jnp.min(separation), edge), 1.0)
