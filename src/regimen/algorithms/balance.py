"""Gradient balance between the discrete and the continuous heads of a hybrid policy.

The gradient of the policy loss is measured where it enters the network, at the policy's outputs, separately for the
outputs of each kind: that needs the distribution's own backward pass only, not another one of the network. Running
norms of the two then set factors on the gradients that flow back from them, so that neither kind drowns the other in
the layers they share.
"""

from __future__ import annotations

import jax.numpy as jnp

from regimen.types import Array, PyTree

METRICS = ("head_grad_discrete", "head_grad_continuous")
DECAY, RATIO = 0.9, (0.1, 10.0)


def zero() -> PyTree:
    return {"norms": jnp.zeros(2), "steps": jnp.int32(0)}


def follow(balance: PyTree, parts: dict[str, Array]) -> PyTree:
    """Running norms of the gradients at the discrete and the continuous outputs, one minibatch on."""
    if balance is None:
        return None
    new = jnp.sqrt(jnp.stack([parts[name] for name in METRICS]))
    decay = jnp.where(balance["steps"] == 0, 0.0, DECAY)
    return {"norms": decay * balance["norms"] + (1 - decay) * new, "steps": balance["steps"] + 1}


def factors(balance: PyTree, warmup: int) -> Array:
    """Factors [2], of mean 1, that make the two norms equal where one is at most ten times the other, and otherwise
    bring them that much closer. Without the bound, a head that has settled (its gradient is nearly 0) would silence the
    one that still learns."""
    if balance is None:
        return jnp.ones(2)
    discrete, continuous = jnp.maximum(balance["norms"], 1e-12)
    ratio = jnp.clip(continuous / discrete, *RATIO)
    both = 2.0 * jnp.stack([ratio, jnp.ones(())]) / (1.0 + ratio)
    return jnp.where(balance["steps"] >= warmup, both, 1.0)
