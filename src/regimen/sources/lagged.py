"""Acting with a policy some updates old: what asynchronous workers do, made repeatable.

The engine keeps the last `lag` policies [lag, ...]; update i acts with that of update i - lag (with the first one while
there is none so old), so that a correction for the lag can be tested on native environments, bit for bit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from regimen.types import Array, PyTree


def start(params: PyTree, lag: int) -> PyTree:
    """As many copies of the first policy."""
    return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], lag, axis=0), params)


def swap(history: PyTree, params: PyTree, updates: Array, lag: int) -> tuple[PyTree, PyTree, Array]:
    """The policy to act with, the history that remembers the current one instead, and how old the former is."""
    slot = updates % lag
    old = jax.tree.map(lambda x: x[slot], history)
    new = jax.tree.map(lambda x, p: x.at[slot].set(p), history, params)
    return old, new, jnp.minimum(updates, lag)
