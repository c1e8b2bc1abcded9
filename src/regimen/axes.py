"""Loops whose trip count is data, and the two axes a program may run over: seeds and devices.

Under `vmap(axis_name=SEEDS)` a loop whose predicate differs between seeds would copy its whole carry every turn. `sync`
makes the predicate common (the longest seed decides); bodies gate their own effects.

Under `shard_map` over DEVICES every device runs the program on its own environments, and what follows makes statistics
and gradients those of all of them. Each is the identity where there is one device. Every device has to come to the same
collectives equally often: a loop with one inside needs a predicate that all devices agree on.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen.types import Array, PyTree, Scalar, State

SEEDS = "seeds"
DEVICES = "devices"


def sync(x: Any) -> Any:
    """The maximum over seeds of a trip count or predicate; the identity when there is only one."""
    try:
        out = lax.pmax(jnp.asarray(x).astype(jnp.int32), SEEDS)
    except NameError:  # no such axis: a single run
        return x
    return out.astype(jnp.asarray(x).dtype)


def where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def applied_state(condition: Array, new: State, old: State) -> State:
    """`new` where the update counts. A replay is taken as it is: its cursor (in `aux`) says how far it counts, and the
    next update writes the same rows again; choosing between two copies of it would cost more than learning."""
    return where(condition, new.replace(replay=()), old.replace(replay=())).replace(replay=new.replay)


def device_count() -> int:
    """Devices that the program around this runs on."""
    try:
        return lax.axis_size(DEVICES)
    except NameError:
        return 1


def device_index() -> Array | int:
    """Which of them this is."""
    return 0 if device_count() == 1 else lax.axis_index(DEVICES)


def env_numbers(num_envs: int) -> Array:
    """Numbers [E] of this device's environments among those of all devices."""
    numbers = jnp.arange(num_envs)
    return numbers if device_count() == 1 else numbers + device_index() * num_envs


def own_key(key: Array) -> Array:
    """A key for what each device draws for itself."""
    return key if device_count() == 1 else jax.random.fold_in(key, device_index())


def gather_over_devices(tree: PyTree) -> PyTree:
    """Every leaf with the devices in front [D, ...], on all of them. Leaves of one type travel together."""
    if device_count() == 1:
        return jax.tree.map(lambda x: jnp.asarray(x)[None], tree)
    flat, unravel = ravel_pytree(tree)
    return jax.vmap(unravel)(lax.all_gather(flat, DEVICES))


def sum_over_devices(tree: PyTree) -> PyTree:
    """The sum of each leaf, in one collective. Leaves have one type: counts are not to be mixed with floats."""
    if device_count() == 1:
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(lax.psum(flat, DEVICES))


def mean_over_devices(tree: PyTree, weight: Scalar = 1.0) -> PyTree:
    """The mean of each leaf, for example of gradients, each device counting by its `weight`."""
    if device_count() == 1:
        return tree
    weight = jnp.asarray(weight, jnp.float32)
    weighted, total = sum_over_devices((jax.tree.map(lambda x: x * weight, tree), weight))
    return jax.tree.map(lambda x: x / total, weighted)


def max_over_devices(x: Array) -> Array:
    return x if device_count() == 1 else lax.pmax(x, DEVICES)


def all_devices(ok: Array) -> Array:
    """Whether a value is true on every device; all devices get the same answer."""
    return ok if device_count() == 1 else lax.pmin(ok.astype(jnp.int32), DEVICES).astype(bool)


def compact(mask: Array) -> tuple[Array, Array]:
    """Indices of the True entries of a flat mask, in order, then zeros; and how many there are."""
    n = mask.shape[0]
    position = jnp.cumsum(mask) - 1
    indices = jnp.zeros(n, jnp.int32).at[jnp.where(mask, position, n)].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    return indices, (position[-1] + 1).astype(jnp.int32)
