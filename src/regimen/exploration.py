"""Correlated noise for exploration, one step at a time: what a policy carries between the steps of an episode.

Pink noise (Eberhard et al. 2023, "Pink noise is all you need") explores by drifting: its power falls as 1 / f. It is
made here by a bank of AR(1) processes whose time constants are an octave apart, from half a step to the length of an
episode (a sum of such Lorentzians is 1 / f in between, van der Ziel 1950). No sequence is drawn beforehand, so it works
in every source and is checkpointed with the policy's carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from regimen.types import Array, Record, pytree_dataclass

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
