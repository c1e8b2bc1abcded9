"""Tracing once and compiling on another core."""

import jax
import jax.numpy as jnp
import numpy as np

from regimen.compiling import Compiling, traced


def test_a_function_is_traced_once():
    """Its Python runs once for its shapes and its results, also within a program that closes over other values."""
    calls = []

    def function(x, tree):
        calls.append(x)
        return {"sum": x + tree["a"] * scale, "same": x}

    def program(x, tree):
        nonlocal scale
        scale = tree["a"] + 1
        again, shapes = traced(function, x, tree)
        assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes) == {
            "sum": ((3,), "float32"),
            "same": ((3,), "float32"),
        }
        return again(again(x, tree)["sum"], tree)

    scale = None
    x, tree = jnp.arange(3.0), {"a": jnp.float32(2.0)}
    assert np.asarray(jax.jit(program)(x, tree)["sum"]).tolist() == [12.0, 13.0, 14.0]
    assert len(calls) == 1


def test_a_program_is_compiled_aside():
    compiling = Compiling(jax.jit(lambda x: x + 1).lower(jnp.float32(0.0)))
    assert compiling.result()(jnp.float32(1.0)) == 2.0 and not compiling.running
