"""From actions to commands: scale, deadband and delay."""

from __future__ import annotations

import jax.numpy as jnp

from regimen.domains.airspace.files import MAX_DELAY
from regimen.types import Array

TURN, CHANGE = 18.0, 10.0  # deg and kt of a full action
DEADBAND = 3.0  # deg and kt below which a command is none


def commanded(action: Array) -> Array:
    """Heading (deg) and speed (kt) change of a normalised action, small ones dropped: [N, 2]."""
    change = action * jnp.array([TURN, CHANGE])
    return jnp.where(jnp.abs(change) < DEADBAND, 0.0, change)


def delayed(action: Array, queue: Array, delay: Array) -> tuple[Array, Array]:
    """(the action whose turn it is, the queue after it); before the first ones come zeros."""
    line = jnp.concatenate([action[None], queue])  # [1 + MAX_DELAY, N, 2]
    turn = jnp.arange(line.shape[0])[:, None, None] == jnp.minimum(delay, MAX_DELAY)
    return jnp.sum(jnp.where(turn, line, 0.0), axis=0), line[:-1]
