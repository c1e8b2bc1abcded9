"""Exploration: uniform actions, and correlated noise, one step at a time, that a policy carries between the steps of an
episode.

Pink noise (Eberhard et al. 2023, "Pink noise is all you need") explores by drifting: its power falls as 1 / f. It is
made here by a bank of AR(1) processes whose time constants are an octave apart, from half a step to the length of an
episode (a sum of such Lorentzians is 1 / f in between, van der Ziel 1950). No sequence is drawn beforehand, so it works
in every source and is checkpointed with the policy's carry.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen import distributions, spaces
from regimen.types import Array, PyTree, Record, pytree_dataclass

LEAST = 1e-6  # quantile of a normal draw: 0 would be infinitely far away
UNKNOWN_LENGTH = 1000  # steps of an episode
SHORTEST = 0.5  # time constant, steps: nearly white; from 1 on, power would fall too fast at high frequencies


@pytree_dataclass
class Drift(Record):
    """The bank in the middle of an episode."""

    state: Array  # [..., M, D] standard normal
    going: Array  # [...] 0 before the first step of an episode, 1 after it


@dataclass(frozen=True)
class Pink:
    """D independent streams for episodes of `length` steps. Every single value is N(0, 1), also the first."""

    size: int  # D
    length: int  # 0: unknown

    @property
    def rho(self) -> np.ndarray:
        """Correlation of each process with its last value [M]."""
        longest = float(self.length or UNKNOWN_LENGTH)
        constants = np.geomspace(SHORTEST, longest, 1 + math.ceil(math.log2(longest / SHORTEST)))
        return np.exp(-1.0 / constants).astype(np.float32)

    def start(self, lead: tuple[int, ...]) -> Drift:
        return Drift(jnp.zeros((*lead, len(self.rho), self.size)), jnp.zeros(lead))

    def step(self, drift: Drift, white: Array) -> tuple[Array, Drift]:
        """The next value [..., D] from white noise [..., M, D]; where an episode begins, the bank is drawn anew."""
        rho = drift.going[..., None, None] * self.rho[:, None]
        state = rho * drift.state + jnp.sqrt(1 - jnp.square(rho)) * white
        return state.sum(-2) / math.sqrt(len(self.rho)), Drift(state, jnp.ones_like(drift.going))


def uniform_noise(space: gym.Space, key: Array, shape: tuple[int, ...]) -> dict[str, Array]:
    """The randomness of uniform actions [*shape, ...], by part of the space."""

    def one(key: Array, leaf: gym.Space) -> Array:
        if isinstance(leaf, gym.Box):
            return jax.random.uniform(key, (*shape, *leaf.shape))
        return distributions.for_space(leaf).noise(key, shape)  # type: ignore[return-value]

    leaves = spaces.leaves(space)
    return {name: one(k, leaf) for k, (name, leaf) in zip(jax.random.split(key, len(leaves)), leaves.items())}


def uniform_actions(space: gym.Space, noise: dict[str, Array], mask: Array | None) -> PyTree:
    """Actions drawn uniformly among those a mask [..., L] allows; a dimension without two bounds is standard normal."""
    values, start = {}, 0
    for name, leaf in spaces.leaves(space).items():
        stop = start + spaces.logits(leaf)
        allowed = None if mask is None else mask[..., start:stop]
        start = stop
        if isinstance(leaf, gym.Box):
            bounded = np.isfinite(leaf.low) & np.isfinite(leaf.high)
            low, high = np.where(bounded, leaf.low, 0.0), np.where(bounded, leaf.high, 1.0)
            normal = jax.scipy.stats.norm.ppf(jnp.maximum(noise[name], LEAST))
            values[name] = jnp.where(bounded, low + (high - low) * noise[name], normal).astype(jnp.float32)
        else:
            dist: Any = distributions.for_space(leaf)
            lead = noise[name].shape[: noise[name].ndim - 1 - dist.event_ndim]
            params = dist.params(jnp.zeros((*lead, dist.head_size)), jnp.zeros(0), allowed)
            values[name] = dist.to_env(dist.sample(params, noise[name]))
    return spaces.build(space, values)
