"""Pytrees as flat dictionaries of arrays, by path: what checkpoints and policies store."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from regimen.errors import StorageError
from regimen.types import PyTree


def is_key(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def path_name(path) -> str:
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def flatten(tree: PyTree) -> dict[str, np.ndarray]:
    """{path: host array}; random keys as their words."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {path_name(p): np.asarray(jax.random.key_data(x) if is_key(x) else x) for p, x in leaves}


def unflatten(like: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """The arrays in the structure of `like`; any difference in names, shapes or types is refused by name."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    names = [path_name(p) for p, _ in leaves]
    missing = [n for n in names if n not in arrays]
    extra = sorted(set(arrays) - set(names))
    if missing or extra:
        raise StorageError(
            f"{what} does not fit this configuration: "
            + (f"it lacks '{missing[0]}'" if missing else f"it has '{extra[0]}', which is not used here")
        )
    out = []
    for name, (_, x) in zip(names, leaves):
        want = jax.random.key_data(x) if is_key(x) else x
        have = arrays[name]
        if tuple(have.shape) != tuple(np.shape(want)):
            raise StorageError(
                f"{what} does not fit this configuration: '{name}' has shape {tuple(have.shape)} there and "
                f"{tuple(np.shape(want))} here"
            )
        array = jnp.asarray(have, want.dtype)
        out.append(jax.random.wrap_key_data(array) if is_key(x) else array)
    return jax.tree_util.tree_unflatten(treedef, out)
