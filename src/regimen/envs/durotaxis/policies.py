"""Policies written by hand, for `regimen evaluate durotaxis --policy heuristic`."""

from __future__ import annotations

import math

import jax.numpy as jnp

from regimen.envs.durotaxis.features import ranks
from regimen.types import Array

SURVIVORS = 8  # nodes that spawn; with their children a colony of 16
SURVIVORS_RATIO = 16  # where hops are random more of them are tried


def rightwards(env, key, state, obs) -> dict[str, Array]:
    """Only the nodes furthest right spawn, as far to the right as they can; the others are deleted."""
    graph = state.graph
    excess = graph.count - SURVIVORS
    delete = (ranks(graph) < excess) | ~graph.alive
    longest = jnp.array([env.gamma_high, env.alpha_low, env.noise_high, 0.0])
    return {
        "choice": delete.astype(jnp.int32),
        "spawn": jnp.broadcast_to(longest, (*graph.x.shape, 4)),
    }


def steady(env, key, state, obs) -> Array:
    """Delete what exceeds a fixed number of spawning nodes."""
    n = jnp.maximum(state.graph.count, 1).astype(jnp.float32)
    excess = jnp.maximum(n - SURVIVORS_RATIO, 0.0)
    return jnp.clip((excess + 0.5) / n, 0.0, env.max_ratio)[None]


def survive(env, key, state, obs) -> dict[str, Array]:
    """Keep the population and stay where it is: what must not pay."""
    graph = state.graph
    delete = (ranks(graph) < graph.count - SURVIVORS) | ~graph.alive
    shortest = jnp.array([env.gamma_low, env.alpha_high, env.noise_low, math.pi / 2])
    return {"choice": delete.astype(jnp.int32), "spawn": jnp.broadcast_to(shortest, (*graph.x.shape, 4))}
