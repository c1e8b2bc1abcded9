"""Pytrees as flat dictionaries of arrays, by path: what checkpoints and policies store."""

import jax
import jax.numpy as jnp
import numpy as np

from regimen.errors import StorageError
from regimen.types import Array, PyTree


def is_key(x: object) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def plain(x: Array) -> Array:
    """A random key as its words; anything else as it is."""
    return jax.random.key_data(x) if is_key(x) else x


def as_leaf(x: Array | np.ndarray, like: Array) -> Array:
    """What `plain` made of a leaf as the leaf again: a key where `like` is one."""
    return jax.random.wrap_key_data(jnp.asarray(x)) if is_key(like) else jnp.asarray(x)


def path_name(path: jax.tree_util.KeyPath) -> str:
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def flatten(tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree as {path: host array}; random keys as their words. Rows are contiguous: safetensors writes
    the bytes as they lie."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {path_name(p): np.asarray(plain(x), order="C") for p, x in leaves}


def unflatten(like: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """The arrays in the structure of `like`; any difference in names or shapes is refused by name."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    names = [path_name(p) for p, _ in leaves]
    arrays = with_high_words(names, arrays)
    missing = [n for n in names if n not in arrays]
    extra = sorted(set(arrays) - set(names))
    if missing or extra:
        difference = f"it lacks '{missing[0]}'" if missing else f"it has '{extra[0]}', which is not used here"
        raise StorageError(f"{what} does not fit this configuration: {difference}")
    return jax.tree_util.tree_unflatten(
        treedef, [restore(x, arrays[name], f"{what}: '{name}'") for name, (_, x) in zip(names, leaves)]
    )


def with_high_words(names: list[str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint; those of an older checkpoint, whose counters had one word each, with two."""
    new = {}
    for name, bits in (("clock/updates", 31), ("clock/episodes", 30)):
        for high in names:
            low = high.removesuffix("_high")
            if low.endswith(name) and low in arrays and high not in arrays:
                new |= {high: arrays[low] >> bits, low: arrays[low] & (2**bits - 1)}
    return arrays | new


def restore(like: Array, array: np.ndarray, what: str) -> Array:
    """`array` with the type of `like`, which must have its shape."""
    words = plain(like)
    if tuple(array.shape) != tuple(np.shape(words)):
        raise StorageError(f"{what} has shape {tuple(array.shape)} there and {tuple(np.shape(words))} here")
    return as_leaf(np.asarray(array, words.dtype), like)
