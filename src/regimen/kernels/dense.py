"""A small dense network on a GPU, forward and backward, whose activations stay on the chip.

`dense` is y = W_n a(... a(x W_1 + b_1) ...) + b_n on rows x. XLA writes what lies between the layers to memory, twice,
and reads it again; here a tile of rows passes through all layers in registers, and the gradient computes the layers of
a tile once more instead of reading them. Each program sums the gradients of the tiles that it goes through; the sums
of all programs are added up last.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

PROGRAMS = 264  # of a gradient: two for each multiprocessor of the largest GPUs
ACTIVATIONS = {"tanh": jnp.tanh, "relu": lambda z: jnp.maximum(z, 0.0)}
SLOPES = {"tanh": lambda h: 1.0 - h * h, "relu": lambda h: (h > 0).astype(h.dtype)}  # of the activation's value

Layers = tuple[tuple[Array, Array], ...]  # (weights [in, out], bias [out]) of each


class Tiling(NamedTuple):
    """How the kernels go through the rows."""

    activation: str
    rows: int = 64  # of a tile
    warps: int = 4
    programs: int = PROGRAMS
    interpret: bool = False

    @classmethod
    def of(cls, activation: str, layers: Layers, interpret: bool) -> Tiling:
        wide = max(w.shape[1] for w, _ in layers) > 64
        return cls(activation, rows=32 if wide else 64, warps=8 if wide else 4, interpret=interpret)

    @property
    def compiler(self) -> Any:
        return triton.CompilerParams(num_warps=self.warps, num_stages=1)


def power_of_two(n: int) -> int:
    """The next one from `n` on; matrix units want 16 at least."""
    return max(16, 1 << (n - 1).bit_length())


def padded(layers: Layers) -> list[Array]:
    """Weights and biases in turn, with sizes that are powers of two. What is added computes zeros: a(0) is 0."""
    out = []
    for w, b in layers:
        rows, columns = power_of_two(w.shape[0]), power_of_two(w.shape[1])
        out.append(jnp.pad(w, ((0, rows - w.shape[0]), (0, columns - w.shape[1]))))
        out.append(jnp.pad(b, (0, columns - b.shape[0])))
    return out


def product(a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
    """The product of two matrices over an axis of each."""
    return lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


def read_rows(ref: Any, start: Array, rows: int, columns: int) -> Array:
    """Rows from `start` on, zeros past the last row and past the last column."""
    row = start + lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    column = lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    there = (row < ref.shape[0]) & (column < ref.shape[1])
    return triton.load(ref.at[row, column], mask=there, other=0.0)


def hidden(x: Array, weights: list[Array], activation: str) -> list[Array]:
    """x and the values of every hidden layer."""
    values = [x]
    for w, b in zip(weights[:-2:2], weights[1:-2:2]):
        values.append(ACTIVATIONS[activation](product(values[-1], w) + b[None, :]))
    return values


def forward_kernel(x_ref: Any, *refs: Any, tiling: Tiling) -> None:
    weights, y_ref = [r[...] for r in refs[:-1]], refs[-1]
    start = pl.program_id(0) * tiling.rows
    x = read_rows(x_ref, start, tiling.rows, weights[0].shape[0])
    y = product(hidden(x, weights, tiling.activation)[-1], weights[-2]) + weights[-1][None, :]
    row = start + lax.broadcasted_iota(jnp.int32, y.shape, 0)
    column = lax.broadcasted_iota(jnp.int32, y.shape, 1)
    there = (row < y_ref.shape[0]) & (column < y_ref.shape[1])
    triton.store(y_ref.at[row, column], y, mask=there)


def backward_kernel(x_ref: Any, g_ref: Any, *refs: Any, tiling: Tiling) -> None:
    count = len(refs) // 2
    weights, outs = [r[...] for r in refs[:count]], refs[count:]
    tiles = -(-x_ref.shape[0] // tiling.rows)
    me = pl.program_id(0)

    def tile(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        start = (me + i * tiling.programs) * tiling.rows
        values = hidden(read_rows(x_ref, start, tiling.rows, weights[0].shape[0]), weights, tiling.activation)
        g = read_rows(g_ref, start, tiling.rows, weights[-1].shape[0])
        parts: list[Array] = []
        for n in reversed(range(len(values))):
            parts = [product(values[n], g, (0, 0)), g.sum(0), *parts]
            if n:
                g = product(g, weights[2 * n], (1, 1)) * SLOPES[tiling.activation](values[n])
        return tuple(a + b for a, b in zip(sums, parts))

    zeros = tuple(jnp.zeros(w.shape, jnp.float32) for w in weights)
    mine = (tiles - me + tiling.programs - 1) // tiling.programs
    for out, value in zip(outs, lax.fori_loop(0, mine, tile, zeros)):
        out[...] = value[None]


def plain(activation: str, layers: Layers, x: Array) -> Array:
    """The same network in plain JAX."""
    for w, b in layers[:-1]:
        x = ACTIVATIONS[activation](x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def dense(tiling: Tiling, layers: Layers, x: Array) -> Array:
    """The network's output [N, out] on rows [N, in]."""
    y = jax.ShapeDtypeStruct((x.shape[0], layers[-1][1].shape[0]), jnp.float32)
    grid = (-(-x.shape[0] // tiling.rows),)
    kernel = partial(forward_kernel, tiling=tiling)
    call = pl.pallas_call(
        kernel, out_shape=y, grid=grid, compiler_params=tiling.compiler, interpret=tiling.interpret, name="dense"
    )
    return call(x, *padded(layers))


def _forward(tiling: Tiling, layers: Layers, x: Array) -> tuple[Array, tuple[Layers, Array]]:
    return dense(tiling, layers, x), (layers, x)


def _backward(tiling: Tiling, kept: tuple[Layers, Array], g: Array) -> tuple[Layers, Array]:
    layers, x = kept
    weights = padded(layers)
    tiling = tiling._replace(programs=min(tiling.programs, -(-x.shape[0] // tiling.rows)))
    shapes = [(tiling.programs, *w.shape) for w in weights]
    call = pl.pallas_call(
        partial(backward_kernel, tiling=tiling),
        out_shape=[jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes],
        out_specs=[pl.BlockSpec((1, *s[1:]), partial(own_block, len(s))) for s in shapes],
        grid=(tiling.programs,),
        compiler_params=tiling.compiler,
        interpret=tiling.interpret,
        name="dense_gradient",
    )
    sums = iter([s.sum(0) for s in call(x, g, *weights)])
    of_layers = tuple((next(sums)[: w.shape[0], : w.shape[1]], next(sums)[: b.shape[0]]) for w, b in layers)
    # the compiler drops this where nobody asks for it: where x is an observation
    of_x = jax.vjp(partial(plain, tiling.activation, layers), x)[1](g)[0]
    return of_layers, of_x


def own_block(ndim: int, i: Array) -> tuple[Any, ...]:
    return (i, *[0] * (ndim - 1))


dense.defvjp(_forward, _backward)


def sizes_of(layers: Layers) -> tuple[int, ...]:
    return (layers[0][0].shape[0], *(b.shape[0] for _, b in layers))


def layers_of(params: Any) -> Layers:
    """The layers of `networks.mlp.MLP` from its parameters."""
    names = [f"dense_{i}" for i in range(len(params) - 1)] + ["head"]
    return tuple((params[name]["kernel"], params[name]["bias"]) for name in names)
