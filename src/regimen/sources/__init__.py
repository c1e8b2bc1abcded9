"""Sources of experience. All return the same `Batch`; the randomness of a rollout is drawn here, the same for all."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from regimen.types import Array, PyTree

NOISE_BLOCK = 64  # steps drawn at once when the number of steps is not known beforehand


class RolloutKeys(NamedTuple):
    """The keys of one rollout, from the update's own."""

    actions: Array
    envs: Array
    reset: Array  # of the resets at the start of a rollout of whole episodes

    @classmethod
    def of(cls, key: Array) -> RolloutKeys:
        return cls(*jax.random.split(key, 3))

    def action_noise(self, algo: Any, start: Array | int, steps: int, num_envs: int) -> PyTree:
        """Noise [steps, E, ...] of the actions from time `start` on."""
        return algo.noise(at(self.actions, start), (steps, num_envs))

    def env_keys(self, start: Array | int, steps: int, num_envs: int) -> Array:
        """Keys [steps, E] of the environments' steps, and of the resets that follow them."""
        return jax.random.split(at(self.envs, start), (steps, num_envs))


def at(key: Array, start: Array | int) -> Array:
    """The key of a block; the first is the key itself, which saves compiling one more hash."""
    return key if isinstance(start, int) and start == 0 else jax.random.fold_in(key, start)
