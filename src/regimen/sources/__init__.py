"""Sources of experience. All return the same `Batch`; the randomness of a rollout is drawn here, the same for all."""

from __future__ import annotations

from typing import Any

import jax

from regimen.types import Array, PyTree

NOISE_BLOCK = 64  # steps drawn at once when the number of steps is not known beforehand


def action_noise(algo: Any, key: Array, start: Array | int, steps: int, num_envs: int) -> PyTree:
    """Noise [steps, E, ...] of the actions from time `start` on; `key` is the update's own."""
    return algo.noise(jax.random.fold_in(jax.random.fold_in(key, 1), start), (steps, num_envs))


def env_keys(key: Array, start: Array | int, steps: int, num_envs: int) -> Array:
    """Keys [steps, E] of the environments' steps, and of the resets that follow them."""
    return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 2), start), (steps, num_envs))


def reset_key(key: Array) -> Array:
    """Key of the resets at the start of a rollout of whole episodes."""
    return jax.random.fold_in(key, 3)
