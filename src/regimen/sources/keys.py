"""The randomness of a rollout, the same for every source, and agents as rows beside each other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from regimen.axes import device_count, env_numbers
from regimen.envs.protocol import Env, agents_of
from regimen.types import ActingAlgorithm, Array, PyTree

NOISE_BLOCK = 64  # steps drawn at once when the number of steps is not known beforehand


class RolloutKeys(NamedTuple):
    """The keys of one rollout, from the update's own. What an environment draws depends on its number among all, not on
    the device that has it."""

    actions: Array
    envs: Array
    reset: Array  # of the resets at the start of a rollout of whole episodes

    @classmethod
    def of(cls, key: Array) -> RolloutKeys:
        return cls(*jax.random.split(key, 3))

    def action_noise(self, algo: ActingAlgorithm, start: Array | int, steps: int, columns: int) -> PyTree:
        """Noise [steps, B, ...] of the actions from time `start` on."""
        return row_noise(algo, at(self.actions, start), env_numbers(columns), steps)

    def env_keys(self, start: Array | int, steps: int, num_envs: int) -> Array:
        """Keys [steps, E] of the environments' steps, and of the resets that follow them."""
        time = jnp.arange(steps)[:, None] * (num_envs * device_count())
        return numbered(at(self.envs, start), time + env_numbers(num_envs))


@partial(jax.jit, static_argnames="steps")  # one call a block instead of a dozen, for what is stepped in Python
def row_noise(algo: ActingAlgorithm, key: Array, numbers: Array, steps: int) -> PyTree:
    """Noise [steps, B, ...] for the rows with these numbers."""
    return jax.vmap(lambda key: algo.noise(key, (steps,)), out_axes=1)(numbered(key, numbers))


def side_by_side(env: Env, tree: PyTree) -> PyTree:
    """Agents of each environment [E, A, ...] as rows [B, ...]; unchanged where there is one agent."""
    if not agents_of(env):
        return tree
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def by_agent(env: Env, tree: PyTree) -> PyTree:
    """Rows [B, ...] as [E, A, ...]; unchanged where there is one agent."""
    agents = len(agents_of(env))
    return jax.tree.map(lambda x: x.reshape(-1, agents, *x.shape[1:]), tree) if agents else tree


def numbered(key: Array, numbers: Array) -> Array:
    """The keys [...] with these numbers among those that `jax.random.split(key, n)` gives for any n."""
    flat = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers.reshape(-1))
    return flat.reshape(numbers.shape)


def at(key: Array, start: Array | int) -> Array:
    """The key of a block; the first is the key itself, which saves compiling one more hash."""
    return key if isinstance(start, int) and start == 0 else jax.random.fold_in(key, start)
