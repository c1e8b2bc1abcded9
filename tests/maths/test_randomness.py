"""Keys derived on the host are those of `jax.random`."""

import jax
import numpy as np
import pytest

from regimen import randomness


def words(key):
    return np.asarray(jax.random.key_data(key)).tolist()


@pytest.mark.parametrize("seed", [0, 1, 123_456, 2**31 - 1, -3])
def test_key_of(seed):
    assert words(randomness.key_of(seed)) == words(jax.random.key(seed))


@pytest.mark.parametrize("number", [0, 1, 77, 2**20, 2**31])
def test_fold_in(number):
    key = jax.random.key(5)
    assert words(randomness.fold_in(key, number)) == words(jax.random.fold_in(key, number))


@pytest.mark.parametrize("number", [2, 3, 7])
def test_split(number):
    key = jax.random.key(9)
    assert list(map(words, randomness.split(key, number))) == words(jax.random.split(key, number))


@pytest.mark.parametrize("function", [lambda key: randomness.fold_in(key, 3), lambda key: randomness.split(key)[1]])
def test_within_a_program_and_of_another_kind_jax_derives_them(function):
    key = jax.random.key(4)
    assert words(jax.jit(function)(key)) == words(function(key))
    other = jax.random.key(4, impl="rbg")
    assert words(function(other)) in (words(jax.random.fold_in(other, 3)), words(jax.random.split(other)[1]))
