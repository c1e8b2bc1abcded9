"""Policies written by hand, for `regimen evaluate airspace/head_on --policy mvp`."""

from __future__ import annotations

import jax.numpy as jnp

from regimen.envs.airspace import atmosphere, dynamics, observe
from regimen.envs.airspace.pairs import HOUR
from regimen.types import Array

LOOK = 240.0  # s ahead in which conflicts are resolved
ZONE = 5.6  # NM, the protected zone with a margin
TURN, CHANGE = 18.0, 10.0


def no_op(env, key, state, obs) -> Array:
    """Fly straight on."""
    return jnp.zeros((state.north.shape[0], 2))


def waypoint(env, key, state, obs) -> Array:
    """Turn to the waypoint and hold the speed."""
    return steer(state, observe.bearing(state), state.cas)


def steer(state, heading: Array, cas: Array) -> Array:
    """The action that comes closest to a heading and a speed."""
    turn = dynamics.wrap(heading - state.heading) / TURN
    return jnp.clip(jnp.stack([turn, (cas - state.cas) / CHANGE], axis=-1), -1.0, 1.0)


def mvp(env, key, state, obs) -> Array:
    """Modified voltage potential (Hoekstra 2001): at each predicted loss of separation the other pushes the own
    aircraft out of its protected zone along the miss vector; the sum of the pushes is a change of velocity.

    Conflicts are looked for on the way to the waypoint, so that an aircraft turns back only when that way is clear.
    """
    scenario = state.scenario
    others = env.counts(state)[None, :] & ~jnp.eye(state.north.shape[0], dtype=bool)
    aim = (observe.bearing(state) - scenario.convergence * state.east) * dynamics.DEGREE
    cruise = atmosphere.to_tas(scenario.cas, state.air)
    wish = jnp.stack([cruise * jnp.cos(aim), cruise * jnp.sin(aim)], axis=-1) + scenario.wind
    velocity = wish
    for _ in range(2):
        velocity = wish + push(state, velocity, others)
    air = velocity - scenario.wind
    heading = jnp.arctan2(air[:, 1], air[:, 0]) / dynamics.DEGREE + scenario.convergence * state.east
    tas = jnp.sqrt(jnp.sum(air**2, axis=-1))
    return steer(state, heading, state.cas * tas / state.tas)


def push(state, velocity: Array, others: Array) -> Array:
    """Change of velocity [N, 2] kt out of all conflicts of flying at `velocity` [N, 2] kt."""
    dn, de = state.north[None, :] - state.north[:, None], state.east[None, :] - state.east[:, None]
    vn = state.ground[None, :, 0] - velocity[:, None, 0]
    ve = state.ground[None, :, 1] - velocity[:, None, 1]
    v2 = jnp.maximum(vn * vn + ve * ve, 1.0)
    t = jnp.clip(-(dn * vn + de * ve) / v2, 0.0, LOOK / HOUR)  # h
    mn, me = dn + vn * t, de + ve * t  # the other, from here, when closest
    miss = jnp.sqrt(mn * mn + me * me)
    conflict = others & (miss < ZONE) & ((t > 0) & (t < LOOK / HOUR) | (dn * dn + de * de < ZONE**2))
    # Head-on there is no miss vector: pass on the right, pushed to the right of the relative motion.
    speed = jnp.sqrt(v2)
    head_on = miss < 0.1
    un = jnp.where(head_on, -ve / speed, mn / jnp.maximum(miss, 1e-3))
    ue = jnp.where(head_on, vn / speed, me / jnp.maximum(miss, 1e-3))
    size = (ZONE - miss) / jnp.maximum(t, 30.0 / HOUR)  # kt
    return -jnp.stack(
        [jnp.sum(jnp.where(conflict, size * un, 0.0), axis=-1), jnp.sum(jnp.where(conflict, size * ue, 0.0), axis=-1)],
        axis=-1,
    )
