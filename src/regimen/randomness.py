"""Random keys derived on the host: the very keys of `jax.random`, without a program to compile for each shape."""

from __future__ import annotations

import jax
import numpy as np
from jax.core import Tracer

from regimen.types import Array

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def threefry(key: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The Threefry-2x32 hash of 20 rounds (Salmon et al. 2011) of counts [N] < 2^32 under a key [2]: words [N, 2]."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x, y = np.zeros_like(counts) + schedule[0], counts + schedule[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x, y = x + schedule[(i + 1) % 3], y + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return np.stack([x, y], axis=-1)


def key_of(seed: int) -> Array:
    """`jax.random.key(seed)`."""
    if not 0 <= seed < 2**31 or jax.config.values["jax_default_prng_impl"] != "threefry2x32":
        return jax.random.key(seed)
    return wrapped(np.array([0, seed], np.uint32))


def fold_in(key: Array, number: int) -> Array:
    """`jax.random.fold_in(key, number)` of a number that is not negative."""
    if not is_plain(key):
        return jax.random.fold_in(key, number)
    return wrapped(threefry(words_of(key), np.array([number], np.uint32))[0])


def split(key: Array, number: int = 2) -> list[Array]:
    """The keys of `jax.random.split(key, number)`."""
    if not is_plain(key):
        return list(jax.random.split(key, number))
    return [wrapped(words) for words in threefry(words_of(key), np.arange(number, dtype=np.uint32))]


def is_plain(key: Array) -> bool:
    """Whether a key is one of jax's default kind whose words are at hand, and jax derives others from it as we do."""
    is_default = not isinstance(key, Tracer) and str(jax.random.key_impl(key)) == "threefry2x32"
    return is_default and key.ndim == 0 and jax.config.values["jax_threefry_partitionable"]


def words_of(key: Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def wrapped(words: np.ndarray) -> Array:
    return jax.random.wrap_key_data(jax.device_put(words))
