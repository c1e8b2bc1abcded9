"""Stiffness ("intensity") of the substrate. It rises with x, along a line or an exponential, and not with y."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from regimen.types import Array, Record, pytree_dataclass

KINDS = ("random", "linear", "exponential")


@pytree_dataclass
class Substrate(Record):
    """I(x) = m x + b, or I(x) = b exp(m x). Everything is computed from log I, which stays near one on both."""

    exponential: Array  # bool
    m: Array  # per unit of length
    b: Array  # the intensity at x = 0
    log_b: Array
    log_span: Array  # log I at the stiff edge minus log_b

    def log_intensity(self, x: Array | np.ndarray) -> Array:
        return jnp.where(self.exponential, self.log_b + self.m * x, jnp.log(self.m * x + self.b))

    def intensity(self, x: Array) -> Array:
        return jnp.where(self.exponential, self.b * jnp.exp(self.m * x), self.m * x + self.b)

    def steepness(self, x: Array) -> Array:
        """d log I / dx."""
        return jnp.where(self.exponential, self.m, self.m / (self.m * x + self.b))

    def level(self, x: Array | np.ndarray) -> Array:
        """log I on the scale of this substrate: 0 at its soft edge, 1 at its stiff edge."""
        return (self.log_intensity(x) - self.log_b) / self.log_span


def make(exponential: Array, m: Array | float, b: Array | float, width: Array | float) -> Substrate:
    m, b = jnp.asarray(m, jnp.float32), jnp.asarray(b, jnp.float32)
    span = jnp.where(exponential, m * width, jnp.log(m * width + b) - jnp.log(b))
    return Substrate(exponential, m, b, jnp.log(b), jnp.maximum(span, 1e-6))


def draw(key: Array, linear: Sequence, exponential: Sequence, width: Array | float) -> Substrate:
    """Either kind with probability 1/2; each is given as (lowest m, highest m, lowest b, highest b)."""
    coin, key_m, key_b = jax.random.split(key, 3)
    kind = jax.random.bernoulli(coin)
    low_m, high_m, low_b, high_b = (jnp.where(kind, e, u) for e, u in zip(exponential, linear))
    m = low_m + (high_m - low_m) * jax.random.uniform(key_m)
    b = low_b + (high_b - low_b) * jax.random.uniform(key_b)
    return make(kind, m, b, width)
