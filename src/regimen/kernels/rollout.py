"""A whole rollout of small environments as one kernel: the policy, the step and the reset of a block of environments,
step after step, without a launch in between.

XLA launches a dozen kernels for each env step, each of which takes microseconds however few environments there are.
Here a program of the GPU keeps its environments in registers through the whole rollout and writes only the rows of the
batch. What an environment draws at random it has to draw in its reset: all resets are computed beforehand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from regimen.kernels import dense, fits
from regimen.kernels.dense import ACTIVATIONS, Layers, Tiling, padded, product
from regimen.kernels.scalars import Function, Numbers, PyTree, UnfitError, numbers, trace

MOST_BYTES = 2**31  # of what is computed beforehand and of the rows
MOST_INPUTS = 32  # numbers that the network reads of one environment
MOST_HEADS = 16


class DensePolicy(NamedTuple):
    """A policy whose network is dense, and functions of one environment around it, written for rows [1, ...]."""

    activation: str
    layers: Layers
    common: PyTree  # what else the functions need, the same for every environment
    read: Callable[[PyTree, PyTree], Array]  # (common, obs) -> x [1, in]
    choose: Callable[[PyTree, Array, PyTree], tuple[PyTree, PyTree]]  # (common, head, noise) -> action, extras


class Rollout(NamedTuple):
    """What a kernel is made of. `after(common, carry, head, given) -> (row, carry)` is one step of one environment."""

    policy: DensePolicy
    before: Function  # (common, carry) -> x
    after: Function

    @classmethod
    def of(
        cls,
        policy: DensePolicy,
        after: Callable,
        common: PyTree,
        carry: PyTree,
        given: PyTree,
        observed: Callable[[PyTree], PyTree] = lambda carry: carry.obs,
    ) -> Rollout:
        """Raises `UnfitError` where it cannot be a kernel. `carry` is [E, ...], `given` [T, E, ...]; `observed` is what
        of the carry the policy reads."""
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), carry)
        one_given = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[2:]), x.dtype), given)
        sizes = dense.sizes_of(policy.layers)
        envs = jax.tree.leaves(carry)[0].shape[0]
        if envs % 16 or sizes[0] > MOST_INPUTS or sizes[-1] > MOST_HEADS or not fits(policy.activation, sizes):
            raise UnfitError("the shapes of the environments or of the network")
        head = jax.ShapeDtypeStruct((1, sizes[-1]), jnp.float32)
        before = trace(lambda common, carry: policy.read(common["policy"], observed(carry)), common, one)
        function = trace(after, common, one, head, one_given)
        if before.captured or function.captured:
            raise UnfitError("a policy or an environment that is not all data")
        if jax.tree.structure(function.out[1]) != jax.tree.structure(carry):
            raise UnfitError("the carry")
        rows = sum(math.prod(x.shape) for x in jax.tree.leaves((function.out[0], one_given)))
        steps = jax.tree.leaves(given)[0].shape[0]
        if 4 * rows * steps * envs > MOST_BYTES:
            raise UnfitError("the memory")
        return cls(policy, before, function)

    def run(self, common: PyTree, carry: PyTree, given: PyTree, interpret: bool) -> tuple[PyTree, PyTree]:
        """T steps of E environments: (carry [E, ...], rows [T, E, ...])."""
        steps, envs = jax.tree.leaves(given)[0].shape[:2]
        block = block_of(envs)
        tiling = Tiling(self.policy.activation, warps=4, interpret=interpret)
        row_shapes = jax.tree.leaves(self.after.out[0])
        carry_shapes, tree = jax.tree.flatten(self.after.out[1])
        fixed = self.after.fixed()[: len(row_shapes)]  # rows that are the same at every step of every environment
        written = [x for x, value in zip(row_shapes, fixed) if value is None]
        weights = padded(self.policy.layers)
        first, last = self.policy.layers[0][0], self.policy.layers[-1][0]
        weights[0] = weights[0][: first.shape[0]]  # [in, width]: read by row
        weights[-2] = weights[-2].T[: last.shape[1]]  # [out, width]: by output
        kernel = Kernel(self, tiling, steps, block, carry_shapes, jax.tree.leaves(common), fixed, len(weights))
        shapes = [jax.ShapeDtypeStruct((steps, envs, size_of(x)), stored(x.dtype)) for x in written]
        shapes += [jax.ShapeDtypeStruct((envs, size_of(x)), stored(x.dtype)) for x in carry_shapes]
        call = pl.pallas_call(
            kernel,
            out_shape=shapes,
            grid=(envs // block,),
            compiler_params=tiling.compiler,
            interpret=interpret,
            name="rollout",
        )
        outs = iter(
            call(
                *weights,
                *(columns(x, 0) for x in jax.tree.leaves(common)),
                *(columns(x, 1) for x in jax.tree.leaves(carry)),
                *(columns(x, 2) for x in jax.tree.leaves(given)),
            )
        )
        rows = [
            jnp.broadcast_to(value[0], (steps, envs, *x.shape[1:])).astype(x.dtype)
            if value is not None
            else array_of(next(outs), x, (steps, envs))
            for x, value in zip(row_shapes, fixed)
        ]
        ends = [array_of(next(outs), x, (envs,)) for x in carry_shapes]
        return jax.tree.unflatten(tree, ends), jax.tree.unflatten(jax.tree.structure(self.after.out[0]), rows)


class Kernel:
    """The kernel's body. Its arguments are weights, common numbers, the carry, what is given, the rows, the carry."""

    def __init__(
        self, rollout: Rollout, tiling: Tiling, steps: int, block: int, carry: list, common: list, fixed, weights
    ):
        self.rollout, self.tiling, self.steps, self.block = rollout, tiling, steps, block
        self.carry, self.common, self.fixed, self.weights = carry, common, fixed, weights
        self.given = rollout.after.shapes[len(common) + len(carry) + 1 :]
        self.__name__ = "rollout"

    def __call__(self, *refs: Any) -> None:
        written = sum(value is None for value in self.fixed)
        sizes = self.weights, len(self.common), len(self.carry), len(self.given), written, len(self.carry)
        ends = np.cumsum((0, *sizes))
        weights, common, carry, given, rows, last = (refs[a:b] for a, b in itertools.pairwise(ends))
        envs = pl.ds(pl.program_id(0) * self.block, self.block)
        network = self.network(weights)
        shared = [read(r, (), x) for r, x in zip(common, self.common)]
        start = [read(r, (envs,), x) for r, x in zip(carry, self.carry)]

        def step(t: Array, flat: list[Array]) -> list[Array]:
            now = self.numbers_of(flat)
            (x,) = self.rollout.before([*shared, *now])
            inputs = [read(r, (t, envs), x) for r, x in zip(given, self.given)]
            out = self.rollout.after([*shared, *now, network(x), *inputs])
            values = [value for value, constant in zip(out, self.fixed) if constant is None]
            for ref, value in zip(rows, values, strict=True):
                self.write(ref, (t, envs), value)
            return self.blocks_of(out[len(self.fixed) :])

        flat = lax.fori_loop(0, self.steps, step, self.blocks_of(start))
        for ref, value in zip(last, self.numbers_of(flat)):
            self.write(ref, (envs,), value)

    def network(self, refs: Sequence[Any]) -> Callable[[Numbers], Numbers]:
        """The policy's network: its first layer from single numbers, its last one to single numbers."""
        first, last = refs[0], refs[-2]
        activation = ACTIVATIONS[self.tiling.activation]
        first_rows = [first[i, :] for i in range(first.shape[0])]
        biases = [r[...] for r in refs[1::2][:-1]]
        middle = [r[...] for r in refs[2:-2:2]]
        last_rows = [last[i, :] for i in range(last.shape[0])]
        last_bias = refs[-1]

        def apply(x: Numbers) -> Numbers:
            terms = [self.block_of(v, x.dtype)[:, None] * w[None, :] for v, w in zip(x.items.reshape(-1), first_rows)]
            h = activation(sum(terms[1:], terms[0]) + biases[0][None, :])
            for w, b in zip(middle, biases[1:]):
                h = activation(product(h, w) + b[None, :])
            heads = [jnp.sum(h * w[None, :], axis=1) + last_bias[i] for i, w in enumerate(last_rows)]
            return numbers(heads, (1, len(heads)), jnp.float32)

        return apply

    def block_of(self, value: Any, dtype: Any) -> Array:
        value = jnp.asarray(value, dtype).astype(stored(dtype))
        return jnp.broadcast_to(value, (self.block,)) if value.shape == () else value

    def blocks_of(self, arrays: Sequence[Numbers]) -> list[Array]:
        return [self.block_of(v, x.dtype) for x in arrays for v in x.items.reshape(-1)]

    def numbers_of(self, flat: Sequence[Array]) -> list[Numbers]:
        """The carry again from its blocks."""
        out, blocks = [], iter(flat)
        for x in self.carry:
            values = [next(blocks) for _ in range(math.prod(x.shape))]
            out.append(numbers([as_given(v, x.dtype) for v in values], x.shape, x.dtype))
        return out

    def write(self, ref: Any, index: tuple, x: Numbers) -> None:
        for j, value in enumerate(x.items.reshape(-1)):
            ref[(*index, j)] = self.block_of(value, x.dtype)


def block_of(envs: int) -> int:
    """Environments of one program: as few as matrix units take while programs fit the GPU, then more."""
    return next((b for b in (64, 32) if envs % b == 0 and envs // b >= 256), 16)


def read(ref: Any, index: tuple, like: Any) -> Numbers:
    values = [as_given(ref[(*index, j)], like.dtype) for j in range(math.prod(like.shape))]
    return numbers(values, like.shape, like.dtype)


def as_given(value: Array, dtype: Any) -> Array:
    return value != 0 if jnp.dtype(dtype) == jnp.bool_ else value


def stored(dtype: Any) -> Any:
    """The type that numbers of this one have in a kernel's arrays."""
    return jnp.dtype(jnp.int32) if jnp.dtype(dtype) == jnp.bool_ else jnp.dtype(dtype)


def size_of(x: Any) -> int:
    return max(1, math.prod(x.shape))


def columns(x: Any, lead: int) -> Array:
    """[*lead, ...] as [*lead, K]."""
    x = jnp.asarray(x)
    x = x.astype(stored(x.dtype)).reshape(*x.shape[:lead], math.prod(x.shape[lead:]))
    return x if x.shape[-1] else jnp.zeros((*x.shape[:lead], 1), x.dtype)  # without numbers: is not read


def array_of(out: Array, like: Any, lead: tuple[int, ...]) -> Array:
    """What `columns` makes of an array as the array again."""
    shape = (*lead, *like.shape[1:])
    return out.astype(like.dtype).reshape(shape) if math.prod(shape) else jnp.zeros(shape, like.dtype)
