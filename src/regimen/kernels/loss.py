"""One gradient step's sums as one kernel for each dense network: rows are gathered, pass through the network, the loss
is differentiated by the network's output, and the gradient goes back through the layers, all while a tile of rows is on
the chip.

The loss is any function of rows that calls dense networks on what it reads of a row, like that of PPO: it is traced
with the networks' outputs as inputs, and written as operations on single numbers (`scalars.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from regimen import kernels
from regimen.kernels.dense import PROGRAMS, SLOPES, Tiling, hidden, layers_of, padded, product
from regimen.kernels.rollout import MOST_HEADS, MOST_INPUTS, columns, read
from regimen.kernels.scalars import Function, Numbers, PyTree, UnfitError, numbers, trace

MOST_COLUMNS = 64  # of a row


class Call(NamedTuple):
    """A dense network as the loss calls it."""

    activation: str
    names: PyTree  # its parameters, each as the number of its leaf among all
    size: int  # of its output


class Loss:
    """A loss traced for one row. Raises `UnfitError` where it cannot be a kernel."""

    def __init__(self, loss: Callable, params: PyTree, matrix: Array, unpack: Callable):
        leaves, self.tree = jax.tree.flatten(params)
        row = jax.ShapeDtypeStruct((1, matrix.shape[1]), jnp.float32)
        if matrix.shape[1] > MOST_COLUMNS or any(x.dtype != jnp.float32 for x in leaves):
            raise UnfitError("the rows or the parameters")
        self.calls: list[Call] = []

        def watched(heads: Sequence[Array] | None, params: PyTree, row: Array) -> tuple[Any, Any, list[Array]]:
            """The loss, its metrics, and what each network reads; with `heads` as what the networks put out."""
            number = {id(x): i for i, x in enumerate(jax.tree.leaves(params))}
            read, given = [], iter(heads or ())

            def watch(activation: str, apply: Callable, own: PyTree, x: Array) -> Array:
                if any(id(leaf) not in number for leaf in jax.tree.leaves(own)) or x.ndim != 2 or len(x) != 1:
                    raise UnfitError("the parameters of a network")
                read.append(x)
                if heads is not None:
                    return next(given)
                out = jax.eval_shape(apply, own, x)
                self.calls.append(Call(activation, jax.tree.map(lambda leaf: number[id(leaf)], own), out.shape[-1]))
                return jnp.zeros(out.shape, out.dtype)

            token = kernels.WATCH.set(watch)
            try:
                value, metrics = loss(params, unpack(row))
            finally:
                kernels.WATCH.reset(token)
            return value, metrics, read

        jax.eval_shape(partial(watched, None), params, row)
        of_nets = [i for call in self.calls for i in jax.tree.leaves(call.names)]
        if not self.calls or len(set(of_nets)) != len(of_nets):
            raise UnfitError("the networks")
        self.others = [i for i in range(len(leaves)) if i not in of_nets]
        heads = [jax.ShapeDtypeStruct((1, call.size), jnp.float32) for call in self.calls]
        others = [leaves[i] for i in self.others]
        self.widths = [leaves[call.names["dense_0"]["kernel"]].shape[0] for call in self.calls]
        if max(self.widths) > MOST_INPUTS or max(call.size for call in self.calls) > MOST_HEADS:
            raise UnfitError("the networks' inputs and outputs")

        def whole(others: list[Array]) -> PyTree:
            full: list[Any] = [jnp.zeros(x.shape) for x in leaves]
            for i, x in zip(self.others, others):
                full[i] = x
            return jax.tree.unflatten(self.tree, full)

        def inputs(others: list[Array], heads: list[Array], row: Array) -> list[Array]:
            return watched(heads, whole(others), row)[2]

        def outputs(others: list[Array], heads: list[Array], row: Array) -> tuple[Any, Any, Any]:
            def value(others: list[Array], heads: list[Array]) -> tuple[Array, Any]:
                per_row, metrics, _ = watched(heads, whole(others), row)
                return per_row.sum(), metrics

            (of_others, of_heads), metrics = jax.grad(value, argnums=(0, 1), has_aux=True)(others, heads)
            return of_others, of_heads, metrics

        self.inputs = trace(inputs, others, heads, row)
        if any(self.inputs.uses(i) for i in range(len(others) + len(heads))):
            raise UnfitError("a network that reads what is learned: of an encoder, a memory or another network")
        last = len(heads) - 1
        self.parts: list[Function] = []  # of each network: its output's gradient; the last one has all the rest
        for k in range(len(heads)):

            def part(*examples: Any, k: int = k) -> tuple[Any, ...]:
                of_others, of_heads, metrics = outputs(*examples)
                return (of_heads[k], of_others, metrics) if k == last else (of_heads[k],)

            function = trace(part, others, heads, row)
            if any(function.uses(len(others) + j) for j in range(k + 1, len(heads))):
                raise UnfitError("a gradient that needs a later network")
            self.parts.append(function)

    def gradient(self, params: PyTree, matrix: Array, index: Array, count: Array, interpret: bool) -> tuple[Any, Any]:
        """Sums over the first `count` of the rows with these indices: the gradient, and the metrics."""
        leaves = jax.tree.leaves(params)
        others = [leaves[i] for i in self.others]
        grads: list[Any] = [None] * len(leaves)
        heads: list[Array] = []
        rest: list[Array] = []
        for k, call in enumerate(self.calls):
            layers = layers_of(jax.tree.map(lambda i: leaves[i], call.names))
            net = Net(self, k, layers, index.shape[0], interpret)
            head, sums = net.run(others, heads, matrix, index, count)
            heads.append(head)
            for name, (w, b), (i, j) in zip(net.names, layers, net.leaves()):
                grads[name["kernel"]], grads[name["bias"]] = sums[i][: w.shape[0], : w.shape[1]], sums[j][: b.shape[0]]
            rest = sums[2 * len(layers) :]
        of_others, metrics = self.parts[-1].out[1:]
        values = iter(rest)
        for i, like in zip(self.others, of_others):
            grads[i] = (
                jnp.stack([next(values) for _ in range(like.size)]).reshape(like.shape) if like.size else leaves[i]
            )
        named = jax.tree.map(lambda like: next(values), metrics)
        return jax.tree.unflatten(self.tree, grads), named


class Net:
    """The kernel of one network of a loss."""

    def __init__(self, loss: Loss, k: int, layers: Any, rows: int, interpret: bool):
        self.loss, self.k, self.layers, self.rows = loss, k, layers, rows
        call = loss.calls[k]
        tile = 32 if rows >= 32 * PROGRAMS else 16  # with 64 rows the registers do not suffice
        wide = max(w.shape[1] for w, _ in layers) > 64
        tiles = -(-rows // tile)
        self.tiling = Tiling(call.activation, tile, 8 if wide else 4, min(PROGRAMS, tiles), interpret)
        self.tiles = tiles
        self.names = [call.names[f"dense_{i}"] for i in range(len(layers) - 1)] + [call.names["head"]]
        self.part = loss.parts[k]
        self.last = k == len(loss.calls) - 1
        self.shapes = [w.shape for w in jax.eval_shape(padded, layers)]
        self.scalars = sum(math.prod(x.shape) for x in jax.tree.leaves(self.part.out[1:]))
        sizes = [math.prod(s) for s in self.shapes] + [1] * self.scalars
        self.ends = np.cumsum([0, *sizes])

    def leaves(self) -> list[tuple[int, int]]:
        return [(2 * i, 2 * i + 1) for i in range(len(self.layers))]

    def run(
        self, others: list[Array], heads: list[Array], matrix: Array, index: Array, count: Array
    ) -> tuple[Array, list[Array]]:
        """What the network puts out [W, out], and sums of its gradients and of the metrics."""
        common = [*self.part.captured, *self.loss.inputs.captured, *others]
        self.common = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in common]
        self.before = len(heads)
        shapes = [
            jax.ShapeDtypeStruct((self.rows, self.loss.calls[self.k].size), jnp.float32),
            jax.ShapeDtypeStruct((self.tiling.programs, int(self.ends[-1])), jnp.float32),
        ]
        call = pl.pallas_call(
            self.kernel,
            out_shape=shapes,
            grid=(self.tiling.programs,),
            compiler_params=self.tiling.compiler,
            interpret=self.tiling.interpret,
            name="loss_gradient",
        )
        counted = jnp.reshape(count, (1,)).astype(jnp.int32)
        head, sums = call(matrix, index, counted, *heads, *padded(self.layers), *(columns(x, 0) for x in common))
        total = sums.sum(0)
        parts = [total[a:b] for a, b in zip(self.ends, self.ends[1:])]
        shaped = [x.reshape(s) for x, s in zip(parts, self.shapes)]
        return head, [*shaped, *(x[0] for x in parts[len(shaped) :])]

    def kernel(self, matrix: Any, index: Any, counted: Any, *refs: Any) -> None:
        how, loss, width = self.tiling, self.loss, len(self.shapes)
        heads_before, refs = refs[: self.before], refs[self.before :]
        weights = [r[...] for r in refs[:width]]
        common = [read(r, (), x) for r, x in zip(refs[width:], self.common)]
        head_out, sums_out = refs[-2:]
        captured = len(self.part.captured)
        more = len(loss.inputs.captured)
        mine, for_inputs, others = common[:captured], common[captured : captured + more], common[captured + more :]
        me, count, out = pl.program_id(0), counted[0], loss.calls[self.k].size
        block = how.rows

        def tile(i: Array, carry: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Any:
            sums, scalars = carry
            place = (me + i * how.programs) * block + lax.broadcasted_iota(jnp.int32, (block,), 0)
            inside = place < self.rows
            where = triton.load(index.at[place], mask=inside, other=0)
            weight = (place < count).astype(jnp.float32)
            row = numbers([matrix[where, j] for j in range(matrix.shape[1])], (1, matrix.shape[1]), jnp.float32)
            empty = [numbers([jnp.float32(0)] * c.size, (1, c.size), jnp.float32) for c in loss.calls]
            x = loss.inputs([*for_inputs, *others, *empty, row])[self.k]
            values = hidden(self.joined(x, weights[0].shape[0]), weights, how.activation)
            y = product(values[-1], weights[-2]) + weights[-1][None, :]
            head = [self.column(y, j) for j in range(out)]
            for j, value in enumerate(head):
                triton.store(head_out.at[place, j], value, mask=inside)
            earlier = [
                numbers(
                    [triton.load(r.at[place, j], mask=inside, other=0.0) for j in range(r.shape[1])],
                    (1, r.shape[1]),
                    jnp.float32,
                )
                for r in heads_before
            ]
            given = [*earlier, numbers(head, (1, out), jnp.float32), *empty[self.k + 1 :]]
            of_head, *rest = self.part([*mine, *others, *given, row])
            g = self.joined(of_head, weights[-1].shape[0]) * weight[:, None]
            parts: list[Array] = []
            for n in reversed(range(len(values))):
                parts = [product(values[n], g, (0, 0)), g.sum(0), *parts]
                if n:
                    g = product(g, weights[2 * n], (1, 1)) * SLOPES[how.activation](values[n])
            flat = [self.block_of(v) * weight for x in rest for v in x.items.reshape(-1)]
            return tuple(a + b for a, b in zip(sums, parts)), tuple(a + b for a, b in zip(scalars, flat))

        zeros = tuple(jnp.zeros(s, jnp.float32) for s in self.shapes)
        start = zeros, tuple(jnp.zeros((block,), jnp.float32) for _ in range(self.scalars))
        turns = (self.tiles - me + how.programs - 1) // how.programs
        sums, scalars = lax.fori_loop(0, turns, tile, start)
        for begin, value in zip(self.ends, sums):
            at = int(begin) + sum(
                lax.broadcasted_iota(jnp.int32, value.shape, d) * math.prod(value.shape[d + 1 :])
                for d in range(value.ndim)
            )
            triton.store(sums_out.at[jnp.zeros(value.shape, jnp.int32) + me, at], value)
        for begin, value in zip(self.ends[len(sums) :], scalars):
            sums_out[me, int(begin)] = value.sum()

    def joined(self, x: Numbers, width: int) -> Array:
        """Numbers side by side [R, width], zeros behind them."""
        column = lax.broadcasted_iota(jnp.int32, (self.tiling.rows, width), 1)
        out = jnp.zeros((self.tiling.rows, width), jnp.float32)
        for j, value in enumerate(x.items.reshape(-1)):
            out = jnp.where(column == j, self.block_of(value)[:, None], out)
        return out

    def column(self, y: Array, j: int) -> Array:
        """One column [R] of a tile."""
        place = lax.broadcasted_iota(jnp.int32, y.shape, 1)
        return jnp.where(place == j, y, 0.0).sum(1)

    def block_of(self, value: Any) -> Array:
        value = jnp.asarray(value, jnp.float32)
        return jnp.broadcast_to(value, (self.tiling.rows,)) if value.shape == () else value
