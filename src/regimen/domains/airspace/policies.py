"""Policies written by hand, for `regimen evaluate airspace/head_on --policy mvp`."""

import jax.numpy as jnp

from regimen.domains.airspace import dynamics, observe
from regimen.domains.airspace.dynamics import CHANGE, HOUR, TURN
from regimen.types import Array

LOOK = 240.0  # s ahead in which conflicts are resolved
ZONE = 6.0  # NM, the protected zone with a margin
SOON = 40.0  # s, a closest approach is never taken to be nearer


def no_op(env, key, state, obs) -> Array:
    """Fly straight on."""
    return jnp.zeros_like(state.action)


def waypoint(env, key, state, obs) -> Array:
    """Turn to the waypoint and hold the speed."""
    return steer(state, observe.bearing_of(state), state.cas)


def steer(state, heading: Array, cas: Array) -> Array:
    """The action that comes closest to a heading and a speed."""
    turn = dynamics.wrap(heading - state.heading) / TURN
    level = jnp.zeros((turn.shape[0], state.action.shape[1] - 2))
    moves = jnp.stack([turn, (cas - state.cas) / CHANGE], axis=-1)
    return jnp.concatenate([jnp.clip(moves, -1.0, 1.0), level], axis=-1)


def mvp(env, key, state, obs) -> Array:
    """Modified voltage potential (Hoekstra 2001): at each predicted loss of separation the other one pushes the own
    aircraft out of its protected zone along the miss vector; the sum of the pushes is a change of velocity.

    Without a conflict it flies to its waypoint at its first speed, but only once that way is clear, too.
    """
    return resolve(env, state, ~jnp.eye(state.north.shape[0], dtype=bool))


def resolve(env, state, avoid: Array) -> Array:
    """`mvp` where aircraft i gives way to j only if avoid[i, j]."""
    scenario = state.scenario
    others = env.counts(state)[None, :] & avoid
    aim = (observe.bearing_of(state) - scenario.convergence * state.east) * dynamics.DEGREE
    cruise = dynamics.to_tas(scenario.cas, state.air)
    wish = jnp.stack([cruise * jnp.cos(aim), cruise * jnp.sin(aim)], axis=-1) + scenario.wind
    _, blocked = push(state, wish, others)
    away, conflict = push(state, state.ground, others)
    velocity = jnp.where((blocked | conflict)[:, None], state.ground + away, wish)
    air = velocity - scenario.wind
    heading = jnp.arctan2(air[:, 1], air[:, 0]) / dynamics.DEGREE + scenario.convergence * state.east
    tas = jnp.sqrt(jnp.sum(air**2, axis=-1))
    return steer(state, heading, state.cas * tas / state.tas)


def push(state, velocity: Array, others: Array) -> tuple[Array, Array]:
    """(change of velocity [N, 2] kt out of all conflicts of flying at `velocity`, whether there is one [N])."""
    dn, de = state.north[None, :] - state.north[:, None], state.east[None, :] - state.east[:, None]
    vn = state.ground[None, :, 0] - velocity[:, None, 0]
    ve = state.ground[None, :, 1] - velocity[:, None, 1]
    v2 = jnp.maximum(vn * vn + ve * ve, 1.0)
    t = jnp.clip(-(dn * vn + de * ve) / v2, 0.0, LOOK / HOUR)  # h
    mn, me = dn + vn * t, de + ve * t  # the other, from here, when closest
    miss, reach = jnp.sqrt(mn * mn + me * me), jnp.sqrt(dn * dn + de * de)
    conflict = others & (miss < ZONE) & (t < LOOK / HOUR) & ((t > 0) | (reach < ZONE))
    # Head-on there is no miss vector: pushed to the right of the relative motion, as the other is.
    speed = jnp.sqrt(v2)
    head_on = miss < 0.1
    un = jnp.where(head_on, -ve / speed, mn / jnp.maximum(miss, 1e-3))
    ue = jnp.where(head_on, vn / speed, me / jnp.maximum(miss, 1e-3))
    # The tangent to the zone is further away than its edge abeam of the closest approach.
    far = jnp.maximum(reach, 1.001 * ZONE)
    slant = jnp.cos(jnp.arcsin(ZONE / far) - jnp.arcsin(jnp.minimum(miss, ZONE) / far))
    size = jnp.where(conflict, (ZONE / jnp.maximum(slant, 0.3) - miss) / jnp.maximum(t, SOON / HOUR), 0.0)  # kt
    change = -jnp.stack([jnp.sum(size * un, axis=-1), jnp.sum(size * ue, axis=-1)], axis=-1)
    return change, jnp.any(conflict, axis=-1)
