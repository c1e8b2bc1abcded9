"""Gradient balance between the discrete and the continuous heads of a hybrid policy.

The gradient of the policy loss is measured where it enters the network, at the policy's outputs, separately for the
outputs of each kind: that needs the distribution's own backward pass only, not another one of the network. Running
norms of the two then set factors on the gradients that flow back from them, so that neither kind drowns the other in
the layers they share.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.distributions import Elements
from regimen.types import Array, PyTree

METRICS = ("head_grad_discrete", "head_grad_continuous")
DECAY = 0.9
RATIO = (0.1, 10.0)


def head_kinds(elements: Elements) -> np.ndarray:
    """The kind of every output of the policy's network [O]: 0 discrete, 1 continuous."""
    kinds = [np.full(d.head_size, 0 if d.kind == "discrete" else 1) for d in elements.leaves.values()]
    return np.concatenate(kinds)


def zero() -> PyTree:
    """Running norms before the first minibatch."""
    return {"norms": jnp.zeros(2), "steps": jnp.int32(0)}


def measure(surrogate: Callable[[Array], Array], head: Array, kinds: np.ndarray) -> dict[str, Array]:
    """Squared norms of a loss's gradient at the discrete and the continuous outputs [W]. `surrogate(head)` [W] is the
    policy loss as a function of the outputs [W, O]."""
    squares = jnp.square(jax.grad(lambda head: surrogate(head).sum())(lax.stop_gradient(head)))
    return {name: squares @ (kinds == i) for i, name in enumerate(METRICS)}


def scale(head: Array, kinds: np.ndarray, factors: Array) -> Array:
    """The outputs of a policy [W, O] unchanged, whose gradients are multiplied by the factor of their kind."""
    fixed = lax.stop_gradient(head)
    return fixed + factors[kinds] * (head - fixed)


def follow(balance: PyTree, metrics: dict[str, Array]) -> PyTree:
    """Running norms of the gradients at the discrete and the continuous outputs, one minibatch on."""
    if balance is None:
        return None
    new = jnp.sqrt(jnp.stack([metrics[name] for name in METRICS]))
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


def report(balance: PyTree, warmup: int, metrics: dict[str, Array]) -> dict[str, Array]:
    """Metrics of an update: the factors after it, and the norms from their mean squares."""
    discrete, continuous = factors(balance, warmup)
    names = {"balance_discrete": discrete, "balance_continuous": continuous}
    return names | {name: jnp.sqrt(metrics[name]) for name in METRICS}
