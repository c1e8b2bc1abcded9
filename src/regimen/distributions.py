"""Action distributions. Each is a static object for one action space that reads the policy's outputs.

`noise` is drawn outside and handed to `sample`, so that a rollout is a deterministic function of it and sources can be
compared. Log-probabilities and entropies have the shape of the action, one number per element; the joint is their sum.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen.errors import ConfigError
from regimen.types import Array

MASKED = -1e9  # a logit no softmax gives weight to, yet finite, so that 0 * logit stays 0


class Categorical:
    """One choice of n (Discrete). The action is the index, 0..n-1; `to_env` adds the space's start."""

    event_ndim = 0

    def __init__(self, n: int, start: int = 0):
        self.n, self.start = n, start
        self.head_size, self.free_size = n, 0

    def params(self, head: Array, free: Array, mask: Array | None = None) -> Array:
        """Normalised log-probabilities [..., n] from the policy head; `mask` is True where a choice is allowed."""
        logits = head if mask is None else jnp.where(mask, head, MASKED)
        return jax.nn.log_softmax(logits)

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.gumbel(key, (*shape, self.n))

    def sample(self, params: Array, noise: Array) -> Array:
        return jnp.argmax(params + noise, axis=-1).astype(jnp.int32)

    def mode(self, params: Array) -> Array:
        return jnp.argmax(params, axis=-1).astype(jnp.int32)

    def log_prob(self, params: Array, action: Array) -> Array:
        return jnp.sum(params * jax.nn.one_hot(action, self.n), axis=-1)  # cheaper than a gather and its scatter

    def entropy(self, params: Array) -> Array:
        return -jnp.sum(jnp.exp(params) * params, axis=-1)

    def kl(self, p: Array, q: Array) -> Array:
        return jnp.sum(jnp.exp(p) * (p - q), axis=-1)

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return jnp.zeros(lead, jnp.int32)

    def to_env(self, action: Array) -> Array:
        return action + self.start


class MultiCategorical:
    """Independent choices (MultiDiscrete, MultiBinary): a row of Categoricals over one concatenated head."""

    event_ndim = 1

    def __init__(self, sizes: tuple[int, ...], starts: tuple[int, ...]):
        self.parts = [Categorical(n) for n in sizes]
        self.starts = np.asarray(starts, np.int32)
        self.cuts = np.cumsum(sizes)[:-1]
        self.head_size, self.free_size = int(sum(sizes)), 0

    def _split(self, x: Array) -> list[Array]:
        return jnp.split(x, self.cuts, axis=-1)

    def _each(self, method: str, *arrays: Array) -> Array:
        columns = zip(*(self._split(a) for a in arrays))
        return jnp.stack([getattr(d, method)(*c) for d, c in zip(self.parts, columns)], axis=-1)

    def params(self, head: Array, free: Array, mask: Array | None = None) -> Array:
        logits = head if mask is None else jnp.where(mask, head, MASKED)
        return jnp.concatenate([jax.nn.log_softmax(x) for x in self._split(logits)], axis=-1)

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.gumbel(key, (*shape, self.head_size))

    def sample(self, params: Array, noise: Array) -> Array:
        return self._each("sample", params, noise)

    def mode(self, params: Array) -> Array:
        return self._each("mode", params)

    def log_prob(self, params: Array, action: Array) -> Array:
        columns = enumerate(zip(self.parts, self._split(params)))
        return jnp.stack([d.log_prob(p, action[..., i]) for i, (d, p) in columns], axis=-1)

    def entropy(self, params: Array) -> Array:
        return self._each("entropy", params)

    def kl(self, p: Array, q: Array) -> Array:
        return self._each("kl", p, q)

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return jnp.zeros((*lead, len(self.parts)), jnp.int32)

    def to_env(self, action: Array) -> Array:
        return action + self.starts


class Normal:
    """A diagonal Gaussian (Box) whose deviation does not depend on the observation.

    Bounded dimensions are in units of half their range: -1 is `low`, +1 is `high`. The action stored is the one
    sampled; it is clipped and scaled to the bounds only on its way to the environment (`to_env`).
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, log_std_init: float = 0.0):
        self.shape = low.shape
        self.event_ndim = 1
        self.bounded = (np.isfinite(low) & np.isfinite(high)).ravel()
        low, high = np.where(self.bounded, low.ravel(), -1.0), np.where(self.bounded, high.ravel(), 1.0)
        self.center = ((low + high) / 2).astype(np.float32)
        self.scale = ((high - low) / 2).astype(np.float32)
        self.log_std_init = log_std_init
        self.head_size = self.free_size = math.prod(self.shape)

    def params(self, head: Array, free: Array, mask: Array | None = None) -> tuple[Array, Array]:
        return head, jnp.broadcast_to(free, head.shape)

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, (*shape, self.head_size))

    def sample(self, params: tuple[Array, Array], noise: Array) -> Array:
        mean, log_std = params
        return mean + jnp.exp(log_std) * noise

    def mode(self, params: tuple[Array, Array]) -> Array:
        return params[0]

    def log_prob(self, params: tuple[Array, Array], action: Array) -> Array:
        mean, log_std = params
        return -0.5 * jnp.square((action - mean) * jnp.exp(-log_std)) - log_std - 0.5 * math.log(2 * math.pi)

    def entropy(self, params: tuple[Array, Array]) -> Array:
        return params[1] + 0.5 * math.log(2 * math.pi * math.e)

    def kl(self, p: tuple[Array, Array], q: tuple[Array, Array]) -> Array:
        (m, s), (n, t) = p, q
        return t - s + 0.5 * (jnp.exp(2 * (s - t)) + jnp.square((m - n) * jnp.exp(-t))) - 0.5

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return jnp.zeros((*lead, self.head_size))

    def to_env(self, action: Array) -> Array:
        clipped = jnp.where(self.bounded, jnp.clip(action, -1.0, 1.0), action)
        return jnp.asarray(self.center + self.scale * clipped).reshape(*action.shape[:-1], *self.shape)


Distribution = Categorical | MultiCategorical | Normal


def for_space(space: Any, log_std_init: float = 0.0) -> Distribution:
    """The distribution of an action space."""
    match space:
        case gym.Discrete():
            return Categorical(int(space.n), int(space.start))
        case gym.MultiDiscrete() if len(space.shape) == 1:
            return MultiCategorical(tuple(space.nvec.tolist()), tuple(space.start.tolist()))
        case gym.MultiBinary() if len(space.shape) == 1:
            return MultiCategorical((2,) * int(space.shape[0]), (0,) * int(space.shape[0]))
        case gym.Box() if np.issubdtype(space.dtype, np.floating):
            return Normal(np.asarray(space.low, np.float64), np.asarray(space.high, np.float64), log_std_init)
    raise ConfigError(
        f"action space {space} is not supported; use Discrete, MultiDiscrete (one axis), MultiBinary or a float Box"
    )


def joint(distribution: Distribution, x: Array) -> Array:
    """Sum of a per-element quantity over one action's elements: [..., *event] to [...]."""
    return jnp.sum(x, axis=-1) if distribution.event_ndim else x
