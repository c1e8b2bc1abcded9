"""Loops whose trip count is data, and what keeps them cheap when many seeds run in one program.

Under `vmap(axis_name=SEEDS)` a loop whose predicate differs between seeds would copy its whole carry every turn. `sync`
makes the predicate common (the longest seed decides); bodies gate their own effects.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from regimen.types import Array

SEEDS = "seeds"


def sync(x: Array) -> Array:
    """The maximum over seeds of a trip count or predicate; the identity when there is only one."""
    try:
        out = lax.pmax(jnp.asarray(x).astype(jnp.int32), SEEDS)
    except NameError:  # no such axis: a single run
        return x
    return out.astype(jnp.asarray(x).dtype)


def compact(mask: Array) -> tuple[Array, Array]:
    """Indices of the True entries of a flat mask, in order, then zeros; and how many there are."""
    n = mask.shape[0]
    position = jnp.cumsum(mask) - 1
    indices = jnp.zeros(n, jnp.int32).at[jnp.where(mask, position, n)].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    return indices, (position[-1] + 1).astype(jnp.int32)
