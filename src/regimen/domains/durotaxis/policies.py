"""Policies written by hand, for `regimen evaluate durotaxis --policy heuristic`."""

import math

import jax
import jax.numpy as jnp

from regimen.domains.durotaxis.features import ranks
from regimen.types import Array

SURVIVORS = 12  # nodes that spawn; with their children a colony of 24
FAN = math.pi / 4  # how far from straight on they may head
SURVIVORS_RATIO = 16  # where hops are random more of them are tried


def rightwards(env, key, state, obs) -> dict[str, Array]:
    """Only the nodes furthest right spawn, as far as they can and roughly to the right; the others are deleted."""
    y = state.graph.y
    theta = jax.random.uniform(key, y.shape, minval=-FAN, maxval=FAN)
    near = env.gamma_high + env.noise_high  # one hop from the upper or the lower side they turn away from it
    theta = jnp.where(y < near, jnp.abs(theta), jnp.where(y > env.height - near, -jnp.abs(theta), theta))
    longest = [env.gamma_high, env.alpha_low, env.noise_high]
    spawn = jnp.stack([*(jnp.full_like(theta, value) for value in longest), theta], axis=-1)
    return {"choice": leftmost(state).astype(jnp.int32), "spawn": spawn}


def steady(env, key, state, obs) -> Array:
    """Delete what exceeds a fixed number of spawning nodes."""
    n = jnp.maximum(state.graph.count, 1).astype(jnp.float32)
    excess = jnp.maximum(n - SURVIVORS_RATIO, 0.0)
    return jnp.clip((excess + 0.5) / n, 0.0, env.max_ratio)[None]


def survive(env, key, state, obs) -> dict[str, Array]:
    """Keep the population and stay where it is: what must not pay."""
    shortest = jnp.array([env.gamma_low, env.alpha_high, env.noise_low, math.pi / 2])
    spawn = jnp.broadcast_to(shortest, (*state.graph.x.shape, 4))
    return {"choice": leftmost(state).astype(jnp.int32), "spawn": spawn}


def leftmost(state) -> Array:
    """All but SURVIVORS nodes, and empty slots, which can only be deleted."""
    graph = state.graph
    return (ranks(graph) < graph.count - SURVIVORS) | ~graph.alive
